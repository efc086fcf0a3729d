"""One model call, from the request to the last event, whatever the protocol."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from outlast.model_api import ModelError, ModelEvent

_DRAIN_TIME = 1.0
"""Seconds; how long the rest of a finished answer is waited for, so that the connection stays
usable.
"""


class Decoder(Protocol):
    """Turns the events of one stream into neutral ones."""

    @property
    def is_finished(self) -> bool:
        """Whether the provider's mark of the end has come; without it the stream was cut."""
        ...

    def feed(self, item: Any) -> list[ModelEvent]:
        """Take in one event of the stream."""
        ...

    def finish(self) -> list[ModelEvent]:
        """What follows the last event; nothing, if the stream was cut."""
        ...


async def events_of(
    start: Callable[[], Awaitable[Any]],
    decoder: Decoder,
    explain: Callable[[Exception], ModelError | None],
) -> AsyncGenerator[ModelEvent]:
    """Make the call and yield what it says; the connection is released in any case.

    Args:
        start: Sends the request, and returns the SDK's stream.
        decoder: Reads it.
        explain: What an error means; ``None``: it goes on as it is.
    """
    stream: Any = None
    try:
        stream = await start()
        async for item in stream:
            for event in decoder.feed(item):
                yield event
            if decoder.is_finished:
                break
        if decoder.is_finished:
            await _drain(stream)
    except Exception as error:
        known = explain(error)
        if known is None:
            raise
        raise known from error
    finally:
        if stream is not None:
            with contextlib.suppress(Exception):
                await stream.close()
    for event in decoder.finish():
        yield event


async def _drain(stream: AsyncIterator[Any]) -> None:
    """Read a finished answer to its end, as far as it comes soon."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_DRAIN_TIME):
            async for _ in stream:
                pass


__all__ = ["Decoder", "events_of"]
