"""OpenAI Chat Completions, and the many servers that speak this protocol."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from outlast.model_api import (
    ModelEvent,
    ModelRequest,
    ProviderData,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)
from outlast.providers._chat_request import PROVIDER, RESERVED, build_request, to_chat_messages
from outlast.providers._continuation import CONTINUE_INSTRUCTION
from outlast.providers._errors import error_in_stream
from outlast.providers._fields import field, join
from outlast.providers._stream import Adapter, events_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_CUT_SHORT = frozenset({"content_filter", "length"})
"""Reasons after which a tool call without arguments may be one whose arguments never came."""


class OpenAIChatCompletions(Adapter):
    """A model behind a Chat Completions API; implements `outlast.model_api.Model`.

    **Continuing a cut turn.** The API cannot go on with an unfinished assistant message: it
    begins a new one. So what was said already is sent as an assistant message, followed by a user
    message that asks for the rest (`CONTINUE_INSTRUCTION`). Neither is ever stored. Tool calls
    are never sent as part of such a prefix.

    **Reasoning.** What a server streams as ``reasoning_content`` before a tool call goes back to
    it with the call, as such servers ask; it is never shown, and never sent to another provider.

    **Errors.** See `outlast.providers`.

    Args:
        client: Used as it is, and never closed.
        model: The model's name, as the API knows it.
        params: Parameters for every request, such as ``temperature=0``; a request's own go before.

    Raises:
        InvalidDataError: A parameter that the adapter sets itself.
    """

    _sdk = "openai"
    _reserved = RESERVED

    def __init__(self, client: "AsyncOpenAI", model: str, **params: Any) -> None:
        super().__init__(client, model, params)

    def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
        """Call the model once; see `outlast.model_api.Model.stream`."""

        async def start() -> Any:
            body = build_request(self._model, request, prefix, self._params)
            return await self._once().chat.completions.create(**body)

        return events_of(start, ChatCompletionsDecoder(), self._explain)


class ChatCompletionsDecoder:
    """Turns the chunks of one Chat Completions stream into neutral events.

    Chunks are the SDK's objects or plain dicts. Only the first choice counts. A refusal is text
    that ends with the reason ``refusal``.
    """

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._ids: list[str] = []
        self._names: list[str] = []
        self._has_arguments: list[bool] = []
        self._reasoning: list[str] = []
        self._has_refused = False
        self._finish_reason: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the provider's mark of the end has come; without it the stream was cut."""
        return self._finish_reason is not None

    def feed(self, item: Any) -> list[ModelEvent]:
        """Take in one chunk.

        Raises:
            RetryableModelError: The chunk is an error of the server.
            PermanentModelError: The chunk is an error that blames the request.
        """
        error = field(item, "error")
        if error is not None:
            raise error_in_stream(error)
        events: list[ModelEvent] = []
        for choice in field(item, "choices") or ():
            if field(choice, "index"):
                continue
            delta = field(choice, "delta")
            if delta is not None:
                self._feed_delta(delta, events)
            reason = field(choice, "finish_reason")
            if reason:
                self._finish_reason = str(reason)
        return events

    def _feed_delta(self, delta: Any, events: list[ModelEvent]) -> None:
        content, refusal = field(delta, "content"), field(delta, "refusal")
        if isinstance(content, str) and content:
            events.append(TextDelta(content))
        if isinstance(refusal, str) and refusal:
            self._has_refused = True
            events.append(TextDelta(refusal))
        reasoning = field(delta, "reasoning_content")
        if isinstance(reasoning, str) and reasoning:
            self._reasoning.append(reasoning)
        for place, call in enumerate(field(delta, "tool_calls") or ()):
            if self._reasoning and not self._ids:
                data = {"reasoning_content": join(self._reasoning)}
                events.append(ProviderData(PROVIDER, data))
            events.append(self._feed_call(call, place))

    def _feed_call(self, delta: Any, place: int) -> ToolCallDelta:
        key = field(delta, "index")
        if not isinstance(key, int):
            key = place
        function = field(delta, "function")
        call_id, name = field(delta, "id") or "", field(function, "name") or ""
        index = self._calls.get(key)
        # Some servers send every call with index 0: another id means another call.
        if index is None or (call_id and name and call_id != self._ids[index]):
            index = self._calls[key] = len(self._ids)
            self._ids.append(call_id or f"call_{index}")
            self._names.append(name)
            self._has_arguments.append(False)
        self._names[index] = self._names[index] or name
        arguments = field(function, "arguments") or ""
        if arguments.strip():
            self._has_arguments[index] = True
        return ToolCallDelta(index, self._ids[index], self._names[index], arguments)

    def finish(self) -> list[ModelEvent]:
        """What follows the last chunk: ``{}`` for calls that were closed without arguments, the
        end.

        Nothing, if the stream was cut. A call whose arguments the provider's limits may have cut
        off gets no ``{}`` either.
        """
        reason = self._finish_reason
        if reason is None:
            return []
        events: list[ModelEvent] = []
        if reason not in _CUT_SHORT:
            for index, has_arguments in enumerate(self._has_arguments):
                if not has_arguments:
                    events.append(ToolCallDelta(index, self._ids[index], self._names[index], "{}"))
        events.append(StreamEnd("refusal" if self._has_refused and reason == "stop" else reason))
        return events


__all__ = [
    "CONTINUE_INSTRUCTION",
    "ChatCompletionsDecoder",
    "OpenAIChatCompletions",
    "to_chat_messages",
]
