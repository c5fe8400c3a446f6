"""openai-python with a plain loop around it."""

from __future__ import annotations

from typing import Any

import common
from openai import OpenAI


def stream(url: str) -> str:
    client = OpenAI(base_url=url, api_key="none")
    chunks = client.chat.completions.create(
        model=common.MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def talk(plan: dict[str, Any]) -> None:
    client = OpenAI(base_url=plan["url"], api_key=plan["key"])
    messages: list[Any] = [{"role": "system", "content": plan["system"]}]
    for text in plan["prompts"]:
        messages.append({"role": "user", "content": text})
        for _ in range(plan["iterations"]):
            completion = client.chat.completions.create(
                model=common.MODEL,
                messages=messages,
                tools=plan["tools"],
                temperature=0,
                max_tokens=plan["max_tokens"],
            )
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                content = common.answer(plan, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


common.run(stream, talk)
