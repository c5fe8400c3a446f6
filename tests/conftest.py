"""What all tests share: no test asserts how long anything takes, so hypothesis does not either."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("boxmaker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("boxmaker")
