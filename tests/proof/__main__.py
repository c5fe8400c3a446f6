"""``python -m proof``: 20 turns with tools, three times: undisturbed, with ``loopd`` killed in the middle,
and with the model server killed in the middle and its slots saved.

The figures of each completion are printed, and where the bound is missed, if it is; the exit status is 1 then
(``proof.verdict``).
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fakes.daemon import Daemon
from fakes.llama_process import LlamaProcess
from fakes.real_engine import data

from boxmaker_adapters.channel_protocol import TurnDone
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_cli.cache import Options, run
from boxmaker_core.messages import SessionId
from proof.verdict import verdict

SESSION = SessionId("proof")
PROMPTS = (
    "hi",
    "What time is it?",
    "Echo the word apple.",
    "Thanks!",
    "What time is it now?",
    "Echo the word pear.",
    "How are you?",
    "What time is it?",
    "Echo the word house.",
    "Good.",
    "Echo the word river.",
    "What time is it now?",
    "Echo the word stone.",
    "Thank you.",
    "What time is it?",
    "Echo the word cloud.",
    "Nice.",
    "Echo the word green.",
    "What time is it now?",
    "Bye!",
)
MIDDLE = len(PROMPTS) // 2

EMBEDDED = """\
[inference]
driver = "embedded"
[inference.options]
context = 8192
threads = 1
"""


def configure(folder: Path, inference: str) -> Daemon:
    (folder / "system.md").write_text(data("system-tiny.md"))
    file = folder / "config.toml"
    file.write_text(
        f"[paths]\nhome = 'home'\n[channel]\nsocket = 's'\n{inference}"
        "[inference.sampling]\ntemperature = 0\nmax_tokens = 400\n"
    )
    return Daemon(file, folder / "s")


def talk(daemon: Daemon, prompts: tuple[str, ...], *, resume: bool) -> None:
    for number, prompt in enumerate(prompts):
        end = daemon.turn(SESSION, prompt, resume=resume or number > 0)[-1]
        if not isinstance(end, TurnDone):
            raise SystemExit(f"the turn {prompt!r} ended with {end}")


def undisturbed(folder: Path) -> None:
    with configure(folder, EMBEDDED) as daemon:
        talk(daemon, PROMPTS, resume=False)


def daemon_killed(folder: Path) -> None:
    with LlamaProcess(n_ctx=8192) as engine:
        inference = f"[inference]\nurl = '{engine.url}'\n"
        with configure(folder, inference) as daemon:
            talk(daemon, PROMPTS[:MIDDLE], resume=False)
            daemon.end(signal.SIGKILL)
        with configure(folder, inference) as daemon:
            talk(daemon, PROMPTS[MIDDLE:], resume=True)


def server_killed(folder: Path) -> None:
    states = folder / "states"
    states.mkdir(mode=0o700)
    with LlamaProcess(n_ctx=8192, slot_save_path=f"{states}/") as engine:
        inference = f"[slots]\nsave = true\nsave_folder = 'states'\n[inference]\nurl = '{engine.url}'\n"
        with configure(folder, inference) as daemon:
            talk(daemon, PROMPTS[:MIDDLE], resume=False)
            # A save goes on after its turn. Whoever is next on the slot waits for it, a kill does not.
            daemon.turn("other", "hi")
            engine.kill()
            engine.start()
            talk(daemon, PROMPTS[MIDDLE:], resume=True)


def prove(name: str, live: Callable[[Path], None]) -> bool:
    print(f"\n# {name}", flush=True)  # noqa: T201 - it is a program
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        live(folder)
        home = folder / "home"
        run(Options(session=SESSION, home=home, as_json=False))
        well, said = verdict(JsonlStore(home).read(SESSION).records, len(PROMPTS))
    print("\n".join(said), flush=True)  # noqa: T201 - it is a program
    return well


def main() -> int:
    runs = {
        "undisturbed": undisturbed,
        "loopd killed in the middle": daemon_killed,
        "the model server killed in the middle, slots saved": server_killed,
    }
    met = [prove(name, live) for name, live in runs.items()]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
