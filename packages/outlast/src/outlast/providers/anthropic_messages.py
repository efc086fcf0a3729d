"""Anthropic Messages."""

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
from outlast.providers._blocks import Json, dump
from outlast.providers._continuation import CONTINUE_INSTRUCTION, Seam
from outlast.providers._errors import error_in_stream
from outlast.providers._fields import field, join, plain
from outlast.providers._messages_request import PROVIDER, RESERVED, build_request, to_turns
from outlast.providers._stream import Adapter, events_of

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_CUT_SHORT = frozenset({"max_tokens", "model_context_window_exceeded", "refusal"})
"""Reasons after which a tool call without input may be one whose input never came."""


class AnthropicMessages(Adapter):
    """A model behind Anthropic's Messages API; implements `outlast.model_api.Model`.

    **Continuing a cut turn.** Models up to Claude 4.5 go on from an unfinished assistant message
    at the end of the request (prefill). Such a message must not end with white space, so that is
    cut off, and left out of the continuation where the model repeats it. Later models refuse a
    prefill, and every model does while it thinks, answers in a given format (``output_config``) or
    has to call a tool (``tool_choice``); then what was said is followed by a user message that
    asks for the rest (`CONTINUE_INSTRUCTION`). Neither message is ever stored.

    **Thinking.** Thinking blocks go back to the API unchanged and in their places, with turns that
    ran uncut. A turn that was cut has lost them. The API accepts that, but for one case: with a
    budget (``thinking={"type": "enabled", ...}``), results of tools are handed in behind thinking
    only; then thinking is off until the model has answered them.

    **Errors.** See `outlast.providers`.

    Args:
        client: Used as it is, and never closed.
        model: The model's name, as the API knows it.
        prefill: Whether the model goes on from an unfinished message; ``None``: by its name. An
            unknown name counts as one that does not.
        params: Parameters for every request, such as ``max_tokens=1000`` (8192 if not given); a
            request's own go before.

    Raises:
        InvalidDataError: A parameter that the adapter sets itself.
    """

    _sdk = "anthropic"
    _reserved = RESERVED

    def __init__(
        self, client: "AsyncAnthropic", model: str, *, prefill: bool | None = None, **params: Any
    ) -> None:
        super().__init__(client, model, params)
        self._prefill = prefill

    def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
        """Call the model once; see `outlast.model_api.Model.stream`."""
        decoder = MessagesDecoder()

        async def start() -> Any:
            built = build_request(self._model, request, prefix, self._params, prefill=self._prefill)
            decoder.seam = Seam(built.kept)
            return await self._once().messages.create(**built.body)

        return events_of(start, decoder, self._explain)


class _Block:
    """A content block in the making."""

    __slots__ = ("data", "index", "kind", "pieces", "signature")

    def __init__(self, kind: str, data: Json, index: int) -> None:
        self.kind = kind
        self.data = data
        self.index = index
        self.pieces: list[str] = []
        self.signature: list[str] = []

    def add(self, arguments: str) -> ToolCallDelta:
        self.pieces.append(arguments)
        return ToolCallDelta(self.index, self.data["id"], self.data["name"], arguments)


class MessagesDecoder:
    """Turns the events of one Messages stream into neutral events.

    Events are the SDK's objects or plain dicts. Blocks of tools that run at the provider, and
    citations, are left out.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._calls: list[_Block] = []
        self._finish_reason: str | None = None
        self.seam: Seam = Seam()
        """Joins the text to a prefix."""

    @property
    def is_finished(self) -> bool:
        """Whether the provider's mark of the end has come; without it the stream was cut."""
        return self._finish_reason is not None

    def feed(self, item: Any) -> list[ModelEvent]:
        """Take in one event.

        Raises:
            RetryableModelError: The event is an error of the server.
            PermanentModelError: The event is an error that blames the request.
        """
        events: list[ModelEvent] = []
        match field(item, "type"):
            case "content_block_start":
                events = self._begin(field(item, "index"), field(item, "content_block"))
            case "content_block_delta":
                events = self._continue(field(item, "index"), field(item, "delta"))
            case "content_block_stop":
                events = self._end(field(item, "index"))
            case "message_delta":
                self._finish_reason = field(field(item, "delta"), "stop_reason")
            case "message_stop":
                self._finish_reason = self._finish_reason or "end_turn"
            case "error":
                raise error_in_stream(field(item, "error"))
            case _:
                pass
        joined = (self.seam.join(event) for event in events)
        return [event for event in joined if event is not None]

    def _begin(self, place: int, content: Any) -> list[ModelEvent]:
        kind = str(field(content, "type"))
        block = self._blocks[place] = _Block(kind, plain(content), len(self._calls))
        if kind == "text":
            text = block.data.get("text")
            return [TextDelta(text)] if text else []
        if kind == "tool_use":
            self._calls.append(block)
            return [block.add("")]
        return []

    def _continue(self, place: int, delta: Any) -> list[ModelEvent]:
        block = self._blocks.get(place)
        match field(delta, "type"):
            case "text_delta":
                text = field(delta, "text")
                return [TextDelta(text)] if text else []
            case "input_json_delta" if block is not None and block.kind == "tool_use":
                piece = field(delta, "partial_json")
                return [block.add(piece)] if piece else []
            case "thinking_delta" if block is not None:
                block.pieces.append(field(delta, "thinking"))
            case "signature_delta" if block is not None:
                block.signature.append(field(delta, "signature"))
            case _:
                pass
        return []

    def _end(self, place: int) -> list[ModelEvent]:
        block = self._blocks.get(place)
        if block is None:
            return []
        if block.kind == "tool_use" and not join(block.pieces).strip() and block.data.get("input"):
            return [block.add(dump(block.data["input"]))]  # Some servers send it in one piece.
        if block.kind == "redacted_thinking":
            return [ProviderData(PROVIDER, block.data)]
        if block.kind == "thinking":
            thinking = (block.data.get("thinking") or "") + join(block.pieces)
            signature = (block.data.get("signature") or "") + "".join(block.signature)
            if signature:
                whole = {"type": "thinking", "thinking": thinking, "signature": signature}
                return [ProviderData(PROVIDER, whole)]
        return []

    def finish(self) -> list[ModelEvent]:
        """What follows the last event: ``{}`` for calls that were closed without input, the end.

        Nothing, if the stream was cut. A call whose input the provider's limits may have cut off
        gets no ``{}`` either.
        """
        reason = self._finish_reason
        if reason is None:
            return []
        events: list[ModelEvent] = []
        if reason not in _CUT_SHORT:
            events += [call.add("{}") for call in self._calls if not join(call.pieces).strip()]
        events.append(StreamEnd(reason))
        return events


__all__ = ["CONTINUE_INSTRUCTION", "AnthropicMessages", "MessagesDecoder", "to_turns"]
