"""The engine's own process: serves with llama.cpp's server until its parent is gone; run as a program only.

It is the one place that imports ``xllamacpp``, which maps some hundred MB.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

PROMPT_CACHE_MIB = 1024
"""Memory for the prompts of sessions that share a slot; llama.cpp's own default is 8 GiB."""
REPORT_BYTES = 64 * 1024

_PR_SET_PDEATHSIG = 1


def _serve(parent: int, report: int) -> int:
    """The child: serve until the parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, REPORT_BYTES)
        if not piece:
            return 1
        line += piece
    try:
        server = _server(json.loads(line))
        answer = {"url": str(server.listening_address)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    os.write(report, json.dumps(answer).encode() + b"\n")
    os.close(report)
    while "url" in answer and os.read(0, 1):
        pass
    return 0


def _server(parameters: Mapping[str, Any]) -> Any:
    import xllamacpp  # the child's alone: it maps some hundred MB

    params = xllamacpp.CommonParams()
    params.model.path = parameters["model"]
    params.chat_template = parameters["chat_template"]
    params.use_jinja = True
    if not parameters["thinking"]:
        # The small model was never taught to think; told to, it only rambles.
        params.default_template_kwargs = {"enable_thinking": "false"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [parameters["api_key"]]
    params.endpoint_slots = True
    params.ui = False
    # Slots stand explicitly and do not share their cells: a shared pool loses a pinned prompt as soon as
    # another slot works (docs/configuration.md, "Your own llama-server").
    params.n_parallel = parameters["slots"]
    params.kv_unified = False
    params.n_ctx = parameters["context"] * parameters["slots"]
    params.ctx_shift = False
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.cpuparams.n_threads = parameters["threads"]
    params.cpuparams_batch.n_threads = parameters["threads"]
    params.warmup = False
    if parameters["states"] is not None:
        os.umask(0o077)  # a state has the conversation in it
        params.slot_save_path = parameters["states"] + "/"
    return xllamacpp.Server(params)


def _main() -> None:
    # Not through the interpreter's end: the server's threads would hold it up.
    os._exit(_serve(int(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    _main()
