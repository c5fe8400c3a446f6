"""Each cause of a loss provoked on a real engine, and named."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes.llama_process import OWN_TEMPLATE, PATIENCE, LlamaProcess
from fakes.tiny_models import hybrid, sliding_window

from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.llama_server.saves import Saving
from boxmaker_adapters.scripted import FakeClock
from boxmaker_core import CORE, Loop, Registry, SessionId, assemble, records
from boxmaker_core.errors import TurnLimit

COUNTING = "{{- messages | length ~ ' messages' -}}" + OWN_TEMPLATE.read_text()
"""Rewrites its first words with each message."""


class Talk:
    """Sessions on one server, through one driver, each turn of a few tokens."""

    def __init__(
        self,
        engine: LlamaProcess,
        home: Path,
        slots: tuple[int, ...] = (0,),
        saving: Saving | None = None,
        **sampling: Any,
    ) -> None:
        self.engine, self.home = engine, home
        self.clock = clock = FakeClock()
        sampling = {"temperature": 0, "max_tokens": 4, **sampling}
        self.driver = LlamaServer(engine.url, sampling=sampling, saving=saving)
        self.loop = Loop(
            inference=self.driver,
            store=JsonlStore(home, sync=False),
            tools=FakeTools(clock),
            registry=Registry(SCHEMAS),
            baseline=lambda: assemble("Be brief.", CORE),
            clock=clock,
            slots=slots,
        )

    def turn(self, session: str = "s1", text: str = "some words to be read " * 6) -> None:
        resume = (self.home / "sessions" / session).exists()
        with suppress(TurnLimit):  # the few tokens seldom are an answer
            self.loop.turn(session, text, resume=resume)

    def losses(self, session: str) -> list[records.CacheLoss]:
        log = JsonlStore(self.home).read(SessionId(session)).records
        return [record for record in log if isinstance(record, records.CacheLoss)]

    def causes(self, session: str = "s1") -> list[str | None]:
        return [loss.cause for loss in self.losses(session)]

    def details(self, session: str = "s1") -> list[str]:
        return [loss.detail or "" for loss in self.losses(session)]

    def stranger(self, slot: int = 0) -> None:
        """Another client's request."""
        body = {"prompt": "Something else altogether. " * 8, "n_predict": 1, "id_slot": slot}
        request = urllib.request.Request(
            f"{self.engine.url}/completion",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with closing(urllib.request.urlopen(request, timeout=PATIENCE)) as answer:
            assert answer.status == 200


@pytest.fixture
def engine() -> Iterator[LlamaProcess]:
    with LlamaProcess(cache_ram_mib=0) as engine:
        yield engine


def test_a_template_that_rewrites_is_named_with_the_first_other_token(tmp_path: Path) -> None:
    with LlamaProcess(chat_template=COUNTING, cache_ram_mib=0) as engine:
        talk = Talk(engine, tmp_path)
        talk.turn()
        talk.turn()
    assert talk.causes() == ["template"]
    (detail,) = talk.details()
    assert "from token 0 on, which is now '4'" in detail
    assert "in the system text, the tools or the first message" in detail


def test_a_date_that_the_template_prints_is_named(tmp_path: Path) -> None:
    """A night passes as the zone of the server changes; what was in its slot is brought back."""
    dated = "{{- 'Today is ' ~ strftime_now('%d %B %Y') ~ '.' -}}" + OWN_TEMPLATE.read_text()
    states = tmp_path / "states"
    states.mkdir()
    with LlamaProcess(chat_template=dated, slot_save_path=f"{states}/", cache_ram_mib=0) as engine:
        for hours in (-12, 14):
            engine.kill()
            engine.start(TZ=f"XXX{-hours:+d}")
            talk = Talk(engine, tmp_path, saving=Saving(folder=states, budget=10**9), max_tokens=60)
            talk.clock.now = (datetime.now(UTC) + timedelta(hours=hours)).replace(tzinfo=None).astimezone()
            talk.turn(text="hi")
            talk.driver.close()  # by then the slot is saved
    assert talk.causes() == ["template"]
    assert "the chat template prints the date or the time, at token" in talk.details()[0]
    assert "was restored" in talk.details()[0]


def test_another_client_is_named(engine: LlamaProcess, tmp_path: Path) -> None:
    talk = Talk(engine, tmp_path)
    talk.turn()
    talk.stranger()
    talk.turn()
    talk.turn()
    assert talk.causes() == ["other_client"]


def test_two_sessions_on_one_slot_are_named_to_each_other_in_every_turn(
    engine: LlamaProcess, tmp_path: Path
) -> None:
    talk = Talk(engine, tmp_path)
    for _ in range(3):
        talk.turn("s1")
        talk.turn("s2", "quite other words to be read by it " * 6)
    assert talk.causes("s1") == ["other_session"] * 2
    assert talk.causes("s2") == ["other_session"] * 2


def test_a_restart_is_named(engine: LlamaProcess, tmp_path: Path) -> None:
    talk = Talk(engine, tmp_path)
    talk.turn()
    engine.kill()
    engine.start()
    talk.turn()
    talk.turn()
    assert talk.causes() == ["restart"]


def test_slots_that_are_cleared_while_idle_are_named(tmp_path: Path) -> None:
    with LlamaProcess(n_parallel=2, kv_unified=True, cache_idle_slots=True) as engine:
        talk = Talk(engine, tmp_path, slots=(0, 1))
        talk.turn("s1")
        talk.turn("s2", "quite other words to be read by it " * 6)
        talk.turn("s1")
    assert talk.causes("s1") == ["cleared"]


WILD = {"temperature": 5, "seed": 1, "ignore_eos": True, "max_tokens": 300}
"""An answer that comes back in other tokens than it was written in, near its beginning."""


@pytest.mark.parametrize(
    ("model", "parameters", "causes"),
    [
        (hybrid, {"n_ctx_checkpoints": 0}, ["checkpoint"]),
        (hybrid, {}, []),
        (sliding_window, {"n_ctx_checkpoints": 0}, ["checkpoint"]),
        (sliding_window, {}, []),
        (sliding_window, {"n_ctx_checkpoints": 0, "swa_full": True}, []),
    ],
    ids=["recurrent", "recurrent, mended", "window", "window, mended", "window, full"],
)
def test_a_model_that_can_only_go_back_to_checkpoints_is_named_and_the_way_out_helps(
    model: Callable[[Path], Path], parameters: dict[str, Any], causes: list[str], tmp_path: Path
) -> None:
    file = model(tmp_path / "model.gguf")
    with LlamaProcess(model__path=str(file), n_ubatch=32, cache_ram_mib=0, **parameters) as engine:
        talk = Talk(engine, tmp_path, **WILD)
        talk.turn()
        talk.turn()
    assert talk.causes() == causes
