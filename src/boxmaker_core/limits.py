"""The limits of a turn, and what a tool's text must look like before anything else sees it.

Not here: when a limit ends a turn, which is ``turn``'s decision.
"""

from __future__ import annotations

import re

from attrs import field, frozen, validators

TRUNCATED = "[truncated]"

_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_SURROGATE = re.compile("[\ud800-\udfff]")


@frozen(kw_only=True)
class Limits:
    """``tool_result_cap`` counts UTF-8 bytes, the ``[truncated]`` mark included."""

    tool_iterations: int = field(default=8, validator=validators.ge(1))
    repeat_detection: bool = True
    tool_result_cap: int = field(default=16 * 1024, validator=validators.ge(64))


def safe_text(text: str) -> str:
    """Tool text that no encoder, prompt or log chokes on (docs/log-format.md, "Text").

    Half a surrogate pair becomes U+FFFD, a control character other than tab and line feed its
    picture (U+2400 and up), so that what was there can still be seen.
    """
    return _SURROGATE.sub("\ufffd", text).translate(_CONTROLS)


def cut(text: str, cap: int) -> tuple[str, bool]:
    """`text` within `cap` UTF-8 bytes, and whether it was cut. Cuts between characters."""
    data = text.encode()
    if len(data) <= cap:
        return text, False
    kept = data[: cap - len(TRUNCATED)]
    return kept.decode(errors="ignore") + TRUNCATED, True
