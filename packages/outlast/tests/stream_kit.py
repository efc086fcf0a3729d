"""What the tests of model turns share: a scripted model, its ways to be cut, and an oracle."""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from outlast import (
    ApiMessage,
    Backend,
    Claim,
    StreamCheckpoint,
    StreamCheckpointStore,
    UnavailableError,
)
from outlast.runtime import (
    CheckpointPolicy,
    ModelEvent,
    ModelRequest,
    RetryableModelError,
    RetryPolicy,
    RunContext,
    StreamEnd,
    StreamEvent,
    StreamReset,
    TextDelta,
    ToolCallCancelled,
    ToolCallDelta,
    ToolCallReady,
    Turn,
)

QUESTION = ModelRequest([ApiMessage(id="u1", role="user", content="What is the weather?")])
AT_ONCE = RetryPolicy(base_delay=0.0, max_delay=0.0)

Blocks = list[dict[str, Any]]
CutAction = Callable[[], Awaitable[None]]


async def drop() -> None:
    """A cut that the provider's adapter notices."""
    raise RetryableModelError("dropped")


async def end() -> None:
    """A stream that ends as if it were complete, but without the mark of the end."""
    raise StopAsyncIteration


async def hang() -> None:
    """A model that falls silent."""
    await asyncio.Event().wait()


class Killed(BaseException):
    """Stands for the death of the process: nothing handles it."""


class Cut:
    """Where and how one model call is cut.

    Args:
        after: Events yielded before.
        action: What happens then; it does not return.
    """

    def __init__(self, after: int, action: CutAction = drop) -> None:
        self.after = after
        self.action = action


class ScriptedModel:
    """Says the same every time, goes on behind a prefix, and is cut as told.

    Args:
        events: What it says, with its `StreamEnd`.
        cuts: One for each call, in order; ``None`` and the end mean none.
        pause: Awaited after every event.
    """

    name = "scripted"

    def __init__(
        self,
        events: Sequence[ModelEvent],
        *,
        cuts: Iterable[Cut | None] = (),
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.events = events
        self.cuts = deque(cuts)
        self.pause = pause
        self.prefixes: list[str] = []
        self.open_streams = 0
        self.is_cut = False

    async def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
        """Yield the script behind the prefix."""
        assert request is QUESTION
        self.prefixes.append(prefix)
        cut = self.cuts.popleft() if self.cuts else None
        script = list(behind(self.events, prefix))
        event: ModelEvent | None = None
        self.open_streams += 1
        try:
            for sent, event in enumerate((*script, None)):
                if cut is not None and sent == cut.after:
                    self.is_cut = True
                    try:
                        await cut.action()
                    except StopAsyncIteration:
                        return
                if event is not None:
                    yield event
                    await (self.pause() if self.pause is not None else asyncio.sleep(0))
        except GeneratorExit:
            # Nobody asks for more behind the end of a stream: it is closed, and may be cut then.
            if isinstance(event, StreamEnd) and cut is not None and cut.after == len(script):
                self.is_cut = True
                await cut.action()
            raise
        finally:
            self.open_streams -= 1


def behind(events: Sequence[ModelEvent], prefix: str) -> Iterator[ModelEvent]:
    """The events without the text that ``prefix`` holds; UTF-16 units are counted."""
    whole = full_text(events)
    assert whole.startswith(prefix), (whole, prefix)
    skip = len(prefix.encode("utf-16-le"))
    for event in events:
        if isinstance(event, TextDelta) and skip:
            units = event.text.encode("utf-16-le", "surrogatepass")
            rest = units[skip:]
            skip = max(skip - len(units), 0)
            if rest:
                yield TextDelta(rest.decode("utf-16-le", "surrogatepass"))
        else:
            yield event


def full_text(events: Iterable[ModelEvent | StreamEvent]) -> str:
    """The text of the events; halves of surrogate pairs joined, single ones replaced."""
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def raw_calls(events: Iterable[ModelEvent]) -> list[tuple[str, str, str]]:
    """Id, name and raw arguments of the calls, in the order of their first deltas."""
    calls: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, ToolCallDelta):
            call = calls.setdefault(event.index, [event.id, event.name, ""])
            call[2] += event.arguments
    return [(call[0], call[1], call[2]) for call in calls.values()]


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def as_object(arguments: str) -> dict[str, Any] | None:
    """The oracle's own idea of complete arguments."""
    try:
        value = json.loads(arguments, parse_constant=_refuse)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def content_of(events: Iterable[ModelEvent]) -> Blocks:
    """What a turn that consists of ``events`` commits."""
    events = list(events)
    text = full_text(events)
    blocks: Blocks = [{"type": "text", "text": text}] if text else []
    for call_id, name, arguments in raw_calls(events):
        value = as_object(arguments)
        if value is not None:
            blocks.append({"type": "tool_call", "id": call_id, "name": name, "arguments": value})
    return blocks


def rendered(events: Iterable[StreamEvent]) -> Blocks:
    """What a user interface shows after the events."""
    text = ""
    calls: dict[str, dict[str, Any] | None] = {}
    for event in events:
        match event:
            case TextDelta():
                text += event.text
            case ToolCallReady():
                calls[event.id] = {
                    "type": "tool_call",
                    "id": event.id,
                    "name": event.name,
                    "arguments": event.arguments,
                }
            case ToolCallCancelled():
                calls.pop(event.id, None)
            case StreamReset():
                text, calls = event.text, {}
            case ToolCallDelta():
                calls.setdefault(event.id, None)
    blocks: Blocks = [{"type": "text", "text": text}] if text else []
    return blocks + [call for call in calls.values() if call is not None]


def says(text: str, *calls: tuple[str, str, str], piece: int = 4) -> list[ModelEvent]:
    """A well-behaved script: text, then calls ``(id, name, arguments)``, in pieces, then the
    end.
    """
    events: list[ModelEvent] = [TextDelta(part) for part in _cut(text, piece)]
    for index, (call_id, name, arguments) in enumerate(calls):
        events.append(ToolCallDelta(index, call_id, name, ""))
        events += [ToolCallDelta(index, call_id, name, part) for part in _cut(arguments, piece)]
    events.append(StreamEnd("tool_calls" if calls else "stop"))
    return events


def _cut(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


class WatchedStore(StreamCheckpointStore):
    """A real checkpoint store, with what the test does before each put.

    Attributes:
        before_put: Awaited first; raising stands for a failing store.
        puts: The checkpoints that were put, in order.
        most_in_flight: Of puts at the same time.
    """

    def __init__(self, inner: StreamCheckpointStore) -> None:
        self.inner = inner
        self.before_put: Callable[[], Awaitable[None]] | None = None
        self.puts: list[StreamCheckpoint] = []
        self.in_flight = 0
        self.most_in_flight = 0

    async def claim(
        self,
        run_id: str,
        *,
        thread_id: str | None = None,
        claim_id: str | None = None,
        at_least: int | None = None,
        if_epoch: int | None = None,
    ) -> Claim:
        return await self.inner.claim(
            run_id,
            thread_id=thread_id,
            claim_id=claim_id,
            at_least=at_least,
            if_epoch=if_epoch,
        )

    async def get(self, run_id: str) -> StreamCheckpoint | None:
        return await self.inner.get(run_id)

    async def put(self, checkpoint: StreamCheckpoint, *, claim: Claim | None = None) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.before_put is not None:
                await self.before_put()
            await self.inner.put(checkpoint, claim=claim)
            self.puts.append(checkpoint)
        finally:
            self.in_flight -= 1

    async def delete(self, run_id: str, *, claim: Claim | None = None) -> None:
        await self.inner.delete(run_id, claim=claim)

    async def delete_thread(self, thread_id: str, *, force: bool = False) -> int:
        return await self.inner.delete_thread(thread_id, force=force)

    def iter_checkpoints(self, **filters: Any) -> AsyncIterator[StreamCheckpoint]:
        return self.inner.iter_checkpoints(**filters)


class MortalStore(WatchedStore):
    """A process's way to the store; it ends with the process.

    Args:
        inner: The real store.
        lives: Puts that are still made; the process dies before the next one is sent.
    """

    def __init__(self, inner: StreamCheckpointStore, lives: int | None) -> None:
        super().__init__(inner)
        self.lives = lives
        self.before_put = self.live

    async def live(self) -> None:
        """Refuse what a dead process would still write."""
        if self.lives is not None and len(self.puts) >= self.lives:
            raise UnavailableError("dead")

    async def settled(self, seconds: float = 0.0) -> None:
        """Wait until everything that was streamed has been written.

        Args:
            seconds: How long no write must have begun; 0 counts steps of the loop, for memory.
        """
        quiet, since = 0, time.monotonic()
        while quiet < 20 or time.monotonic() - since < seconds:
            quiet += 1
            if self.in_flight:
                quiet, since = 0, time.monotonic()
            await asyncio.sleep(seconds / 20)


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait, in steps of the loop, until ``condition`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        await asyncio.sleep(0)


def other_tasks() -> set[asyncio.Task[Any]]:
    """The tasks of this loop besides the running one."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def context(backend: Backend, *, stored: bool = True, **changes: Any) -> RunContext:
    """A claimed task's turn."""
    claim = await backend.persistence.claim_task("t")
    made = RunContext(
        backend.persistence,
        **{
            "task_id": "t",
            "run_id": "r",
            "message_id": "m1",
            "claim": claim,
            "retry": AT_ONCE,
            "checkpointing": CheckpointPolicy(interval=0),
            **changes,
        },
    )
    return made.with_stream_checkpoint(backend.checkpoints) if stored else made


async def run(turn: Turn) -> tuple[Turn, list[StreamEvent]]:
    """The whole of a turn."""
    async with turn:
        return turn, [event async for event in turn]


async def log_of(backend: Backend) -> list[ApiMessage]:
    """The committed conversation."""
    return await backend.persistence.load_api_messages("t")


async def put_checkpoint(backend: Backend, **fields: Any) -> None:
    """What a process that died has left behind."""
    claim = await backend.checkpoints.claim("r", thread_id="t")
    checkpoint = StreamCheckpoint(
        **{"run_id": "r", "thread_id": "t", "message_id": "m1", "model": "old", **fields}
    )
    await backend.checkpoints.put(checkpoint, claim=claim)
