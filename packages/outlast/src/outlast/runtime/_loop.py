"""The loop of a task: ask the model, run the tools that it calls, until it calls none."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from outlast.errors import (
    InvalidDataError,
    NotSupportedError,
    OutlastError,
    PayloadTooLargeError,
)
from outlast.model_api import Model, ModelError, ModelEvent, ModelRequest, RetryableModelError
from outlast.models import ApiMessage, TaskStatus
from outlast.runtime._calls import Calls
from outlast.runtime._core import Core, log, utc_now
from outlast.runtime._subtasks import PausedError
from outlast.runtime.context import RunContext
from outlast.runtime.messages import is_empty
from outlast.runtime.turn import run_turn


class TurnFailedError(Exception):
    """A model turn failed for good: the task has failed."""


class Loop:
    """Works on one task.

    Attributes:
        inbox: What the user said that is not part of the conversation with the model yet; each is
            stored as a user message.
    """

    def __init__(self, core: Core, calls: Calls, inbox: Iterable[ApiMessage]) -> None:
        self._core = core
        self._calls = calls
        self._is_log_known = True
        self.inbox: list[ApiMessage] = list(inbox)

    async def run(self) -> bool:
        """Work until the task has ended, which is then saved, or is to pause.

        Returns:
            Whether it has ended.

        Raises:
            FencedError: The task has a newer owner.
            OutlastError: The store did not do it.
        """
        core = self._core
        try:
            await self.catch_up()
            while not core.is_pausing:
                await self._calls.settle()
                if core.is_pausing:
                    break
                core.messages.end_round()
                await core.messages.append_user_messages_now()
                await self.take_inbox()
                if core.is_answered():
                    if await self.finish(TaskStatus.COMPLETED):
                        return True
                    continue
                limit = core.config("max_steps", core.agent.max_steps)
                if limit is not None and core.steps() >= limit:
                    text = f"no answer after {limit} model turns (max_steps)"
                    return await self._fail("MaxStepsError", text)
                try:
                    await self._turn()
                except TurnFailedError as failure:
                    cause = failure.__cause__
                    return await self._fail(type(cause).__name__, str(cause))
        except PausedError as reason:
            log.warning("task %r: paused: %s", core.task_id, reason)
            await core.messages.save_now()
            core.set_status(TaskStatus.PAUSED)
            await core.states.save_state_now()
        except BaseException:
            # What the store has of the turn's message is not known any more.
            self._is_log_known = False
            raise
        return False

    async def catch_up(self) -> None:
        """Take in a turn whose commit was cut off: it may be in the log or not.

        Under our claim nobody else can have written, and what was sent is settled by the next thing
        that is done.
        """
        if self._is_log_known:
            return
        core = self._core
        await core.messages.save_api_messages_now()
        await core.persistence.append_api_messages(core.task_id, [], claim=core.claim)
        for message in await core.persistence.load_api_messages(core.task_id):
            if core.messages.get_api_message(message.id) is None:
                core.messages.adopt_api_message(message)
                core.tell(core.callbacks.on_api_message, message)
                core.add_answer(message)
        self._is_log_known = True

    async def take_inbox(self) -> None:
        """Let the conversation with the model have what the user said meanwhile."""
        while self.inbox:
            self._core.add_api(self.inbox[0])
            del self.inbox[0]
        await self._core.messages.save_api_messages_now()

    async def _turn(self) -> None:
        core = self._core
        agent = core.agent
        core.messages.start_round()
        await core.messages.save_api_messages_now()
        context = RunContext(
            core.persistence,
            task_id=core.task_id,
            run_id=core.run_id,
            message_id=core.turn_id(),
            claim=core.claim,
            retry=agent.retry,
            checkpointing=agent.checkpointing,
        )
        context.is_uncommitted = True
        if core.store is not None:
            context = context.with_stream_checkpoint(core.store)
        model = agent.model
        if agent.model_timeout is not None:
            model = _Patient(model, agent.model_timeout)
        try:
            async with run_turn(context, model, self._request()) as turn:
                async for event in turn:
                    core.tell(core.callbacks.on_event, event)
        except (ModelError, InvalidDataError, PayloadTooLargeError, NotSupportedError) as error:
            raise TurnFailedError from error
        except OutlastError:
            raise
        except Exception as error:
            # A model of somebody else broke its promise; running it again would not help.
            raise TurnFailedError from error
        assert turn.message is not None
        if turn.has_lost_run:
            # To a process that has lost the task, but claimed the run after us. It cannot commit.
            await core.drop_checkpoint()
        core.messages.adopt_api_message(turn.message)
        core.tell(core.callbacks.on_api_message, turn.message)
        core.add_answer(turn.message)

    def _request(self) -> ModelRequest:
        core = self._core
        messages = [message for message in core.messages.api_log if not is_empty(message)]
        system = core.config("system", None)
        if system is not None:
            messages.insert(0, ApiMessage(id="system", role="system", content=system))
        params: dict[str, Any] = dict(core.config("params", {}))
        if core.task_input is not None:
            params |= core.task_input.params
        return ModelRequest(messages, tools=core.agent.tool_specs, params=params)

    async def _fail(self, kind: str, text: str) -> bool:
        log.warning("task %r: failed: %s: %s", self._core.task_id, kind, text)
        return await self.finish(TaskStatus.FAILED, error={"type": kind, "message": text})

    async def finish(self, status: TaskStatus, *, error: dict[str, Any] | None = None) -> bool:
        """Save all messages, then the final state.

        Returns:
            Whether the task has ended: a message that came in meanwhile keeps it going.
        """
        core = self._core
        await core.messages.save_now()
        if status is TaskStatus.COMPLETED and self.inbox:
            return False
        core.set_status(status, end_time=utc_now(), error=error)
        await core.states.save_state_now()
        return True


class _Patient:
    """A model that is given up once it has said nothing for so long."""

    def __init__(self, model: Model, seconds: float) -> None:
        self._model = model
        self._seconds = seconds

    @property
    def name(self) -> str:
        return self._model.name

    async def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
        stream = aiter(self._model.stream(request, prefix=prefix))
        try:
            while True:
                try:
                    async with asyncio.timeout(self._seconds):
                        event = await anext(stream)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    raise RetryableModelError(
                        f"the model said nothing for {self._seconds:g} s"
                    ) from error
                yield event
        finally:
            aclose = getattr(stream, "aclose", None)
            if aclose is not None:
                await aclose()


__all__ = ["Loop", "TurnFailedError"]
