"""A model that follows a script: the n-th turn of a conversation says the n-th thing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from outlast.runtime import ModelEvent, ModelRequest, StreamEnd, TextDelta, ToolCallDelta

Turn = str | tuple[str, str, str]
"""What a turn says: text, or text, a tool's name and its arguments as JSON."""


class ScriptedModel:
    """Speaks a few letters at a time, as models do, and goes on behind what it has said.

    Args:
        turns: The script.
        pause: Seconds between two pieces.
    """

    name = "scripted"

    def __init__(self, *turns: Turn, pause: float = 0.05) -> None:
        self.turns = turns
        self.pause = pause

    async def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
        """Say the next thing. ``prefix`` was said before the stream was cut."""
        number = sum(message.role == "assistant" for message in request.messages)
        turn = self.turns[number]
        text, *call = (turn,) if isinstance(turn, str) else turn
        for piece in _pieces(text[len(prefix) :]):
            await asyncio.sleep(self.pause)
            yield TextDelta(piece)
        if call:
            name, arguments = call
            for piece in _pieces(arguments):
                await asyncio.sleep(self.pause)
                yield ToolCallDelta(0, f"call-{number}", name, piece)
        yield StreamEnd("tool_calls" if call else "stop")


def _pieces(text: str, size: int = 6) -> list[Any]:
    return [text[start : start + size] for start in range(0, len(text), size)]
