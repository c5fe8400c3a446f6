"""The baseline of a new session: from the system text and the memory file of the day, within its budget.

What is assembled, and how, is ``boxmaker_core.baseline``; here are the files and the count.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from attrs import define, evolve, field

from boxmaker_core import records
from boxmaker_core.baseline import Baseline, assemble
from boxmaker_core.errors import BaselineError, InferenceError
from boxmaker_core.messages import SessionId
from boxmaker_core.ports import Clock, Inference, Request, Settling
from boxmaker_core.tools import CORE

from .config import Config
from .table import printable

TEXT_BYTES = 1024 * 1024
"""Most bytes of the system text and of the memory file; far more than any budget takes."""


@define(eq=False)
class BaselineSource:
    """Makes the baseline of each new session from the files of the day, within the token budget."""

    config: Config
    inference: Inference
    clock: Clock
    _counted: dict[str, Baseline] = field(factory=dict, init=False)
    """Those within the budget, as they were settled, by the hash of what they were settled from."""

    def __call__(self) -> Baseline:
        """Raises BaselineError, and InferenceError for a new baseline that the server cannot count.

        One that was counted before passes without the server, settled as it was then: the completion that
        follows waits for a server that is only loading, and says what is wrong with another.
        """
        baseline = self.assemble()
        try:
            self.check(baseline)
        except InferenceError:
            if baseline.sha256 not in self._counted:
                raise
        return self._counted[baseline.sha256]

    def _settled(self, baseline: Baseline) -> Baseline:
        """As the driver wants it for the server at hand. Raises InferenceError."""
        if not callable(getattr(type(self.inference), "settle", None)):
            return baseline
        return cast(Settling, self.inference).settle(baseline)

    def assemble(self) -> Baseline:
        """From the system text, ``<home>/memory/core.md`` and the template's arguments in the configuration,
        neither settled nor counted. Raises BaselineError."""
        system = _read_text(self.config.baseline.system, "the system text ([baseline] system)")
        if system is None:
            raise BaselineError(
                f"there is no system text at {printable(self.config.baseline.system)}:"
                " write one, or name it with [baseline] system"
            )
        memory = _read_text(self.core_file, "the memory file")
        arguments = self.config.inference.template_kwargs
        return evolve(assemble(system, CORE, memory or ""), chat_template_kwargs=arguments)

    @property
    def core_file(self) -> Path:
        return self.config.home / "memory" / "core.md"

    def check(self, baseline: Baseline) -> int | None:
        """The tokens of an assembled baseline, once it is settled; None if the server cannot tell.

        Raises BaselineError over budget, InferenceError.
        """
        settled = self._settled(baseline)
        tokens = self.inference.count(self._request(settled))
        budget = self.config.baseline.token_budget
        if tokens is not None and tokens > budget:
            raise BaselineError(
                f"the baseline has {tokens} tokens, the budget is {budget}: shorten"
                f" {printable(self.config.baseline.system)} or {printable(self.core_file)},"
                " or raise [baseline] token_budget"
            )
        self._counted[baseline.sha256] = settled
        return tokens

    def _request(self, baseline: Baseline) -> Request:
        """The smallest request there is: a conversation of one short message."""
        time = self.clock()
        start = records.SessionStart(
            time=time,
            session=SessionId("x"),
            epoch=0,
            slot=self.config.slots.main[0],
            baseline=baseline.sha256,
        )
        user = records.User(time=time, content="x")
        return Request(baseline=baseline, records=(start, user), slot=self.config.slots.main[0])


def _read_text(path: Path, what: str) -> str | None:
    """The text in a file, None if there is no such file. Raises BaselineError."""
    try:
        with path.open("rb") as stream:
            data = stream.read(TEXT_BYTES + 1)
        if len(data) > TEXT_BYTES:
            raise BaselineError(f"{what}, {printable(path)}, has more than {TEXT_BYTES} bytes: shorten it")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError(f"{what}, {printable(path)}, cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BaselineError(
            f"{what}, {printable(path)}, is not UTF-8 in line {line}: save it as UTF-8"
        ) from None
