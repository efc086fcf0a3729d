"""Going on with what dead processes left unfinished, whoever and however many look for it."""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from outlast.contracts import Backend, Claim
from outlast.errors import FencedError, InvalidDataError, shown
from outlast.models import StreamCheckpoint, TaskState, TaskStatus
from outlast.runtime._core import EPOCH
from outlast.runtime.agent import Agent
from outlast.runtime.callbacks import TaskCallbacks
from outlast.runtime.task import Task

_log = logging.getLogger("outlast.runtime.recover")

_UNFINISHED = (TaskStatus.RUNNING, TaskStatus.WAITING_FOR_SUBTASK)


class RecoveryReport(msgspec.Struct, frozen=True):
    """What `recover` has done.

    Attributes:
        tasks: The tasks that were taken over and started, each owned by this process now: await
            their end, and close them.
        removed: Runs whose checkpoint was removed: of tasks that are gone, that have ended, or that
            somebody else owns by now.
    """

    tasks: list[Task]
    removed: list[str]


async def recover(
    backend: Backend,
    agents: Agent | Iterable[Agent],
    *,
    idle: timedelta = timedelta(minutes=1),
    stalled: timedelta | None = None,
    limit: int | None = None,
    callbacks: TaskCallbacks | None = None,
    grace: float = 1.0,
) -> RecoveryReport:
    """Take over unfinished runs that nobody has written for a while, and go on with their tasks.

    **Guarantees.** However many processes do this at once, each run is resumed by one of them: the
    task is claimed with ``if_epoch=task_epoch``, then the run with ``if_epoch=epoch``, as they were
    read, and only one such claim succeeds. A run whose task has a newer owner or
    is gone is removed, not resumed. PAUSED tasks are left alone. A run of a sub-task is resumed
    through the task at the top that waits for it.

    **Not guaranteed.** A process that is alive and has written nothing for ``idle`` looks dead, and
    is fenced; it stops, and loses the piece of its turn that it had not written yet.

    Args:
        backend: The store, open.
        agents: Who goes on: found by the name that a task was created under. Tasks of other agents
            are left alone.
        idle: For how long nobody has written a run's checkpoint.
        stalled: Go on, too, with RUNNING and WAITING_FOR_SUBTASK tasks without a turn in flight (in
            a tool call, say) whose state nobody has written for so long. Choose several times the
            agents' ``heartbeat``. ``None``: not.
        limit: Resume so many tasks at most.
        callbacks: For the tasks that are resumed.
        grace: Seconds that a process that claimed a task in the same moment gets to claim its run.

    Raises:
        InvalidDataError: An argument does not fit.
        OutlastError: The store could not be read. What was resumed before goes on.
    """
    _check_age(idle, "idle")
    if stalled is not None:
        _check_age(stalled, "stalled")
    known = [agents] if isinstance(agents, Agent) else list(agents)
    recoverer = _Recoverer(backend, known, limit, callbacks, grace)
    await recoverer.look_at_runs(datetime.now(UTC) - idle)
    if stalled is not None:
        await recoverer.look_at_tasks(datetime.now(UTC) - stalled)
    return RecoveryReport(recoverer.tasks, recoverer.removed)


def _check_age(value: object, argument: str) -> None:
    if not isinstance(value, timedelta) or value < timedelta(0):
        raise InvalidDataError(f"{argument} must be a timedelta of at least 0, not {shown(value)}")


class _Recoverer:
    """One pass."""

    def __init__(
        self,
        backend: Backend,
        agents: list[Agent],
        limit: int | None,
        callbacks: TaskCallbacks | None,
        grace: float,
    ) -> None:
        self._persistence = backend.persistence
        self._store = backend.checkpoints
        self._agents = {agent.name: agent for agent in agents}
        self._limit = limit
        self._callbacks = callbacks
        self._grace = grace
        self.tasks: list[Task] = []
        self.removed: list[str] = []

    @property
    def _is_full(self) -> bool:
        return self._limit is not None and len(self.tasks) >= self._limit

    # Turns in flight

    async def look_at_runs(self, before: datetime) -> None:
        contested: list[StreamCheckpoint] = []
        async for found in self._store.iter_checkpoints(updated_before=before):
            state = await self._persistence.load_task_state(found.thread_id)
            if state is None or state.status.is_final:
                await self._remove(found)
            elif state.status in _UNFINISHED and not self._is_full:
                await self._resume_run(found, state, contested)
        if contested:
            # Whoever claimed the task may be about to claim the run.
            await asyncio.sleep(self._grace)
        for found in contested:
            await self._remove(found)

    async def _resume_run(
        self, found: StreamCheckpoint, state: TaskState, contested: list[StreamCheckpoint]
    ) -> None:
        top = await self._top(state)
        agent = self._agent_of(top)
        if agent is None:
            return
        try:
            claim = await self._persistence.claim_task(found.thread_id, if_epoch=found.task_epoch)
        except FencedError:
            contested.append(found)
            return
        try:
            await self._store.claim(found.run_id, thread_id=found.thread_id, if_epoch=found.epoch)
        except FencedError as error:
            # The task is ours, and decides; loading it claims the run anew.
            _log.info("run %r was claimed by somebody else: %s", found.run_id, error)
        await self._start(agent, top, claim if top.id == state.id else None)

    async def _remove(self, found: StreamCheckpoint) -> None:
        """Remove a checkpoint, unless somebody has claimed its run since it was read."""
        try:
            claim = await self._store.claim(
                found.run_id, thread_id=found.thread_id, if_epoch=found.epoch
            )
            now = claim.checkpoint
            if now is not None and now.task_epoch == found.task_epoch:
                await self._store.delete(found.run_id, claim=claim)
                self.removed.append(found.run_id)
        except FencedError as error:
            _log.info("run %r has an owner, and is left alone: %s", found.run_id, error)

    # Tasks without a turn in flight

    async def look_at_tasks(self, before: datetime) -> None:
        seen = {task.id for task in self.tasks}
        for status in _UNFINISHED:
            async for state in self._persistence.iter_task_states(
                status=status, updated_before=before
            ):
                top = await self._top(state)
                agent = self._agent_of(top)
                if agent is None or top.id in seen or self._is_full:
                    continue
                seen.add(top.id)
                if top.updated_at is not None and top.updated_at < before:
                    await self._resume_task(agent, top)

    async def _resume_task(self, agent: Agent, top: TaskState) -> None:
        epoch = top.config.get(EPOCH, 0)
        claim = await self._claim(top.id, epoch if isinstance(epoch, int) else 0)
        if isinstance(claim, FencedError):
            # Somebody has claimed the task and not started it: just now, or and died.
            await asyncio.sleep(self._grace)
            state = await self._persistence.load_task_state(top.id)
            if state is None or state.updated_at != top.updated_at:
                return
            claim = await self._claim(top.id, claim.stored_epoch or 0)
        if isinstance(claim, Claim):
            await self._start(agent, top, claim)

    async def _claim(self, task_id: str, epoch: int) -> Claim | FencedError:
        try:
            return await self._persistence.claim_task(task_id, if_epoch=epoch)
        except FencedError as error:
            return error

    # Both

    async def _top(self, state: TaskState) -> TaskState:
        """The task that waits, over others or not, for this one."""
        seen = {state.id}
        while state.parent_id is not None and state.parent_id not in seen:
            seen.add(state.parent_id)
            parent = await self._persistence.load_task_state(state.parent_id)
            if parent is None or parent.status not in _UNFINISHED:
                break
            state = parent
        return state

    def _agent_of(self, state: TaskState) -> Agent | None:
        name = state.config.get("agent")
        found = self._agents.get(name) if isinstance(name, str) else None
        if found is None:
            _log.warning("task %r: no agent named %r was given; left alone", state.id, name)
        return found

    async def _start(self, agent: Agent, top: TaskState, claim: Claim | None) -> None:
        try:
            if claim is None:
                task = await agent.load_task(top.id, callbacks=self._callbacks)
            else:
                task = await agent.load_claimed(claim, callbacks=self._callbacks)
            if task.status not in _UNFINISHED:
                await task.aclose()
                return
            await task.start()
        except FencedError as error:
            _log.info("task %r was claimed by somebody else: %s", top.id, error)
        else:
            self.tasks.append(task)


__all__ = ["RecoveryReport", "recover"]
