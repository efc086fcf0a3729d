"""What the tests of agents share: a model that follows a script, and looks at what was stored."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from stream_kit import behind, says

from outlast import ApiMessage, Backend, StreamCheckpoint, UserMessage
from outlast.runtime import Agent, ModelEvent, ModelRequest, RetryPolicy, Tool, check_history

AT_ONCE = RetryPolicy(base_delay=0.0, max_delay=0.0)


class TalkingModel:
    """Says the n-th thing in the n-th turn of a conversation, and goes on behind a prefix.

    It refuses a conversation that a provider would refuse.

    Args:
        turns: What it says, each with its `StreamEnd`; or an error that it raises.
        pause: Awaited before every event.
    """

    name = "talking"

    def __init__(
        self,
        *turns: Sequence[ModelEvent] | Exception,
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.turns = turns
        self.pause = pause
        self.requests: list[ModelRequest] = []
        self.prefixes: list[str] = []

    async def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
        messages = [message for message in request.messages if message.role != "system"]
        problems = check_history(messages)
        assert problems == [], problems
        self.requests.append(request)
        self.prefixes.append(prefix)
        turn = self.turns[sum(message.role == "assistant" for message in messages)]
        if isinstance(turn, Exception):
            raise turn
        for event in behind(turn, prefix):
            await (self.pause() if self.pause is not None else asyncio.sleep(0))
            yield event


def calls(name: str, arguments: str = "{}", *, text: str = "", call: str = "c1") -> Any:
    """A turn that calls one tool."""
    return says(text, (call, name, arguments))


def make(backend: Backend, model: Any, *tools: Any, **options: Any) -> Agent:
    """An agent over the backend, with checkpoints."""
    store = options.pop("persistence", backend.persistence)
    options.setdefault("retry", AT_ONCE)
    options.setdefault("stream_checkpoint", backend.checkpoints)
    return Agent(store, model, tools=tools, **options)


def shape(messages: Sequence[ApiMessage]) -> list[str]:
    """A conversation, one line for each message: role, text, calls, results."""
    lines: list[str] = []
    for message in messages:
        line = message.role
        blocks = (
            message.content
            if isinstance(message.content, list)
            else [{"type": "text", "text": message.content}]
        )
        for block in blocks:
            if block["type"] == "text":
                line += f" {block['text']}"
            elif block["type"] == "tool_call":
                line += f" {block['name']}({block['id']})"
            else:
                line += f" {'!' if block['is_error'] else '='}{block['content']}"
        lines.append(line)
    return lines


def cards(messages: Sequence[UserMessage]) -> list[str]:
    """The user's side: texts, and tool cards with their status."""
    return [
        f"{message.tool_info.name}:{message.tool_info.status}"
        if message.tool_info is not None
        else f"{message.role} {message.content}"
        for message in messages
    ]


async def stored(backend: Backend, task_id: str = "t") -> list[str]:
    """The stored conversation."""
    return shape(await backend.persistence.load_api_messages(task_id))


async def reached(event: asyncio.Event) -> None:
    """Wait for an event, with a deadline."""
    async with asyncio.timeout(20):
        await event.wait()


async def checkpointed(backend: Backend, run_id: str = "t") -> StreamCheckpoint:
    """Wait for a turn in flight to be written down."""
    async with asyncio.timeout(20):
        while (found := await backend.checkpoints.get(run_id)) is None:
            await asyncio.sleep(0.01)
        return found


class Gate:
    """A tool or model that stops at a point until it is let through."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.opened.wait()


def waiting_tool(gate: Gate, **options: Any) -> Tool:
    """A tool named ``hang`` that waits at the gate."""

    async def hang() -> str:
        await gate()
        return "x"

    return Tool(hang, **options)
