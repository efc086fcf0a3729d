"""What is in a head, and how much of it: the structs that all stores of this kind share."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from outlast.driver import Entry, Index, Scope, ScopeKind, StoredFence


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a store divides its records between heads and pieces.

    Attributes:
        tail_entries: A log's newest entries that the head holds itself, at most.
        tail_bytes: The same in bytes, ids included.
        task_inline_bytes: A larger register of a task becomes a piece. Every append rewrites the
            head, and with it what is inline.
        run_inline_bytes: The same for a run, which has no logs: a larger limit costs nothing there.
        merge_bytes: When the tail is flushed, the newest piece is rewritten with it up to this
            size.
        piece_bytes: A large batch is cut into pieces of about this size; a larger entry has its
            own.
        max_refs: References to pieces that the head holds per log; more are folded into index
            pieces.
        cached_heads: Heads that the driver remembers after its own writes, so that the next write
            needs no read. 0 where a read costs little.
        cached_ids: Entry ids of long logs that the driver remembers, over all logs but the newest.
        retry_delay: Upper bound, in seconds, of the first wait after a lost race.
    """

    tail_entries: int = 32
    tail_bytes: int = 32 * 1024
    task_inline_bytes: int = 4096
    run_inline_bytes: int = 4096
    merge_bytes: int = 1024 * 1024
    piece_bytes: int = 1024 * 1024
    max_refs: int = 32
    cached_heads: int = 256
    cached_ids: int = 100_000
    retry_delay: float = 0.005

    def inline_bytes(self, kind: ScopeKind) -> int:
        """The largest register of a scope of this kind that the head holds itself."""
        return self.task_inline_bytes if kind == "task" else self.run_inline_bytes


ASKED = "asked"
"""The ``op`` of a fence whose claim asked for its epoch (F9), until its first mutation."""


class Floor(NamedTuple):
    """What was swept, and what is about to be (C5).

    Attributes:
        epoch: No epoch of a swept record was above it. It is raised only when all new records
            below it whose claimers may have been told their epochs are marked as not new.
        version: No version of a swept record was above it, nor will be any epoch of a record that
            a sweep is about to remove.
    """

    epoch: int = 0
    version: int = 0

    @property
    def ceiling(self) -> int:
        """A new record whose epoch is above it will be marked before ``epoch`` reaches that."""
        return max(self.epoch, self.version)

    def raised_to(self, other: "Floor") -> "Floor":
        """The floor that covers both."""
        return Floor(max(self.epoch, other.epoch), max(self.version, other.version))


class Ref(msgspec.Struct, frozen=True, array_like=True):
    """A reference to an immutable piece.

    Attributes:
        name: Unique for ever.
        level: 0: entries, or a register's value; above: references of the level below, or lower.
        count: Entries in it, or beneath it.
        size: Its length in bytes.
        prefix: The bytes at its beginning that hold its list of ids (level 0) or references.
    """

    name: str
    level: int
    count: int
    size: int
    prefix: int


class Register(msgspec.Struct, frozen=True, array_like=True):
    """A register: its value inline, or as a piece, or neither if it is empty."""

    version: int
    written_at: float = 0.0
    data: bytes | None = None
    ref: Ref | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it holds no value."""
        return self.data is None and self.ref is None


class Log(msgspec.Struct, frozen=True, array_like=True):
    """A log: references to its older entries, in order, and its newest entries."""

    refs: tuple[Ref, ...] = ()
    tail: tuple[Entry, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it holds no entry."""
        return not self.refs and not self.tail


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The record of one scope; never changed in place.

    Attributes:
        kind: Of the scope.
        id: Of the scope.
        version: Grows with every write of the head; no two heads of one scope have the same.
        start: The version with which the record began, above the floor of that time.
        changed_at: When a mutation or a claim last changed it, by the store's clock.
        is_new: The floor may have been raised above it while it was created; see `HeadDriver`. With
            a fence of `ASKED`, that matters to its versions, and to the epochs of other claims.
        fence: As `outlast.driver` defines it, or with `ASKED`.
        index: The attributes by which scans filter.
        registers: Those that were ever written.
        logs: Those that were ever written.
    """

    kind: ScopeKind
    id: str
    version: int
    start: int
    changed_at: float
    is_new: bool
    fence: StoredFence
    index: Index
    registers: Mapping[str, Register]
    logs: Mapping[str, Log]

    @classmethod
    def blank(cls, scope: Scope, floor: Floor) -> "Head":
        """The head that a record begins with; not yet stored anywhere."""
        start = floor.version + 1
        return cls(
            kind=scope.kind,
            id=scope.id,
            version=start,
            start=start,
            changed_at=0.0,
            is_new=True,
            fence=StoredFence(),
            index=Index(),
            registers={},
            logs={},
        )

    @property
    def scope(self) -> Scope:
        """Whose record it is."""
        return Scope(self.kind, self.id)

    @property
    def plain_fence(self) -> StoredFence:
        """The fence as `outlast.driver` defines it, without `ASKED`."""
        return self.fence if self.fence.seq else self.fence._replace(op="")

    @property
    def is_empty(self) -> bool:
        """Whether it holds no data: a tombstone, or only ever claimed."""
        return all(register.is_empty for register in self.registers.values()) and all(
            log.is_empty for log in self.logs.values()
        )

    def register(self, name: str) -> Register:
        """The register of this name, written or not."""
        return self.registers.get(name) or _EMPTY_REGISTER

    def log(self, name: str) -> Log:
        """The log of this name, written or not."""
        return self.logs.get(name) or _EMPTY_LOG

    def floor(self) -> Floor:
        """What the floor must cover before this record may be removed."""
        return Floor(self.fence.epoch, self.version)

    def above(self, floor: Floor) -> "Head":
        """This head with all its versions above ``floor``; epochs are up to `next_claim`."""
        if self.start > floor.version:
            return self
        version = max(self.version, floor.version + 1)
        return msgspec.structs.replace(
            self,
            version=version,
            start=version,
            registers={
                name: msgspec.structs.replace(register, version=version)
                for name, register in self.registers.items()
            },
        )


_EMPTY_REGISTER = Register(0)
_EMPTY_LOG = Log()

__all__ = ["ASKED", "Floor", "Head", "Layout", "Log", "Ref", "Register"]
