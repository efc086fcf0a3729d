"""A task's state: changed in memory, saved in the background."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from outlast.contracts import Claim, PersistenceManager
from outlast.contracts.claim import check_scope
from outlast.driver import Scope
from outlast.errors import InvalidDataError
from outlast.models import TaskState, TaskStatus
from outlast.runtime._saver import OnSaveError, Saver, drain
from outlast.runtime.merging import copy_if_usual, copy_json
from outlast.values import check_record, check_updates

_log = logging.getLogger("outlast.runtime.state")
_replace = msgspec.structs.replace

OnStatusChange = Callable[[TaskStatus, TaskStatus], object]
"""Is told the old and the new status."""

_BOUND = 2**63
_DICTS = ("config", "context", "error")
_DATES = ("start_time", "end_time", "updated_at")


class StateManager:
    """Keeps a task's state in memory, and the store near it.

    **Guarantees**

    - `update_state` changes memory and returns; it never waits for the store.
    - A change is saved ``debounce`` seconds after the last one, at the latest ``max_wait`` seconds
      after the first one that is not saved: ``min(debounce, max_wait - age of that one)``.
      **The loss bound**: a process that dies loses changes of at most the last ``max_wait``
      seconds and of the time that one save takes. A change of the status is saved at once.
    - A save writes a snapshot; two saves are never under way at once. What changes meanwhile is
      saved by the next one.
    - A save that fails stays pending and is made again after 0.5 seconds, then twice that, up to
      30, without a further change; each failure is a record of the logger
      ``outlast.runtime.state`` and a call of ``on_save_error``. What repeating cannot mend, such as
      a state that is too large, is tried again with the next change.
    - Once a save was fenced (`FencedError`), every further change and save raises that error.

    **Not guaranteed**: while the store is away, nothing is stored, however long that takes.
    Changing a value inside ``state`` in place is noticed by nobody.

    Waits are by the clock of the running event loop. One manager serves one loop.

    Args:
        task_id: The task.
        persistence: Where to save; without it, the state lives in memory alone.
        claim: Of the task. Without one, saves are unclaimed (single-process use).
        auto_persist: ``False``: only `save_state_now` saves.
        debounce: Seconds.
        max_wait: Seconds.
        on_status_change: Called with the old and the new status inside `update_state`, before the
            save is scheduled, and only if they differ.
        on_save_error: Called with the error of every save that failed.

    Raises:
        InvalidIdError: ``task_id`` is not an id.
        InvalidDataError: The claim is of another task, or a wait is no number of seconds.
    """

    def __init__(
        self,
        task_id: str,
        persistence: PersistenceManager | None = None,
        *,
        claim: Claim | None = None,
        auto_persist: bool = True,
        debounce: float = 1.0,
        max_wait: float = 5.0,
        on_status_change: OnStatusChange | None = None,
        on_save_error: OnSaveError | None = None,
    ) -> None:
        check_scope(Scope("task", task_id), "task_id", claim)
        self._task_id = task_id
        self._persistence = persistence
        self._claim = claim
        self._on_status_change = on_status_change
        self._state = TaskState(id=task_id)
        self.saver: Saver = Saver(
            self._write,
            what=f"task {task_id!r}, state",
            log=_log,
            is_auto=auto_persist and persistence is not None,
            debounce=debounce,
            max_wait=max_wait,
            on_error=on_save_error,
        )

    @property
    def task_id(self) -> str:
        """The task."""
        return self._task_id

    @property
    def state(self) -> TaskState:
        """The state as it is in memory; treat its values as read-only."""
        return self._state

    @property
    def status(self) -> TaskStatus:
        """The status as it is in memory."""
        return self._state.status

    @property
    def is_dirty(self) -> bool:
        """Whether something has changed that no finished save covers."""
        return self._persistence is not None and self.saver.is_dirty

    def update_state(
        self, updates: Mapping[str, object] | None = None, /, **changes: object
    ) -> TaskState:
        """Replace some fields; ``None`` is a value.

        Args:
            updates: New values by field name.
            changes: The same as keywords.

        Returns:
            The whole state.

        Raises:
            InvalidDataError: An unknown field, ``id`` or ``updated_at``, or a value that cannot be
                stored. Nothing changed.
            FencedError: The task has a newer owner. Nothing changed.
            ClosedError: The manager is closed. Nothing changed.
        """
        checked = _take(changes if updates is None else {**updates, **changes})
        saver = self.saver
        saver.check()
        old = self._state
        self._state = state = _replace(old, **checked)
        has_new_status = state.status is not old.status
        if has_new_status and self._on_status_change is not None:
            self._tell(old.status, state.status)
        saver.touch(at_once=has_new_status)
        return self._state

    def _tell(self, old: TaskStatus, new: TaskStatus) -> None:
        assert self._on_status_change is not None
        try:
            self._on_status_change(old, new)
        except Exception:  # noqa: BLE001 - an observer's mistake ends nothing
            _log.exception("task %r: on_status_change failed", self._task_id)

    def restore_state(self, state: TaskState | Mapping[str, Any]) -> TaskState:
        """Take a state over as it was stored; nothing is saved, and nobody is told.

        Args:
            state: A `TaskState`, or its fields by name. The status may be a string, dates may be
                ISO 8601 strings with a time zone; ``id`` may be left out.

        Raises:
            InvalidDataError: A field is unknown or does not fit, or the state is of another task.
        """
        if isinstance(state, TaskState):
            fields: dict[str, Any] = msgspec.structs.asdict(state)
        else:
            fields = {"id": self._task_id, **state}
        unknown = [name for name in fields if name not in TaskState.__struct_fields__]
        if unknown:
            raise InvalidDataError(f"TaskState has no field {unknown[0]!r:.80}")
        for name in _DATES:
            if isinstance(fields.get(name), str):
                fields[name] = _parse_date(fields[name], name)
        updated_at = fields.get("updated_at")
        checked = check_record(TaskState(**fields), TaskState, "state")
        if checked.id != self._task_id:
            raise InvalidDataError(f"state.id is {checked.id!r}, not the task {self._task_id!r}")
        self._state = _copy(_replace(checked, updated_at=updated_at))
        return self._state

    async def save_state_now(self) -> None:
        """Save without waiting for the debounce, and return once it is stored.

        What changes while it waits is saved by it too, or stays pending; it is never lost.

        Raises:
            FencedError: The task has a newer owner.
            OutlastError: The store did not do it; the change stays pending.
        """
        if self._persistence is None:
            return
        if not self.saver.is_dirty:
            self.saver.mark()
        await self.saver.flush()

    async def _write(self) -> None:
        if self._persistence is not None:
            await self._persistence.save_task_state(
                self._task_id, _copy(self._state), claim=self._claim
            )

    async def aclose(self) -> None:
        """Save what is pending, until nothing is, and refuse further changes; idempotent.

        Raises:
            ExceptionGroup: It could not be saved.
        """
        await drain((self.saver,), f"task {self._task_id!r}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def _take(changes: dict[str, object]) -> dict[str, object]:
    """The new values, checked, sharing nothing with what was passed.

    Counts and JSON objects, which are most of what an agent notes at every step, are checked and
    copied in one pass; whatever is unusual in them is left to the general check, which also
    says what is wrong.
    """
    taken: dict[str, object] = {}
    for name, value in changes.items():
        kind = type(value)
        if kind is int and name == "retry_count" and 0 <= cast("int", value) < _BOUND:
            taken[name] = value
        elif kind is dict and name in _DICTS:
            taken[name] = copy = copy_if_usual(value)
            if copy is None:
                break
        else:
            break
    else:
        return taken
    checked = check_updates(changes)
    for name, value in checked.items():
        checked[name] = copy_json(value)
    return checked


def _copy(state: TaskState) -> TaskState:
    return _replace(
        state,
        config=copy_json(state.config),
        context=copy_json(state.context),
        subtask_ids=list(state.subtask_ids),
        error=copy_json(state.error),
    )


def _parse_date(text: str, name: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidDataError(f"state.{name} must be an ISO 8601 date, not {text!r:.80}") from None


__all__ = ["OnStatusChange", "StateManager"]
