"""One model turn that survives cut streams and dead processes, and is committed once."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Self

import msgspec

from outlast.contracts import Claim
from outlast.errors import (
    ConflictError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from outlast.model_api import (
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    RetryableModelError,
    StreamEnd,
)
from outlast.models import ApiMessage, StreamCheckpoint
from outlast.runtime._guard import Guard
from outlast.runtime._writer import CheckpointWriter, log, log_failure
from outlast.runtime.accumulator import StreamAccumulator
from outlast.runtime.context import RunContext
from outlast.runtime.events import StreamEvent, StreamReset, ToolCallCancelled, ToolCallReady
from outlast.runtime.recovery import RecoveryKind, RecoveryPlan, plan_recovery

Sleep = Callable[[float], Awaitable[object]]


class Recovery(msgspec.Struct, frozen=True):
    """One time that a turn went on after it was cut.

    Attributes:
        plan: How it went on.
        error: What cut the stream in this process; ``None``: another process had begun the turn.
        delay: Seconds waited before the model was called again.
    """

    plan: RecoveryPlan
    error: ModelError | None = None
    delay: float = 0.0


def run_turn(
    context: RunContext,
    model: Model,
    request: ModelRequest,
    *,
    rng: random.Random | None = None,
    sleep: Sleep = asyncio.sleep,
) -> "Turn":
    """Make a model turn and run it to its committed message; an async context manager.

    **Guarantees**

    - The turn is committed once, whole, under ``context.message_id``, when the iteration ends.
      What was streamed before a cut and what came after it are one message.
    - A turn whose message is in the log already is not run again: the iteration is empty.
    - A cut stream goes on as `plan_recovery` says, in this process and, with a checkpoint store,
      in the next one. No tool call is part of the message unless its arguments are complete.
    - No event waits for a checkpoint write. A write that fails is a warning of the logger
      ``outlast.runtime.stream`` and ends nothing.
    - Leaving the block early, by ``break``, an error or cancellation, commits nothing. The
      checkpoint stays, brought up to date by one last write.

    **Not guaranteed**: without a checkpoint store, or with one that is unavailable on entry (a
    warning), a turn does not outlive its process. Without a task's claim, only the message's id
    keeps a former owner from committing. On entry the task's API log is read as a whole.

    Args:
        context: Where the turn is stored, and by which rules it runs.
        model: What is asked.
        request: The question.
        rng: Draws the jitter of waits.
        sleep: Waits, in seconds.

    Returns:
        The turn, to be entered and iterated once.

    Raises:
        FencedError: On entry, iteration or commit: the task has a newer owner.
        PermanentModelError: While iterating; as the provider raised it.
        RetryableModelError: While iterating; the last one, when ``context.retry`` is used up.
        OutlastError: The persistence could not be read on entry, or could not commit.
    """
    return Turn(context, model, request, rng=rng or random.Random(), sleep=sleep)  # noqa: S311


class Turn:
    """A model turn; made by `run_turn`. Iterate it for what the application shows."""

    def __init__(
        self,
        context: RunContext,
        model: Model,
        request: ModelRequest,
        *,
        rng: random.Random,
        sleep: Sleep,
    ) -> None:
        self._context = context
        self._model = model
        self._request = request
        self._rng = rng
        self._sleep = sleep
        self._message: ApiMessage | None = None
        self._recoveries: list[Recovery] = []
        self._finish_reason: str | None = None
        self._retry_count = 0
        self._checkpoint: StreamCheckpoint | None = None
        self._accumulator = StreamAccumulator()
        self._guard = Guard()
        self._is_lost = False
        self._writer: CheckpointWriter | None = None
        self._events: AsyncGenerator[StreamEvent] | None = None

    @property
    def message(self) -> ApiMessage | None:
        """The message as it is in the log; ``None`` until the iteration has ended."""
        return self._message

    @property
    def recoveries(self) -> list[Recovery]:
        """Each time that the turn went on after a cut, in order; a copy."""
        return list(self._recoveries)

    @property
    def has_lost_run(self) -> bool:
        """Whether another process claimed the run meanwhile: its checkpoint may still be there."""
        return self._writer is not None and self._writer.is_fenced

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped, in the provider's words; ``None`` if it was cut before it said so,
        and for a message that another process committed.
        """
        return self._finish_reason

    async def __aenter__(self) -> Self:
        if self._events is not None:
            raise RuntimeError("a turn is entered once; call run_turn() again")
        self._events = self._run()
        context = self._context
        if context.claim is not None:
            await context.persistence.check_claim(context.claim)
        if not context.is_uncommitted:
            self._message = await self._load_message()
        if self._message is not None:
            await self._delete_leftover()
        elif context.stream_checkpoint is not None:
            claim = await self._claim_run()
            if claim is not None:
                self._checkpoint = await self._own_checkpoint(claim)
                self._writer = CheckpointWriter(
                    context.stream_checkpoint,
                    claim,
                    context.checkpointing,
                    self._snapshot,
                    self._check_task,
                )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._events is not None:
                await self._events.aclose()
        finally:
            if self._writer is not None:
                await self._writer.aclose(flush=not self._is_over)

    @property
    def _is_over(self) -> bool:
        """Whether this process has nothing to write any more: committed, or no longer the owner."""
        return self._message is not None or self._is_lost or self._guard.is_set

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        if self._events is None:
            raise RuntimeError("a turn is iterated inside 'async with run_turn(...) as turn'")
        return self._events

    async def _load_message(self) -> ApiMessage | None:
        """The turn's message, if it is in the log."""
        context = self._context
        messages = await context.persistence.load_api_messages(context.task_id)
        return next((found for found in messages if found.id == context.message_id), None)

    async def _claim_run(self) -> Claim | None:
        """Take the run over, so that no former owner writes its checkpoint any more.

        A store that is away costs the protection against the death of this process, not the turn:
        the task's claim alone decides who commits.
        """
        context = self._context
        assert context.stream_checkpoint is not None
        try:
            return await context.stream_checkpoint.claim(context.run_id, thread_id=context.task_id)
        except (UnavailableError, OutcomeUnknownError) as error:
            log_failure(logging.WARNING, context.run_id, "claim", error)
            return None

    async def _own_checkpoint(self, claim: Claim) -> StreamCheckpoint | None:
        """What the claim found, if it is this turn's."""
        context, found = self._context, claim.checkpoint
        if found is None:
            return None
        if context.claim is not None and found.task_epoch > context.task_epoch:
            # Written under a newer claim of the task than ours: this process has been superseded.
            await context.persistence.check_claim(context.claim)
        if (found.thread_id, found.message_id) != (context.task_id, context.message_id):
            return None  # Of another turn, whose time is over: a run has one turn in flight.
        return found

    async def _delete_leftover(self) -> None:
        """Remove the checkpoint of a turn that was committed by a process that then died, best
        effort.
        """
        context, store = self._context, self._context.stream_checkpoint
        if store is None:
            return
        try:
            found = await store.get(context.run_id)
            if found is None or found.message_id != context.message_id:
                return
            claim = await store.claim(context.run_id, thread_id=context.task_id)
            if claim.checkpoint is not None and claim.checkpoint.message_id == context.message_id:
                await store.delete(context.run_id, claim=claim)
        except Exception as error:  # noqa: BLE001 - the message is committed
            log_failure(logging.WARNING, context.run_id, "delete", error)

    async def _run(self) -> AsyncGenerator[StreamEvent]:
        if self._message is not None:
            return
        plan: RecoveryPlan | None = None
        if self._checkpoint is not None:
            plan, shown = self._resume(self._checkpoint)
            for item in shown:
                yield item
        while plan is None or plan.calls_model:
            error: RetryableModelError | None = None
            self._touch()
            stream = aiter(self._model.stream(self._request, prefix=self._accumulator.text))
            step, wait, feed = stream.__anext__, self._guard.wait, self._accumulator.feed
            try:
                while not self._accumulator.is_finished:
                    event = await wait(step)
                    events = feed(event)
                    if not isinstance(event, StreamEnd):
                        self._touch()
                    for item in events:
                        yield item
            except StopAsyncIteration:
                error = RetryableModelError("the stream ended before the model had finished")
            except RetryableModelError as caught:
                error = caught
            finally:
                await self._close_stream(stream)
            if error is None:
                if not self._accumulator.has_cancelled:
                    break
                error = RetryableModelError("the model finished with a malformed tool call")
            plan, shown, delay = self._recover(error)
            for item in shown:
                yield item
            if plan.calls_model:
                await self._guard.wait(partial(self._sleep, delay))
        await self._commit()

    def _resume(self, found: StreamCheckpoint) -> tuple[RecoveryPlan, list[StreamEvent]]:
        """Go on with a turn that another process has begun."""
        self._accumulator = StreamAccumulator(found.text, found.tool_calls)
        self._retry_count = found.retry_count
        plan = plan_recovery(found)
        self._recoveries.append(Recovery(plan))
        settled = self._accumulator.settle()
        cancelled = [item for item in settled if isinstance(item, ToolCallCancelled)]
        ready = [item for item in settled if isinstance(item, ToolCallReady)]
        if plan.calls_model:
            self._accumulator.rewind(plan.text)
        # What was shown elsewhere may differ from what was saved: begin with a clean slate.
        return plan, [*cancelled, StreamReset(plan.text), *ready]

    def _recover(self, error: RetryableModelError) -> tuple[RecoveryPlan, list[StreamEvent], float]:
        """Go on after a model call that failed.

        Raises:
            RetryableModelError: ``error``, if it was one too many.
        """
        plan = plan_recovery(self._snapshot())
        self._retry_count += 1
        self._touch()
        shown: list[StreamEvent] = list(self._accumulator.settle())
        if not plan.calls_model:
            self._recoveries.append(Recovery(plan, error))
            return plan, shown, 0.0
        policy = self._context.retry
        if self._retry_count > policy.max_retries:
            raise error
        if plan.kind is RecoveryKind.RESTART and not self._accumulator.is_empty:
            shown.append(StreamReset())
        delay = policy.delay(self._retry_count, error.retry_after, self._rng)
        self._recoveries.append(Recovery(plan, error, delay))
        log.info(
            "run %r: model call failed, going on by %s in %.3f s: %s",
            self._context.run_id,
            plan.kind.value,
            delay,
            error,
        )
        self._accumulator.rewind(plan.text)
        return plan, shown, delay

    async def _commit(self) -> None:
        context = self._context
        if self._writer is not None:
            self._writer.stop()
        message = ApiMessage(
            id=context.message_id, role="assistant", content=list(self._accumulator.content())
        )
        try:
            await context.persistence.append_api_message(
                context.task_id, message, claim=context.claim
            )
        except ConflictError:
            # A former owner has committed the turn. Its message stands; ours was never in the log.
            stored = await self._load_message()
            if stored is None:
                raise
            message = stored
        except FencedError:
            self._is_lost = True
            await self._tidy_up()
            raise
        else:
            self._finish_reason = self._accumulator.finish_reason
        self._message = message
        if self._writer is not None:
            await self._writer.delete()

    async def _tidy_up(self) -> None:
        """Another process owns the task. If it has committed the turn already, nobody else looks at
        what we have written of it since.
        """
        if self._writer is None:
            return
        try:
            if await self._load_message() is not None:
                await self._writer.delete()
        except Exception as error:  # noqa: BLE001 - the loss of the task is what is told
            log_failure(logging.WARNING, self._context.run_id, "delete", error)

    def _touch(self) -> None:
        if self._writer is not None:
            self._writer.touch(self._accumulator.size)

    def _snapshot(self) -> StreamCheckpoint:
        context = self._context
        return self._accumulator.checkpoint(
            run_id=context.run_id,
            thread_id=context.task_id,
            message_id=context.message_id,
            model=self._model.name,
            retry_count=self._retry_count,
            task_epoch=context.task_epoch,
        )

    async def _check_task(self) -> None:
        """The run has a newer owner: stop the model if the task has one, too."""
        context = self._context
        if context.claim is None:
            return
        try:
            await context.persistence.check_claim(context.claim)
        except FencedError as error:
            self._guard.interrupt(error)
        except Exception as error:  # noqa: BLE001 - the commit will tell
            log_failure(logging.WARNING, context.run_id, "check_claim", error)

    async def _close_stream(self, stream: AsyncIterator[ModelEvent]) -> None:
        """Release what the model's stream holds; it has nothing to say any more, not even an
        error.
        """
        aclose = getattr(stream, "aclose", None)
        if aclose is None:
            return
        try:
            await aclose()
        except Exception as error:  # noqa: BLE001 - what it said before stands
            log.debug("run %r: closing the model's stream failed: %r", self._context.run_id, error)


__all__ = ["Recovery", "Turn", "run_turn"]
