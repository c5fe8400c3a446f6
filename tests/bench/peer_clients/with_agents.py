"""The OpenAI Agents SDK with its Chat Completions model."""

from __future__ import annotations

import asyncio
from typing import Any

import agents
import common
from agents import Agent, FunctionTool, ModelSettings, OpenAIChatCompletionsModel, Runner
from openai import AsyncOpenAI

agents.set_tracing_disabled(True)


def stream(url: str) -> str:
    async def run() -> str:
        model = OpenAIChatCompletionsModel(common.MODEL, AsyncOpenAI(base_url=url, api_key="none"))
        result = Runner.run_streamed(Agent(name="a", model=model), "hi")
        pieces = []
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                pieces.append(event.data.delta)
        return "".join(pieces)

    return asyncio.run(run())


def talk(plan: dict[str, Any]) -> None:
    async def run() -> None:
        client = AsyncOpenAI(base_url=plan["url"], api_key=plan["key"])
        agent = Agent(
            name="a",
            instructions=plan["system"],
            model=OpenAIChatCompletionsModel(common.MODEL, client),
            model_settings=ModelSettings(temperature=0, max_tokens=plan["max_tokens"]),
            tools=[_tool(plan, tool["function"]) for tool in plan["tools"]],
        )
        history: list[Any] = []
        for text in plan["prompts"]:
            result = await Runner.run(
                agent, [*history, {"role": "user", "content": text}], max_turns=plan["iterations"]
            )
            history = result.to_input_list()

    asyncio.run(run())


def _tool(plan: dict[str, Any], function: dict[str, Any]) -> FunctionTool:
    async def invoke(_: Any, arguments: str) -> str:
        return common.answer(plan, function["name"], arguments)

    return FunctionTool(
        name=function["name"],
        description=function["description"],
        params_json_schema=function["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


common.run(stream, talk)
