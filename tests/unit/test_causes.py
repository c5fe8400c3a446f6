"""Which cause which evidence shows, and that without evidence there is none."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from fakes import logs
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.llama_server.causes import judge
from boxmaker_adapters.llama_server.facts import Evidence, Printed, Prompts
from boxmaker_adapters.llama_server.residents import Before, Residents, Restore, Stay, mark
from boxmaker_adapters.llama_server.slots import SlotSeen
from boxmaker_core.cache import CAUSES, DETAIL, Loss
from boxmaker_core.messages import SessionId, Usage
from boxmaker_core.ports import Request

S1, S2 = SessionId("s1"), SessionId("s2")
OURS = Stay(session=S1, tokens=500, sent=1)
THEIRS = Stay(session=S2, tokens=150, sent=1)
LOST = Stay(session=S2, tokens=None)
"""A request of theirs that came to nothing."""
TAKEN = SlotSeen(used=True, held=150, busy=False)
"""By them."""
UNCOUNTED = Stay(session=S1, tokens=None, sent=1)
BROKEN_OFF = Stay(session=S1, tokens=None)
WARM = SlotSeen(used=True, held=500, busy=False)
COLD = SlotSeen(used=False, held=None, busy=False)
SAME = Prompts(shared=480, token="x", place="in the last messages")


def dated(first: int, *, sure: bool = True, timed: bool = True, last: int | None = None) -> Prompts:
    """Prompts in which a date stands that is six tokens long."""
    date = Printed(first=first, end=first + 6, sure=sure)
    return evolve(SAME, date=date, timed=timed, last=first + 6 if last is None else last)


def evidence(
    *,
    got: int = 100,
    seen: SlotSeen | None = WARM,
    last: Stay | None = OURS,
    own: Stay | None = OURS,
    prompts: Prompts | None = SAME,
    restored: int | None = None,
    left: int | None = 500,
) -> Evidence:
    restore = None if restored is None else Restore(tokens=restored)
    before = Before(seen=seen, last=last, own=own, restore=restore)
    return Evidence(
        session=S1, slot=0, loss=Loss(expected=480, got=got), left=left, before=before, prompts=prompts
    )


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        ({"prompts": Prompts(shared=100, token="\n", place="in a place")}, "template", r"'\n', in a place"),
        ({"prompts": evolve(SAME, shared=200)}, "template", "went back to token 100"),
        ({"prompts": evolve(SAME, shared=84)}, "template", "from token 84 on"),
        ({"prompts": evolve(SAME, shared=83)}, "unknown", "differ from token 83 on, yet 100 were reused"),
        ({"prompts": evolve(SAME, shared=83), "seen": None}, "unknown", "yet 100 were reused"),
        ({"prompts": evolve(SAME, shared=83), "last": THEIRS, "seen": TAKEN}, "other_session", "session s2"),
        ({"prompts": evolve(SAME, shared=83), "seen": TAKEN}, "other_client", "held 150"),
        (
            {"prompts": dated(300), "seen": evolve(WARM, busy=True), "last": LOST},
            "unknown",
            "s2 had the slot",
        ),
        ({"prompts": evolve(SAME, shared=463), "got": 463}, "template", "from token 463"),
        ({"prompts": evolve(SAME, shared=464)}, "checkpoint", "464 of them fit"),
        ({"prompts": dated(90)}, "template", "prints the date or the time, at token 90"),
        (
            {"prompts": dated(300)},
            "template",
            "went back to token 100",
        ),
        ({"prompts": dated(90), "seen": None}, "template", "prints the date"),
        ({"prompts": dated(300), "seen": None}, "unknown", "did not tell of its slots"),
        ({"prompts": dated(300), "seen": evolve(WARM, held=150)}, "other_client", "held 150"),
        ({"prompts": dated(78)}, "template", "at token 78"),
        ({"prompts": dated(77)}, "checkpoint", "--swa-full"),
        ({"prompts": dated(50)}, "checkpoint", "--swa-full"),
        ({"prompts": dated(50, last=84)}, "unknown", "may print the time"),
        ({"prompts": dated(50, last=83)}, "checkpoint", "--swa-full"),
        ({"prompts": dated(102, sure=False)}, "template", "at token 102"),
        ({"prompts": dated(103, sure=False)}, "unknown", "may print the time"),
        ({"prompts": dated(92, sure=False)}, "template", "at token 92"),
        ({"prompts": dated(91, sure=False)}, "unknown", "may print the time"),
        ({"prompts": dated(300, sure=False)}, "unknown", "may print the time"),
        ({"prompts": dated(50, sure=False)}, "checkpoint", "--swa-full"),
        ({"prompts": dated(17, sure=False), "got": 17, "seen": None}, "template", "at token 17"),
        ({"prompts": dated(16, sure=False), "got": 16, "seen": None}, "unknown", "may print the time"),
        ({"prompts": dated(3, sure=False), "got": 3}, "template", "at token 3"),
        ({"prompts": dated(3, sure=False), "got": 2}, "unknown", "may print the time"),
        ({"prompts": dated(0, sure=False), "got": 0}, "unknown", "may print the time"),
        ({"seen": COLD, "got": 0}, "restart", "begun anew"),
        ({"seen": COLD, "got": 0, "prompts": evolve(SAME, shared=9)}, "restart", "begun anew"),
        ({"seen": COLD, "prompts": evolve(SAME, shared=100), "restored": 500}, "template", "from token 100"),
        (
            {"seen": COLD, "prompts": dated(3), "restored": 500, "got": 3},
            "template",
            "at token 3",
        ),
        ({"last": THEIRS, "seen": TAKEN}, "other_session", "session s2 of this loopd"),
        ({"last": THEIRS}, "unknown", "session s2 had the slot in between"),
        ({"last": THEIRS, "seen": TAKEN, "got": 166}, "other_session", "session s2"),
        (
            {"last": THEIRS, "seen": TAKEN, "got": 167},
            "unknown",
            "167 tokens were reused where the slot had 150",
        ),
        (
            {"last": THEIRS, "seen": None, "got": 167},
            "unknown",
            "167 tokens were reused where the slot had 150",
        ),
        ({"last": THEIRS, "seen": evolve(WARM, held=200), "got": 201}, "other_session", "session s2"),
        ({"last": THEIRS, "left": 150, "seen": TAKEN}, "other_session", "session s2"),
        ({"last": THEIRS, "seen": evolve(WARM, busy=True), "left": None, "got": 400}, "other_session", "s2"),
        ({"last": THEIRS, "seen": None, "prompts": None}, "other_session", "session s2 of this loopd"),
        ({"last": THEIRS, "prompts": evolve(SAME, shared=110)}, "template", "from token 110"),
        ({"last": LOST}, "checkpoint", "held all"),
        ({"last": LOST, "seen": None}, "unknown", "did not tell of its slots"),
        ({"last": LOST, "seen": TAKEN}, "other_session", "session s2"),
        ({"last": LOST, "seen": evolve(WARM, busy=True)}, "unknown", "session s2 had the slot in between"),
        (
            {"last": LOST, "seen": evolve(WARM, held=9)},
            "unknown",
            "100 tokens were reused where the slot had 9",
        ),
        ({"last": THEIRS, "seen": COLD, "got": 0}, "restart", "begun anew"),
        ({"last": THEIRS, "seen": evolve(WARM, held=0), "got": 0}, "other_session", "session s2"),
        ({"seen": evolve(WARM, held=0), "got": 0, "prompts": evolve(SAME, shared=9)}, "cleared", "-np N"),
        ({"seen": evolve(WARM, held=0), "prompts": evolve(SAME, shared=100)}, "template", "from token 100"),
        ({"seen": evolve(WARM, held=0), "got": 0}, "cleared", "-np N"),
        ({"seen": evolve(WARM, held=300)}, "other_client", "held 300 tokens where this session had left 500"),
        ({"seen": evolve(WARM, busy=True)}, "other_client", "was at work for that when this request came"),
        (
            {"seen": evolve(WARM, held=300), "own": None, "last": None},
            "other_client",
            "a loopd before this one",
        ),
        ({}, "checkpoint", "went back to token 100"),
        (
            {},
            "checkpoint",
            "a client that left as many tokens, or slipped in just before this request, would look the same",
        ),
        ({"seen": evolve(WARM, held=84)}, "other_client", "held 84 tokens where this session had left 500"),
        ({"seen": evolve(WARM, held=83)}, "unknown", "100 tokens were reused where the slot had 83"),
        ({"seen": evolve(WARM, held=83, busy=True)}, "other_client", "was at work"),
        ({"seen": evolve(WARM, held=0), "got": 16}, "cleared", "-np N"),
        ({"seen": evolve(WARM, held=0), "got": 17}, "unknown", "17 tokens were reused where the slot had 0"),
        ({"seen": COLD}, "restart", "save = true"),
        ({"seen": evolve(COLD, held=500)}, "checkpoint", "held all"),
        ({"seen": COLD, "restored": 501}, "checkpoint", "held all 500"),
        ({"seen": TAKEN, "last": THEIRS, "restored": 501}, "checkpoint", "and 100 of them were reused"),
        ({"seen": TAKEN, "last": THEIRS, "restored": 501, "got": 16}, "other_session", "did not help"),
        ({"seen": TAKEN, "last": THEIRS, "restored": 501, "prompts": None}, "unknown", "did not render"),
        (
            {"seen": COLD, "restored": 300},
            "unknown",
            "a saved state of 300 tokens was restored and 100 of them",
        ),
        ({"seen": COLD, "restored": 116}, "restart", "begun anew"),
        ({"seen": COLD, "restored": 117}, "unknown", "100 of them were reused"),
        ({"seen": evolve(WARM, held=0), "restored": 300}, "unknown", "explains nothing"),
        ({"seen": evolve(WARM, held=0), "restored": 110}, "cleared", "100 of them were reused"),
        ({"seen": evolve(WARM, held=0), "restored": 80}, "unknown", "and 80 of them were reused"),
        ({"prompts": evolve(SAME, timed=True)}, "unknown", "may print the time"),
        ({"prompts": evolve(SAME, timed=True), "last": THEIRS, "seen": TAKEN}, "other_session", "session s2"),
        ({"seen": evolve(WARM, held=502)}, "checkpoint", "held all 500"),
        ({"seen": evolve(WARM, held=503)}, "other_client", "held 503"),
        ({"own": None, "last": None}, "unknown", "another loopd made the completion before"),
        (
            {"own": BROKEN_OFF, "last": BROKEN_OFF, "seen": evolve(WARM, held=300)},
            "unknown",
            "was broken off",
        ),
        (
            {"own": BROKEN_OFF, "last": BROKEN_OFF, "seen": evolve(WARM, busy=True)},
            "unknown",
            "was broken off",
        ),
        ({"seen": None}, "unknown", "did not tell of its slots"),
        ({"seen": evolve(WARM, held=None)}, "unknown", "what a slot holds"),
        ({"seen": None, "prompts": None}, "unknown", "did not render"),
        ({"prompts": None}, "unknown", "did not render"),
        ({"left": None}, "unknown", "did not count"),
        ({"left": None, "own": UNCOUNTED, "last": UNCOUNTED}, "unknown", "known: the server did not count"),
    ],
)
def test_the_evidence_names_the_cause(changes: dict[str, Any], cause: str, words: str) -> None:
    found = judge(evidence(**changes))
    assert found.cause == cause, found
    assert words in found.detail


def test_a_log_that_was_changed_explains_nothing() -> None:
    found = judge(evolve(evidence(), changed=True))
    assert found.cause == "unknown"
    assert "as after an edit or a repair" in found.detail


def test_a_restore_that_did_not_help_is_part_of_the_story() -> None:
    found = judge(evidence(seen=COLD, restored=450, got=0))
    assert found.cause == "restart"
    assert "save = true" not in found.detail
    assert "a saved state of 450 tokens was restored and did not help" in found.detail


@pytest.mark.parametrize(
    ("restore", "said", "not_said"),
    [
        (None, "[slots] save = true brings", "saved state"),
        (Restore(), "there was no saved state", "save = true"),
        (Restore(failed=True), "no saved state could be restored", "save = true"),
        (Restore(tokens=450), "a saved state of 450 tokens", "save = true"),
    ],
)
def test_after_a_restart_it_is_said_what_became_of_the_saved_state(
    restore: Restore | None, said: str, not_said: str
) -> None:
    found = evidence(seen=COLD, got=0)
    assert found.before is not None
    detail = judge(evolve(found, before=evolve(found.before, restore=restore))).detail
    assert said in detail
    assert not_said not in detail


def test_a_detail_has_its_bound() -> None:
    long = Prompts(shared=100, token="x" * 900, place="in " * 300)
    assert len(judge(evidence(prompts=long)).detail) == DETAIL


maybe = st.none() | st.integers(0, 1000)
seen = st.none() | st.builds(SlotSeen, used=st.booleans(), held=maybe, busy=st.booleans())
stays = st.none() | st.builds(Stay, session=st.sampled_from([S1, S2]), tokens=maybe)
prompts = st.none() | st.builds(
    Prompts,
    shared=st.integers(0, 1000),
    token=st.text(),
    place=st.just("here"),
    date=st.none()
    | st.builds(Printed, first=st.integers(0, 1000), end=st.integers(0, 1000), sure=st.booleans()),
    timed=st.booleans(),
    last=maybe,
)


@given(
    seen,
    stays,
    st.none() | st.builds(Stay, session=st.just(S1), tokens=maybe),
    prompts,
    maybe,
    maybe,
    st.integers(0, 463),
)
def test_every_cause_is_one_of_those_with_one_printable_line_of_detail(
    seen: SlotSeen | None,
    last: Stay | None,
    own: Stay | None,
    prompts: Prompts | None,
    left: int | None,
    restored: int | None,
    got: int,
) -> None:
    asked = evidence(seen=seen, last=last, own=own, prompts=prompts, left=left, restored=restored, got=got)
    found = judge(asked)
    assert found.cause in CAUSES
    assert found.detail.isprintable()
    assert 0 < len(found.detail) <= DETAIL


def test_residents_know_who_was_there_before_and_what_a_request_changed() -> None:
    def asked(name: str) -> Request:
        log = logs.log(logs.user())
        log[0] = evolve(logs.start(), session=SessionId(name))
        return Request(baseline=None, records=log, slot=0)  # nobody looks at the baseline

    residents = Residents()
    residents.enter(asked("s1"), None)
    residents.leave(asked("s1"), Usage(cache_n=1, prompt_n=9, predicted_n=5), b"body")
    residents.enter(asked("s2"), WARM)
    assert residents.before(S2) == Before(
        seen=WARM, last=Stay(session=S1, tokens=14, sent=mark(b"body")), own=None
    )
    residents.leave(asked("s2"), Usage())
    residents.enter(asked("s1"), None)
    residents.restored(asked("s1"), Restore(tokens=7))
    assert residents.before(S1) == Before(
        seen=None,
        last=Stay(session=S2, tokens=None),
        own=Stay(session=S1, tokens=14, sent=mark(b"body")),
        restore=Restore(tokens=7),
    )
    assert residents.before(SessionId("s3")) is None
