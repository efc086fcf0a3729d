"""Defects of values on their way into the store and back."""

import contextlib
import re
from datetime import datetime, timezone
from typing import ClassVar

import msgspec

import outlast
from broken_backends.kit import BrokenHarness, mutant
from outlast.backends.memory import MemoryDriver
from outlast.codec import Codec
from outlast.contracts.driver_checkpoints import DriverCheckpoints
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.errors import CorruptDataError, PayloadTooLargeError, UnsupportedVersionError


def _walk(value, change):
    """The value with ``change`` applied to every value in it, leaves first."""
    if isinstance(value, dict):
        value = {key: _walk(item, change) for key, item in value.items()}
    elif isinstance(value, list):
        value = [_walk(item, change) for item in value]
    return change(value)


class _Changed(Codec):
    """Changes the JSON value of each record before it is stored."""

    def encode(self, record):
        data, _ = super().encode(record)
        head, newline, payload = data.partition(b"\n")
        value = msgspec.json.decode(payload)
        # What is nested too deeply to be changed here is stored as it is.
        changed = value
        with contextlib.suppress(RecursionError):
            changed = _walk(value, self.change)
        data = head + newline + msgspec.json.encode(changed)
        return data, len(data) - len(head) - 1

    def change(self, value):
        return value


@mutant("V2")
class IntegersPassThroughADouble(_Changed):
    """Integers pass through a double, as in Lua's cjson and in JavaScript."""

    def change(self, value):
        if type(value) is int and abs(value) > 2**53:
            return int(float(value)) if abs(value) < 2**1000 else value
        return value


@mutant("V2", "A2", "A8", "S1")
class FloatsThatAreWholeBecomeInts(_Changed):
    """1.0 is stored as 1."""

    def change(self, value):
        return int(value) if type(value) is float and value.is_integer() else value


@mutant("V2")
class EmptyDictsBecomeLists(_Changed):
    """An empty dict comes back as an empty list, where a field takes either."""

    def encode(self, record):
        data, _ = super(_Changed, self).encode(record)
        changed = re.sub(rb'("[^"]*empty[^"]*"):\{\}', rb"\1:[]", data)
        return changed, len(changed) - changed.index(b"\n") - 1


@mutant("V2", "S1", "S3", "V3", "V4")
class KeysAreSorted(_Changed):
    """The order of keys is lost, as in binary JSON columns."""

    def change(self, value):
        fields = ("id", "message", "run_id")
        if isinstance(value, dict) and not any(name in value for name in fields):
            return dict(sorted(value.items()))
        return value


@mutant("V3", "A8", "L4", "V6", "I1", "I3", "I4")
class NulIsRemoved(_Changed):
    """U+0000 is removed before storing."""

    def change(self, value):
        return value.replace("\x00", "") if isinstance(value, str) else value


@mutant("V3", "A8", "L4", "V6", "I1", "I4")
class TextIsEncodedWithReplacement(_Changed):
    """Text is encoded with errors='replace' into a smaller character set."""

    def change(self, value):
        if isinstance(value, str):
            return value.encode("latin-1", errors="replace").decode("latin-1")
        return value


@mutant("V3", "L4", "V6", "I1")
class TextIsNormalized(_Changed):
    """Text is brought into one Unicode normal form."""

    def change(self, value):
        import unicodedata

        return unicodedata.normalize("NFC", value) if isinstance(value, str) else value


@mutant("V4", "S1", "S2", "S3", "A8")
class NoneIsLeftOut(_Changed):
    """None values are left out when storing."""

    def change(self, value):
        if isinstance(value, dict):
            return {key: item for key, item in value.items() if item is not None}
        return value


@mutant("V5", "S3", "V3", "C4")
class LongTextIsCut(_Changed):
    """Text longer than 65,535 is cut, as in a TEXT column without strict mode."""

    def change(self, value):
        return value[:65_535] if isinstance(value, str) else value


@mutant("V5")
class TheLimitIsNotChecked(BrokenHarness):
    """What is over the declared limit is stored all the same."""

    class driver_class(MemoryDriver):  # noqa: D106, N801 - the kit's part and name
        capabilities = msgspec.structs.replace(
            MemoryDriver.capabilities, max_message_bytes=8 * 2**20
        )

    async def open_with(self, namespace, **options):
        backend = await super().open_with(namespace, **options)
        backend._records.encode = lambda record: backend._records.codec.encode(record)[0]
        return backend


@mutant("V5")
class TheLimitIsSmall(BrokenHarness):
    """Records of more than 1 MiB are refused, though 16 MiB are declared."""

    class driver_class(MemoryDriver):  # noqa: D106, N801 - the kit's part and name
        capabilities = msgspec.structs.replace(
            MemoryDriver.capabilities, max_message_bytes=16 * 2**20
        )

        async def write(self, scope, register, data, *, fence, **options):
            if data is not None and len(data) > 2**20:
                raise PayloadTooLargeError("too large")
            return await super().write(scope, register, data, fence=fence, **options)


def _plain(value):
    """What JSON writers of many libraries make of values that JSON cannot carry."""
    if isinstance(value, tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    if isinstance(value, float) and value - value != 0:
        return None
    if isinstance(value, dict) and type(value) is dict:
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


@mutant("V6")
class WhatJsonCannotCarryIsChanged(DriverPersistence):
    """Values that JSON cannot carry are changed without an error."""

    async def save_task_input(self, task_id, task_input, *, claim=None):
        if isinstance(task_input, outlast.TaskInput):
            with contextlib.suppress(RecursionError):
                task_input = msgspec.structs.replace(task_input, message=_plain(task_input.message))
        await super().save_task_input(task_id, task_input, claim=claim)


@mutant("V6")
class SurrogatesAreReplaced(DriverPersistence):
    """Half a surrogate pair is replaced by a question mark."""

    async def append_api_message(self, task_id, message, *, claim=None):
        if isinstance(message, outlast.ApiMessage) and isinstance(message.role, str):
            role = message.role.encode(errors="replace").decode()
            message = msgspec.structs.replace(message, role=role)
        await super().append_api_message(task_id, message, claim=claim)


@mutant("V1")
class TheStoreSharesItsObjects(DriverPersistence):
    """The memory store hands out its own objects."""

    _held: ClassVar = {}

    async def load_task_input(self, task_id):
        found = await super().load_task_input(task_id)
        key = (id(self._records.driver.store), self._records.driver._namespace, task_id)
        held = self._held.get(key)
        if held is not None and found is not None and held[0] == msgspec.json.encode(found):
            return held[1]
        if found is not None:
            self._held[key] = (msgspec.json.encode(found), found)
        return found


@mutant("V1")
class UpdatesReturnWhatTheyWereGiven(DriverPersistence):
    """The state that an update returns shares objects with the next one."""

    _last: ClassVar = {}

    async def load_task_state(self, task_id):
        found = await super().load_task_state(task_id)
        key = (id(self._records.driver.store), self._records.driver._namespace, task_id)
        held = self._last.get(key)
        if held is not None and found is not None and held.updated_at == found.updated_at:
            return held
        if found is not None:
            self._last[key] = found
        return found


@mutant("V7", "L3")
class MicrosecondsAreCut(_Changed):
    """Instants are stored in milliseconds."""

    def change(self, value):
        if isinstance(value, str):
            return re.sub(r"^(\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3})\d{3}Z$", r"\1Z", value)
        return value


@mutant("V7")
class NaiveIsTakenForUtc(DriverPersistence):
    """A naive datetime is taken for UTC."""

    async def append_api_message(self, task_id, message, *, claim=None):
        if isinstance(message, outlast.ApiMessage):
            ts = message.ts
            if isinstance(ts, datetime) and ts.tzinfo is None:
                ts = ts.replace(tzinfo=timezone.utc)  # noqa: UP017 - a third party's code
                message = msgspec.structs.replace(message, ts=ts)
        await super().append_api_message(task_id, message, claim=claim)


@mutant("V8")
class CorruptReadsAsMissing(DriverCheckpoints):
    """A checkpoint that cannot be decoded reads as missing."""

    async def get(self, run_id):
        try:
            return await super().get(run_id)
        except CorruptDataError:
            return None


@mutant("V8")
class NewerReadsAsCorrupt(Codec):
    """A newer format is reported as damage."""

    def decode(self, data, kind):
        try:
            return super().decode(data, kind)
        except UnsupportedVersionError as error:
            raise CorruptDataError("what is this?") from error


@mutant("V8")
class ATornTailIsIgnored(MemoryDriver):
    """A log leaves out messages whose bytes look torn."""

    async def load(self, scope, log, *, last=None):
        found = await super().load(scope, log, last=last)
        return [entry for entry in found if entry.data.endswith(b"}")]
