"""Ids, user text, tool text, the cap, the baseline's bytes and the cache outcome: small pure rules."""

from __future__ import annotations

import hashlib

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_core import Limits
from boxmaker_core.baseline import TEMPLATE_OWN, Form, assemble
from boxmaker_core.cache import CAUSES, Loss, cache_outcome
from boxmaker_core.errors import BadInput, BaselineError
from boxmaker_core.limits import TRUNCATED, cut, safe_text
from boxmaker_core.messages import USER_TEXT_BYTES, Usage, session_id, short, user_text
from boxmaker_core.tools import CORE


@pytest.mark.parametrize("text", ["a", "0", "20261130-201530-k3f9", "a" * 64, "x_-"])
def test_a_session_id_is_plain(text: str) -> None:
    assert session_id(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "-a",
        "_a",
        "a" * 65,
        "../x",
        "a/b",
        ".",
        "..",
        "a.b",
        "a\n",
        "a\0b",
        "é",
        "e\u0301",
        " a",
        "x.jsonl",
    ],
)
def test_an_id_that_could_leave_its_folder_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="no session id"):
        session_id(text)


@pytest.mark.parametrize("text", ["x", " ", "\x1b[2J", "a\u2028b", "🙂" * 10, "x" * USER_TEXT_BYTES])
def test_user_text_is_taken_as_it_is(text: str) -> None:
    assert user_text(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("a\0b", "position 1"),
        ("ab\ud800", "position 2"),
        ("x" * (USER_TEXT_BYTES + 1), "parts"),
    ],
)
def test_user_text_that_no_log_could_hold_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        user_text(text)


def test_short_quotes_escapes_and_cuts() -> None:
    assert short("a'b\x1b\n\u202e") == '"a\'b\\x1b\\n\\u202e"'
    assert len(short("x" * 500)) < 100
    short("\ud800").encode("ascii")


def test_tool_text_shows_its_controls() -> None:
    assert safe_text("a\0b\x1b[1m\r\n\tc\x7f") == "a␀b␛[1m␍\n\tc\x7f"
    assert safe_text("x\ud83dy\ude00") == "x\ufffdy\ufffd"


@given(st.text(alphabet=st.characters(codec=None)))
def test_safe_text_can_be_encoded_and_has_no_controls(text: str) -> None:
    safe = safe_text(text)
    safe.encode()
    assert not any(char < " " and char not in "\t\n" for char in safe)
    assert len(safe) == len(text)
    assert safe_text(safe) == safe


@given(st.text(), st.integers(64, 200))
def test_the_cap_counts_bytes_and_cuts_between_characters(text: str, cap: int) -> None:
    kept, truncated = cut(text * 20, cap)
    assert len(kept.encode()) <= cap
    if truncated:
        assert kept.endswith(TRUNCATED)
        assert (text * 20).startswith(kept.removesuffix(TRUNCATED))
        assert len(kept.encode()) > cap - 4
    else:
        assert kept == text * 20


def test_text_of_just_the_cap_is_whole() -> None:
    assert cut("é" * 32, 64) == ("é" * 32, False)
    assert cut("é" * 33, 64) == ("é" * 26 + TRUNCATED, True)


@pytest.mark.parametrize("bad", [{"tool_iterations": 0}, {"tool_result_cap": 63}])
def test_limits_that_allow_nothing_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be >="):
        Limits(**bad)


def test_the_baseline_is_assembled_and_hashed() -> None:
    baseline = assemble("Be brief.\n\n", CORE, "Owner: Zoë.\n")
    assert baseline.system == "Be brief.\n\nOwner: Zoë."
    assert baseline.to_bytes().startswith(
        '{"system":"Be brief.\\n\\nOwner: Zoë.","tools":[{"name":"clock"'.encode()
    )
    assert baseline.to_bytes().endswith(b"}]}\n")
    assert baseline.sha256 == hashlib.sha256(baseline.to_bytes()).hexdigest()


def test_what_a_session_settles_stands_last_in_its_baseline_and_only_if_it_says_something() -> None:
    plain = assemble("Be brief.", ())
    assert plain.to_bytes() == b'{"system":"Be brief.","tools":[]}\n'
    settled = evolve(plain, chat_template_kwargs={"date_string": "1 Jan"}, form=Form.VERBATIM)
    assert settled.to_bytes() == (
        b'{"system":"Be brief.","tools":[],'
        b'"chat_template_kwargs":{"date_string":"1 Jan"},"form":"verbatim"}\n'
    )
    assert settled.sha256 != plain.sha256


def test_the_words_that_stand_in_files_and_on_the_wire_stay() -> None:
    assert [form.value for form in Form] == ["fields", "verbatim"]
    assert CAUSES == (
        "template",
        "other_session",
        "other_client",
        "restart",
        "cleared",
        "checkpoint",
        "unknown",
    )


@pytest.mark.parametrize("memory", ["", "\n", "\n\n"])
def test_an_empty_memory_adds_nothing(memory: str) -> None:
    assert assemble("Be brief.", CORE, memory).system == "Be brief."


@pytest.mark.parametrize(
    ("system", "memory", "why"),
    [
        ("", "", "empty"),
        (" \n", "x", "empty"),
        ("a\0", "", "the system text has a NUL"),
        ("a", "\0", "the memory file has a NUL"),
        ("a", "b\ud800", "the memory file is not valid text at position 1"),
    ],
)
def test_text_that_cannot_be_a_baseline_is_refused(system: str, memory: str, why: str) -> None:
    with pytest.raises(BaselineError, match=why):
        assemble(system, CORE, memory)


@pytest.mark.parametrize(
    ("before", "got", "loss"),
    [
        (None, 0, None),
        (Usage(), 0, None),
        (Usage(cache_n=3), 0, None),
        (Usage(prompt_n=3), 0, None),
        (Usage(cache_n=100, prompt_n=341), None, None),
        (Usage(cache_n=100, prompt_n=341), 441, None),
        (Usage(cache_n=100, prompt_n=341), 9999, None),
        (Usage(cache_n=100, prompt_n=341), 425, None),
        (Usage(cache_n=100, prompt_n=341), 424, Loss(expected=441, got=424)),
        (Usage(cache_n=0, prompt_n=441), 0, Loss(expected=441, got=0)),
        (Usage(cache_n=0, prompt_n=16), 0, None),
    ],
)
def test_a_loss_is_more_than_the_tolerance_short_of_the_whole_prompt(
    before: Usage | None, got: int | None, loss: Loss | None
) -> None:
    assert cache_outcome(before, Usage(cache_n=got, prompt_n=1)) == loss


def test_the_names_that_llama_cpp_hands_to_a_template_itself_are_known() -> None:
    handed = "messages tools add_generation_prompt bos_token eos_token"
    made = "raise_exception strftime_now namespace range"
    assert {*handed.split(), *made.split()} == TEMPLATE_OWN
