"""Defects of deleting tasks, opening, closing and event loops."""

import asyncio
import contextlib
from functools import partial
from typing import ClassVar

from broken_backends.kit import BrokenBackend, BrokenHarness, forged, mutant
from outlast.backends.memory import MemoryDriver
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.contracts.runs import remove_runs
from outlast.driver import Scope
from outlast.errors import ClosedError, ConfigurationError


@mutant(
    "C1",
    "F2",
    "F4",
    "F6",
    "F7",
    "F8",
    "F12",
    "A1",
    "A2",
    "A8",
    "S4",
    "S5",
    "V8",
    "I1",
    "I2",
    "I3",
    "I4",
    "I5",
    "C2",
    "C3",
    "C5",
    "E2",
    "X2",
)
class DeletionForgetsTheMessages(MemoryDriver):
    """delete_task forgets the messages."""

    async def remove(self, scope, *, fence):
        record = self._find(scope)
        logs = {log: dict(entries) for log, entries in record.logs.items()} if record else {}
        await super().remove(scope, fence=fence)
        if record is not None:
            record.logs.update(logs)


@mutant("C1", "F7", "A1", "A8")
class DeletionGoesByTheState(MemoryDriver):
    """delete_task finds what there is of a task by its state, and leaves one without it alone."""

    async def remove(self, scope, *, fence):
        record = self._find(scope)
        state = record.registers.get("state") if record is not None else None
        parts = None
        if scope.kind == "task" and record is not None and (state is None or state.data is None):
            parts = dict(record.registers), dict(record.logs)
        await super().remove(scope, fence=fence)
        if parts is not None:
            record.registers.update(parts[0])
            record.logs.update(parts[1])


@mutant("C1", "C3")
class DeletionForgetsTheRuns(DriverPersistence):
    """delete_task leaves the checkpoints of the task's runs."""

    async def delete_task(self, task_id, *, claim=None, force=False):
        async def nothing(*arguments, **options):
            return
            yield

        scan, self._records.scan = self._records.scan, nothing
        try:
            await super().delete_task(task_id, claim=claim, force=force)
        finally:
            self._records.scan = scan


@mutant("C1")
class DeletionTakesNewerRuns(DriverPersistence):
    """delete_task removes runs that a newer claim of the task took over."""

    async def delete_task(self, task_id, *, claim=None, force=False):
        with self._calls.as_one():
            await super().delete_task(task_id, claim=claim, force=force)
            async for point in self._records.scan("delete_task", "run", _where(task_id)):
                scope = Scope("run", point.id)
                driver = self._records.driver
                if point.value.data is not None:
                    await driver.remove(scope, fence=forged(driver, scope, None))


def _where(task_id):
    from outlast.driver import Where

    return Where(parent=task_id)


@mutant("C1")
class DeletionRemovesRunsFirst(DriverPersistence):
    """delete_task removes the checkpoints before it looks at its claim."""

    async def delete_task(self, task_id, *, claim=None, force=False):
        driver = self._records.driver
        if isinstance(task_id, str):
            async for point in self._records.scan("delete_task", "run", _where(task_id)):
                scope = Scope("run", point.id)
                if point.value.data is not None and not point.value.epoch:
                    await driver.remove(scope, fence=None)
        await super().delete_task(task_id, claim=claim, force=force)


@mutant("A4", "C1")
class DeletionQueuesAtItsEnd(DriverPersistence):
    """delete_task takes its place among the calls of its task when it comes to its last step."""

    async def _delete_task(self, task_id, scope, claim):
        if claim is not None:
            await self.check_claim(claim)
        epoch = None if claim is None else claim.epoch
        await remove_runs(
            self._records, "delete_task", task_id, task_epoch=epoch, step=lambda: None
        )
        remove = partial(self._records.driver.remove, scope)
        await self._calls.send("delete_task", scope, claim, remove)


@mutant("C3")
class ATraceIsKept(BrokenHarness):
    """Deleted messages stay in the store, where no reader looks."""

    graves: ClassVar = {}

    class driver_class(MemoryDriver):  # noqa: D106, N801 - the kit's part and name
        async def remove(self, scope, *, fence):
            record = self._find(scope)
            logs = (
                [data for entries in record.logs.values() for data in entries.values()]
                if record
                else []
            )
            ATraceIsKept.graves.setdefault(self._namespace, []).extend(logs)
            await super().remove(scope, fence=fence)

    async def raw(self, namespace):
        graves = [("grave", data) for data in self.graves.get(namespace, [])]
        return [*await super().raw(namespace), *graves]


@mutant("C7", "X1")
class TheSecondCloseRaises(BrokenBackend):
    """The second close raises."""

    async def aclose(self):
        if self._release is not None:
            raise ClosedError("closed already")
        await super().aclose()


@mutant("C7")
class ACallAfterCloseReopens(BrokenBackend):
    """A call after close opens a new hidden connection."""

    class persistence_class(DriverPersistence):  # noqa: D106, N801 - the kit's part and name
        async def load_task_state(self, task_id):
            if self._calls.state == "closed":
                self._calls._state = "open"
                try:
                    return await super().load_task_state(task_id)
                finally:
                    self._calls._state = "closed"
            return await super().load_task_state(task_id)


@mutant("C7")
class CloseDropsWhatIsUnderWay(BrokenBackend):
    """aclose returns while calls are under way."""

    def __init__(self, driver, **options) -> None:
        super().__init__(driver, **options)
        append = driver.append

        async def slowly(*arguments, **named):
            await asyncio.sleep(0.02)  # Calls of memory are over before anybody could drop them.
            return await append(*arguments, **named)

        driver.append = slowly

    async def aclose(self):
        self._calls._state = "closed"


@mutant("C7")
class CloseCutsDeletionsShort(BrokenBackend):
    """aclose waits for the step that a deletion is at; the next one finds the backend closed."""

    def __init__(self, driver, **options) -> None:
        super().__init__(driver, **options)
        self._calls.as_one = self._as_many

    @contextlib.contextmanager
    def _as_many(self):
        self._calls.check_usable()
        yield


@mutant("C7")
class ATaskIsLeftRunning(BrokenBackend):
    """Opening starts a background task that closing forgets."""

    async def open(self):
        await super().open()
        self._pulse = asyncio.get_running_loop().create_task(asyncio.sleep(3600))


@mutant("D2")
class StrictIsIgnored(BrokenHarness):
    """Hazards are warned of, and strict=True opens all the same."""

    class driver_class(MemoryDriver):  # noqa: D106, N801 - the kit's part and name
        async def hazards(self):
            return ["an eviction policy is set"]

    async def open_with(self, namespace, **options):
        options.pop("strict", None)
        return await super().open_with(namespace, **options)


@mutant("X3")
class ASecondLoopGetsAForeignError(BrokenBackend):
    """Used from another event loop, a call fails with an error of asyncio."""

    class persistence_class(DriverPersistence):  # noqa: D106, N801 - the kit's part and name
        async def load_task_state(self, task_id):
            loop = self._calls._loop
            if loop is not None and loop is not asyncio.get_running_loop():
                raise RuntimeError("got Future attached to a different loop")
            return await super().load_task_state(task_id)


@mutant("X4")
class SetUpRaces(MemoryDriver):
    """Two set-ups at once: the second finds what it was about to create."""

    _ready: ClassVar = set()

    async def setup(self, *, create):
        key = (id(self._store), self._namespace)
        if key not in self._ready:
            await asyncio.sleep(0)
            if key in self._ready:
                raise ConfigurationError("table already exists")
            self._ready.add(key)
        await super().setup(create=create)


@mutant("X4")
class SetUpClears(DriverPersistence):
    """initialize() begins with an empty store, also where one was set up already."""

    async def initialize(self):
        await super().initialize()
        driver = self._records.driver
        for space, scope in list(driver.store.records):
            if space == driver._namespace:
                del driver.store.records[space, scope]
