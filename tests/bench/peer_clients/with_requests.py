"""requests, its lines, and `json.loads`: no client library, but what many scripts do."""

from __future__ import annotations

import json

import common
import requests


def stream(url: str) -> str:
    pieces = []
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with requests.post(f"{url}/chat/completions", json=body, stream=True, timeout=60) as answer:
        for line in answer.iter_lines(chunk_size=65536):
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                if choices:
                    pieces.append(choices[0]["delta"].get("content") or "")
    return "".join(pieces)


common.run(stream, None)
