"""What all tests share: how hard hypothesis tries, and that it minds no time, since no test does.

``BOXMAKER_PROFILE`` names a profile (docs/reliability.md, "Stateful property suite"):

- ``fast``, the default: the same cases each time, so that a red run is the fault of the change at hand and is
  red for everybody;
- ``deep``: ten times as many, others each time, for finding what nobody thought of;
- ``mutants``: few, for judging many changes of the core by the same tests.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("fast", _COMMON, derandomize=True, stateful_step_count=12)
settings.register_profile("deep", _COMMON, max_examples=1000, stateful_step_count=20)
settings.register_profile(
    "mutants", _COMMON, derandomize=True, max_examples=25, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("BOXMAKER_PROFILE", "fast"))
