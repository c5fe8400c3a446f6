"""What the probe finds in each chat template at hand, as a table: ``make template-table``.

Those in ``tests/data/templates`` are stand-ins, written for the tests: each does what the templates of one
family do to a conversation. ``TEMPLATES=FOLDER`` names others, as those that llama.cpp's source carries. The
engine only renders with them, so the model behind does not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

from fakes.llama_process import OWN_TEMPLATE, LlamaProcess

from boxmaker_adapters.llama_server.encode import schemas
from boxmaker_adapters.llama_server.probe import Verdict
from boxmaker_adapters.llama_server.server import server
from boxmaker_adapters.llama_server.settling import Finding, Settler
from boxmaker_adapters.llama_server.template import Template
from boxmaker_adapters.llama_server.template_checks import words
from boxmaker_adapters.llama_server.wording import ASK, Refuses
from boxmaker_core import CORE, assemble
from boxmaker_core.baseline import Form

FOLDER = Path(__file__).parent / "data" / "templates"
FILES = (OWN_TEMPLATE, *sorted(FOLDER.glob("*.jinja")))


def find(file: Path) -> Finding | str:
    """The probe's verdict, its model being one that reasons; why there is none, if it cannot be used."""
    with LlamaProcess(chat_template=file.read_text(), default_template_kwargs={}, n_ctx=1024) as engine:
        asked = server(engine.url, api_key=None, connect_timeout=5.0)
        baseline = assemble("Be brief.", CORE)
        try:
            prompt = Template(server=asked, sampling={}, until=inf).render(ASK, schemas(baseline.tools), {})
        except Refuses:
            return "refuses the first question"
        if not all(tool.name in prompt for tool in baseline.tools):
            return "shows no tools"
        found = Settler(asked, sampling={}, thinks=True).find(baseline, asked.ask("/props"))
        return found if isinstance(found, Finding) else "refuses a trial"


def cost(verdict: Verdict | None) -> str:
    return "refused" if verdict is None else f"{verdict.again} of {verdict.held}"


def rows(files: Sequence[Path]) -> Iterator[str]:
    yield "| template | what it does | form | fields | verbatim | arguments sent |"
    yield "|---|---|---|---|---|---|"
    for file in files:
        found = find(file)
        if isinstance(found, str):
            yield f"| {file.stem} | {found} | | | | |"
            continue
        both = {verdict.form: verdict for verdict in (found.verdict, found.other) if verdict is not None}
        fields, verbatim = (cost(both.get(form)) for form in (Form.FIELDS, Form.VERBATIM))
        sent = ", ".join(found.kwargs) or "none"
        yield f"| {file.stem} | {words(found)} | {found.form.value} | {fields} | {verbatim} | {sent} |"


def main(arguments: Sequence[str]) -> int:
    files = sorted(Path(arguments[0]).glob("*.jinja")) if arguments else FILES
    if not files:
        why = f"{arguments[0]} has no *.jinja: give the folder that has the templates"
        print(why, file=sys.stderr)  # noqa: T201 - it is a program
        return 2
    for row in rows(files):
        print(row, flush=True)  # noqa: T201 - it is a program
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
