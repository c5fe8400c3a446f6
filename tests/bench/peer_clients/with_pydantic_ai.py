"""pydantic-ai's agent with its OpenAI chat model."""

from __future__ import annotations

import asyncio
from typing import Any

import common
from pydantic_ai import Agent, Tool, UsageLimitExceeded, UsageLimits, capture_run_messages
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def _model(url: str, key: str) -> OpenAIChatModel:
    return OpenAIChatModel(common.MODEL, provider=OpenAIProvider(base_url=url, api_key=key))


def stream(url: str) -> str:
    async def run() -> str:
        async with Agent(_model(url, "none")).run_stream("hi") as result:
            return "".join([piece async for piece in result.stream_text(delta=True, debounce_by=None)])

    return asyncio.run(run())


def talk(plan: dict[str, Any]) -> None:
    async def run() -> None:
        agent = Agent(
            _model(plan["url"], plan["key"]),
            system_prompt=plan["system"],
            model_settings={"temperature": 0, "max_tokens": plan["max_tokens"]},
            tools=[_tool(plan, tool["function"]) for tool in plan["tools"]],
        )
        history: list[Any] = []
        for text in plan["prompts"]:
            limits = UsageLimits(request_limit=plan["iterations"])
            with capture_run_messages() as told:
                try:
                    result = await agent.run(text, message_history=history, usage_limits=limits)
                except UsageLimitExceeded:
                    history = list(told)
                else:
                    history = result.all_messages()

    asyncio.run(run())


def _tool(plan: dict[str, Any], function: dict[str, Any]) -> Tool[Any]:
    def run(**arguments: Any) -> str:
        return common.answer(plan, function["name"], common.json.dumps(arguments))

    return Tool.from_schema(
        run, name=function["name"], description=function["description"], json_schema=function["parameters"]
    )


common.run(stream, talk)
