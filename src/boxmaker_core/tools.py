"""Which tools there are, and what a model's call comes down to. Nothing is run here.

Three core schemas stand in every baseline; every other tool is found with ``find_tool`` and reached
with ``call_tool``, so the prompt stays small however many there are (spec, "Core tools").
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from .baseline import dump
from .errors import ToolsRefused
from .messages import ToolCall, ToolSchema, short
from .records import DataClass

CLOCK = ToolSchema(
    name="clock",
    description="Tell the current date and time.",
    parameters={"type": "object", "properties": {}},
)
FIND_TOOL = ToolSchema(
    name="find_tool",
    description="Search the other tools by a word of their name or description.",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    },
)
CALL_TOOL = ToolSchema(
    name="call_tool",
    description="Run a tool that find_tool has shown.",
    parameters={
        "type": "object",
        "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
        "required": ["name", "arguments"],
    },
)
CORE = (CLOCK, FIND_TOOL, CALL_TOOL)

ARGUMENT_BYTES = 1024 * 1024
ARGUMENT_DEPTH = 64
INTEGER_DIGITS = 300
"""More overflow the double that the model server reads a large integer into, and it refuses."""

_ESCAPE = re.compile(
    r"\\(?:u(d[89ab][0-9a-f]{2})(?:\\u(d[c-f][0-9a-f]{2}))?|u(d[c-f][0-9a-f]{2})|.)",
    re.IGNORECASE | re.DOTALL,
)
"""A JSON escape: 1 and 2 are a surrogate pair, 3 a low half alone."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@frozen(kw_only=True)
class ToolRequest:
    """``call`` is the session's call number, ``arguments`` the JSON text of one object."""

    call: int
    tool: str
    arguments: str


@frozen(kw_only=True)
class Result:
    content: str
    data_class: DataClass = DataClass.PUBLIC
    untrusted: bool = False
    truncated: bool = False


@frozen(kw_only=True)
class Failed:
    """The tool ran into trouble; ``reason`` is for the model to read."""

    reason: str


ToolResponse = Result | Failed


class Registry:
    """The core tools and the ones that a tools driver brought, by name.

    Raises ToolsRefused for a name that clashes or cannot be a name: a tool hidden behind another
    would be run by mistake.
    """

    def __init__(self, outside: Sequence[ToolSchema] = ()) -> None:
        self._outside: dict[str, ToolSchema] = {}
        for schema in outside:
            if not _NAME.fullmatch(schema.name):
                raise ToolsRefused(
                    f"{short(schema.name)} is no name for a tool: use 1 to 64 of A-Z, a-z, 0-9, _, . and -"
                )
            if schema.name in self._outside or self.is_core(schema.name):
                raise ToolsRefused(f"there are two tools named {schema.name}: rename or leave out one")
            self._outside[schema.name] = schema

    @staticmethod
    def is_core(name: str) -> bool:
        return any(schema.name == name for schema in CORE)

    def __contains__(self, name: str) -> bool:
        """Whether `call_tool` reaches a tool of this name."""
        return name in self._outside

    def find(self, query: str) -> list[ToolSchema]:
        """Tools whose name or description has `query` in it, in any case of letters. Not core ones,
        since `call_tool` refuses them."""
        word = query.casefold()
        return [
            schema
            for schema in self._outside.values()
            if word in schema.name.casefold() or word in schema.description.casefold()
        ]


@frozen(kw_only=True)
class ForPort:
    """The call is for the tool port: tool ``name`` with ``arguments``, the text of an object."""

    name: str
    arguments: str


@frozen(kw_only=True)
class FromHere:
    """The call is answered without the port. ``started``: a tool of ours did work for it."""

    name: str
    content: str
    started: bool = False


class BadArguments(ValueError):
    """Why an arguments text is no JSON object that may be used or sent."""


def parse_arguments(text: str) -> dict[str, Any]:
    """The object in a call's arguments text; blank text is an empty one (docs/log-format.md).

    Raises BadArguments, always or never for one text whatever the stack holds, since the request
    encoder asks too and its answer must stay the same for ever. Refused beyond what is no object:
    what a strict parser further on would choke on (NaN, numbers without end, half a surrogate pair),
    and NUL, which cuts text short in many a tool.
    """
    if not text.strip():
        return {}
    if len(text.encode(errors="replace")) > ARGUMENT_BYTES:
        raise BadArguments(f"they have more than {ARGUMENT_BYTES} bytes")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise BadArguments(f"they nest deeper than {ARGUMENT_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise BadArguments(f"they are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadArguments("they are no JSON object")
    _check_escapes(text)
    _check_depth_and_text(value)
    return value


def _no_constant(name: str) -> float:
    raise BadArguments(f"{name} is not JSON")


def _int(digits: str) -> int:
    if len(digits) > INTEGER_DIGITS:
        raise BadArguments(f"they have an integer of more than {INTEGER_DIGITS} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise BadArguments(f"the number {short(digits)} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_int=_int, parse_float=_float)
"""Made once: a request asks for the arguments of every call of its session."""


def _check_escapes(text: str) -> None:
    """Of a key that comes twice the first value is gone by now, but not from the text that is sent."""
    if "\\u" in text and any((pair[1] and not pair[2]) or pair[3] for pair in _ESCAPE.finditer(text)):
        raise BadArguments("they have half a surrogate pair")


def _check_depth_and_text(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(ARGUMENT_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _check_text(item)
            elif isinstance(item, dict):
                below += item.keys()
                below += item.values()
            elif isinstance(item, list):
                below += item
        if not below:
            return
        level = below
    raise BadArguments(f"they nest deeper than {ARGUMENT_DEPTH} levels")


def _check_text(text: str) -> None:
    if "\0" in text:
        raise BadArguments("they have a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadArguments("they have half a surrogate pair") from None


def target(call: ToolCall) -> str:
    """The name to show for a call: the tool meant, also where it stands inside `call_tool`."""
    if call.name == CALL_TOOL.name:
        try:
            name = parse_arguments(call.arguments).get("name")
        except BadArguments:
            return call.name
        if isinstance(name, str):
            return name
    return call.name


def resolve(registry: Registry, call: ToolCall) -> ForPort | FromHere:
    """What `call` comes down to. Total: whatever a model writes gets an answer that helps it on."""
    try:
        arguments = parse_arguments(call.arguments)
        if call.name == CALL_TOOL.name:
            return _resolve_inner(registry, arguments)
        if call.name == FIND_TOOL.name:
            return FromHere(name=call.name, content=_find(registry, arguments), started=True)
        if call.name in registry or registry.is_core(call.name):
            return ForPort(name=call.name, arguments=dump(arguments))
    except BadArguments as error:
        quoted = short(call.arguments, 200)
        return FromHere(
            name=target(call), content=f"Not run: the arguments cannot be used, {error}. They were: {quoted}"
        )
    return _unknown(call.name)


def _resolve_inner(registry: Registry, arguments: dict[str, Any]) -> ForPort | FromHere:
    name, inner = arguments.get("name"), arguments.get("arguments", {})
    if not isinstance(name, str):
        raise BadArguments('"name" must be the name of a tool')
    if name not in registry:
        return _unknown(name)
    if isinstance(inner, str):
        inner = parse_arguments(inner)
    if not isinstance(inner, dict):
        raise BadArguments('"arguments" must be an object')
    return ForPort(name=name, arguments=dump(inner))


def _find(registry: Registry, arguments: dict[str, Any]) -> str:
    query = arguments.get("query")
    if not isinstance(query, str):
        raise BadArguments('"query" must be a text')
    found = registry.find(query)
    if not found:
        return "No tool matches."
    schemas = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in found
    ]
    return f"{dump(schemas)}\nCall it with call_tool."


def _unknown(name: str) -> FromHere:
    core = ", ".join(schema.name for schema in CORE)
    way = "call it by its own name" if Registry.is_core(name) else "find_tool finds more"
    return FromHere(name=name, content=f"Not run: unknown tool {short(name)}. There are {core}; {way}.")
