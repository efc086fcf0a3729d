"""What the parts of one running task share: its identity, its managers, and small steps."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.contracts import Claim, PersistenceManager, StreamCheckpointStore
from outlast.errors import FencedError, OutlastError
from outlast.model_api import ToolCallBlock
from outlast.models import ApiMessage, TaskInput, TaskStatus, UserMessage
from outlast.runtime.callbacks import TaskCallbacks
from outlast.runtime.history import derived_id, open_calls, result_message, text_of
from outlast.runtime.messages import MessageManager
from outlast.runtime.state import StateManager
from outlast.runtime.status import check_transition

if TYPE_CHECKING:
    from outlast.runtime.agent import Agent

log = logging.getLogger("outlast.runtime.task")

INPUT_ID = "input"
"""Id of the message that holds a task's input, in both logs."""

TURN_PREFIX = "turn-"
_SHOWN = 4096
"""Bytes of a result that a card repeats; the API message has all of it."""

EPOCH = "epoch"
"""In a task's config: the epoch of the claim under which it was last started."""

SENT = "sent"
"""Marks, in a user message's metadata, what belongs into the conversation with the model too."""


def utc_now() -> datetime:
    """The present, as records keep it."""
    return datetime.now(UTC)


class Core:
    """One task in this process."""

    def __init__(
        self, agent: "Agent", task_id: str, claim: Claim, callbacks: TaskCallbacks | None
    ) -> None:
        self.agent: Agent = agent
        self.task_id: str = task_id
        self.claim: Claim = claim
        self.callbacks: TaskCallbacks = callbacks or TaskCallbacks()
        self.persistence: PersistenceManager = agent.persistence
        self.store: StreamCheckpointStore | None = agent.stream_checkpoint
        self.task_input: TaskInput | None = None
        self.is_pausing: bool = False
        self.states: StateManager = StateManager(
            task_id,
            agent.persistence,
            claim=claim,
            debounce=agent.debounce,
            max_wait=agent.max_wait,
            on_status_change=self.callbacks.on_status_change,
            on_save_error=self.callbacks.on_save_error,
        )
        self.messages: MessageManager = MessageManager(
            task_id,
            agent.persistence,
            claim=claim,
            debounce=agent.debounce,
            max_wait=agent.max_wait,
            on_save_error=self.callbacks.on_save_error,
        )

    @property
    def run_id(self) -> str:
        """The task's run: one turn of it is in flight at a time, so the task's id serves."""
        return self.task_id

    @property
    def status(self) -> TaskStatus:
        """The status in memory."""
        return self.states.status

    def config(self, name: str, default: Any) -> Any:
        """What the task runs with: as it was created, whatever the agent says now."""
        return self.states.state.config.get(name, default)

    def tell(self, callback: Callable[..., object] | None, *arguments: object) -> None:
        """Call an observer; its mistakes end nothing."""
        if callback is None:
            return
        try:
            callback(*arguments)
        except Exception:
            log.exception("task %r: a callback failed", self.task_id)

    def set_status(self, status: TaskStatus, **changes: object) -> None:
        """Change the status by the rules, and with it other fields.

        Raises:
            NotSupportedError: It may not follow the present one.
        """
        check_transition(self.status, status)
        self.states.update_state(status=status, **changes)

    def add_api(self, message: ApiMessage) -> None:
        """Add to the conversation with the model."""
        self.tell(self.callbacks.on_api_message, self.messages.add_api_message(message))

    def add_user(self, message: UserMessage) -> None:
        """Add to the conversation as a person sees it."""
        self.tell(self.callbacks.on_user_message, self.messages.add_user_message(message))

    def update_user(self, message_id: str, **changes: Any) -> None:
        """Change what a person sees."""
        changed = self.messages.update_user_message(message_id, **changes)
        self.tell(self.callbacks.on_user_message, changed)

    def add_answer(self, message: ApiMessage) -> None:
        """Show an assistant's text to the person, too."""
        text = text_of(message)
        if text.strip() and self.messages.get_user_message(message.id) is None:
            self.add_user(
                UserMessage(
                    id=message.id, type="text", role="assistant", content=text, ts=utc_now()
                )
            )

    # Turns and calls

    def turn_id(self) -> str:
        """The id of the next turn's message: the same in every process, until it is committed.

        After a rollback it is another one (``retry_count`` is part of it), so that what was said
        and done in the round that is gone is never taken for the new round's.
        """
        number = 1 + sum(message.role == "assistant" for message in self.messages.api_log)
        attempt = self.states.state.retry_count
        while True:
            name = f"{TURN_PREFIX}{number}" + (f".{attempt}" if attempt else "")
            if self.messages.get_api_message(name) is None:
                return name
            number += 1

    def steps(self) -> int:
        """Model turns since the last message of the user."""
        count = 0
        for message in reversed(self.messages.api_log):
            if message.role == "user":
                break
            count += message.role == "assistant"
        return count

    def open_calls(self) -> tuple[ApiMessage | None, dict[int, ToolCallBlock]]:
        """The last turn's message, and its calls without a result, by their place."""
        return open_calls(self.messages.api_log)

    def is_answered(self) -> bool:
        """Whether the conversation ends with an answer: a turn that calls nothing."""
        log_ = self.messages.api_log
        return bool(log_) and log_[-1].role == "assistant" and not self.open_calls()[1]

    def card_id(self, message_id: str, place: int) -> str:
        """The id of a call's card and of its result."""
        return derived_id(message_id, place)

    def idempotency_key(self, message_id: str, place: int, call_id: str) -> str:
        """What makes a tool's effect harmless to repeat."""
        return digest(self.task_id, message_id, place, call_id)

    def close_calls(self, explain: Callable[[str], str]) -> None:
        """Answer the calls that are open with an error, so that the conversation can go on.

        Args:
            explain: Says what became of the call of this card.
        """
        message, calls = self.open_calls()
        if message is None:
            return
        for place, call in calls.items():
            name = self.card_id(message.id, place)
            text = explain(name)
            self.add_api(result_message(name, call["id"], text, is_error=True))
            self.show_result(name, text, is_error=True)

    async def drop_checkpoint(self) -> None:
        """Fence whoever writes the turn in flight, and remove what it has written.

        A checkpoint store that is away is a warning: no later turn has the id of this one.

        Raises:
            FencedError: The task has a newer owner.
        """
        if self.store is None:
            return
        try:
            claim = await self.store.claim(self.run_id, thread_id=self.task_id)
            if claim.checkpoint is not None:
                await self.store.delete(self.run_id, claim=claim)
        except FencedError:
            # Somebody has claimed the run since. That is for the task's owner alone to decide.
            await self.persistence.check_claim(self.claim)
        except OutlastError as error:
            log.warning("task %r: the turn in flight is left over: %s", self.task_id, error)

    def show_result(self, name: str, content: Any, *, is_error: bool) -> None:
        """Let the card of this name, if there is one, show a call's result."""
        card = self.messages.get_user_message(name)
        if card is None or card.tool_info is None:
            return
        encoded = msgspec.json.encode(content)
        if len(encoded) > _SHOWN:
            content = encoded[:_SHOWN].decode(errors="ignore") + "..."
        info = msgspec.structs.replace(
            card.tool_info,
            status="failed" if is_error else "done",
            result=None if is_error else content,
            error={"message": content} if is_error else None,
        )
        self.update_user(name, tool_info=info)

    async def claim_runs(self) -> list[Claim]:
        """Fence whoever writes a turn of this task, without touching what was written.

        A store that is away costs the protection of the turn in flight, not the task.
        """
        claims: list[Claim] = []
        if self.store is None:
            return claims
        try:
            runs = {self.run_id}
            async for found in self.store.iter_checkpoints(thread_id=self.task_id):
                runs.add(found.run_id)
            claims += [
                await self.store.claim(run_id, thread_id=self.task_id) for run_id in sorted(runs)
            ]
        except OutlastError as error:
            log.warning("task %r: its runs could not be claimed: %s", self.task_id, error)
        return claims

    async def remove_leftovers(self, claims: Iterable[Claim]) -> None:
        """Remove checkpoints of turns that are over, best effort: a process died between the commit
        of a turn and the end of its checkpoint, or in a rollback.
        """
        for claim in claims:
            found = claim.checkpoint
            if self.store is None or found is None or found.thread_id != self.task_id:
                continue
            is_committed = self.messages.get_api_message(found.message_id) is not None
            is_ours = found.run_id == self.run_id
            if is_committed or (is_ours and found.message_id != self.turn_id()):
                try:
                    await self.store.delete(found.run_id, claim=claim)
                except OutlastError as error:
                    log.warning("task %r: a checkpoint is left over: %s", self.task_id, error)

    def quit(self, reason: OutlastError | None = None) -> None:
        """Save nothing more, and let further changes raise ``reason``."""
        for saver in (self.states.saver, *self.messages.savers):
            saver.stop(reason)


def digest(*parts: str | int) -> str:
    """64 hexadecimal digits made of ``parts``."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()


__all__ = [
    "EPOCH",
    "INPUT_ID",
    "SENT",
    "TURN_PREFIX",
    "Core",
    "digest",
    "log",
    "utc_now",
]
