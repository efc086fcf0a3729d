"""The records that the contracts store: frozen structs with complete defaults.

No default reads a clock or draws a random number: equal arguments give equal records.
"JSON value" below means ``None``, ``bool``, ``int`` (at most 1,000 digits), finite ``float``,
``str`` without lone surrogates, ``list`` and ``dict`` with ``str`` keys, nested; no subclasses
(contract V2, V6). Instants are timezone-aware; they are stored and returned in UTC (V7).
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec


class TaskStatus(StrEnum):
    """Where a task is in its life. The store keeps any status; the rules for changes live in the
    runtime.
    """

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"
    WAITING_FOR_SUBTASK = "waiting_for_subtask"

    @property
    def is_final(self) -> bool:
        """Whether the task has ended: completed, failed or aborted."""
        return self in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.ABORTED)


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all records; a field that is added later raises the stored format's version.

    Messages come by the thousand, and the garbage collector would go through all of them several
    times while they are loaded; in vain, since JSON values lead nowhere back. So it leaves them
    out (``gc=False``). They are freed like any object, when nothing refers to them any more.
    """


class TaskState(Record, frozen=True):
    """The current state of a task (register ``state`` of the scope ``task``).

    Attributes:
        id: The task's id; equals the ``task_id`` it is saved under.
        config: What the task runs with; JSON object.
        context: What the task works on; JSON object.
        retry_count: Attempts so far.
        subtask_ids: Ids of the tasks that this one started, in order.
        error: What ended a failed task, as a JSON object.
        parent_id: The task that started this one.
        updated_at: Set by the adapter at each write; what is passed in is ignored.
    """

    id: str
    status: TaskStatus = TaskStatus.PENDING
    config: dict[str, Any] = {}
    context: dict[str, Any] = {}
    start_time: datetime | None = None
    end_time: datetime | None = None
    retry_count: int = 0
    subtask_ids: list[str] = []
    error: dict[str, Any] | None = None
    parent_id: str | None = None
    updated_at: datetime | None = None


class TaskInput(Record, frozen=True):
    """What a task was asked to do (register ``input`` of the scope ``task``).

    Attributes:
        message: The request; any JSON value, usually text.
        attachments: Any JSON values.
        params: Parameters of the request; JSON object.
        stream: Whether the caller asked for a streamed answer.
    """

    message: Any
    attachments: list[Any] = []
    params: dict[str, Any] = {}
    stream: bool = False


class ApiMessage(Record, frozen=True, gc=False):
    """One message of the conversation with the model (log ``api`` of the scope ``task``).

    Attributes:
        id: The idempotency key: appending the same message again changes nothing (A8).
        role: Free text, such as ``user``, ``assistant`` or ``tool``.
        content: Text, or any JSON list or object; the runtime writes lists of neutral blocks.
        source: Where it came from; free text.
        ts: When it was made; not compared when an append is repeated.
        metadata: JSON object.
    """

    id: str
    role: str
    content: str | list[Any] | dict[str, Any]
    source: str | None = None
    ts: datetime | None = None
    metadata: dict[str, Any] = {}


class ToolInfo(Record, frozen=True, gc=False):
    """A tool call as a user interface shows it.

    Attributes:
        call_id: The id of the tool call.
        name: The tool.
        status: Free text, such as ``running``, ``done`` or ``failed``.
        arguments: JSON object.
        result: Any JSON value.
        error: JSON object, or ``None``.
    """

    call_id: str
    name: str
    status: str = "running"
    arguments: dict[str, Any] = {}
    result: Any = None
    error: dict[str, Any] | None = None


class UserMessage(Record, frozen=True, gc=False):
    """One message as a person sees it (log ``user`` of the scope ``task``).

    Attributes:
        id: The idempotency key, as in `ApiMessage`.
        type: Free text, such as ``text`` or ``tool``.
        role: Free text.
        content: Any JSON value.
        tool_info: The tool call that the message shows.
        ts: When it was made; not compared when an append is repeated.
        visible: Whether a user interface shows it.
        metadata: JSON object.
    """

    id: str
    type: str
    role: str
    content: Any = ""
    tool_info: ToolInfo | None = None
    ts: datetime | None = None
    visible: bool = True
    metadata: dict[str, Any] = {}


class PartialToolCall(Record, frozen=True):
    """A tool call as far as it was streamed.

    Attributes:
        id: The provider's id of the call.
        name: The tool.
        arguments: The raw text of the arguments so far, not parsed.
    """

    id: str
    name: str
    arguments: str = ""


class StreamCheckpoint(Record, frozen=True):
    """What the model turn in flight has produced so far (the register of the scope ``run``).

    Attributes:
        run_id: The run; at most one turn of it is in flight.
        thread_id: The task that the run belongs to.
        message_id: The id under which the turn's message will be committed.
        model: The model's name.
        text: The text so far.
        tool_calls: The tool calls so far, in order.
        retry_count: Model calls that failed in this turn, over all processes.
        updated_at: Set by the adapter at each write; what is passed in is ignored.
        epoch: Of the run's newest claim; filled by reads, ignored by ``put``.
        task_epoch: Of the task claim under which the turn runs; 0 without one.
    """

    run_id: str
    thread_id: str
    message_id: str
    model: str
    text: str = ""
    tool_calls: list[PartialToolCall] = []
    retry_count: int = 0
    updated_at: datetime | None = None
    epoch: int = 0
    task_epoch: int = 0


__all__ = [
    "ApiMessage",
    "PartialToolCall",
    "Record",
    "StreamCheckpoint",
    "TaskInput",
    "TaskState",
    "TaskStatus",
    "ToolInfo",
    "UserMessage",
]
