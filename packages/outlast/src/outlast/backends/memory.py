"""The memory backend: the shortest correct reading of the contract."""

import bisect
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from outlast.codec import Codec
from outlast.contracts import DriverBackend
from outlast.driver import (
    PRIMARY,
    Capabilities,
    Driver,
    Entry,
    Fence,
    Index,
    Item,
    Page,
    PreconditionFailedError,
    Scope,
    ScopeKind,
    StoredFence,
    SweepPage,
    Value,
    Where,
    admit,
    next_claim,
)
from outlast.errors import ConfigurationError, UnavailableError, shown
from outlast.url import parse_url, redact

MAX_MESSAGE_BYTES: Final = 256 * 2**20


class _Register:
    __slots__ = ("data", "version", "written")

    def __init__(self, data: bytes | None, version: int, written: float) -> None:
        self.data = data
        self.version = version
        self.written = written


class _Record:
    """All that is stored of one scope."""

    __slots__ = ("changed", "fence", "index", "logs", "registers", "version")

    def __init__(self, floor: int) -> None:
        self.fence = StoredFence()
        self.version = floor
        self.index = Index()
        self.registers: dict[str, _Register] = {}
        self.logs: dict[str, dict[str, bytes]] = {}
        self.changed = 0.0

    @property
    def is_empty(self) -> bool:
        return all(register.data is None for register in self.registers.values()) and not any(
            self.logs.values()
        )


class MemoryStore:
    """What is shared by all drivers of one name; a lock makes each step atomic between threads,
    too.
    """

    def __init__(self) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.records: dict[tuple[str, Scope], _Record] = {}
        self.floors: dict[str, int] = {}


class MemoryDriver(Driver):
    """Keeps everything in the process.

    Args:
        name: Shared by all drivers of this name in the process; ``None``: private.
        namespace: A world of its own.
    """

    name: str = "memory"
    capabilities: Capabilities = Capabilities(
        data_survives=frozenset(),
        fences_survive=frozenset(),
        reach="process",
        max_message_bytes=MAX_MESSAGE_BYTES,
    )

    _shared: Final[dict[str, MemoryStore]] = {}

    def __init__(self, name: str | None = None, *, namespace: str = "default") -> None:
        _check_name(name)
        store = MemoryStore() if name is None else self._shared.setdefault(name, MemoryStore())
        self._store = store
        self._namespace = namespace
        self._is_closed = False

    @classmethod
    def from_url(
        cls, url: str, *, namespace: str = "default", timeout: float = 10.0
    ) -> "MemoryDriver":
        """``memory://`` is private to its backend object; ``memory://name`` is shared in the
        process.
        """
        parts = parse_url(url)
        if parts.path not in ("", "/") or parts.username is not None or parts.port is not None:
            raise ConfigurationError(f"{redact(url)!r} must be memory:// or memory://name")
        # The host as written: urlsplit folds its case, names are told apart by it.
        name = url.partition("://")[2].rstrip("/")
        return cls(name or None, namespace=namespace)

    @property
    def store(self) -> MemoryStore:
        """What is shared; for tools and tests."""
        return self._store

    async def setup(self, *, create: bool) -> None:
        self._is_closed = False

    async def ping(self) -> None:
        if self._is_closed:
            raise UnavailableError("the memory driver is closed")

    async def aclose(self) -> None:
        self._is_closed = True

    async def claim(
        self,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> Value:
        with self._store.lock:
            record = self._find(scope)
            stored = record.fence if record else None
            fence = next_claim(stored, claim_id, at_least, self._floor, if_epoch)
            if fence is not stored:
                record = record or self._add(scope)
                record.fence = fence
                record.changed = time.monotonic()
            assert record is not None
            value = _value(record, PRIMARY[scope.kind])
            if parent is not None and value.data is None:
                record.index = record.index._replace(parent=parent)
                value = value._replace(parent=parent)
            return value

    async def read(self, scope: Scope, register: str) -> Value:
        with self._store.lock:
            record = self._find(scope)
            return Value() if record is None else _value(record, register)

    async def write(
        self,
        scope: Scope,
        register: str,
        data: bytes | None,
        *,
        fence: Fence | None,
        index: Index | None = None,
        if_version: int | None = None,
    ) -> int:
        with self._store.lock:
            record, is_new = self._admit(scope, fence)
            version = 0 if record is None else _value(record, register).version
            if not is_new:
                return version
            if if_version is not None and version != if_version:
                raise PreconditionFailedError(f"the version is {version}, not {if_version}")
            if record is None:
                if data is None:
                    return 0
                record = self._add(scope)
            now = _accept(record, fence)
            record.version += 1
            record.registers[register] = _Register(data, record.version, now)
            if register == PRIMARY[scope.kind]:
                record.index = index or Index(parent=record.index.parent)
            return record.version

    async def load(self, scope: Scope, log: str, *, last: int | None = None) -> list[Entry]:
        with self._store.lock:
            record = self._find(scope)
            entries = [] if record is None else list(record.logs.get(log, {}).items())
        first = 0 if last is None else max(0, len(entries) - last)
        return [Entry(*entry) for entry in entries[first:]]

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        with self._store.lock:
            record, is_new = self._admit(scope, fence)
            if not is_new:
                return []
            stored = {} if record is None else record.logs.get(log, {})
            for entry_id in present:
                if entry_id not in stored:
                    raise PreconditionFailedError(f"{entry_id!r} is not in the log any more")
            known = [Entry(entry.id, stored[entry.id]) for entry in entries if entry.id in stored]
            if known:
                return known
            if record is None:
                if not entries:
                    return []
                record = self._add(scope)
            _accept(record, fence)
            record.logs.setdefault(log, {}).update(entries)
            return []

    async def replace(
        self, scope: Scope, log: str, entries: Sequence[Entry], *, fence: Fence | None
    ) -> None:
        with self._store.lock:
            record, is_new = self._admit(scope, fence)
            if not is_new:
                return
            if record is None:
                if not entries:
                    return
                record = self._add(scope)
            _accept(record, fence)
            record.logs[log] = dict(entries)

    async def remove(self, scope: Scope, *, fence: Fence | None) -> None:
        with self._store.lock:
            record, is_new = self._admit(scope, fence)
            if record is None or not is_new:
                return
            now = _accept(record, fence)
            record.version += 1
            for name in record.registers:
                record.registers[name] = _Register(None, record.version, now)
            record.logs.clear()
            record.index = Index(parent=record.index.parent)

    async def scan(self, kind: ScopeKind, *, where: Where, after: str | None, limit: int) -> Page:
        with self._store.lock:
            ids = sorted(
                scope.id
                for namespace, scope in self._store.records
                if namespace == self._namespace and scope.kind == kind
            )
            rest = ids[0 if after is None else bisect.bisect_right(ids, after) :]
            items: list[Item] = []
            for scope_id in rest:
                record = self._store.records[self._namespace, Scope(kind, scope_id)]
                value = _value(record, PRIMARY[kind])
                if _matches(record.index, value, where):
                    items.append(Item(scope_id, value))
                    if len(items) == limit:
                        break
            more = bool(items) and items[-1].id != rest[-1]
            return Page(items, items[-1].id if more else None)

    async def sweep(
        self, *, older_than: float, limit: int, dry_run: bool, after: str | None
    ) -> SweepPage:
        with self._store.lock:
            before = time.monotonic() - older_than
            old = [
                key
                for key, record in self._store.records.items()
                if key[0] == self._namespace and record.is_empty and record.changed <= before
            ]
            # What a dry run has counted is still there: it goes on behind a count.
            done = int(after or 0)
            chosen = sorted(old)[done : done + limit]
            if not dry_run:
                for key in chosen:
                    record = self._store.records.pop(key)
                    floor = max(self._floor, record.fence.epoch, record.version)
                    self._store.floors[self._namespace] = floor
            is_end = done + len(chosen) >= len(old)
            return SweepPage(
                len(chosen), 0, None if is_end else str(done + len(chosen) if dry_run else 0)
            )

    @property
    def _floor(self) -> int:
        return self._store.floors.get(self._namespace, 0)

    def _find(self, scope: Scope) -> _Record | None:
        return self._store.records.get((self._namespace, scope))

    def _add(self, scope: Scope) -> _Record:
        record = self._store.records[self._namespace, scope] = _Record(self._floor)
        return record

    def _admit(self, scope: Scope, fence: Fence | None) -> tuple[_Record | None, bool]:
        record = self._find(scope)
        return record, admit(record.fence if record else None, fence)


class MemoryBackend(DriverBackend):
    """Keeps everything in the process; for tests, and as the reference for what a backend does."""

    def __init__(
        self,
        name: str | None = None,
        *,
        namespace: str = "default",
        setup: bool = True,
        strict: bool = False,
        codec: Codec | None = None,
        timeout: float = 10.0,
        checkpoint_ttl: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """Make a backend.

        Args:
            name: Shared by all backends of this name in the process; ``None``: private to this
                object.
            namespace: As in `DriverBackend`, like the other options.
            setup: Has no effect here.
            strict: Has no effect here.
            codec: How records become bytes.
            timeout: Seconds that one call may take.
            checkpoint_ttl: Age beyond which a checkpoint reads as ``None``.
            clock: Source of ``updated_at``.

        Raises:
            ConfigurationError: An option that does not fit.
            InvalidIdError: ``namespace`` is not an id.
        """
        super().__init__(
            MemoryDriver(name, namespace=namespace),
            namespace=namespace,
            setup=setup,
            strict=strict,
            codec=codec,
            timeout=timeout,
            checkpoint_ttl=checkpoint_ttl,
            clock=clock,
        )


def _accept(record: _Record, fence: Fence | None) -> float:
    """Store the fence of an accepted mutation and the time of the change; return that time."""
    if fence is not None:
        record.fence = StoredFence(*fence)
    record.changed = time.monotonic()
    return record.changed


def _value(record: _Record, name: str) -> Value:
    register = record.registers.get(name)
    if register is None:
        return Value(None, 0, 0.0, record.fence, record.index.parent)
    age = 0.0 if register.data is None else time.monotonic() - register.written
    return Value(register.data, register.version, age, record.fence, record.index.parent)


def _matches(index: Index, value: Value, where: Where) -> bool:
    return (
        (where.with_empty or value.data is not None)
        and (where.parent is None or index.parent == where.parent)
        and (where.status is None or index.status == where.status)
        and (where.updated_before is None or index.updated_at < where.updated_before)
    )


def _check_name(name: object) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(f"name must be a non-empty str or None, not {shown(name)}")


__all__ = ["MemoryBackend", "MemoryDriver", "MemoryStore"]
