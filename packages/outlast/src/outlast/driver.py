"""The interface that a backend author implements: bytes, two primitives, one atomic step per call.

A **scope** is what can be owned: a task or a run. The store keeps one record per scope: its fence
(``epoch``, ``claim_id``, and ``seq`` and ``op`` of the last accepted claimed mutation), its
registers, its logs, and a few index attributes. A record with epoch 0 was made by unclaimed
mutations and has no owner. A deleted scope keeps its record without data (a **tombstone**) until a
sweep.

What a driver owes, whatever its store (the clauses are those of the contract):

- Every call is one atomic step: it happens once and wholly, or not at all (A7, F5, S3).
- Every mutation decides with the rule of `admit`, in the same atomic step as the write (F2, F6, F8,
  F12).
- A driver never decodes payloads and never compares them: equal values have unequal bytes.
- Errors are those of `outlast.errors`, the store's own as ``__cause__``: `UnavailableError` if the
  call was certainly not applied, `OutcomeUnknownError` if it may have been (E2, E3). No retries of
  its own of what was sent: the layer above repeats what may be repeated (E5).
- A call may be cancelled at its deadline; connections must survive that (C8, X2).

What it may rely on: ids and bytes were validated, sizes checked, calls of one claim arrive one
at a time.
"""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from outlast.errors import ConflictError, FencedError, FenceReason, OutlastError, StaleWriteError

ResultT = TypeVar("ResultT")

ScopeKind = Literal["task", "run"]
Survives = Literal["process", "server", "failover"]

PRIMARY: Mapping[ScopeKind, str] = {"task": "state", "run": "checkpoint"}
"""The register of each kind of scope that `Driver.claim` and `Driver.scan` return."""

REGISTERS: Mapping[ScopeKind, tuple[str, ...]] = {
    "task": ("state", "input"),
    "run": ("checkpoint",),
}
LOGS: Mapping[ScopeKind, tuple[str, ...]] = {"task": ("api", "user"), "run": ()}

sealed_until: ContextVar[float | None] = ContextVar("outlast_sealed_until", default=None)
"""The loop's time until which nothing cancels the running driver call; ``None``: that may happen
at any time.

The layer above sets it for mutations, which it sees through in tasks of their own. A driver whose
client library suffers from cancellations then needs no task of its own, if it keeps to that time.
"""

MAX_EPOCH = 2**52
"""The largest epoch that a caller may ask for (F9); every store and script compares it exactly."""


class Scope(NamedTuple):
    """What can be owned: ``kind`` and ``id``."""

    kind: ScopeKind
    id: str


class Fence(NamedTuple):
    """What a claimed mutation carries.

    Attributes:
        epoch: Of the claim; at least 1.
        claim_id: 32 hexadecimal digits, chosen by the claimer.
        seq: Number of the mutation within the claim; gaps are fine.
        op: 16 random hexadecimal digits; a repetition of the same call carries the same.
    """

    epoch: int
    claim_id: str
    seq: int
    op: str


class StoredFence(NamedTuple):
    """The fence of a scope's record. ``epoch`` 0 means unclaimed; ``claim_id`` and ``op`` are then
    empty.
    """

    epoch: int = 0
    claim_id: str = ""
    seq: int = 0
    op: str = ""


class Index(NamedTuple):
    """Attributes by which `Driver.scan` filters; written in the same step as the primary register.

    Attributes:
        parent: A task's ``parent_id``; a run's ``thread_id``.
        status: A task's status.
        updated_at: Microseconds since 1970-01-01 UTC, by the writer's clock.
    """

    parent: str | None = None
    status: str | None = None
    updated_at: int = 0


class Value(NamedTuple):
    """A register's value and its record's fence, read in one atomic step.

    Attributes:
        data: The bytes, or ``None``: never written, or deleted.
        version: Grows with every accepted write of the register, deletion included, and never
            repeats within the life of the record.
        age: Seconds since ``data`` was written, by the store's clock (C6); 0.0 without data.
        fence: The stored fence; ``None`` for a scope without a record.
        parent: The stored index attribute.
    """

    data: bytes | None = None
    version: int = 0
    age: float = 0.0
    fence: StoredFence | None = None
    parent: str | None = None

    @property
    def epoch(self) -> int:
        """The stored epoch; 0 for an unclaimed scope, and for one without a record."""
        return self.fence.epoch if self.fence is not None else 0


class Entry(NamedTuple):
    """One entry of a log."""

    id: str
    data: bytes


class Where(NamedTuple):
    """Which scopes `Driver.scan` returns: all attributes that are not ``None`` must match.

    Attributes:
        updated_before: Microseconds, compared with ``Index.updated_at`` (strictly less).
        with_empty: Also records whose primary register is empty (claimed only, or tombstones).
    """

    parent: str | None = None
    status: str | None = None
    updated_before: int | None = None
    with_empty: bool = False


class Item(NamedTuple):
    """One scope of a `Page`, with its primary register as `Driver.read` returns it."""

    id: str
    value: Value


class Page(NamedTuple):
    """A part of a scan.

    Attributes:
        items: At most ``limit``; fewer, even none, does not mean the end.
        next: The id behind which the scan goes on, or ``None`` at the end.
    """

    items: Sequence[Item]
    next: str | None


class SweepPage(NamedTuple):
    """What one call of `Driver.sweep` removed (or would remove, in a dry run).

    Attributes:
        tombstones: Records of deleted scopes, and of claimed scopes without data.
        debris: Left-overs of crashes: temporary files, unreferenced pieces.
        next: Where the sweep goes on, in the driver's own words, or ``None`` at the end.
    """

    tombstones: int
    debris: int
    next: str | None


class Capabilities(msgspec.Struct, frozen=True):
    """What a backend declares; the contract suite tests it in both directions.

    Attributes:
        data_survives: Which crashes a done write survives (D1).
        fences_survive: Which crashes claims and tombstones survive (D1).
        reach: How far apart two clients of one store may be.
        max_message_bytes: Limit of one encoded record, envelope not counted (V5); at least 8 MiB.
        stopped_writer_blocks: A process stopped inside its write step holds others up to their
            timeout (E6).
    """

    data_survives: frozenset[Survives]
    fences_survive: frozenset[Survives]
    reach: Literal["process", "host", "network"]
    max_message_bytes: int
    stopped_writer_blocks: bool = False


class PreconditionFailedError(ConflictError):
    """``if_version`` or ``present`` no longer holds; nothing changed. Stays between driver and
    contracts.
    """


class Decoding(abc.ABC, Generic[ResultT]):
    """What the layer above has `Driver.load_data` call, for drivers that can spare it a copy.

    To cut its header off, each entry's data would be copied once more. A store that compares bytes
    where they are, and copies them anyway to hand them out, can do that in passing.
    """

    header: bytes = b""
    """What the data of every entry begins with; empty: nothing that a store could cut off."""

    @abc.abstractmethod
    def __call__(self, data: Iterable[bytes], /) -> ResultT:
        """Decode whole data."""

    @abc.abstractmethod
    def decode_rest(self, rest: Iterable[bytes | None], /) -> ResultT | None:
        """Decode what is behind `header`; ``None`` stands for data that do not begin with it.

        Returns ``None`` if there are such, or if some cannot be decoded. The driver then loads the
        whole data and calls the other method, which can say what is wrong with them (V8).
        """


class NotWrittenError(OutlastError):
    """A driver that is being written lacks a method; the text says what it is to do.

    The skeleton of ``outlast new-backend`` raises it, and the contract suite counts what waits for
    it. No finished driver does.

    Args:
        method: Its name.
        task: What it is to do.
    """

    def __init__(self, method: str, task: str) -> None:
        super().__init__(f"{method}() is not written yet: {task}")
        self.method = method


def admit(stored: StoredFence | None, fence: Fence | None) -> bool:
    """Decide whether a mutation is accepted; the one statement of F2, F6, F8, F12 and F13.

    Args:
        stored: The record's fence, or ``None`` if the scope has no record.
        fence: Of the mutation; ``None`` for an unclaimed one.

    Returns:
        ``True``: apply it, and store its ``seq`` and ``op``. ``False``: this very mutation is
        stored already (the repetition after a lost reply); change nothing and report success.

    Raises:
        FencedError: With the reason; `StaleWriteError` for ``stale``.
    """
    if fence is None:
        if stored is None or stored.epoch == 0:
            return True
        raise FencedError("claimed", stored.epoch)
    if stored is None:
        raise FencedError("no_record")
    if stored.epoch > fence.epoch:
        raise FencedError("superseded", stored.epoch)
    if stored.epoch < fence.epoch or stored.claim_id != fence.claim_id:
        raise FencedError("lost", stored.epoch)
    if fence.seq > stored.seq:
        return True
    if fence.seq == stored.seq and fence.op == stored.op:
        return False
    raise StaleWriteError("stale", stored.epoch)


def next_claim(
    stored: StoredFence | None,
    claim_id: str,
    at_least: int | None,
    floor: int,
    if_epoch: int | None = None,
) -> StoredFence:
    """The fence that a claim leaves; the one statement of F1, F9 and F10.

    Args:
        stored: The record's fence, or ``None`` if the scope has no record.
        claim_id: Of the claimer.
        at_least: The epoch asked for, or ``None``.
        floor: No epoch of a swept scope was above it (C5).
        if_epoch: The epoch that the record must have, 0 for one that was never claimed or is not
            there; ``None``: any.

    Returns:
        ``stored`` itself if it holds ``claim_id`` already: the claim changes nothing.

    Raises:
        FencedError: ``at_least`` is not above the stored epoch, or that is not ``if_epoch``.
    """
    if stored is not None and stored.epoch and stored.claim_id == claim_id:
        return stored
    epoch = stored.epoch if stored is not None else 0
    if if_epoch is not None and epoch != if_epoch:
        # A lower one is of a later life of the scope: it was swept.
        reason: FenceReason = "superseded" if epoch > if_epoch else "no_record"
        raise FencedError(
            reason, epoch, f"{reason}: the stored epoch is {epoch}, not if_epoch={if_epoch}"
        )
    if at_least is None:
        return StoredFence(max(epoch, floor) + 1, claim_id)
    if at_least <= epoch:
        raise FencedError(
            "superseded",
            epoch,
            f"superseded: at_least={at_least} is not above the stored epoch {epoch}",
        )
    return StoredFence(at_least, claim_id)


class Driver(abc.ABC):
    """One store, one namespace. See the module's text for the duties of both sides.

    A new record's register versions start behind the floor, as its epoch does: neither repeats
    after a sweep (F1, S1). How the store keeps records, versions and the floor is its own affair.
    """

    name: str
    """Name of the backend, as errors show it."""

    capabilities: Capabilities

    @abc.abstractmethod
    async def setup(self, *, create: bool) -> None:
        """Connect, and make the store ready; idempotent, and safe when 16 processes do it at once
        (X4).

        Args:
            create: ``True``: create or migrate what is missing. ``False``: only verify.

        Raises:
            ConfigurationError: The store cannot be used as it is set up, or is not set up and
                ``create`` is false.
            UnsupportedVersionError: The store was set up by a newer version.
            UnavailableError: It cannot be reached.
        """

    async def hazards(self) -> Sequence[str]:
        """Settings of the store under which accepted writes or fences would be lost silently (D2),
        in words.
        """
        return ()

    @abc.abstractmethod
    async def ping(self) -> None:
        """Reach the store once, or raise `UnavailableError`."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Release all that this driver opened, nothing that it was given; idempotent (C7)."""

    @abc.abstractmethod
    async def claim(
        self,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> Value:
        """Make ``claim_id`` the owner by the rule of `next_claim`; create the record if there is
        none.

        ``if_epoch`` is compared in the same step: a claim that depends on what was read before
        leaves the new epoch to the store, which alone knows what was handed out since (F1).

        Returns the primary register with the new fence, read in the same step (F5). ``parent``, if
        given, becomes the record's index attribute while that register is empty, so that a claimed
        run without data is found; data are filed under what came with them (L3). A claim that
        changes the fence counts as a change for the age of the record (C5), and resets ``seq`` to
        0; no data changes (F3).
        """

    @abc.abstractmethod
    async def read(self, scope: Scope, register: str) -> Value:
        """The register, with version and fence; ``Value()`` for a scope without a record (S5)."""

    async def was_swept(self, scope: Scope, epoch: int) -> bool:
        """Whether the record that had ``epoch`` was swept, although `read` may show one of a lower.

        Asked only when a claim would be refused as ``lost``, which is then ``no_record`` (F13). A
        driver overrides it whose claims make a record before they know the floor.
        """
        return False

    @abc.abstractmethod
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
        """Set a register, or empty it with ``None``, and return its new version.

        ``index`` comes with the primary register's data and replaces all attributes. Emptying the
        primary register keeps ``parent``. Emptying in a scope without a record makes none (returns
        0).

        Raises:
            FencedError: By `admit`, decided before ``if_version``. For a repetition: no error, the
                register's present version is returned.
            PreconditionFailedError: The register's version is not ``if_version``.
        """

    @abc.abstractmethod
    async def load(self, scope: Scope, log: str, *, last: int | None = None) -> list[Entry]:
        """The log's entries in append order: all, or the newest ``last`` (A5, A6, A10)."""

    async def load_data(
        self,
        scope: Scope,
        log: str,
        decode: Callable[[Iterable[bytes]], ResultT],
        *,
        last: int | None = None,
    ) -> ResultT:
        """What ``decode`` makes of the data of `load`; the layer above reads logs by this.

        A driver overrides it that can leave the ids out, or have entries decoded while it reads
        others. ``decode`` takes them in append order and may run in any thread; what it raises goes
        to the caller as it is. If it is a `Decoding`, a driver may use that.
        """
        return decode([entry.data for entry in await self.load(scope, log, last=last)])

    @abc.abstractmethod
    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        """Append all entries, in order and together, or none (A4, A8).

        If ids of ``entries`` are in the log already, nothing changes (``seq`` neither) and their
        stored entries are returned; otherwise the entries are appended and the result is empty.
        Without ``entries`` only ``seq`` is stored. Of ``entries`` no id occurs twice, nor in
        ``present`` too.

        Raises:
            FencedError: By `admit`, decided first. For a repetition: no error, an empty list.
            PreconditionFailedError: An id of ``present`` is not in the log (any more); nothing
                changed.
        """

    @abc.abstractmethod
    async def replace(
        self, scope: Scope, log: str, entries: Sequence[Entry], *, fence: Fence | None
    ) -> None:
        """Make ``entries`` the whole log, at once for every reader (A7).

        Without entries, a scope without a record gets none.
        """

    @abc.abstractmethod
    async def remove(self, scope: Scope, *, fence: Fence | None) -> None:
        """Remove all registers and logs in one step; keep fence, versions and ``parent`` (F7).

        A scope without a record gets none from an unclaimed removal (C2).
        """

    @abc.abstractmethod
    async def scan(self, kind: ScopeKind, *, where: Where, after: str | None, limit: int) -> Page:
        """The scopes that match, behind ``after``, in the store's own fixed order of ids (L1 to
        L4).

        ``after`` need not exist. An item's value is read in one step with the attributes that
        matched.
        """

    @abc.abstractmethod
    async def sweep(
        self, *, older_than: float, limit: int, dry_run: bool, after: str | None
    ) -> SweepPage:
        """Remove records without data whose last change is ``older_than`` seconds ago or more, by
        the
        store's clock, and left-overs of crashes of that age (C4, C5).

        One call looks at about ``limit`` records or removes about ``limit`` of them, so that it
        ends in time; ``after`` is the ``next`` of the call before. A record is removed only if it
        is unchanged since it was judged, and after the floor was raised to its epoch and versions.
        Nothing that is referenced is ever removed.
        """


__all__ = [
    "LOGS",
    "MAX_EPOCH",
    "PRIMARY",
    "REGISTERS",
    "Capabilities",
    "Decoding",
    "Driver",
    "Entry",
    "Fence",
    "Index",
    "Item",
    "NotWrittenError",
    "Page",
    "PreconditionFailedError",
    "Scope",
    "ScopeKind",
    "StoredFence",
    "Survives",
    "SweepPage",
    "Value",
    "Where",
    "admit",
    "next_claim",
    "sealed_until",
]
