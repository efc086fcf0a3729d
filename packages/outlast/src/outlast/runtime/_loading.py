"""Making a stored task whole."""

from collections.abc import Sequence

from outlast.models import ApiMessage, TaskInput, UserMessage
from outlast.runtime._core import INPUT_ID, SENT, TURN_PREFIX, Core, log, utc_now
from outlast.runtime.history import Repair, repair_history, results_of
from outlast.runtime.merging import as_blocks


def add_input(core: Core, given: TaskInput) -> None:
    """Begin both conversations with the task's input."""
    blocks = as_blocks(given.message, given.attachments)
    core.add_api(ApiMessage(id=INPUT_ID, role="user", content=blocks))
    if core.messages.get_user_message(INPUT_ID) is None:
        core.add_user(
            UserMessage(id=INPUT_ID, type="text", role="user", content=given.message, ts=utc_now())
        )


def unseen_messages(core: Core) -> list[ApiMessage]:
    """What the user said that the conversation with the model does not have yet."""
    return [
        ApiMessage(id=message.id, role="user", content=as_blocks(message.content))
        for message in core.messages.user_messages
        if SENT in message.metadata and core.messages.get_api_message(message.id) is None
    ]


def repair_task(core: Core, inbox: Sequence[ApiMessage]) -> list[Repair]:
    """Find what does not fit together in a loaded task, and mend it in memory."""
    repairs: list[Repair] = []
    if not core.messages.api_messages and core.task_input is not None:
        add_input(core, core.task_input)
        repairs.append(Repair("missing_input", INPUT_ID, "taken from the task's input"))
    mended, found = repair_history(core.messages.api_messages, close_last=core.status.is_final)
    if found:
        core.messages.replace_messages(mended)
        repairs += found
    for message in core.messages.api_messages:
        for result in results_of(message):
            card = core.messages.get_user_message(message.id)
            info = None if card is None else card.tool_info
            if info is not None and info.status == "running":
                # The result was stored, the card's change was not.
                is_error = bool(result.get("is_error"))
                core.show_result(message.id, result.get("content"), is_error=is_error)
        is_ours = message.role == "assistant" and message.id.startswith(TURN_PREFIX)
        if is_ours and core.messages.get_user_message(message.id) is None:
            core.add_answer(message)
            if core.messages.get_user_message(message.id) is not None:
                repairs.append(Repair("missing_user_message", message.id, "taken from the turn"))
    if core.status.is_final:
        # It was sent, and the task was not started again: that is for whoever loads it to do.
        repairs += [Repair("missing_message", message.id, "not answered") for message in inbox]
    for repair in repairs:
        log.warning(
            "task %r: mended: %s at %r: %s",
            core.task_id,
            repair.kind,
            repair.message_id,
            repair.detail,
        )
        core.tell(core.callbacks.on_repair, repair)
    return repairs


__all__ = ["add_input", "repair_task", "unseen_messages"]
