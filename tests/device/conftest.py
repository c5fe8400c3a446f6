"""The real engine: one that the tests start, or the one at ``BOXMAKER_LLAMA_URL``.

``loopd`` is pointed at it, so that it outlives a killed daemon. With a server of yours,
``BOXMAKER_LLAMA_KEY_FILE`` may name a file with its API key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.channels import short_folder
from fakes.real_engine import Box, MakeBox, Server, own_engine


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    url = os.environ.get("BOXMAKER_LLAMA_URL")
    if url:
        key = os.environ.get("BOXMAKER_LLAMA_KEY_FILE")
        yield Server(url=url, key_file=Path(key) if key else None, tiny=False)
    else:
        with own_engine(context=4096, slots=3) as own:
            yield own


@pytest.fixture
def make_box(server: Server) -> Iterator[MakeBox]:
    with short_folder() as folder:

        def make(*, on: Server = server, system: str | None = None, **settings: object) -> Box:
            return Box(folder=folder, server=on, system=on.system if system is None else system, **settings)

        yield make
