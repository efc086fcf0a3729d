"""How a broken backend is made and registered: one change away from the memory backend."""

import inspect
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import outlast
from outlast.backends.memory import MemoryDriver
from outlast.codec import Codec
from outlast.contracts import DriverBackend
from outlast.contracts.driver_checkpoints import DriverCheckpoints
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.driver import Driver, Fence, Scope
from outlast.errors import ConfigurationError
from outlast_contract.stores import MemoryHarness


class BrokenBackend(DriverBackend):
    """A memory backend with replaceable parts."""

    persistence_class: type[DriverPersistence] = DriverPersistence
    checkpoints_class: type[DriverCheckpoints] = DriverCheckpoints

    def __init__(self, driver: Driver, **options: Any) -> None:
        super().__init__(driver, **options)
        self._persistence = self.persistence_class(self._records, self._initialize)
        self._checkpoints = self.checkpoints_class(self._records)


class BrokenHarness(MemoryHarness):
    """Opens clients of a shared memory store through broken parts."""

    driver_class: type[MemoryDriver] = MemoryDriver
    backend_class: type[BrokenBackend] = BrokenBackend
    codec_class: type[Codec] = Codec

    def __init__(self) -> None:
        super().__init__()
        self.store = f"broken-{secrets.token_hex(8)}"
        # Child processes could not be given the broken parts.
        self.url = None

    async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
        options.setdefault("codec", self.codec_class())
        known = inspect.signature(DriverBackend.__init__).parameters
        for name in options:
            if name not in known:
                raise ConfigurationError(f"unknown option {name!r}")
        return self.backend_class(self.make_driver(namespace), namespace=namespace, **options)

    def make_driver(self, namespace: str) -> Driver:
        """A driver of the store."""
        return self.driver_class(self.store, namespace=namespace)


@dataclass(frozen=True)
class Mutant:
    """A broken backend and what it breaks.

    Attributes:
        breaks: The clause that must fail.
        may_fail: The clauses that may fail with it, that one included.
    """

    name: str
    defect: str
    breaks: str
    may_fail: frozenset[str]
    harness: type[BrokenHarness]


MUTANTS: dict[str, Mutant] = {}


def mutant(breaks: str, *may_fail: str) -> Callable[[type], type]:
    """Register a broken driver, backend, contract or codec, whose docstring names the defect."""

    def register(part: type) -> type:
        body: dict[str, Any] = {}
        if issubclass(part, MemoryDriver):
            body["driver_class"] = part
        elif issubclass(part, BrokenBackend):
            body["backend_class"] = part
        elif issubclass(part, DriverPersistence):
            body["backend_class"] = type(
                part.__name__, (BrokenBackend,), {"persistence_class": part}
            )
        elif issubclass(part, DriverCheckpoints):
            body["backend_class"] = type(
                part.__name__, (BrokenBackend,), {"checkpoints_class": part}
            )
        elif issubclass(part, Codec):
            body["codec_class"] = part
        elif not issubclass(part, BrokenHarness):
            raise TypeError(part)
        harness = (
            part
            if issubclass(part, BrokenHarness)
            else type(f"{part.__name__}Harness", (BrokenHarness,), body)
        )
        defect = " ".join((part.__doc__ or "").split())
        MUTANTS[part.__name__] = Mutant(
            part.__name__, defect, breaks, frozenset({breaks, *may_fail}), harness
        )
        return part

    return register


def forged(driver: MemoryDriver, scope: Scope, fence: Fence | None) -> Fence | None:
    """The fence of the scope's present owner, with the number and op of ``fence``."""
    record = driver._find(scope)
    if record is None or record.fence.epoch == 0:
        return None if record is None else fence
    stored = record.fence
    if fence is None:
        return Fence(stored.epoch, stored.claim_id, stored.seq + 1, "00" * 8)
    if fence[:2] == stored[:2]:
        return fence
    return Fence(stored.epoch, stored.claim_id, max(stored.seq + 1, fence.seq), fence.op)
