"""What the probe finds in each chat template at hand, as a table: ``make template-table``.

The templates in ``tests/data/templates`` are stand-ins, written for this: each does what the templates of
one family do to a conversation. The engine only renders with them, so the model behind does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fakes.llama_process import OWN_TEMPLATE, LlamaProcess

from boxmaker_adapters.llama_server.probe import Verdict
from boxmaker_adapters.llama_server.server import server
from boxmaker_adapters.llama_server.settling import Finding, Settler
from boxmaker_adapters.llama_server.template_checks import words
from boxmaker_core import CORE, assemble
from boxmaker_core.baseline import Form

FOLDER = Path(__file__).parent / "data" / "templates"
FILES = (OWN_TEMPLATE, *sorted(FOLDER.glob("*.jinja")))


def find(file: Path) -> Finding | str:
    """The probe's verdict, its model being one that reasons."""
    with LlamaProcess(chat_template=file.read_text(), default_template_kwargs={}, n_ctx=1024) as engine:
        asked = server(engine.url, api_key=None, connect_timeout=5.0)
        settler = Settler(asked, sampling={}, thinks=True)
        return settler.find(assemble("Be brief.", CORE), asked.ask("/props"))


def cost(verdict: Verdict | None) -> str:
    return "refused" if verdict is None else f"{verdict.again} of {verdict.held}"


def rows() -> Iterator[str]:
    yield "| template | what it does | form | fields | verbatim | arguments sent |"
    yield "|---|---|---|---|---|---|"
    for file in FILES:
        found = find(file)
        if isinstance(found, str):
            yield f"| {file.stem} | refuses the trial | fields | | | |"
            continue
        both = {verdict.form: verdict for verdict in (found.verdict, found.other) if verdict is not None}
        fields, verbatim = (cost(both.get(form)) for form in (Form.FIELDS, Form.VERBATIM))
        sent = ", ".join(found.kwargs) or "none"
        yield f"| {file.stem} | {words(found)} | {found.form.value} | {fields} | {verbatim} | {sent} |"


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)  # noqa: T201 - it is a program
