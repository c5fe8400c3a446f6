"""langchain's agent on its client for llama-server."""

from __future__ import annotations

from typing import Any

import common
import httpx
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_llama_cpp import ChatLlama
from langgraph.checkpoint.memory import InMemorySaver


def stream(url: str) -> str:
    model = ChatLlama(model=common.MODEL, base_url=url)
    return "".join(str(chunk.content) for chunk in model.stream([("user", "hi")]))


def talk(plan: dict[str, Any]) -> None:
    def authorized(request: httpx.Request) -> None:
        """The client has no place for a key."""
        request.headers["Authorization"] = f"Bearer {plan['key']}"

    model = ChatLlama(
        model=common.MODEL,
        base_url=plan["url"],
        http_client=httpx.Client(event_hooks={"request": [authorized]}, timeout=600),
        temperature=0,
        max_tokens=plan["max_tokens"],
    )
    tools = []
    for tool in plan["tools"]:
        function = tool["function"]
        tools.append(
            StructuredTool(
                name=function["name"],
                description=function["description"],
                args_schema=function["parameters"],
                func=_named(plan, function["name"]),
            )
        )
    agent = create_agent(model, tools, system_prompt=plan["system"], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 2 * plan["iterations"]}
    for text in plan["prompts"]:
        agent.invoke({"messages": [("user", text)]}, config)


def _named(plan: dict[str, Any], tool: str) -> Any:
    def run(**arguments: Any) -> str:
        return common.answer(plan, tool, common.json.dumps(arguments))

    return run


common.run(stream, talk)
