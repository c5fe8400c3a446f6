"""A real daemon killed at some random moments of tool turns; many more are in ``make crash``."""

from __future__ import annotations

import os
import random

from fakes.channels import short_folder
from fakes.kills import Killer

KILLS = 8
SEED = int(os.environ.get("BOXMAKER_SEED") or random.SystemRandom().getrandbits(32))


def test_what_was_told_outlives_a_kill() -> None:
    with short_folder() as folder:
        report = Killer(folder, SEED).run(KILLS)
    assert (report.moments, report.broken) == (KILLS, []), f"BOXMAKER_SEED={SEED} runs this again\n{report}"
