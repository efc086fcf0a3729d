"""Which status a task may take after which."""

from collections.abc import Mapping

from outlast.errors import NotSupportedError
from outlast.models import TaskStatus

TRANSITIONS: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.PENDING: frozenset(
        {TaskStatus.RUNNING, TaskStatus.PAUSED, TaskStatus.FAILED, TaskStatus.ABORTED}
    ),
    TaskStatus.RUNNING: frozenset(
        {
            TaskStatus.PAUSED,
            TaskStatus.WAITING_FOR_SUBTASK,
            TaskStatus.COMPLETED,
            TaskStatus.FAILED,
            TaskStatus.ABORTED,
        }
    ),
    TaskStatus.WAITING_FOR_SUBTASK: frozenset(
        {TaskStatus.RUNNING, TaskStatus.PAUSED, TaskStatus.FAILED, TaskStatus.ABORTED}
    ),
    TaskStatus.PAUSED: frozenset(
        {
            TaskStatus.RUNNING,
            TaskStatus.WAITING_FOR_SUBTASK,
            TaskStatus.FAILED,
            TaskStatus.ABORTED,
        }
    ),
    # A task that has ended begins again with new input.
    TaskStatus.COMPLETED: frozenset({TaskStatus.RUNNING}),
    TaskStatus.FAILED: frozenset({TaskStatus.RUNNING}),
    TaskStatus.ABORTED: frozenset({TaskStatus.RUNNING}),
}
"""The statuses that may follow each status. A status may always follow itself."""


def check_transition(old: TaskStatus, new: TaskStatus) -> None:
    """Raise unless ``new`` may follow ``old``.

    Raises:
        NotSupportedError: It may not.
    """
    if new is old or new in TRANSITIONS[old]:
        return
    hint = "; send_message() starts it again" if old.is_final else ""
    raise NotSupportedError(f"a task that is {old.value} cannot become {new.value}{hint}")


__all__ = ["TRANSITIONS", "check_transition"]
