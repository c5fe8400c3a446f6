"""A chat with a daemon: reads lines, runs a turn for each, shows what happens; ``render`` makes the text.

Nothing is kept here but which session it is and whether it is there yet: the conversation lives in the
daemon's log.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from attrs import define, field, frozen

from boxmaker_adapters.channel_client import START, ChannelClient
from boxmaker_adapters.channel_protocol import (
    ChannelError,
    Error,
    ErrorCode,
    Message,
    TurnDone,
    TurnEvent,
    to_frame,
)
from boxmaker_core.messages import SessionId

from .program import INTERRUPTED, say
from .render import Screen, clean, line

if TYPE_CHECKING:
    from .cache import Stats

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_UNDECIDED = {ErrorCode.BAD_FRAME, ErrorCode.BAD_VERSION, ErrorCode.BAD_MESSAGE, ErrorCode.INTERNAL}
"""Codes that may be said of a session that is not there."""


@frozen(kw_only=True)
class Options:
    """What the command line asked for. ``session``: an id to resume or create; None makes one up."""

    socket: Path
    session: str | None = None
    thinking: bool = True
    say: str | None = None
    as_json: bool = False
    go_on: str = "bxctl chat"
    """The command that goes on with the session, but for ``--session ID``."""
    alone: bool = False
    """Whether the daemon is there for this chat, and ends with it."""
    stats: Path | None = None
    """The home to read the cache's figures in after each turn; None for no figures."""


def run(options: Options) -> int:
    """Chat; the exit status. Errors of a turn are shown, not raised."""
    session = _Session.named(options.session) if options.session is not None else _Session.new()
    start = f"leave this chat, then: {options.go_on} --session {session.id}" if options.alone else START
    client = ChannelClient(options.socket, start=start, go_on=options.go_on)
    chat = _Chat(options, client, session)
    try:
        if options.say is not None:
            return chat.one(utf8(os.fsencode(options.say)))
        return chat.many()
    except KeyboardInterrupt:
        finishes = "" if options.alone else "; loopd finishes a turn that runs"
        say(f"\nleft{finishes}; go on with: {options.go_on} --session {session.id}")
        return INTERRUPTED


def utf8(data: bytes) -> str:
    """Text that a person typed or piped; what is no UTF-8 becomes U+FFFD, and they are told."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        say("note: the message is not UTF-8; what could not be read was replaced")
        return data.decode(errors="replace")


@define
class _Session:
    """Which session, whether to ask for it as an old one, and whether its state was told."""

    id: str
    resume: bool
    told: bool

    @classmethod
    def new(cls) -> _Session:
        from datetime import UTC, datetime
        from secrets import choice

        suffix = "".join(choice(_ALPHABET) for _ in range(4))
        return cls(f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{suffix}", resume=False, told=True)

    @classmethod
    def named(cls, name: str) -> _Session:
        return cls(name, resume=True, told=False)

    def settle(self, message: Message) -> None:
        """Learn from a turn's first message that the session is there, and say which it is."""
        if isinstance(message, Error) and message.code in _UNDECIDED:
            return
        if not self.told:
            say(f"session {self.id} is {'resumed' if self.resume else 'new'}")
            self.told = True
        self.resume = True


@define
class _Chat:
    options: Options
    client: ChannelClient
    session: _Session
    _out: _Out = field(factory=lambda: _Out(sys.stdout), init=False)
    _stats: Stats | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if self.options.stats is not None:
            from .cache import Stats

            self._stats = Stats(self.options.stats)

    def one(self, text: str) -> int:
        """``--say``: the answer alone on standard output, or the error on the other one."""
        if self.session.told:
            say(f"session {self.session.id}")
        status = 0
        try:
            for message in self._turn(text):
                if self.options.as_json:
                    self._out.body(message)
                match message:
                    case TurnDone(content=content) if not self.options.as_json:
                        self._out.write(clean(content) + ("" if content.endswith("\n") else "\n"))
                    case Error(code=code, detail=detail):
                        _say_error(code.value, detail)
                        status = 1
        except ChannelError as error:
            _say_error("", str(error))
            status = 1
        return status

    def many(self) -> int:
        """A turn for each line of standard input. Status 1 only if no daemon is there to begin with."""
        try:
            self.client.probe()
        except ChannelError as error:
            _say_error("", str(error))
            return 1
        if self.options.as_json:
            say(f"session {self.session.id}")
        else:
            self._out.write(f"session {self.session.id}\n")
        for text in self._lines():
            try:
                if self.options.as_json:
                    for message in self._turn(text):
                        self._out.body(message)
                else:
                    self._show(text)
            except ChannelError as error:
                _say_error("", str(error))
        return 0

    def _show(self, text: str) -> None:
        screen = Screen(color=self._out.color, thinking=self.options.thinking)
        try:
            for message in self._turn(text):
                match message:
                    case TurnEvent(event=event):
                        self._out.write(screen.event(event))
                    case TurnDone(content=content):
                        self._out.write(screen.done(content))
                    case Error(code=code, detail=detail):
                        self._out.write(screen.failed(code.value, detail))
        except BaseException:
            # Whatever is said next, a prompt or an error, starts on a line of its own.
            self._out.write(screen.broken_off())
            raise

    def _turn(self, text: str) -> Iterator[Message]:
        """The messages of a turn. Whether the session exists is guessed, and the daemon corrects it."""
        corrected = False
        while True:
            wrong = ErrorCode.NO_SUCH_SESSION if self.session.resume else ErrorCode.SESSION_EXISTS
            first, ran = True, False
            for message in self.client.turn(self.session.id, text, resume=self.session.resume):
                if isinstance(message, Error) and message.code is wrong and not corrected:
                    if self.options.as_json:
                        self._out.body(message)
                    break
                if first:
                    self.session.settle(message)
                    first = False
                ran = ran or not isinstance(message, Error)
                yield message
            else:
                if ran and self._stats is not None:
                    self._stats.tell(SessionId(self.session.id))
                return
            self.session.resume = not self.session.resume
            corrected = True

    def _lines(self) -> Iterator[str]:
        """The lines of standard input that say something, until its end or ``/quit``."""
        source: BinaryIO | None = getattr(sys.stdin, "buffer", None)
        if source is None:
            return
        asking = self._out.terminal and source.isatty() and not self.options.as_json
        while True:
            if asking:
                self._out.write("> ")
            data = source.readline()
            if not data:
                if asking:
                    self._out.write("\n")
                return
            data = data.removesuffix(b"\n").removesuffix(b"\r")
            if data.strip() == b"/quit":
                return
            if data.strip():
                yield utf8(data)


class _Out:
    """Standard output, written through at once. A closed one takes everything and shows nothing."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.terminal = stream is not None and stream.isatty()
        self.color = (
            self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
        )

    def write(self, text: str) -> None:
        if text and self._stream is not None:
            self._stream.write(text)
            self._stream.flush()

    def body(self, message: Message) -> None:
        """The body of the message's frame as one line of JSON, in ASCII."""
        self.write(json.dumps(to_frame(message, 0).body, separators=(",", ":")) + "\n")


def _say_error(code: str, detail: str) -> None:
    say(f"error {line(code, 40)}: {line(detail, 2000)}" if code else f"error: {line(detail, 2000)}")
