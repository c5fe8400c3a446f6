"""A chat template in Python, in the shape of ChatML with tools, and a tokenizer whose tokens are letters."""

from __future__ import annotations

import json
from collections.abc import Sequence

from boxmaker_adapters.llama_server.wording import Message, Refuses, Render
from boxmaker_core.tools import CORE


def chatml(*, opening: str = "", keep: bool = True, strict: bool = False, shown: str = "") -> Render:
    """As ChatML with tools does it. `opening` ends the prompt; without `keep` reasoning goes once a user
    speaks again; `strict` refuses two users in a row; `shown` stands at the top."""

    def render(messages: Sequence[Message]) -> str:
        last = max(at for at, message in enumerate(messages) if message["role"] == "user")
        text = f"<s>{shown}{CORE[0].description}\n"
        for at, message in enumerate(messages):
            if strict and at and message["role"] == "user" == messages[at - 1]["role"]:
                raise Refuses("roles must alternate")
            body = message["content"]
            if message.get("reasoning_content") is not None and (keep or at > last):
                body = f"<think>\n{message['reasoning_content']}</think>\n\n{body}"
            for call in message.get("tool_calls", ()):
                function = call["function"]
                dumped = json.dumps(json.loads(function["arguments"]))
                body += f'<call>\n{{"name": "{function["name"]}", "arguments": {dumped}}}\n</call>'
            text += f"<|{message['role']}|>\n{body}<|end|>\n"
        return f"{text}<|assistant|>\n{opening}"

    return render


def letters(text: str) -> list[int]:
    """A tokenizer whose tokens are letters."""
    return [ord(letter) for letter in text]
