"""A llama.cpp server in a process of its own, with any of its parameters, on a port that it keeps when it is
killed and started again; run as a program it is that process."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from fakes.daemon import environment

from boxmaker_adapters.embedded_llama import small_model

PATIENCE = 900.0
"""Seconds until it listens: a busy machine loads a model slowly, and only a hang takes this long."""

OWN_TEMPLATE = Path(__file__).parents[2] / "src" / "boxmaker_adapters" / "data" / "chatml-tools.jinja"
"""The project's template for the small model."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class LlamaProcess:
    """Serves in the ``with`` statement. `parameters` are attributes of ``CommonParams``, ``__`` for a dot."""

    def __init__(self, **parameters: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._parameters = {
            "model.path": str(small_model()),
            "chat_template": OWN_TEMPLATE.read_text(),
            "default_template_kwargs": {"enable_thinking": "false"},
            "n_ctx": 4096,
            "n_parallel": 1,
            "kv_unified": False,
            "cpuparams.n_threads": 1,
            "cpuparams_batch.n_threads": 1,
            **{key.replace("__", "."): value for key, value in parameters.items()},
            "port": self.port,
        }

    def __enter__(self) -> LlamaProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, **variables: str) -> None:
        """With these variables in its environment."""
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fakes.llama_process", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(**variables),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(self._parameters).encode() + b"\n")
        self.process.stdin.flush()
        said = b""
        while not said.endswith(b"listening\n"):
            assert select.select([self.process.stdout], [], [], PATIENCE)[0], "the server did not get ready"
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, said.decode(errors="replace")
            said = (said + piece)[-4096:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def _serve() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        return
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.hostnames = ["127.0.0.1"]
    params.use_jinja = params.endpoint_slots = True
    params.ui = params.warmup = params.ctx_shift = False
    for key, value in json.loads(sys.stdin.readline()).items():
        *path, name = key.split(".")
        holder = params
        for step in path:
            holder = getattr(holder, step)
        setattr(holder, name, value)
    server = xllamacpp.Server(params)
    os.write(1, b"listening\n")
    sys.stdin.read()
    del server


if __name__ == "__main__":
    _serve()
    os._exit(0)
