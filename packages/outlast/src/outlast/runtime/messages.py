"""A task's two message logs: extended in memory, appended to the store in the background."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from outlast.contracts import Claim, PersistenceManager
from outlast.contracts.claim import check_scope
from outlast.driver import Scope
from outlast.errors import ConflictError, InvalidDataError
from outlast.models import ApiMessage, ToolInfo, UserMessage
from outlast.runtime._saver import OnSaveError, Saver, drain
from outlast.runtime.merging import copy_json, is_nothing
from outlast.values import FIELDS, check_messages, check_record

_log = logging.getLogger("outlast.runtime.messages")
_replace = msgspec.structs.replace

MessageT = TypeVar("MessageT", ApiMessage, UserMessage)
MessageT_contra = TypeVar("MessageT_contra", ApiMessage, UserMessage, contravariant=True)


class _Store(Protocol[MessageT_contra]):
    """One of the persistence's methods that store messages."""

    def __call__(
        self, task_id: str, messages: Iterable[MessageT_contra], *, claim: Claim | None = None
    ) -> Awaitable[None]: ...


class _Log(Generic[MessageT]):
    """One log: its messages in memory, and how many of them the store has.

    The store has the first ``_stored`` messages; the first ``_sent`` ones it has or may have. What
    follows them is appended. A change of what it may have is a full save.
    """

    def __init__(
        self,
        kind: type[MessageT],
        task_id: str,
        claim: Claim | None,
        append: _Store[MessageT] | None,
        save: _Store[MessageT] | None,
    ) -> None:
        self._kind: type[MessageT] = kind
        self._task_id = task_id
        self._claim = claim
        self._append: _Store[MessageT] | None = append
        self._save: _Store[MessageT] | None = save
        self.messages: list[MessageT] = []
        self._places: dict[str, int] = {}
        self._stored = 0
        self._sent = 0
        self._is_full_save_due = False
        self._is_replaced = False
        self._writing = asyncio.Lock()

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._places

    def get(self, message_id: str) -> MessageT | None:
        place = self._places.get(message_id)
        return None if place is None else self.messages[place]

    def place(self, message_id: str) -> int:
        """Where the message stands.

        Raises:
            InvalidDataError: Nowhere.
        """
        place = self._places.get(message_id)
        if place is None:
            raise InvalidDataError(f"no message with the id {message_id!r} is in the log")
        return place

    def restore(self, messages: Iterable[MessageT]) -> None:
        """Take over what the store has."""
        self.messages = list(messages)
        self._index()
        self._stored = self._sent = len(self.messages)
        self._is_full_save_due = False

    def replace(self, messages: Iterable[MessageT]) -> None:
        """Make ``messages`` the whole log; the next save is a full one."""
        self.messages = [_copy(message) for message in check_messages(list(messages), self._kind)]
        self._index()
        self._is_full_save_due = self._is_replaced = True

    def _index(self) -> None:
        self._places = {message.id: place for place, message in enumerate(self.messages)}

    def add(self, message: MessageT) -> MessageT:
        checked: MessageT = _copy(check_record(message, self._kind, "message"))
        if is_empty(checked):
            raise InvalidDataError(f"the message {checked.id!r} has neither text nor a block")
        self._refuse_known(checked.id)
        self._places[checked.id] = len(self.messages)
        self.messages.append(checked)
        return checked

    def adopt(self, message: MessageT) -> None:
        """Take in a message that somebody else has just stored at the end of the stored ones."""
        self._refuse_known(message.id)
        if self._sent >= len(self.messages):
            self._places[message.id] = len(self.messages)
            self.messages.append(message)
        else:
            self.messages.insert(self._sent, message)
            self._index()
        if not self._is_full_save_due:
            self._stored += 1
            self._sent += 1

    def _refuse_known(self, message_id: str) -> None:
        if message_id in self._places:
            raise InvalidDataError(f"a message with the id {message_id!r} is in the log already")

    def update(self, message_id: str, changes: dict[str, Any]) -> MessageT:
        place = self.place(message_id)
        unknown = [name for name in changes if name not in FIELDS[self._kind] or name == "id"]
        if unknown:
            raise InvalidDataError(f"{unknown[0]!r} is no field of a message that can change")
        changed: MessageT = check_record(
            _replace(self.messages[place], **changes), self._kind, "message"
        )
        self.messages[place] = _copy(changed)
        if place < self._sent:
            self._is_full_save_due = True
        if self._stored <= place < self._sent:
            # An append of the old message may still arrive, so a new one could meet it.
            self._is_replaced = True
        return changed

    async def write(self) -> None:
        """Append what is new, or save everything if that is due; the messages of this moment."""
        async with self._writing:
            await self._write(is_full=self._is_full_save_due)

    async def append_new(self) -> None:
        """Append what is new, and leave a full save that is due to a later write if it can wait."""
        async with self._writing:
            await self._write(is_full=self._is_replaced)

    async def _write(self, *, is_full: bool) -> None:
        messages = list(self.messages) if is_full else self.messages[self._stored :]
        store = self._save if is_full else self._append
        if store is None or not (messages or is_full):
            return
        was_replaced = self._is_replaced
        if is_full:
            self._is_full_save_due = self._is_replaced = False
        self._sent = len(self.messages)
        try:
            await store(self._task_id, messages, claim=self._claim)
        except BaseException:
            if is_full:
                self._is_full_save_due = True
                self._is_replaced = self._is_replaced or was_replaced
            raise
        self._stored = self._sent  # What was adopted meanwhile has moved it.


def _copy(message: MessageT) -> MessageT:
    content, metadata = copy_json(message.content), copy_json(message.metadata)
    copied = _replace(message, content=content, metadata=metadata)
    info: ToolInfo | None = getattr(message, "tool_info", None)
    if info is None:
        return copied
    info = _replace(
        info,
        arguments=copy_json(info.arguments),
        result=copy_json(info.result),
        error=copy_json(info.error),
    )
    return _replace(copied, tool_info=info)


class MessageManager:
    """Keeps a task's API messages and user messages in memory, and the store near them.

    **Guarantees**

    - Adding a message changes memory and returns; it never waits for the store.
    - Each log has a writer of its own that appends what is new, in order and as one batch, with
      the waits, the repetitions and **the loss bound** of `StateManager`; `save_now` waits for
      both. Everything is saved again only after `replace_messages`, a rollback, or a change of a
      message that the store has already.
    - A message is added once: a known id is refused.

    **Not guaranteed**: without a claim, another process may write the same logs; then a full save
    would overwrite it. A rollback looks first, and refuses.

    Args:
        task_id: The task.
        persistence: Where to save; without it, the messages live in memory alone.
        claim: Of the task. Without one, saves are unclaimed (single-process use).
        auto_persist: ``False``: only `save_now` and a rollback save.
        debounce: Seconds, as in `StateManager`.
        max_wait: Seconds, as in `StateManager`.
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
        on_save_error: OnSaveError | None = None,
    ) -> None:
        check_scope(Scope("task", task_id), "task_id", claim)
        self._task_id = task_id
        self._persistence = persistence
        self._api: _Log[ApiMessage] = _Log(
            ApiMessage,
            task_id,
            claim,
            persistence.append_api_messages if persistence is not None else None,
            persistence.save_api_messages if persistence is not None else None,
        )
        self._user: _Log[UserMessage] = _Log(
            UserMessage,
            task_id,
            claim,
            persistence.append_user_messages if persistence is not None else None,
            persistence.save_user_messages if persistence is not None else None,
        )
        self._round: int | None = None

        def saver(write: Callable[[], Awaitable[None]], what: str) -> Saver:
            return Saver(
                write,
                what=f"task {task_id!r}, {what}",
                log=_log,
                is_auto=auto_persist and persistence is not None,
                debounce=debounce,
                max_wait=max_wait,
                on_error=on_save_error,
            )

        self._api_saver: Saver = saver(self._api.write, "API messages")
        self._user_saver: Saver = saver(self._user.write, "user messages")

    @property
    def task_id(self) -> str:
        """The task."""
        return self._task_id

    @property
    def savers(self) -> tuple[Saver, Saver]:
        """The writers of both logs, for whoever closes several managers together."""
        return self._api_saver, self._user_saver

    @property
    def is_dirty(self) -> bool:
        """Whether something has changed that no finished save covers."""
        return self._persistence is not None and any(saver.is_dirty for saver in self.savers)

    @property
    def api_messages(self) -> list[ApiMessage]:
        """The conversation as the model sees it."""
        return list(self._api.messages)

    @property
    def user_messages(self) -> list[UserMessage]:
        """The conversation as a person sees it."""
        return list(self._user.messages)

    @property
    def api_log(self) -> Sequence[ApiMessage]:
        """As ``api_messages``, without a copy of the list; read it and let it go."""
        return self._api.messages

    def get_api_message(self, message_id: str) -> ApiMessage | None:
        """The API message of this id, if there is one."""
        return self._api.get(message_id)

    def get_user_message(self, message_id: str) -> UserMessage | None:
        """The user message of this id, if there is one."""
        return self._user.get(message_id)

    def add_api_message(self, message: ApiMessage) -> ApiMessage:
        """Add a message to the conversation with the model.

        Raises:
            InvalidDataError: Its id is known, it has neither text nor a block, or it cannot be
                stored. Nothing changed.
            FencedError: The task has a newer owner. Nothing changed.
            ClosedError: The manager is closed. Nothing changed.
        """
        self._api_saver.check()
        added = self._api.add(message)
        self._api_saver.touch()
        return added

    def add_user_message(self, message: UserMessage) -> UserMessage:
        """Add a message to the conversation as a person sees it.

        Raises:
            InvalidDataError: As in `add_api_message`; a tool card counts as content.
            FencedError: The task has a newer owner. Nothing changed.
            ClosedError: The manager is closed. Nothing changed.
        """
        self._user_saver.check()
        added = self._user.add(message)
        self._user_saver.touch()
        return added

    def update_user_message(self, message_id: str, /, **changes: Any) -> UserMessage:
        """Change fields of a user message, such as ``tool_info``; ``id`` stays.

        If the store has the message already, the next save of this log is a full one.

        Raises:
            InvalidDataError: No such message or field, or a value that cannot be stored. Nothing
                changed.
            FencedError: The task has a newer owner. Nothing changed.
            ClosedError: The manager is closed. Nothing changed.
        """
        self._user_saver.check()
        changed = self._user.update(message_id, changes)
        self._user_saver.touch()
        return changed

    def restore_messages(
        self, api_messages: Iterable[ApiMessage], user_messages: Iterable[UserMessage]
    ) -> None:
        """Take both logs over as they were loaded; nothing is saved."""
        self._api.restore(api_messages)
        self._user.restore(user_messages)
        self._round = None

    def replace_messages(
        self,
        api_messages: Iterable[ApiMessage] | None = None,
        user_messages: Iterable[UserMessage] | None = None,
    ) -> None:
        """Make these the whole logs; the next save writes all of them.

        Args:
            api_messages: ``None``: this log stays.
            user_messages: ``None``: this log stays.
        """
        if api_messages is not None:
            self._api_saver.check()
            self._api.replace(api_messages)
            self._api_saver.touch()
        if user_messages is not None:
            self._user_saver.check()
            self._user.replace(user_messages)
            self._user_saver.touch()

    def adopt_api_message(self, message: ApiMessage) -> None:
        """Take in a message that was appended to the stored log by `run_turn`.

        Save what was added before, first: a message that is not stored yet comes behind it.
        """
        self._api.adopt(message)

    # Rounds

    @property
    def is_in_round(self) -> bool:
        """Whether a round is open."""
        return self._round is not None

    def start_round(self, *, at: str | None = None) -> None:
        """Begin a round here: what is added from now on is removed by a rollback.

        Args:
            at: Begin it before the API message of this id instead.
        """
        self._round = len(self._api.messages) if at is None else self._api.place(at)

    def end_round(self) -> None:
        """End the round: its messages stay. Harmless without one."""
        self._round = None

    async def rollback_current_round(self) -> list[ApiMessage]:
        """Remove the API messages that were added since `start_round`; user messages stay.

        The stored log is changed in one step, at once. Without an open round, nothing happens.

        Returns:
            What was removed.

        Raises:
            ConflictError: The stored log has messages that did not come from here; nothing
                changed.
            FencedError: The task has a newer owner; nothing changed.
            OutlastError: The store did not do it; it stays pending.
        """
        if self._round is None:
            return []
        await self._api_saver.join()
        self._api_saver.check()
        if self._persistence is not None:
            stored = await self._persistence.load_api_messages(self._task_id)
            known = {message.id for message in self._api.messages}
            foreign = [message.id for message in stored if message.id not in known]
            if foreign:
                raise ConflictError(
                    f"the stored log has {foreign[0]!r}, which was not added here; nothing was "
                    "rolled back: load the task again",
                    operation="rollback_current_round",
                    key=self._task_id,
                )
        kept, removed = self._api.messages[: self._round], self._api.messages[self._round :]
        self._round = None
        if removed:
            self._api.replace(kept)
            self._api_saver.touch()
            if self._persistence is not None:
                await self._api_saver.flush()
        return removed

    async def save_now(self) -> None:
        """Save both logs without waiting for the debounce, and return once they are stored.

        Raises:
            FencedError: The task has a newer owner.
            OutlastError: The store did not do it; what is not stored stays pending.
        """
        await self.save_api_messages_now()
        await self.save_user_messages_now()

    async def save_api_messages_now(self) -> None:
        """`save_now` for the API messages alone."""
        if self._persistence is not None and self._api_saver.is_dirty:
            await self._api_saver.flush()

    async def save_user_messages_now(self) -> None:
        """`save_now` for the user messages alone."""
        if self._persistence is not None and self._user_saver.is_dirty:
            await self._user_saver.flush()

    async def append_user_messages_now(self) -> None:
        """Return once every user message that was added is stored; changes of stored ones may
        still wait.

        Raises:
            FencedError: The task has a newer owner.
            OutlastError: The store did not do it; what is not stored stays pending.
        """
        self._user_saver.check()
        await self._user.append_new()

    async def aclose(self) -> None:
        """Save what is pending in both logs, until nothing is, and refuse further changes;
        idempotent.

        Raises:
            ExceptionGroup: Not everything could be saved.
        """
        await drain(self.savers, f"task {self._task_id!r}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def is_empty(message: ApiMessage | UserMessage) -> bool:
    """Whether a message has neither text nor a block, which APIs refuse; a tool card is one."""
    if isinstance(message, UserMessage) and message.tool_info is not None:
        return False
    return is_nothing(message.content)


__all__ = ["MessageManager", "is_empty"]
