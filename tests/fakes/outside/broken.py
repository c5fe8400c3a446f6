"""Factories that give everything but what they should."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from boxmaker_core import ToolSchema
from boxmaker_core.ports import ToolPort

from .dice import ROLL, Dice

NOT_CALLABLE = 3


def none(_: Mapping[str, Any]) -> None:
    return None


def a_port_alone(_: Mapping[str, Any]) -> ToolPort:
    return Dice(1)


def no_port(_: Mapping[str, Any]) -> tuple[object, list[ToolSchema]]:
    return object(), [ROLL]


def schemas_of_dicts(_: Mapping[str, Any]) -> tuple[ToolPort, list[dict[str, str]]]:
    return Dice(1), [{"name": "x"}]


def twice(_: Mapping[str, Any]) -> tuple[ToolPort, list[ToolSchema]]:
    return Dice(1), [ROLL, ROLL]


def a_core_name(_: Mapping[str, Any]) -> tuple[ToolPort, list[ToolSchema]]:
    return Dice(1), [ToolSchema(name="clock", description="", parameters={})]


def not_json(_: Mapping[str, Any]) -> tuple[ToolPort, list[ToolSchema]]:
    return Dice(1), [ToolSchema(name="x", description="", parameters={"a": {1, 2}})]


def raises(_: Mapping[str, Any]) -> NoReturn:
    raise KeyError("seed\n\x1b[2J")


def exits(_: Mapping[str, Any]) -> NoReturn:
    sys.exit("no")


def wordless(_: Mapping[str, Any]) -> object:
    return Dice(1), [ToolSchema(name="x", description=None, parameters={})]
