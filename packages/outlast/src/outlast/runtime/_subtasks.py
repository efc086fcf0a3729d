"""Tasks that a task's tools start, and that it waits for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError, OutlastError
from outlast.models import TaskInput, TaskState, TaskStatus
from outlast.runtime._core import Core, digest, log
from outlast.runtime.tools import SubtaskResult

if TYPE_CHECKING:
    from outlast.runtime.agent import Agent
    from outlast.runtime.task import Task


class StoppedError(Exception):
    """A sub-task stopped without an end; the task that waits for it stops for the same reason."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class PausedError(Exception):
    """The task cannot go on until somebody starts it again: it pauses."""


class Subtasks:
    """The sub-tasks of one task. Their ids follow from the calls that started them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.running: dict[str, Task] = {}

    def name(self, message_id: str, place: int, number: int) -> str:
        """The id of the sub-task that a call starts as its ``number``-th one."""
        return f"sub-{digest(self._core.task_id, message_id, place, number)[:32]}"

    async def run(
        self,
        call: tuple[str, int, int],
        task_input: str | TaskInput,
        agent_name: str | None,
        context: Mapping[str, Any] | None,
    ) -> SubtaskResult:
        """Start a sub-task, or find the one that the same call started before, and await its
        end.
        """
        core = self._core
        task_id = self.name(*call)
        agent = core.agent.subagent(agent_name)
        known = list(core.states.state.subtask_ids)
        task = await self._load(task_id) if task_id in known else None
        if task is None:
            # The parent first: a child that it does not know would never be found again.
            if task_id not in known:
                core.states.update_state(subtask_ids=[*known, task_id])
            self._wait()
            await core.states.save_state_now()
            task = await agent.create(
                task_input,
                task_id=task_id,
                context=context,
                callbacks=core.callbacks.of_subtask(task_id),
                parent_id=core.task_id,
            )
        return await self._finish(task)

    async def resume(self, message_id: str, place: int) -> list[SubtaskResult] | None:
        """Go on with the sub-tasks of a call that was interrupted; ``None`` if it has none."""
        known = self._core.states.state.subtask_ids
        results: list[SubtaskResult] = []
        while (task_id := self.name(message_id, place, len(results))) in known:
            task = await self._load(task_id)
            if task is None:
                log.warning("task %r: its sub-task %r is not stored", self._core.task_id, task_id)
                return None
            results.append(await self._finish(task))
        return results or None

    async def _load(self, task_id: str) -> "Task | None":
        state = await self._core.persistence.load_task_state(task_id)
        if state is None:
            return None
        callbacks = self._core.callbacks.of_subtask(task_id)
        return await self._agent_of(state).load_task(task_id, callbacks=callbacks)

    def _agent_of(self, state: TaskState) -> "Agent":
        return self._core.agent.subagent(state.config.get("agent"))

    def _wait(self) -> None:
        if self._core.status is TaskStatus.RUNNING:
            self._core.set_status(TaskStatus.WAITING_FOR_SUBTASK)

    def leave_waiting(self) -> None:
        """Run again, once no sub-task is waited for."""
        if not self.running and self._core.status is TaskStatus.WAITING_FOR_SUBTASK:
            self._core.set_status(TaskStatus.RUNNING)

    async def _finish(self, task: "Task") -> SubtaskResult:
        core = self._core
        self.running[task.id] = task
        try:
            core.tell(core.callbacks.on_subtask, task)
            if not task.status.is_final:
                self._wait()
                await core.states.save_state_now()
                await task.start()
            state = await task.settled()
        except OutlastError as error:
            raise StoppedError(error) from error
        finally:
            await self._leave(task)
        if not state.status.is_final:
            raise PausedError(f"its sub-task {task.id!r} is {state.status.value}")
        self.leave_waiting()
        return SubtaskResult(task.id, state, task.result)

    async def _leave(self, task: "Task") -> None:
        self.running.pop(task.id, None)
        try:
            await task.aclose()
        except ExceptionGroup as error:
            log.warning("task %r: its sub-task %r: %s", self._core.task_id, task.id, error)

    async def abort_unfinished(self) -> None:
        """Abort every sub-task that has not ended, whether it is loaded or not."""
        for task in list(self.running.values()):
            await task.abort()
        for task_id in self._core.states.state.subtask_ids:
            state = await self._core.persistence.load_task_state(task_id)
            if state is None or state.status.is_final:
                continue
            try:
                agent = self._agent_of(state)
            except ConfigurationError:
                agent = self._core.agent
            async with await agent.load_task(task_id) as task:
                await task.abort()


__all__ = ["PausedError", "StoppedError", "Subtasks"]
