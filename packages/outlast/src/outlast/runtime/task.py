"""One task in this process: started, paused, ended, and waited for."""

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from outlast.contracts import Claim
from outlast.errors import ClosedError, FencedError, InvalidDataError, NotSupportedError
from outlast.models import ApiMessage, TaskInput, TaskState, TaskStatus, UserMessage
from outlast.runtime._calls import Calls
from outlast.runtime._core import EPOCH, SENT, Core, log, utc_now
from outlast.runtime._loop import Loop
from outlast.runtime._saver import drain
from outlast.runtime._subtasks import Subtasks
from outlast.runtime.callbacks import InterruptedCall
from outlast.runtime.history import Repair, text_of
from outlast.runtime.merging import as_blocks

if TYPE_CHECKING:
    from outlast.runtime.agent import Agent


class Task:
    """A task that this process owns; from `Agent.create_task` or `Agent.load_task`.

    **Guarantees.** Every write goes through the task's claim. Once another process has claimed the
    task, this one writes nothing more: it stops, and `wait` raises `FencedError`. A status is saved
    at once, a final one before `wait` returns, after all messages.

    Use it as an async context manager, or call `aclose`. It serves the event loop that made it.
    """

    def __init__(
        self,
        agent: "Agent",
        core: Core,
        repairs: Sequence[Repair] = (),
        inbox: Sequence[ApiMessage] = (),
    ) -> None:
        self._agent = agent
        self._core = core
        self._subtasks = Subtasks(core)
        self._calls = Calls(core, self._subtasks)
        self._loop = Loop(core, self._calls, inbox)
        self._repairs = tuple(repairs)
        self._changing = asyncio.Lock()
        self._runner: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._fence: FencedError | None = None
        self._is_closed = False
        self._outcome = self._new_outcome()
        self._paused = asyncio.Event()

    # What it is

    @property
    def id(self) -> str:
        """The task's id."""
        return self._core.task_id

    @property
    def claim(self) -> Claim:
        """The task's claim."""
        return self._core.claim

    @property
    def state(self) -> TaskState:
        """The state in memory; treat its values as read-only."""
        return self._core.states.state

    @property
    def status(self) -> TaskStatus:
        """The status in memory."""
        return self._core.status

    @property
    def input(self) -> TaskInput | None:
        """What the task was asked to do; ``None`` if nothing is stored of it."""
        return self._core.task_input

    @property
    def api_messages(self) -> list[ApiMessage]:
        """The conversation as the model sees it."""
        return self._core.messages.api_messages

    @property
    def user_messages(self) -> list[UserMessage]:
        """The conversation as a person sees it."""
        return self._core.messages.user_messages

    @property
    def result(self) -> str:
        """The text of the last answer; empty if there is none."""
        for message in reversed(self._core.messages.api_log):
            if message.role == "assistant":
                return text_of(message)
        return ""

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was mended when the task was loaded."""
        return self._repairs

    @property
    def interrupted_calls(self) -> list[InterruptedCall]:
        """Tool calls without a result that had begun: they may have taken effect."""
        return [] if self._calls.is_running else self._calls.interrupted()

    @property
    def is_running(self) -> bool:
        """Whether the task is being worked on in this process."""
        return self._runner is not None and not self._runner.done()

    def update_context(self, **changes: object) -> None:
        """Replace top-level entries of the task's context; saved in the background.

        Raises:
            InvalidDataError: A value cannot be stored.
            FencedError: The task has a newer owner.
        """
        self._core.states.update_state(context={**self.state.context, **changes})

    # What it does

    async def start(self) -> None:
        """Begin to work on the task, or go on, in the background; harmless if that is so already.

        PENDING, PAUSED and RUNNING tasks enter the loop of model turns and tool calls;
        WAITING_FOR_SUBTASK goes on with the sub-task. What was committed is not done again.

        Raises:
            NotSupportedError: The task has ended; `send_message` starts it again.
            FencedError: The task has a newer owner.
            OutlastError: The store did not do it.
        """
        self._check_usable()
        async with self._owning():
            if self.is_running:
                return
            if self.status.is_final:
                raise NotSupportedError(
                    f"the task is {self.status.value}; send_message() starts it again with new "
                    "input",
                    operation="start",
                    key=self.id,
                )
            await self._start()

    async def _start(self) -> None:
        core = self._core
        status = self.status
        if status is not TaskStatus.WAITING_FOR_SUBTASK:
            status = TaskStatus.RUNNING
        core.set_status(
            status,
            start_time=self.state.start_time or utc_now(),
            config={**self.state.config, EPOCH: self.claim.epoch},
        )
        await core.states.save_state_now()
        core.is_pausing = False
        self._paused.clear()
        if self._outcome.done():
            self._outcome = self._new_outcome()
        self._runner = asyncio.create_task(self._run(), name=f"outlast-task-{self.id}")
        self._watcher = asyncio.create_task(self._watch(), name=f"outlast-watch-{self.id}")

    async def send_message(self, content: Any, *, message_id: str | None = None) -> str:
        """Say something to the task, durably, and return the message's id.

        A task that has ended begins again with it. A running one sees it before its next model
        turn; any other one when it is started.

        Args:
            content: Text, a block, or a list of them.
            message_id: Makes a repetition harmless; a new one by default.

        Raises:
            InvalidDataError: It is empty, or cannot be stored.
            FencedError: The task has a newer owner.
            OutlastError: The store did not do it.
        """
        self._check_usable()
        core = self._core
        async with self._owning():
            name = message_id or f"user-{secrets.token_hex(8)}"
            known = core.messages.get_user_message(name)
            if known is None and core.messages.get_api_message(name) is None:
                blocks = as_blocks(content)
                core.add_user(
                    UserMessage(
                        id=name,
                        type="text",
                        role="user",
                        content=content,
                        ts=utc_now(),
                        metadata={SENT: True},
                    )
                )
                self._loop.inbox.append(ApiMessage(id=name, role="user", content=blocks))
            elif known is None or SENT not in known.metadata or known.content != content:
                raise InvalidDataError(f"there is another message of the id {name!r}")
            await core.messages.append_user_messages_now()
            if self.status.is_final and self._loop.inbox:
                await self._reactivate()
            return name

    async def _reactivate(self) -> None:
        await self._join()
        core = self._core
        await self._loop.catch_up()
        core.close_calls(self._calls.explain_end)
        core.messages.end_round()
        await core.drop_checkpoint()
        await self._loop.take_inbox()
        core.set_status(TaskStatus.RUNNING, end_time=None, error=None)
        await self._start()

    async def pause(self, *, rollback: bool = False) -> None:
        """Stop working on the task, so that `start` goes on with it; here or elsewhere.

        A model turn in flight is cut; its checkpoint stays. A tool at work gets the agent's
        ``pause_grace`` seconds to end; a call that is cut then counts as interrupted.

        Args:
            rollback: Remove what the present round has added to the conversation with the model;
                user messages stay. The turn in flight is dropped, and sub-tasks of the round are
                aborted.

        Raises:
            NotSupportedError: The task has ended.
            ConflictError: The stored conversation has messages of somebody else; see
                `MessageManager.rollback_current_round`.
            FencedError: The task has a newer owner.
            OutlastError: The store did not do it.
        """
        self._check_usable()
        core = self._core
        async with self._owning():
            if self.status.is_final:
                raise NotSupportedError(
                    f"the task is {self.status.value}, and cannot be paused",
                    operation="pause",
                    key=self.id,
                )
            core.is_pausing = True
            children = list(self._subtasks.running.values())
            if self._calls.is_running and not children and not rollback and self._runner:
                await asyncio.wait({self._runner}, timeout=self._agent.pause_grace)
            if not rollback:
                for child in children:
                    if not child.status.is_final:
                        await child.pause()
            await self._halt()
            if self.status.is_final:
                return
            await self._loop.catch_up()
            if rollback:
                await self._roll_back()
            await core.messages.save_now()
            core.set_status(TaskStatus.PAUSED)
            await core.states.save_state_now()
            self._paused.set()

    async def _roll_back(self) -> None:
        core = self._core
        message, calls = core.open_calls()
        if message is not None and calls and not core.messages.is_in_round:
            core.messages.start_round(at=message.id)
        # Counted first: from now on, no turn has the id of the one that is removed.
        core.states.update_state(retry_count=self.state.retry_count + 1)
        await core.states.save_state_now()
        await self._subtasks.abort_unfinished()
        await core.drop_checkpoint()
        removed = await core.messages.rollback_current_round()
        for gone in removed:
            card = core.messages.get_user_message(gone.id)
            if card is not None and card.tool_info is not None:
                info = msgspec.structs.replace(card.tool_info, status="rolled_back")
                core.update_user(card.id, tool_info=info)

    async def abort(self) -> None:
        """End the task as ABORTED, and its unfinished sub-tasks with it; harmless if it has ended.

        A tool at work is cancelled. Calls without a result are answered with an error, so that the
        conversation can go on, should the task be started again.

        Raises:
            FencedError: The task has a newer owner.
            OutlastError: The store did not do it.
        """
        self._check_usable()
        async with self._owning():
            await self._halt()
            if self.status.is_final:
                return
            core = self._core
            await self._loop.catch_up()
            await self._subtasks.abort_unfinished()
            await core.drop_checkpoint()
            core.close_calls(self._calls.explain_end)
            core.messages.end_round()
            await self._loop.finish(TaskStatus.ABORTED)
            self._resolve()

    async def wait(self) -> TaskState:
        """Wait for the end, and return the final state; at once if the task has ended.

        It may be awaited before `start`, by any number of callers. Pausing does not end it.

        Raises:
            FencedError: The task has a newer owner; it goes on there.
            ClosedError: The task was closed here before its end.
            OutlastError: The store failed; the task is as it was stored, and can be started again.
        """
        has_ended = self.status.is_final and not self.is_running
        if has_ended and not (self._failed() and self._core.states.is_dirty):
            return self.state
        return await asyncio.shield(self._outcome)

    async def settled(self) -> TaskState:
        """As `wait`, but return the state also once the task is paused."""
        if self.status.is_final:
            return await self.wait()
        pausing = asyncio.create_task(self._paused.wait())
        waiting: set[asyncio.Future[Any]] = {self._outcome, pausing}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pausing.cancel()
        return self.state if self._paused.is_set() else await self.wait()

    def _failed(self) -> bool:
        outcome = self._outcome
        return outcome.done() and not outcome.cancelled() and outcome.exception() is not None

    async def aclose(self) -> None:
        """Stop working on the task here, and save what is pending; idempotent. The task stays as
        it is: whoever loads it goes on.

        Raises:
            ExceptionGroup: Not everything could be saved.
        """
        self._is_closed = True
        async with self._changing:
            await self._halt()
            core = self._core
            try:
                if self._fence is None:
                    await drain((*core.messages.savers, core.states.saver), f"task {self.id!r}")
            finally:
                core.quit(self._fence)
                if not self._outcome.done():
                    self._outcome.set_exception(
                        ClosedError("the task was closed here before its end", key=self.id)
                    )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Task {self.id!r}, {self.status.value}>"

    # Beneath

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClosedError("the task is closed here; load it again", key=self.id)
        if self._runner is not None and asyncio.current_task() is self._runner:
            raise NotSupportedError(
                "a task cannot change its own course from inside one of its tools", key=self.id
            )

    @asynccontextmanager
    async def _owning(self) -> AsyncGenerator[None]:
        """One change of the task's course at a time, and none once it is not ours any more."""
        async with self._changing:
            if self._fence is not None:
                raise self._fence.with_traceback(None)
            try:
                yield
            except FencedError as error:
                if error.key == self.id:
                    self._lose(error)
                raise

    def _lose(self, error: FencedError) -> None:
        """The task has a newer owner: write nothing more."""
        self._fence = error
        self._core.quit(error)
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def _new_outcome(self) -> asyncio.Future[TaskState]:
        outcome: asyncio.Future[TaskState] = asyncio.get_running_loop().create_future()
        # Whoever waits is told; a failure that nobody waits for has been logged.
        outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        return outcome

    def _resolve(self) -> None:
        if not self._outcome.done():
            self._outcome.set_result(self.state)

    async def _run(self) -> None:
        error: Exception
        try:
            if await self._loop.run():
                self._resolve()
            elif self.status is TaskStatus.PAUSED:
                self._paused.set()
            return
        except asyncio.CancelledError:
            if self._fence is None:
                raise
            error = self._fence
        except Exception as caught:  # noqa: BLE001 - it is told to whoever waits
            error = caught
        finally:
            if self._watcher is not None:
                self._watcher.cancel()
        if isinstance(error, FencedError) and error.key == self.id:
            self._lose(error)
        log.error(
            "task %r: stopped here as %s: %s: %s",
            self.id,
            self.status.value,
            type(error).__name__,
            error,
        )
        if not self._outcome.done():
            self._outcome.set_exception(error)

    async def _watch(self) -> None:
        """Look now and then whether the task is still ours, also while a tool or model is slow, and
        show that it is worked on.
        """
        core, loop = self._core, asyncio.get_running_loop()
        look, beat = self._agent.ownership_interval, self._agent.heartbeat
        if look is None and beat is None:
            return
        last = loop.time()
        while True:
            await asyncio.sleep(min(look or math.inf, beat or math.inf))
            try:
                if beat is not None and loop.time() - last >= beat:
                    last = loop.time()
                    await core.states.save_state_now()
                elif look is not None:
                    await core.persistence.check_claim(core.claim)
            except FencedError as error:
                self._fence = error
                if self._runner is not None:
                    self._runner.cancel()
                return
            except Exception as error:  # noqa: BLE001 - the next write will tell
                log.debug("task %r: its claim could not be checked: %r", self.id, error)

    async def _join(self) -> None:
        if self._runner is not None and not self._runner.done():
            await asyncio.wait({self._runner})

    async def _halt(self) -> None:
        """Stop the work in this process; nothing is saved by that."""
        # A tool may swallow its cancellation: then the loop ends behind it.
        self._core.is_pausing = True
        for work in (self._runner, self._watcher):
            if work is not None and not work.done():
                work.cancel()
                await asyncio.wait({work})


__all__ = ["Task"]
