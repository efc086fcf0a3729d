"""From a model's deltas to what an application shows and a checkpoint keeps."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from outlast.errors import InvalidDataError
from outlast.model_api import (
    Block,
    ModelEvent,
    ProviderBlock,
    ProviderData,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)
from outlast.models import PartialToolCall, StreamCheckpoint
from outlast.runtime._text import REPLACEMENT, has_surrogates, join_halves
from outlast.runtime.events import StreamEvent, ToolCallCancelled, ToolCallReady
from outlast.runtime.recovery import complete_call, to_blocks
from outlast.values import check_json


class _Mark(NamedTuple):
    """A provider's block, and its place: behind so much text and so many calls."""

    block: ProviderBlock
    text: int
    calls: int


class _Call:
    """One tool call in the making."""

    __slots__ = ("_held", "_parts", "id", "is_cancelled", "is_ready", "name")

    def __init__(self, call_id: str, name: str) -> None:
        self.id = call_id
        self.name = name
        self.is_ready = False
        self.is_cancelled = False
        self._parts: list[str] = []
        self._held = ""

    def add(self, piece: str) -> str:
        """Take in a piece of the arguments; return what of it is settled."""
        if self._held or has_surrogates(piece):
            piece, self._held = join_halves(self._held + piece)
        if piece:
            self._parts.append(piece)
            if self.is_ready and not piece.isspace():
                self.is_ready = False
        return piece

    def flush(self) -> str:
        """Settle a half that no further piece will complete."""
        piece = REPLACEMENT if self._held else ""
        self._held = ""
        if piece:
            self._parts.append(piece)
        return piece

    def partial(self) -> PartialToolCall:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return PartialToolCall(self.id, self.name, self._parts[0] if self._parts else "")


class StreamAccumulator:
    """Takes in a model's stream, one event at a time, and tells what is there so far.

    Feeding costs a constant time per event; text is joined only when it is asked for. Half a
    surrogate pair at the border of two deltas is held back and joined with the next one, so
    neither an event nor a checkpoint ever shows it; a half that stays alone becomes U+FFFD.

    Args:
        text: What the turn had said before, if it was begun already.
        tool_calls: The calls that it had begun.
    """

    def __init__(self, text: str = "", tool_calls: Iterable[PartialToolCall] = ()) -> None:
        self._parts: list[str] = [text] if text else []
        self._held = ""
        self._calls: dict[int, _Call] = {}
        for index, partial in enumerate(tool_calls):
            call = self._calls[index] = _Call(partial.id, partial.name)
            call.add(partial.arguments)
        self._latest: _Call | None = None
        self._marks: list[_Mark] = []
        self._is_one_call = self.is_empty
        self._finish_reason: str | None = None
        self.size: int = 0
        """UTF-8 bytes taken in so far, dropped ones included; it only grows."""

    @property
    def text(self) -> str:
        """The text so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def tool_calls(self) -> list[PartialToolCall]:
        """The tool calls so far, complete or not, in the order of their first deltas."""
        return [call.partial() for call in self._calls.values()]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was taken in that is still there."""
        return not self._parts and not self._calls

    @property
    def has_cancelled(self) -> bool:
        """Whether `settle` had to cancel a call."""
        return any(call.is_cancelled for call in self._calls.values())

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped, in the provider's words; ``None`` until it has."""
        return self._finish_reason

    @property
    def is_finished(self) -> bool:
        """Whether the model has marked the end of its stream."""
        return self._finish_reason is not None

    def feed(self, event: ModelEvent) -> Sequence[StreamEvent]:
        """Take in one event of the model; return what the application is to see of it.

        Raises:
            TypeError: It is no event of a model.
        """
        if isinstance(event, TextDelta):
            return self._feed_text(event)
        if isinstance(event, ToolCallDelta):
            return self._feed_call(event)
        if isinstance(event, ProviderData):
            return self._feed_provider(event)
        if isinstance(event, StreamEnd):
            return self._finish(event.reason)
        raise TypeError(
            "a model yields TextDelta, ToolCallDelta, ProviderData and StreamEnd, "
            f"not {type(event).__name__}"
        )

    def _feed_text(self, event: TextDelta) -> Sequence[StreamEvent]:
        text = event.text
        if self._held or not text.isascii():
            if self._held or has_surrogates(text):
                text, self._held = join_halves(self._held + text)
                event = TextDelta(text)
            self.size += len(text.encode())
        else:
            self.size += len(text)
        if not text:
            return ()
        self._parts.append(text)
        return (event,)

    def _feed_call(self, event: ToolCallDelta) -> Sequence[StreamEvent]:
        events: list[StreamEvent] = []
        call = self._calls.get(event.index)
        if call is None:
            if self._latest is not None:
                self._announce(self._latest, events)
            call = _Call(event.id or f"call_{event.index}", event.name)
            self._calls[event.index] = call
            self.size += len(call.id) + len(call.name)
        elif not call.name:
            call.name = event.name
        self._latest = call
        piece = call.add(event.arguments)
        self.size += len(piece)
        if piece is not event.arguments or event.id != call.id or event.name != call.name:
            event = ToolCallDelta(event.index, call.id, call.name, piece)
        events.append(event)
        return events

    def _feed_provider(self, event: ProviderData) -> Sequence[StreamEvent]:
        """Keep what goes back to the provider, if the turn is what this one call says: behind a
        prefix, it would be taken out of what it belongs to.
        """
        if not self._is_one_call:
            return ()
        block = ProviderBlock(type="provider", provider=event.provider, data=event.data)
        try:
            check_json([block], "provider data")
        except InvalidDataError:
            return ()  # No loss of the turn's: a provider can do without it.
        self._marks.append(_Mark(block, len(self.text), len(self._calls)))
        return ()

    def _finish(self, reason: str) -> Sequence[StreamEvent]:
        self._finish_reason = reason
        events: list[StreamEvent] = []
        if self._held:
            self._held = ""
            self._parts.append(REPLACEMENT)
            events.append(TextDelta(REPLACEMENT))
        for index, call in self._calls.items():
            if piece := call.flush():
                events.append(ToolCallDelta(index, call.id, call.name, piece))
        events.extend(self.settle())
        return events

    def settle(self) -> list[StreamEvent]:
        """Announce the calls that are complete, and cancel the others: nothing follows any more.

        The end of a stream settles by itself; after a cut, this is what the application is to see.
        """
        events: list[StreamEvent] = []
        for call in self._calls.values():
            if not self._announce(call, events) and not call.is_cancelled:
                call.is_cancelled = True
                partial = call.partial()
                events.append(ToolCallCancelled(partial.id, partial.name, partial.arguments))
        return events

    def _announce(self, call: _Call, events: list[StreamEvent]) -> bool:
        """Announce the call once, if it is complete; return whether it is."""
        if call.is_ready:
            return True
        block = complete_call(call.partial())
        if block is None:
            return False
        call.is_ready = True
        events.append(ToolCallReady(block["id"], block["name"], block["arguments"]))
        return True

    def rewind(self, text: str) -> None:
        """Go on from ``text``, without tool calls: the model is asked again."""
        self._parts = [text] if text else []
        self._held = ""
        self._calls = {}
        self._latest = None
        self._marks = []
        self._is_one_call = not text
        self._finish_reason = None

    def content(self) -> list[Block]:
        """The turn as neutral blocks: its text, then its complete tool calls; others are left
        out.

        A provider's blocks lie where they came, with the text and the calls that came between
        them. None stands at the end, or behind a call that is left out.
        """
        text = self.text
        calls = [complete_call(call) for call in self.tool_calls]
        blocks: list[Block] = []
        first = begin = kept = 0
        for mark in self._marks:
            if None in calls[: mark.calls]:
                break
            made = (call for call in calls[first : mark.calls] if call is not None)
            if said := to_blocks(text[begin : mark.text], made):
                blocks += said
                kept = len(blocks)
            blocks.append(mark.block)
            begin, first = mark.text, mark.calls
        rest = to_blocks(text[begin:], (call for call in calls[first:] if call is not None))
        return blocks + rest if rest else blocks[:kept]

    def checkpoint(
        self,
        *,
        run_id: str,
        thread_id: str,
        message_id: str,
        model: str,
        retry_count: int = 0,
        task_epoch: int = 0,
    ) -> StreamCheckpoint:
        """What is there so far, as a checkpoint."""
        return StreamCheckpoint(
            run_id=run_id,
            thread_id=thread_id,
            message_id=message_id,
            model=model,
            text=self.text,
            tool_calls=self.tool_calls,
            retry_count=retry_count,
            task_epoch=task_epoch,
        )


__all__ = ["StreamAccumulator"]
