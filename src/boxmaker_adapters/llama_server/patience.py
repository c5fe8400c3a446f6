"""How often a request is tried again and how long before; pure but for the clock that bounds loading.

A connection that broke, and a failure that the server may get over, are tried again after each of
`RETRY_SECONDS`; output that the server could not parse `RESAMPLES` times; a server that loads its model
every `LOAD_POLL_SECONDS`. What a server asks for in ``Retry-After`` goes first.
"""

from __future__ import annotations

import time
from typing import NoReturn

from attrs import define

from boxmaker_core.errors import InferenceError

from .failures import Again, Verdict

RETRY_SECONDS = (0.5, 1.0, 2.0)
RESAMPLES = 2
LOAD_POLL_SECONDS = 1.0


@define(eq=False, kw_only=True)
class Patience:
    """For one request. ``attempts`` were made; `load_timeout` is in seconds."""

    load_timeout: float
    attempts: int = 0
    _failures: int = 0
    _resamples: int = 0
    _loading: float = 0.0
    _loading_since: float | None = None

    def delay(self, failed: Again) -> float:
        """Seconds until the next attempt. Raises InferenceError if there is none."""
        self.attempts += 1
        match failed.verdict:
            case Verdict.LOADING:
                return self._until_loaded(failed)
            case Verdict.RESAMPLE:
                self._resamples += 1
                if self._resamples > RESAMPLES:
                    self._give_up(
                        failed, "its model keeps writing what its own parser refuses: ask otherwise"
                    )
                wait = RETRY_SECONDS[self._resamples - 1]
            case _:
                self._failures += 1
                if self._failures > len(RETRY_SECONDS):
                    self._give_up(failed, "")
                wait = RETRY_SECONDS[self._failures - 1]
        return wait if failed.after is None else failed.after

    def _until_loaded(self, failed: Again) -> float:
        now = time.monotonic()
        if self._loading_since is None:
            self._loading_since = now
        if max(self._loading, now - self._loading_since) >= self.load_timeout:
            raise InferenceError(
                f"{failed.detail} for {self.load_timeout:g} s (load_timeout):"
                " see llama-server's log, or allow it more time"
            )
        wait = LOAD_POLL_SECONDS if failed.after is None else failed.after
        self._loading += max(wait, LOAD_POLL_SECONDS)
        return wait

    def _give_up(self, failed: Again, remedy: str) -> NoReturn:
        raise InferenceError(
            f"{failed.detail} (attempt {self.attempts}, the last)" + (f": {remedy}" if remedy else "")
        )
