"""What an application is told of a task while it runs, and asked."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from outlast.models import ApiMessage, TaskStatus, UserMessage
from outlast.runtime.events import StreamEvent
from outlast.runtime.history import Repair


class InterruptedCall(msgspec.Struct, frozen=True):
    """A tool call that had begun when its process died or was cancelled: it may have taken effect.

    Attributes:
        task_id: The task.
        message_id: The message that made the call.
        call_id: The call.
        tool: The tool's name.
        arguments: The call's arguments.
        idempotency_key: As the tool was given it.
    """

    task_id: str
    message_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    idempotency_key: str


Answer = Literal["rerun", "skip"]


class TaskCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that a task calls. What an observer raises is logged, and changes nothing.

    Attributes:
        on_status_change: With the old and the new status, before the new one is saved.
        on_event: With each event of a model turn; see `outlast.runtime.run_turn`.
        on_api_message: With each message that joins the conversation with the model.
        on_user_message: With each message that joins the conversation as a person sees it, and
            each one that has changed.
        on_save_error: With the error of every save in the background that failed.
        on_repair: With each thing that was mended when the task was loaded.
        on_subtask: With each sub-task (a `Task`) that is started or loaded.
        for_subtask: Called with the id of a sub-task before it is started or loaded; returns its
            callbacks. By default it has this task's ``ask``, ``on_subtask`` and ``on_save_error``.
        ask: Asked about an interrupted call under the policy ``"ask"``. An error it raises ends
            the run.
    """

    on_status_change: Callable[[TaskStatus, TaskStatus], object] | None = None
    on_event: Callable[[StreamEvent], object] | None = None
    on_api_message: Callable[[ApiMessage], object] | None = None
    on_user_message: Callable[[UserMessage], object] | None = None
    on_save_error: Callable[[Exception], object] | None = None
    on_repair: Callable[[Repair], object] | None = None
    on_subtask: Callable[[Any], object] | None = None
    for_subtask: "Callable[[str], TaskCallbacks] | None" = None
    ask: Callable[[InterruptedCall], Awaitable[Answer]] | None = None

    def of_subtask(self, task_id: str) -> "TaskCallbacks":
        """The callbacks of a sub-task."""
        if self.for_subtask is not None:
            return self.for_subtask(task_id)
        return TaskCallbacks(
            on_save_error=self.on_save_error, on_subtask=self.on_subtask, ask=self.ask
        )


__all__ = ["Answer", "InterruptedCall", "TaskCallbacks"]
