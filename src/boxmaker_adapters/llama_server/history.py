"""The messages of a session as JSON, grown record by record; pure. The rest of a request is ``encode``'s.

A message becomes text at once, without a value in between, and what was taken once is not looked at again: a
log of any length is read for every turn, and a turn asks again after each of its calls.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from json.encoder import encode_basestring as quoted
from typing import assert_never

from boxmaker_core import records
from boxmaker_core.baseline import Form
from boxmaker_core.messages import ToolCall
from boxmaker_core.records import LogRecord
from boxmaker_core.tools import BadArguments, parse_arguments

BRIDGE = "(no answer)"
"""The assistant's words between two messages that some templates refuse next to each other."""

_ID_LENGTH = 9  # what Mistral's templates insist on
_ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_STRIDE = 1 << 20  # above any count of calls in a message, so that ids of one message stay apart

_TEXT = r'"[^"\\\x00-\x1f\ud800-\udfff]*"'
_SIMPLE = rf"(?:{_TEXT}|-?(?:0|[1-9][0-9]{{0,14}})|true|false|null)"


def _object(value: str) -> str:
    pair = rf" ?{_TEXT} ?: ?{value}"
    return rf"\{{(?:{pair}(?:,{pair})*)? ?\}}"


_USUAL = re.compile(_object(rf"(?:{_SIMPLE}|{_object(_SIMPLE)})"))
"""Arguments of this form are an object for sure; `parse_arguments` says so too, ten times slower."""
_USUAL_LENGTH = 4096


class History:
    """What a session's records come to, in ``data``: messages as JSON with commas between them, the system's
    first. It only ever grows at its end."""

    def __init__(self, system: str, form: Form) -> None:
        self.data = bytearray(_encoded([_text("system", system)]))
        self._verbatim = form is Form.VERBATIM
        self._taken = 0
        self._awaited: deque[str] = deque()
        self._bridge = False

    def take(self, log: Sequence[LogRecord]) -> None:
        """Take a log that begins with the one that was taken before."""
        new: list[str] = []
        for number, record in enumerate(log[self._taken :], self._taken):
            self._take(number, record, new)
        self._taken = len(log)
        if new:
            self.data += b"," + _encoded(new)

    def _take(self, number: int, record: LogRecord, new: list[str]) -> None:
        match record:  # what there is most of comes first
            case records.Usage():
                pass
            case records.Assistant():
                ids = call_ids(number, record.tool_calls) if record.tool_calls else []
                self._awaited.extend(ids)
                verbatim = self._verbatim and record.raw is not None
                new.append(_text("assistant", record.raw or "") if verbatim else _assistant(record, ids))
                self._bridge = False
            case records.ToolResult():
                sent = self._awaited.popleft() if self._awaited else record.tool_call_id
                content = quoted(record.content)
                new.append(f'{{"role":"tool","tool_call_id":{quoted(sent)},"content":{content}}}')
                self._bridge = True
            case records.User():
                if self._bridge:
                    new.append(_text("assistant", BRIDGE))
                new.append(_text("user", record.content))
                self._bridge = True
            case records.SessionStart() | records.CacheLoss() | records.EpochEnd():
                pass
            case _:
                assert_never(record)


def _encoded(texts: Sequence[str]) -> bytes:
    """Half a surrogate pair, which only a log edited by hand can hold, must not end a session."""
    return ",".join(texts).encode(errors="replace")


def _text(role: str, content: str) -> str:
    return f'{{"role":"{role}","content":{quoted(content)}}}'


def _assistant(record: records.Assistant, ids: Sequence[str]) -> str:
    """Content is always a text: without it a message that has nothing else is refused for ever. A null
    reasoning_content would be as well, so it is left out."""
    message = f'{{"role":"assistant","content":{quoted(record.content or "")}'
    if record.reasoning_content is not None:
        message += f',"reasoning_content":{quoted(record.reasoning_content)}'
    if ids:
        message += f',"tool_calls":[{",".join(map(_call, ids, record.tool_calls))}]'
    return message + "}"


def _call(sent: str, call: ToolCall) -> str:
    name, arguments = quoted(call.name), quoted(_arguments(call.arguments))
    function = f'{{"name":{name},"arguments":{arguments}}}'
    return f'{{"id":{quoted(sent)},"type":"function","function":{function}}}'


def _arguments(text: str) -> str:
    if len(text) <= _USUAL_LENGTH and _USUAL.fullmatch(text):
        return text
    if not text.strip():
        return "{}"
    try:
        parse_arguments(text)
    except BadArguments:
        return "{}"
    return text


def call_ids(number: int, calls: Sequence[ToolCall]) -> list[str]:
    """The ids to send for the calls of record `number`, no two alike, the server's where possible."""
    sent: dict[str, None] = {}
    for position, call in enumerate(calls):
        chosen, place = call.id, number * 1024 + position
        while not chosen or chosen in sent:
            chosen = _made_id(place)
            place += _ID_STRIDE
        sent[chosen] = None
    return list(sent)


def _made_id(place: int) -> str:
    letters = ""
    for _ in range(_ID_LENGTH):
        place, digit = divmod(place, len(_ID_LETTERS))
        letters = _ID_LETTERS[digit] + letters
    return letters
