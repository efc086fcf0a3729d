"""OpenAI Responses."""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from outlast.model_api import (
    ModelEvent,
    ModelRequest,
    PermanentModelError,
    ProviderData,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)
from outlast.providers._continuation import CONTINUE_INSTRUCTION
from outlast.providers._errors import error_in_stream
from outlast.providers._fields import field, join, plain
from outlast.providers._responses_request import (
    PROVIDER,
    RESERVED,
    build_request,
    to_input_items,
)
from outlast.providers._stream import Adapter, events_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_REMEMBERED = 64
"""Background responses that one adapter can go back to."""


class OpenAIResponses(Adapter):
    """A model behind OpenAI's Responses API; implements `outlast.model_api.Model`.

    **Continuing a cut turn.** The API cannot go on with an unfinished assistant message: it
    begins a new one. So what was said already is sent as an assistant message, followed by a user
    message that asks for the rest (`CONTINUE_INSTRUCTION`). Neither is ever stored.

    With ``background=True`` the response itself outlives its stream: while the process lives, the
    stream is taken up again behind the last text that came (``starting_after``), and nothing is
    asked twice. Should the API not have the response any more, or the process be another one, the
    turn continues as above. A background response whose turn is left is not cancelled.

    **History.** The whole conversation is sent each time, without the ids that the API gave its
    items; ``previous_response_id`` and ``conversation`` are refused. Reasoning goes back to the
    API in its encrypted form (``encrypted_content``), with turns that ran uncut.

    **Errors.** See `outlast.providers`.

    Args:
        client: Used as it is, and never closed.
        model: The model's name, as the API knows it.
        params: Parameters for every request, such as ``max_output_tokens=1000``; a request's own
            go before.

    Raises:
        InvalidDataError: A parameter that the adapter sets itself.
    """

    _sdk = "openai"
    _reserved = RESERVED

    def __init__(self, client: "AsyncOpenAI", model: str, **params: Any) -> None:
        super().__init__(client, model, params)
        self._begun: OrderedDict[int, tuple[ModelRequest, ResponsesDecoder]] = OrderedDict()

    async def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
        """Call the model once; see `outlast.model_api.Model.stream`."""
        client = self._once()
        body = build_request(self._model, request, prefix, self._params)
        decoder = ResponsesDecoder(prefix)

        async def start() -> Any:
            if body.get("background"):
                before = self._begun.get(id(request))
                self._remember(request, decoder)
                if before is not None and decoder.continues(before[1]):
                    try:
                        return await client.responses.retrieve(
                            decoder.response_id, stream=True, starting_after=decoder.sequence_number
                        )
                    except Exception as error:
                        if not isinstance(self._explain(error), PermanentModelError):
                            raise
                        decoder.forget()  # It is gone: ask for the rest instead.
            return await client.responses.create(**body)

        async with aclosing(events_of(start, decoder, self._explain)) as events:
            async for event in events:
                yield event
        if decoder.is_finished:
            self._begun.pop(id(request), None)

    def _remember(self, request: ModelRequest, decoder: "ResponsesDecoder") -> None:
        """Keep in mind which response a request has begun; the request lives as long."""
        self._begun[id(request)] = (request, decoder)
        while len(self._begun) > _REMEMBERED:
            self._begun.popitem(last=False)


class _Call:
    """A function call in the making."""

    __slots__ = ("id", "index", "is_closed", "name", "pieces")

    def __init__(self, index: int, call_id: str, name: str) -> None:
        self.index = index
        self.id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.is_closed = False

    def add(self, arguments: str) -> ToolCallDelta:
        self.pieces.append(arguments)
        return ToolCallDelta(self.index, self.id, self.name, arguments)


class ResponsesDecoder:
    """Turns the events of one Responses stream into neutral events.

    Events are the SDK's objects or plain dicts. A refusal is text that ends with the reason
    ``refusal``. Several messages in one response become one text, with an empty line between them.

    Args:
        prefix: What the turn has said before this call.
    """

    def __init__(self, prefix: str = "") -> None:
        self._said: list[str] = [prefix]
        self._calls: dict[int, _Call] = {}
        self.message: object = None
        """Which message of the response spoke last."""
        self._has_refused = False
        self._finish_reason: str | None = None
        self.response_id: str | None = None
        """Of the response that the stream belongs to, once it is known."""
        self.sequence_number: int | None = None
        """Of the event up to which the response's text is in the turn."""

    @property
    def is_finished(self) -> bool:
        """Whether the provider's mark of the end has come; without it the stream was cut."""
        return self._finish_reason is not None

    @property
    def said(self) -> str:
        """The turn's text so far, the prefix included."""
        return join(self._said)

    def continues(self, before: "ResponsesDecoder") -> bool:
        """Go on with the stream that another decoder was reading, if its text is all there."""
        if before.response_id is None or before.said != self.said:
            return False
        self.response_id, self.sequence_number = before.response_id, before.sequence_number
        self.message = before.message
        return True

    def forget(self) -> None:
        """The response cannot be gone back to."""
        self.response_id = self.sequence_number = self.message = None

    def feed(self, item: Any) -> list[ModelEvent]:
        """Take in one event.

        Raises:
            RetryableModelError: The response has failed, or the event is an error of the server.
            PermanentModelError: The same, and it blames the request.
        """
        kind = field(item, "type")
        match kind:
            case "response.created":
                self.response_id = field(field(item, "response"), "id")
                self.sequence_number = field(item, "sequence_number")
            case "response.output_text.delta":
                return self._speak(item)
            case "response.refusal.delta":
                self._has_refused = True
                return self._speak(item)
            case "response.output_item.added":
                return self._begin(item)
            case "response.function_call_arguments.delta":
                call = self._calls.get(field(item, "output_index"))
                delta = field(item, "delta")
                return [call.add(delta)] if call is not None and delta else []
            case "response.function_call_arguments.done":
                call = self._calls.get(field(item, "output_index"))
                return [] if call is None else self._complete(call, field(item, "arguments"))
            case "response.output_item.done":
                return self._end(item)
            case "response.completed" | "response.incomplete":
                self._finish(field(item, "response"), kind.removeprefix("response."))
            case "response.failed":
                self.forget()
                raise error_in_stream(field(field(item, "response"), "error"))
            case "error":
                self.forget()
                raise error_in_stream(item)
            case _:
                if field(item, "error") is not None:
                    self.forget()
                    raise error_in_stream(field(item, "error"))
        return []

    def _speak(self, item: Any) -> list[ModelEvent]:
        text = field(item, "delta")
        if not text:
            return []
        message = (field(item, "output_index"), field(item, "item_id"))
        if self.message is not None and message != self.message:
            text = f"\n\n{text}"
        self.message = message
        self._said.append(text)
        self.sequence_number = field(item, "sequence_number")
        return [TextDelta(text)]

    def _begin(self, event: Any) -> list[ModelEvent]:
        item = field(event, "item")
        if field(item, "type") != "function_call":
            return []
        index = len(self._calls)
        call = _Call(index, field(item, "call_id") or f"call_{index}", field(item, "name") or "")
        self._calls[field(event, "output_index")] = call
        return [call.add(field(item, "arguments") or "")]

    def _end(self, event: Any) -> list[ModelEvent]:
        item = field(event, "item")
        kind = field(item, "type")
        if kind == "reasoning":
            return _reasoning(item)
        if kind != "function_call":
            return []
        events: list[ModelEvent] = []
        call = self._calls.get(field(event, "output_index"))
        if call is None:
            events += self._begin(event)
            call = self._calls[field(event, "output_index")]
        is_whole = field(item, "status") != "incomplete"
        arguments = field(item, "arguments") or ""
        return events + self._complete(call, arguments or ("{}" if is_whole else ""))

    def _complete(self, call: _Call, arguments: Any) -> list[ModelEvent]:
        """What of the arguments has not come in pieces."""
        sent = join(call.pieces)
        if not isinstance(arguments, str) or not arguments.startswith(sent):
            return []
        rest = arguments[len(sent) :]
        return [call.add(rest)] if rest else []

    def _finish(self, response: Any, status: str) -> None:
        reason = field(field(response, "incomplete_details"), "reason") or status
        if self._has_refused and reason == "completed":
            reason = "refusal"
        self._finish_reason = str(reason)

    def finish(self) -> list[ModelEvent]:
        """What follows the last event: the end, unless the stream was cut."""
        return [] if self._finish_reason is None else [StreamEnd(self._finish_reason)]


def _reasoning(item: Any) -> list[ModelEvent]:
    """Reasoning as it goes back to the API; without its encrypted form, the API would have to keep
    it.
    """
    data = plain(item)
    if not data.get("encrypted_content"):
        return []
    kept = ("type", "summary", "content", "encrypted_content")
    return [ProviderData(PROVIDER, {key: data[key] for key in kept if data.get(key) is not None})]


__all__ = ["CONTINUE_INSTRUCTION", "OpenAIResponses", "ResponsesDecoder", "to_input_items"]
