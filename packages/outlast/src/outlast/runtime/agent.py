"""An agent: a model with tools, and the tasks that it works on."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from outlast.contracts import Claim, PersistenceManager, StreamCheckpointStore
from outlast.errors import ConfigurationError, InvalidDataError, TaskNotFoundError
from outlast.model_api import Model, ToolSpec
from outlast.models import TaskInput, TaskState
from outlast.runtime._core import Core
from outlast.runtime._loading import add_input, repair_task, unseen_messages
from outlast.runtime.callbacks import TaskCallbacks
from outlast.runtime.context import CheckpointPolicy, RetryPolicy
from outlast.runtime.merging import copy_json, deep_merge
from outlast.runtime.task import Task
from outlast.runtime.tools import POLICIES, InterruptionPolicy, Tool


class Agent:
    """A model, tools, and rules; it makes tasks and takes over stored ones.

    Args:
        persistence: Where tasks are stored.
        model: What is asked.
        tools: What the model may call: `Tool` objects, or asynchronous functions.
        name: By which a stored sub-task finds its agent again; unique among ``subagents``.
        system: The system prompt of new tasks. A stored task keeps the one it was created with, and
            so do ``params`` and ``max_steps``.
        params: Parameters of each model request, in the provider's names.
        stream_checkpoint: Where the model turn in flight is written down, so that another process
            goes on in the middle of it. Without it, a turn that is cut with its process starts
            anew.
        subagents: Agents whose tasks this one's tools may start as sub-tasks, by name.
        max_steps: Model turns for one message of the user, after which the task fails.
        on_interrupted: What becomes of a tool call that had begun when its process died, unless
            the tool says otherwise: ``"skip"`` answers it with an error that says that it may have
            taken effect, ``"rerun"`` runs it again with the same idempotency key, ``"ask"`` asks
            the callback ``ask``, and pauses the task if there is none.
        tool_timeout: Seconds after which a tool call is given up.
        model_timeout: Seconds of silence after which a model call is cut and tried again.
        max_result_bytes: Size of a tool's result beyond which it is replaced by an error.
        pause_grace: Seconds that a tool at work gets to end when the task is paused.
        ownership_interval: Seconds between two looks at whether the task is still owned, while it
            runs; ``None``: only writes tell.
        heartbeat: Seconds after which a running task's state is saved though nothing has changed,
            so that `recover` sees that somebody works on it; ``None``: never.
        retry: How failed model calls are repeated.
        checkpointing: When the turn in flight is written down.
        debounce: Seconds; see `StateManager`.
        max_wait: Seconds; see `StateManager`.

    Raises:
        InvalidDataError: A function cannot be a tool, two tools or sub-agents have one name, or an
            option does not fit.
    """

    def __init__(
        self,
        persistence: PersistenceManager,
        model: Model,
        *,
        tools: Iterable[Tool | Callable[..., Awaitable[Any]]] = (),
        name: str = "agent",
        system: str | None = None,
        params: Mapping[str, Any] | None = None,
        stream_checkpoint: StreamCheckpointStore | None = None,
        subagents: "Iterable[Agent]" = (),
        max_steps: int | None = 100,
        on_interrupted: InterruptionPolicy = "skip",
        tool_timeout: float | None = None,
        model_timeout: float | None = None,
        max_result_bytes: int = 4 * 1024 * 1024,
        pause_grace: float = 5.0,
        ownership_interval: float | None = 5.0,
        heartbeat: float | None = 20.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        checkpointing: CheckpointPolicy = CheckpointPolicy(),  # noqa: B008 - frozen
        debounce: float = 1.0,
        max_wait: float = 5.0,
    ) -> None:
        if on_interrupted not in POLICIES:
            raise InvalidDataError(f"on_interrupted must be one of {POLICIES}")
        self.persistence: PersistenceManager = persistence
        self.model: Model = model
        self.tools: dict[str, Tool] = _by_name(
            (one if isinstance(one, Tool) else Tool(one) for one in tools), "tools"
        )
        self.tool_specs: list[ToolSpec] = [one.spec for one in self.tools.values()]
        self.name: str = name
        self.system: str | None = system
        self.params: dict[str, Any] = dict(params or {})
        self.stream_checkpoint: StreamCheckpointStore | None = stream_checkpoint
        self.subagents: dict[str, Agent] = _by_name(subagents, "subagents")
        self.max_steps: int | None = max_steps
        self.on_interrupted: InterruptionPolicy = on_interrupted
        self.tool_timeout: float | None = tool_timeout
        self.model_timeout: float | None = model_timeout
        self.max_result_bytes: int = max_result_bytes
        self.pause_grace: float = pause_grace
        self.ownership_interval: float | None = ownership_interval
        self.heartbeat: float | None = heartbeat
        self.retry: RetryPolicy = retry
        self.checkpointing: CheckpointPolicy = checkpointing
        self.debounce: float = debounce
        self.max_wait: float = max_wait

    def subagent(self, name: str | None) -> "Agent":
        """The agent of this name: this one, or one of its ``subagents``.

        Raises:
            ConfigurationError: There is none.
        """
        if name is None or name == self.name:
            return self
        found = self.subagents.get(name)
        if found is None:
            known = ", ".join([self.name, *self.subagents])
            raise ConfigurationError(
                f"agent {self.name!r} has no sub-agent {name!r} (known: {known}); pass it in "
                "subagents=..."
            )
        return found

    async def create_task(
        self,
        input: str | TaskInput,
        *,
        task_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        callbacks: TaskCallbacks | None = None,
    ) -> Task:
        """Make a task, store it as PENDING, and own it.

        Interrupted by a crash, a repetition with the same ``task_id`` makes it whole.

        Args:
            input: What is asked for; text stands for ``TaskInput(message=text)``.
            task_id: The task's id; a random one by default.
            context: What the task works on; a JSON object.
            callbacks: Functions to call while it runs.

        Raises:
            InvalidDataError: There is such a task, the input is empty, or it cannot be stored.
            OutlastError: The store did not do it.
        """
        return await self.create(
            input, task_id=task_id, context=context, callbacks=callbacks, parent_id=None
        )

    async def create(
        self,
        task_input: str | TaskInput,
        *,
        task_id: str | None,
        context: Mapping[str, Any] | None,
        callbacks: TaskCallbacks | None,
        parent_id: str | None,
    ) -> Task:
        """`create_task`, also for a sub-task."""
        given = TaskInput(message=task_input) if isinstance(task_input, str) else task_input
        name = secrets.token_hex(16) if task_id is None else task_id
        if task_id is not None and await self.persistence.load_task_state(name) is not None:
            raise InvalidDataError(
                "there is a task of this id; load_task() takes it over",
                operation="create_task",
                key=name,
            )
        core = Core(self, name, await self.persistence.claim_task(name), callbacks)
        core.task_input = given
        core.states.restore_state(
            TaskState(
                id=name,
                config=self._config(),
                context=copy_json(dict(context or {})),
                parent_id=parent_id,
            )
        )
        # Replaced, not appended: an attempt that died here may have left its own.
        core.messages.replace_messages([], [])
        add_input(core, given)
        await asyncio.gather(
            self.persistence.save_task_input(name, given, claim=core.claim),
            core.messages.save_now(),
        )
        await core.states.save_state_now()
        return Task(self, core)

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"agent": self.name, "model": self.model.name}
        if self.system is not None:
            config["system"] = self.system
        if self.params:
            config["params"] = copy_json(self.params)
        if self.max_steps is not None:
            config["max_steps"] = self.max_steps
        return config

    async def load_task(
        self,
        task_id: str,
        *,
        context: Mapping[str, Any] | None = None,
        callbacks: TaskCallbacks | None = None,
    ) -> Task:
        """Take a stored task over, whatever its status: whoever owned it is fenced, and stops.

        What does not fit together in it is mended and reported: see `Task.repairs`.

        Args:
            task_id: The task.
            context: Merged into the stored context by `deep_merge`.
            callbacks: Functions to call while it runs.

        Raises:
            TaskNotFoundError: There is no such task; nobody was fenced.
            OutlastError: The store did not do it.
        """
        if await self.persistence.load_task_state(task_id) is None:
            raise TaskNotFoundError("there is no such task", operation="load_task", key=task_id)
        claim = await self.persistence.claim_task(task_id)
        return await self.load_claimed(claim, context=context, callbacks=callbacks)

    async def load_claimed(
        self,
        claim: Claim,
        *,
        context: Mapping[str, Any] | None = None,
        callbacks: TaskCallbacks | None = None,
    ) -> Task:
        """`load_task` under a claim that was taken already, such as one with ``at_least``."""
        task_id, persistence = claim.scope.id, self.persistence
        core = Core(self, task_id, claim, callbacks)
        state, task_input, api_messages, user_messages, runs = await asyncio.gather(
            persistence.load_task_state(task_id),
            persistence.load_task_input(task_id),
            persistence.load_api_messages(task_id),
            persistence.load_user_messages(task_id),
            core.claim_runs(),
        )
        if state is None:
            raise TaskNotFoundError("there is no such task", operation="load_task", key=task_id)
        core.task_input = task_input
        core.states.restore_state(state)
        core.messages.restore_messages(api_messages, user_messages)
        await core.remove_leftovers(runs)
        inbox = unseen_messages(core)
        repairs = repair_task(core, inbox)
        if context:
            core.states.update_state(context=deep_merge(state.context, context))
            await core.states.save_state_now()
        await core.messages.save_now()
        return Task(self, core, repairs, inbox)

    async def delete_task(self, task_id: str) -> None:
        """Remove a task and its sub-tasks, whoever owns them; deleting what is not there is fine.

        Interrupted, a repetition finishes it.

        Raises:
            OutlastError: The store did not do it.
        """
        claim = await self.persistence.claim_task(task_id)
        state = await self.persistence.load_task_state(task_id)
        children = set(state.subtask_ids if state else ())
        async for child in self.persistence.iter_task_states(parent_id=task_id):
            children.add(child.id)
        for child_id in sorted(children - {task_id}):
            await self.delete_task(child_id)
        await self.persistence.delete_task(task_id, claim=claim)

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}, model {self.model.name!r}>"


def _by_name(things: Iterable[Any], what: str) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for thing in things:
        if thing.name in named:
            raise InvalidDataError(f"{what}: two are named {thing.name!r}")
        named[thing.name] = thing
    return named


__all__ = ["Agent"]
