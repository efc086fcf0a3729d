"""What all adapters have in common: one model call, from the request to the last event."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar, Protocol

from outlast.model_api import ModelError, ModelEvent
from outlast.providers._blocks import check_params
from outlast.providers._errors import Sdk, to_model_error

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


class Adapter:
    """A model behind an SDK's client.

    Args:
        client: Used as it is, and never closed.
        model: The model's name, as the API knows it.
        params: Parameters for every request.

    Raises:
        InvalidDataError: A parameter that the adapter sets itself.
    """

    _sdk: ClassVar[Sdk]
    _reserved: ClassVar[frozenset[str]]

    def __init__(self, client: Any, model: str, params: dict[str, Any]) -> None:
        check_params(params, self._reserved)
        self._client: Any = client
        self._model = model
        self._params = params

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    def _once(self) -> Any:
        """The client for one call: the SDK repeats nothing itself."""
        return self._client.with_options(max_retries=0)

    def _explain(self, error: Exception) -> ModelError | None:
        """What an error means; no key of the client's is in it."""
        secrets = [getattr(self._client, name, None) for name in ("api_key", "auth_token")]
        return to_model_error(error, self._sdk, secrets=secrets)


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


__all__ = ["Adapter", "Decoder", "events_of"]
