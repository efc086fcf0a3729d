"""`PersistenceManager` on top of any `Driver`."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import msgspec

from outlast.codec import same_message
from outlast.contracts.calls import Sender
from outlast.contracts.claim import (
    Claim,
    check_at_least,
    check_if_epoch,
    check_scope,
    claim_id_or_new,
    new_claim_id,
)
from outlast.contracts.persistence import PersistenceManager
from outlast.contracts.records import DecodingOf, Records, micros
from outlast.contracts.runs import Tries, remove_runs
from outlast.driver import (
    MAX_EPOCH,
    PRIMARY,
    Entry,
    Index,
    Item,
    PreconditionFailedError,
    Scope,
    Where,
)
from outlast.errors import (
    ConflictError,
    FencedError,
    InvalidDataError,
    TaskNotFoundError,
    shown,
)
from outlast.models import ApiMessage, Record, TaskInput, TaskState, TaskStatus, UserMessage
from outlast.values import (
    FIELDS,
    check_bool,
    check_id,
    check_messages,
    check_record,
    check_updates,
)

_MAX_COUNT = 2**31 - 1
"""More than any log or listing has; drivers pass counts on to servers, whose integers end."""

RecordT = TypeVar("RecordT", bound=Record)
MessageT = TypeVar("MessageT", ApiMessage, UserMessage)


class _Log(NamedTuple, Generic[MessageT]):
    """One of the two logs: its name in the driver, its message class, its name in operations."""

    name: str
    kind: type[MessageT]
    plural: str


_API = _Log("api", ApiMessage, "api_messages")
_USER = _Log("user", UserMessage, "user_messages")


class DriverPersistence(PersistenceManager):
    """Keeps tasks through a driver; see the contract."""

    def __init__(self, records: Records, initialize: Callable[[], Awaitable[None]]) -> None:
        """Serve from a backend's driver.

        Args:
            records: The way to the driver.
            initialize: Sets the backend's store up.
        """
        self._records = records
        self._calls = records.calls
        self._driver = records.driver
        self._initialize = initialize

    async def initialize(self) -> None:
        await self._initialize()

    # Ownership

    async def claim_task(
        self,
        task_id: str,
        *,
        claim_id: str | None = None,
        at_least: int | None = None,
        if_epoch: int | None = None,
    ) -> Claim:
        with self._calls.describing("claim_task", task_id):
            scope = check_scope(Scope("task", task_id), "task_id", None)
            identity = claim_id_or_new(claim_id)
            epoch = check_at_least(at_least, MAX_EPOCH)
            known = check_if_epoch(if_epoch, MAX_EPOCH)
        fence, _ = await self._records.claim(
            "claim_task", scope, identity, at_least=epoch, if_epoch=known
        )
        return Claim(scope, fence.epoch, fence.claim_id, seq=fence.seq)

    async def check_claim(self, claim: Claim) -> None:
        with self._calls.describing("check_claim", None):
            if not isinstance(claim, Claim):
                raise InvalidDataError(f"claim must be a Claim, not {type(claim).__name__}")
        await self._records.check_fence("check_claim", claim.scope, claim)

    # State and input

    async def save_task_state(
        self, task_id: str, state: TaskState, *, claim: Claim | None = None
    ) -> None:
        with self._calls.describing("save_task_state", task_id):
            scope = check_scope(Scope("task", task_id), "task_id", claim)
            checked = check_record(state, TaskState, "state")
            if checked.id != task_id:
                raise InvalidDataError(f"state.id is {checked.id!r}, not the task_id {task_id!r}")
            data, index = self._encode_state(checked)
        write = partial(self._driver.write, scope, "state", data, index=index)
        await self._calls.send("save_task_state", scope, claim, write)

    async def load_task_state(self, task_id: str) -> TaskState | None:
        return await self._load_register("load_task_state", task_id, "state", TaskState)

    async def update_task_state(
        self, task_id: str, updates: Mapping[str, object], *, claim: Claim | None = None
    ) -> TaskState:
        with self._calls.describing("update_task_state", task_id):
            scope = check_scope(Scope("task", task_id), "task_id", claim)
            changes = self._copy_of(check_updates(updates))

        async def merge(send: Sender) -> TaskState:
            attempt = 0
            while True:
                value = await send.ask(partial(self._driver.read, scope, "state"))
                if value.data is None:
                    # Said first (A8).
                    await self._records.check_owner(scope, value, claim, send.ask)
                    raise TaskNotFoundError("the task has no state to update")
                old = self._records.decode(value.data, TaskState)
                state = msgspec.structs.replace(old, **changes)
                data, index = self._encode_state(state)
                write = partial(self._driver.write, scope, "state", data, index=index)
                try:
                    await send(partial(write, if_version=value.version))
                except PreconditionFailedError:
                    await self._records.pause(attempt)
                    attempt += 1
                    continue
                return self._records.decode(data, TaskState)

        return await self._calls.mutate("update_task_state", scope, claim, merge)

    async def delete_task_state(self, task_id: str, *, claim: Claim | None = None) -> None:
        await self._delete_register("delete_task_state", task_id, "state", claim)

    async def list_task_states(
        self,
        *,
        status: TaskStatus | None = None,
        parent_id: str | None = None,
        updated_before: datetime | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[TaskState]:
        with self._calls.describing("list_task_states", None):
            where = Where(
                parent=None if parent_id is None else check_id(parent_id, "parent_id"),
                status=None
                if status is None
                else str(FIELDS[TaskState]["status"](status, "status")),
                updated_before=micros(updated_before, "updated_before"),
            )
            position = None if after is None else check_id(after, "after")
            wanted = _check_count(limit, "limit")
            with self._calls.as_one():
                return await self._find_states(where, position, wanted)

    async def _find_states(
        self, where: Where, after: str | None, wanted: int | None
    ) -> list[TaskState]:
        found: list[TaskState] = []
        if wanted == 0:
            return found
        async for item in self._records.scan("list_task_states", "task", where, after, wanted):
            state = self._decode_state(item)
            if state is not None and _matches(state, where):
                found.append(state)
                if wanted is not None and len(found) >= wanted:
                    break
        return found

    async def save_task_input(
        self, task_id: str, task_input: TaskInput, *, claim: Claim | None = None
    ) -> None:
        with self._calls.describing("save_task_input", task_id):
            scope = check_scope(Scope("task", task_id), "task_id", claim)
            data = self._records.encode(check_record(task_input, TaskInput, "task_input"))
        write = partial(self._driver.write, scope, "input", data)
        await self._calls.send("save_task_input", scope, claim, write)

    async def load_task_input(self, task_id: str) -> TaskInput | None:
        return await self._load_register("load_task_input", task_id, "input", TaskInput)

    async def delete_task_input(self, task_id: str, *, claim: Claim | None = None) -> None:
        await self._delete_register("delete_task_input", task_id, "input", claim)

    # Messages

    async def save_api_messages(
        self, task_id: str, messages: Iterable[ApiMessage], *, claim: Claim | None = None
    ) -> None:
        await self._save(_API, task_id, messages, claim)

    async def load_api_messages(self, task_id: str, *, last: int | None = None) -> list[ApiMessage]:
        return await self._load(_API, task_id, last)

    async def append_api_message(
        self, task_id: str, message: ApiMessage, *, claim: Claim | None = None
    ) -> None:
        await self._append("append_api_message", _API, task_id, (message,), claim)

    async def append_api_messages(
        self, task_id: str, messages: Iterable[ApiMessage], *, claim: Claim | None = None
    ) -> None:
        await self._append("append_api_messages", _API, task_id, messages, claim)

    async def delete_api_messages(self, task_id: str, *, claim: Claim | None = None) -> None:
        await self._empty(_API, task_id, claim)

    async def save_user_messages(
        self, task_id: str, messages: Iterable[UserMessage], *, claim: Claim | None = None
    ) -> None:
        await self._save(_USER, task_id, messages, claim)

    async def load_user_messages(
        self, task_id: str, *, last: int | None = None
    ) -> list[UserMessage]:
        return await self._load(_USER, task_id, last)

    async def append_user_message(
        self, task_id: str, message: UserMessage, *, claim: Claim | None = None
    ) -> None:
        await self._append("append_user_message", _USER, task_id, (message,), claim)

    async def append_user_messages(
        self, task_id: str, messages: Iterable[UserMessage], *, claim: Claim | None = None
    ) -> None:
        await self._append("append_user_messages", _USER, task_id, messages, claim)

    async def delete_user_messages(self, task_id: str, *, claim: Claim | None = None) -> None:
        await self._empty(_USER, task_id, claim)

    # The whole task

    async def delete_task(
        self, task_id: str, *, claim: Claim | None = None, force: bool = False
    ) -> None:
        with self._calls.describing("delete_task", task_id):
            scope = check_scope(Scope("task", task_id), "task_id", claim)
            check_bool(force, "force")
        with self._calls.describing("delete_task", task_id), self._calls.as_one():
            if force:
                await self._delete_by_force(task_id, scope)
            else:
                await self._delete_task(task_id, scope, claim)

    async def _delete_by_force(self, task_id: str, scope: Scope) -> None:
        again = Tries(self._calls.timeout)
        while True:
            fence, _ = await self._records.claim("delete_task", scope, new_claim_id())
            claim = Claim(scope, fence.epoch, fence.claim_id, seq=fence.seq)
            try:
                return await self._delete_task(task_id, scope, claim)
            except FencedError as error:
                # Others claimed it since, or a sweep took the record: it held no data yet.
                if error.reason not in ("superseded", "no_record") or not again.is_worth_it():
                    raise
            await self._records.pause(again.rounds)

    async def _delete_task(self, task_id: str, scope: Scope, claim: Claim | None) -> None:
        newest = None if claim is None else claim.epoch

        async def delete(send: Sender) -> None:
            value = await send.ask(partial(self._driver.read, scope, PRIMARY["task"]))
            await self._records.check_owner(scope, value, claim, send.ask)
            await remove_runs(
                self._records, "delete_task", task_id, task_epoch=newest, step=send.step
            )
            await send(partial(self._driver.remove, scope))

        await self._calls.mutate("delete_task", scope, claim, delete)

    # Shared by the registers

    def _encode_state(self, state: TaskState) -> tuple[bytes, Index]:
        now = self._records.now()
        stamped = msgspec.structs.replace(state, updated_at=now)
        index = Index(state.parent_id, str(state.status), micros(now, "updated_at") or 0)
        return self._records.encode(stamped), index

    def _copy_of(self, changes: dict[str, object]) -> dict[str, object]:
        """Checked changes that stay as they are, whatever their giver does with them (V1)."""
        given = msgspec.structs.replace(TaskState(id="-"), **changes)
        kept = self._records.decode(self._records.encode(given), TaskState)
        return {name: getattr(kept, name) for name in changes}

    def _decode_state(self, item: Item) -> TaskState | None:
        if item.value.data is None:
            return None
        with self._calls.describing("list_task_states", item.id):
            return self._records.decode(item.value.data, TaskState)

    async def _load_register(
        self, operation: str, task_id: str, register: str, kind: type[RecordT]
    ) -> RecordT | None:
        with self._calls.describing(operation, task_id):
            scope = check_scope(Scope("task", task_id), "task_id", None)
            read = partial(self._driver.read, scope, register)
            value = await self._calls.read(operation, task_id, read)
            return None if value.data is None else self._records.decode(value.data, kind)

    async def _delete_register(
        self, operation: str, task_id: str, register: str, claim: Claim | None
    ) -> None:
        with self._calls.describing(operation, task_id):
            scope = check_scope(Scope("task", task_id), "task_id", claim)
        write = partial(self._driver.write, scope, register, None)
        await self._calls.send(operation, scope, claim, write)

    # Shared by the logs

    async def _save(
        self, log: _Log[MessageT], task_id: str, messages: Iterable[MessageT], claim: Claim | None
    ) -> None:
        operation = f"save_{log.plural}"
        with self._calls.describing(operation, task_id):
            scope = check_scope(Scope("task", task_id), "task_id", claim)
            entries = self._encode_messages(check_messages(messages, log.kind))
        await self._replace(operation, scope, log.name, entries, claim)

    async def _empty(self, log: _Log[MessageT], task_id: str, claim: Claim | None) -> None:
        operation = f"delete_{log.plural}"
        with self._calls.describing(operation, task_id):
            scope = check_scope(Scope("task", task_id), "task_id", claim)
        await self._replace(operation, scope, log.name, [], claim)

    async def _replace(
        self, operation: str, scope: Scope, log: str, entries: list[Entry], claim: Claim | None
    ) -> None:
        replace = partial(self._driver.replace, scope, log, entries)
        await self._calls.send(operation, scope, claim, replace)

    async def _load(self, log: _Log[MessageT], task_id: str, last: int | None) -> list[MessageT]:
        operation = f"load_{log.plural}"
        with self._calls.describing(operation, task_id):
            scope = check_scope(Scope("task", task_id), "task_id", None)
            wanted = _check_count(last, "last")
            decode = DecodingOf(self._records.codec, log.kind)
            load = partial(self._driver.load_data, scope, log.name, decode, last=wanted)
            return await self._calls.read(operation, task_id, load)

    async def _append(
        self,
        operation: str,
        log: _Log[MessageT],
        task_id: str,
        messages: Iterable[MessageT],
        claim: Claim | None,
    ) -> None:
        with self._calls.describing(operation, task_id):
            scope = check_scope(Scope("task", task_id), "task_id", claim)
            entries = self._encode_messages(check_messages(messages, log.kind))

        async def append(send: Sender) -> None:
            present: dict[str, None] = {}  # in order, and quick to look up in large batches
            attempt = 0
            while True:
                new = (
                    [entry for entry in entries if entry.id not in present] if present else entries
                )
                try:
                    known = await send(
                        partial(self._driver.append, scope, log.name, new, present=tuple(present)),
                        repeatable=True,
                    )
                except PreconditionFailedError:
                    # A replacement came in between: what was there may be gone.
                    present.clear()
                    await self._records.pause(attempt)
                    attempt += 1
                    continue
                if not known:
                    return
                # As it was when it was checked: the caller may have changed the message since.
                given = {entry.id: entry.data for entry in entries}
                for entry in known:
                    if not same_message(
                        self._records.decode(entry.data, log.kind),
                        self._records.decode(given[entry.id], log.kind),
                    ):
                        raise ConflictError(
                            f"a different message with the id {entry.id!r} is in the log already; "
                            "nothing was appended"
                        )
                    present[entry.id] = None

        await self._calls.mutate(operation, scope, claim, append)

    def _encode_messages(self, messages: list[MessageT]) -> list[Entry]:
        return [Entry(message.id, self._records.encode(message)) for message in messages]


def _check_count(value: object, argument: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise InvalidDataError(
            f"{argument} must be an int of at least 0 or None, not {shown(value)}"
        )
    return min(value, _MAX_COUNT)


def _matches(state: TaskState, where: Where) -> bool:
    """Whether the state as returned matches (L3): driver and index may be somebody else's."""
    return (
        (where.status is None or str(state.status) == where.status)
        and (where.parent is None or state.parent_id == where.parent)
        and (
            where.updated_before is None
            or (
                state.updated_at is not None
                and (micros(state.updated_at, "") or 0) < where.updated_before
            )
        )
    )


__all__ = ["DriverPersistence"]
