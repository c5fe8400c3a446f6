"""The inference contract, function by function, on a real engine."""

from __future__ import annotations

import pytest
from contract.test_inference import *  # noqa: F403 - all of its tests, so that none is forgotten here
from fakes.places import Place, RealPlace
from fakes.real_engine import Server


@pytest.fixture(scope="session")
def place(server: Server) -> Place:
    """In the place of the contract's own."""
    return RealPlace(server)
