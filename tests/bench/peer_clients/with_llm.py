"""The llm library on a server with OpenAI's interface."""

from __future__ import annotations

import common
from llm.default_plugins.openai_models import Chat


def stream(url: str) -> str:
    model = Chat(model_id=common.MODEL, model_name=common.MODEL, api_base=url)
    return "".join(model.prompt("hi", key="none", stream=True))


common.run(stream, None)
