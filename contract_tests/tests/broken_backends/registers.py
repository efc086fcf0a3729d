"""Defects of registers: saving, updating, deleting."""

import asyncio

import msgspec

import outlast
from broken_backends.kit import mutant
from outlast.backends.memory import MemoryDriver
from outlast.contracts.driver_checkpoints import DriverCheckpoints
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.driver import Index, Scope
from outlast.errors import InvalidDataError, TaskNotFoundError


@mutant("S1", "F2", "F4", "F8", "S3", "S4", "V1", "X2")
class UpdateReplacesTheState(DriverPersistence):
    """update_task_state replaces the whole state."""

    async def update_task_state(self, task_id, updates, *, claim=None):
        await super().update_task_state(task_id, updates, claim=claim)
        state = outlast.TaskState(id=task_id, **updates)
        await self.save_task_state(task_id, state, claim=claim)
        return await self.load_task_state(task_id)


@mutant("S1")
class UpdateIsLoadMergeSave(DriverPersistence):
    """update_task_state = load, merge, save."""

    async def update_task_state(self, task_id, updates, *, claim=None):
        state = await self.load_task_state(task_id)
        if state is None or not isinstance(updates, dict) or not updates:
            return await super().update_task_state(task_id, updates, claim=claim)
        if not set(updates) <= set(outlast.TaskState.__struct_fields__) - {"id", "updated_at"}:
            return await super().update_task_state(task_id, updates, claim=claim)
        try:
            merged = msgspec.structs.replace(state, **updates)
            await self.save_task_state(task_id, merged, claim=claim)
        except InvalidDataError:
            return await super().update_task_state(task_id, updates, claim=claim)
        return await self.load_task_state(task_id)


@mutant("S1")
class VersionsAreNotCompared(MemoryDriver):
    """The driver ignores if_version."""

    async def read(self, scope, register):
        value = await super().read(scope, register)
        await asyncio.sleep(0)
        return value

    async def write(self, scope, register, data, *, fence, index=None, if_version=None):
        return await super().write(scope, register, data, fence=fence, index=index)


@mutant("S1", "F2", "F4", "F6", "F8", "S3", "S4", "V1", "X2")
class UpdateMergesWithin(DriverPersistence):
    """A dict in an update is merged key by key into the stored one."""

    async def update_task_state(self, task_id, updates, *, claim=None):
        state = await self.load_task_state(task_id)
        if state is not None and isinstance(updates, dict):
            updates = {
                name: {**getattr(state, name), **value}
                if name in ("config", "context") and isinstance(value, dict)
                else value
                for name, value in updates.items()
            }
        return await super().update_task_state(task_id, updates, claim=claim)


@mutant("S2")
class UpdateCreatesAState(DriverPersistence):
    """update_task_state of a missing task creates a partial state."""

    async def update_task_state(self, task_id, updates, *, claim=None):
        try:
            return await super().update_task_state(task_id, updates, claim=claim)
        except TaskNotFoundError:
            state = outlast.TaskState(id=task_id, **updates)
            await self.save_task_state(task_id, state, claim=claim)
            return state


@mutant("S2")
class UpdateWithNoneIsSkipped(DriverPersistence):
    """update_task_state with None leaves the field as it was."""

    async def update_task_state(self, task_id, updates, *, claim=None):
        if isinstance(updates, dict):
            updates = {
                name: value
                for name, value in updates.items()
                if value is not None or name == "config"
            }
        return await super().update_task_state(task_id, updates, claim=claim)


@mutant("S2")
class KeysArePaths(DriverPersistence):
    """A dotted key in an update is taken for a path."""

    async def update_task_state(self, task_id, updates, *, claim=None):
        if isinstance(updates, dict):
            plain = {}
            for name, value in updates.items():
                head, dot, rest = name.partition(".")
                plain[head] = {rest: value} if dot else value
            updates = plain
        return await super().update_task_state(task_id, updates, claim=claim)


@mutant("S3", "F2", "F8", "E2")
class SaveMergesIntoTheOldValue(DriverPersistence):
    """save_task_state keeps keys of the former config that the new one leaves out."""

    async def save_task_state(self, task_id, state, *, claim=None):
        if isinstance(state, outlast.TaskState) and isinstance(state.config, dict):
            old = await self.load_task_state(task_id)
            if old is not None:
                merged = {**old.config, **state.config}
                state = msgspec.structs.replace(state, config=merged)
        await super().save_task_state(task_id, state, claim=claim)


@mutant("S4", "F2", "F4", "F6", "F8", "A2", "C2", "E2")
class DeletingTheStateDeletesTheInput(MemoryDriver):
    """Deleting a task's state takes its input along."""

    async def write(self, scope, register, data, *, fence, **options):
        version = await super().write(scope, register, data, fence=fence, **options)
        record = self._find(scope)
        if record is not None and register == "state" and data is None:
            record.registers.pop("input", None)
        return version


@mutant("S4", "F2", "F4", "F6", "F8", "A1", "A2", "C2", "E2", "X2")
class BothLogsAreOne(MemoryDriver):
    """Deleting or saving one log empties the other."""

    async def replace(self, scope, log, entries, *, fence):
        await super().replace(scope, log, entries, fence=fence)
        record = self._find(scope)
        if record is not None and not entries:
            record.logs.clear()


@mutant("S5", "F12", "A1", "I1", "I2", "I3", "I4", "I5", "C1", "C2")
class GetOfAnUnknownRunRaises(DriverCheckpoints):
    """get of a run that was never claimed or written raises."""

    async def get(self, run_id):
        found = await super().get(run_id)
        if found is None:
            value = await self._records.driver.read(Scope("run", run_id), "checkpoint")
            if value.fence is None:
                raise TaskNotFoundError("no such run")
        return found


@mutant("C2", "F8")
class DeletingNothingRaises(DriverPersistence):
    """Deleting what is not there raises."""

    async def delete_task_input(self, task_id, *, claim=None):
        if await self.load_task_input(task_id) is None and claim is None:
            raise TaskNotFoundError("nothing to delete")
        await super().delete_task_input(task_id, claim=claim)


@mutant("C2", "F8")
class DeletingNothingMakesARecord(MemoryDriver):
    """Deleting what never was leaves a claimed tombstone."""

    async def remove(self, scope, *, fence):
        if fence is None and self._find(scope) is None:
            await self.claim(scope, "ab" * 16)
            return
        await super().remove(scope, fence=fence)


@mutant("V7")
class TheCallerSetsUpdatedAt(DriverPersistence):
    """save_task_state keeps the updated_at that was passed in."""

    def _encode_state(self, state):
        data, index = super()._encode_state(state)
        if state.updated_at is not None:
            data = self._records.encode(state)
        return data, index

    async def save_task_state(self, task_id, state, *, claim=None):
        if not isinstance(state, outlast.TaskState) or state.updated_at is None:
            return await super().save_task_state(task_id, state, claim=claim)
        before = self._records.now
        self._records.now = lambda: state.updated_at
        try:
            await super().save_task_state(task_id, state, claim=claim)
        finally:
            self._records.now = before
        return None


@mutant("L3")
class UpdatesLeaveTheIndexBehind(MemoryDriver):
    """An update changes the state and not the attributes that lists are filtered by."""

    async def write(self, scope, register, data, *, fence, index=None, if_version=None):
        record = self._find(scope)
        if if_version is not None and record is not None:
            index = Index(record.index.parent, record.index.status, record.index.updated_at)
        return await super().write(
            scope, register, data, fence=fence, index=index, if_version=if_version
        )
