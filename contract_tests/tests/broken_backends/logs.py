"""Defects of the message logs."""

import asyncio
import json
from datetime import UTC, datetime
from typing import ClassVar

from broken_backends.kit import mutant
from outlast.backends.memory import MemoryDriver
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.driver import Entry
from outlast.errors import ConflictError, InvalidDataError


@mutant("A1", "A4", "A5", "A8", "C7", "E3", "X2", "X4")
class AppendIsLoadPushSave(DriverPersistence):
    """append = load, push, save."""

    async def append_api_messages(self, task_id, messages, *, claim=None):
        messages = list(messages)
        old = list(await self.load_api_messages(task_id))
        new = [message for message in messages if message.id not in {one.id for one in old}]
        if len(new) < len(messages):
            return await super().append_api_messages(task_id, messages, claim=claim)
        return await self.save_api_messages(task_id, [*old, *new], claim=claim)

    async def append_api_message(self, task_id, message, *, claim=None):
        await self.append_api_messages(task_id, [message], claim=claim)


@mutant("A2", "A1", "A7", "A8", "I1", "C8", "E2")
class AppendHasNoKey(MemoryDriver):
    """append has no idempotency key: what is repeated is stored twice."""

    async def append(self, scope, log, entries, *, fence, present=()):
        record = self._find(scope)
        count = len(record.logs.get(log, {})) if record else 0
        keyed = [
            Entry(f"{entry.id}\x00{count + number}", entry.data)
            for number, entry in enumerate(entries)
        ]
        return await super().append(scope, log, keyed, fence=fence)

    async def load(self, scope, log, *, last=None):
        found = await super().load(scope, log, last=last)
        return [Entry(entry.id.partition("\x00")[0], entry.data) for entry in found]


@mutant("A4", "A2", "V7")
class LoadSortsByTime(DriverPersistence):
    """load sorts by the messages' ts."""

    async def load_api_messages(self, task_id, *, last=None):
        found = await super().load_api_messages(task_id, last=last)
        least = datetime.min.replace(tzinfo=UTC)
        return sorted(found, key=lambda message: message.ts or least)


@mutant(
    "A4",
    "F2",
    "F8",
    "F10",
    "A1",
    "A5",
    "A7",
    "A8",
    "A10",
    "V2",
    "V3",
    "V5",
    "V6",
    "I1",
    "C4",
    "C7",
    "X2",
)
class LoadSortsById(MemoryDriver):
    """load gives the messages in the order of their keys."""

    async def load(self, scope, log, *, last=None):
        found = sorted(await super().load(scope, log))
        return found if last is None else found[max(0, len(found) - last) :]


@mutant("A4", "F2", "F6", "A8", "I4", "C7", "E3", "E6", "X2")
class BatchesAreSentOneByOne(DriverPersistence):
    """A batch is appended message by message."""

    async def append_api_messages(self, task_id, messages, *, claim=None):
        messages = list(messages)
        if len({message.id for message in messages}) < len(messages):
            return await super().append_api_messages(task_id, messages, claim=claim)
        for message in messages:
            await super().append_api_messages(task_id, [message], claim=claim)
        return None


@mutant("A3", "F2", "F4", "F6", "F8", "A1", "A2", "A5", "A8", "A10", "S4", "E2", "X2")
class LoadInventsAMessage(MemoryDriver):
    """A batch leaves a record of its own behind, which readers take for a message."""

    async def append(self, scope, log, entries, *, fence, present=()):
        known = await super().append(scope, log, entries, fence=fence, present=present)
        if not known and len(entries) > 1:
            last = entries[-1]
            data = last.data.replace(json.dumps(last.id).encode(), b'"of a batch"', 1)
            self._find(scope).logs[log].setdefault("of a batch", data)
        return known


@mutant(
    "A5",
    "F2",
    "F4",
    "F6",
    "F7",
    "F8",
    "F10",
    "F11",
    "A1",
    "A6",
    "A7",
    "A10",
    "V2",
    "V3",
    "V4",
    "V6",
    "V7",
    "V8",
    "I1",
    "I2",
    "I3",
    "C4",
    "C8",
    "X1",
    "X2",
)
class LoadsGoBack(MemoryDriver):
    """Now and then a load is answered by a replica that lags behind."""

    _loads = 0
    _lagging: ClassVar = {}

    async def load(self, scope, log, *, last=None):
        found = await super().load(scope, log)
        key = (id(self._store), self._namespace, scope, log)
        LoadsGoBack._loads += 1
        shown = found
        if LoadsGoBack._loads % 5 == 0:
            shown = self._lagging.get(key, found)
        elif LoadsGoBack._loads % 5 == 1:
            self._lagging[key] = found
        return shown if last is None else shown[max(0, len(shown) - last) :]


@mutant(
    "A6",
    "F2",
    "F4",
    "F6",
    "F7",
    "F8",
    "F10",
    "F11",
    "A1",
    "A2",
    "A7",
    "A8",
    "V2",
    "V3",
    "V4",
    "V6",
    "V7",
    "V8",
    "I1",
    "I2",
    "I3",
    "I4",
    "I5",
    "C1",
    "C4",
    "C5",
    "C8",
    "E2",
    "X1",
    "X2",
    "X3",
)
class LoadsAreOneBehind(MemoryDriver):
    """A client's load shows what its load before would have shown."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._before = {}

    async def load(self, scope, log, *, last=None):
        found = await super().load(scope, log)
        shown = self._before.get((scope, log), found)
        self._before[scope, log] = found
        return shown if last is None else shown[max(0, len(shown) - last) :]


@mutant("A7", "F2", "F6", "E3", "X2")
class SaveDeletesThenInserts(DriverPersistence):
    """save = delete all, then insert one by one."""

    async def save_api_messages(self, task_id, messages, *, claim=None):
        messages = list(messages)
        ids = {getattr(message, "id", None) for message in messages}
        if len(ids) < len(messages) or not messages:
            return await super().save_api_messages(task_id, messages, claim=claim)
        await self.delete_api_messages(task_id, claim=claim)
        for message in messages:
            await self.append_api_message(task_id, message, claim=claim)
        return None


@mutant(
    "A7",
    "F2",
    "F4",
    "F6",
    "F8",
    "F10",
    "F11",
    "A1",
    "A2",
    "S4",
    "I1",
    "I2",
    "I3",
    "I4",
    "C1",
    "C4",
    "C5",
    "C8",
    "E2",
    "X1",
    "X2",
    "X3",
)
class SaveAppends(MemoryDriver):
    """save appends to what is there instead of replacing it."""

    async def replace(self, scope, log, entries, *, fence):
        record = self._find(scope)
        old = dict(record.logs.get(log, {})) if record and entries else {}
        merged = [Entry(*pair) for pair in {**old, **dict(entries)}.items()]
        await super().replace(scope, log, merged, fence=fence)


@mutant("A8")
class ADifferentMessageIsIgnored(DriverPersistence):
    """A different message of a known id is left out without an error."""

    async def append_api_messages(self, task_id, messages, *, claim=None):
        try:
            await super().append_api_messages(task_id, messages, claim=claim)
        except ConflictError:
            return


@mutant("A8", "C7")
class ADifferentTimeIsAConflict(DriverPersistence):
    """An equal message with another ts conflicts."""

    async def append_api_message(self, task_id, message, *, claim=None):
        await super().append_api_message(task_id, message, claim=claim)
        for stored in await self.load_api_messages(task_id):
            if stored.id == message.id and stored.ts != message.ts:
                raise ConflictError("another ts")


@mutant("A8", "E3")
class TheIdsAreCheckedFirst(DriverPersistence):
    """A conflict of ids is reported before the fence is looked at."""

    async def append_api_messages(self, task_id, messages, *, claim=None):
        messages = list(messages)
        stored = {message.id: message for message in await self.load_api_messages(task_id)}
        for message in messages:
            old = stored.get(message.id)
            if old is not None and old.content != message.content:
                raise ConflictError("it is there already")
        await super().append_api_messages(task_id, messages, claim=claim)


@mutant("A8", "A1")
class OnlyTheTailIsChecked(MemoryDriver):
    """A known id is noticed only among the newest 20 messages; older ones are overwritten."""

    async def append(self, scope, log, entries, *, fence, present=()):
        record = self._find(scope)
        stored = record.logs.get(log, {}) if record else {}
        tail = list(stored)[-20:]
        if any(entry.id in tail for entry in entries) or not stored:
            return await super().append(scope, log, entries, fence=fence, present=present)
        kept = {name: data for name, data in stored.items() if name in {e.id for e in entries}}
        for name in kept:
            del stored[name]
        return await super().append(scope, log, entries, fence=fence, present=())


@mutant("A9")
class AppendRewritesTheLog(MemoryDriver):
    """Each append reads, decodes and encodes the whole log."""

    async def append(self, scope, log, entries, *, fence, present=()):
        record = self._find(scope)
        if record is not None:
            stored = record.logs.get(log, {})
            "".join([data.decode() for data in stored.values()]).encode()
        return await super().append(scope, log, entries, fence=fence, present=present)


@mutant("A10")
class LastZeroIsAll(DriverPersistence):
    """last=0 gives the whole log, as entries[-0:] does."""

    async def load_api_messages(self, task_id, *, last=None):
        return await super().load_api_messages(task_id, last=last or None)


@mutant("E3", "A10")
class ABadCountIsShownWhole(DriverPersistence):
    """A count that is none is refused with all of its text, however long that is."""

    async def load_api_messages(self, task_id, *, last=None):
        if last is not None and type(last) is not int:
            raise InvalidDataError(f"last must be an int, not {last!r}")
        return await super().load_api_messages(task_id, last=last)


@mutant("A10", "V8")
class LastIsTheOldest(MemoryDriver):
    """last=n gives the oldest n."""

    async def load(self, scope, log, *, last=None):
        found = await super().load(scope, log)
        return found if last is None else found[:last]


@mutant("E3")
class ADuplicateKeyIsAForeignError(DriverPersistence):
    """The driver's own error for a duplicate key reaches the caller."""

    async def append_api_messages(self, task_id, messages, *, claim=None):
        try:
            await super().append_api_messages(task_id, messages, claim=claim)
        except ConflictError as error:
            raise KeyError("duplicate key") from error


@mutant("X1")
class CancellationIsSwallowed(DriverPersistence):
    """An append answers a cancellation with success, as `except BaseException` does."""

    async def append_api_message(self, task_id, message, *, claim=None):
        try:
            await super().append_api_message(task_id, message, claim=claim)
        except asyncio.CancelledError:
            return


@mutant("X1")
class TheErrorOfACancelledWriteIsUnhandled(MemoryDriver):
    """A write is shielded from cancellation, and nobody takes its error then."""

    async def write(self, scope, register, data, *, fence, **options):
        async def write():
            await asyncio.sleep(0)
            return await super(type(self), self).write(
                scope, register, data, fence=fence, **options
            )

        return await asyncio.shield(write())


@mutant("X2", "C1", "X1")
class ACancelledReplyIsReadLater(MemoryDriver):
    """The reply of a cancelled read stays in the connection and answers the next read."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._replies = []

    async def read(self, scope, register):
        self._replies.append(await super().read(scope, register))
        await asyncio.sleep(0)
        return self._replies.pop(0)


@mutant("C8", "F6", "A1", "I1")
class AConflictLeavesATransactionOpen(MemoryDriver):
    """After an append that was not done the connection is in an aborted transaction."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._aborted = 0

    async def append(self, scope, log, entries, *, fence, present=()):
        known = await super().append(scope, log, entries, fence=fence, present=present)
        if known:
            self._aborted = 20
        return known

    async def write(self, scope, register, data, *, fence, **options):
        if self._aborted:
            self._aborted -= 1
            raise RuntimeError("current transaction is aborted")
        return await super().write(scope, register, data, fence=fence, **options)
