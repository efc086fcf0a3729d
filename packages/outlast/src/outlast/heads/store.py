"""What a store must be able to do to its objects; the algorithm needs nothing else."""

import abc
import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar, cast

from outlast.driver import Scope, ScopeKind, Where
from outlast.errors import CorruptDataError
from outlast.heads.encoding import decode_head
from outlast.heads.layout import Floor, Head, Ref

ResultT = TypeVar("ResultT")


class Stored(NamedTuple):
    """A head as read.

    Attributes:
        data: Its bytes.
        token: Stands for exactly these bytes in `ObjectStore.swap` and `ObjectStore.delete`;
            compared with ``==``.
    """

    data: bytes
    token: object


class Found(NamedTuple):
    """A head that a search found: its key, and the head itself if it came along."""

    key: str
    stored: Stored | None = None


class Candidate(NamedTuple):
    """A piece that a listing found; it may be referenced or not.

    Attributes:
        key: Of the head to which it belongs.
        name: Of the piece.
        age: Seconds since it was written, by the store's clock.
    """

    key: str
    name: str
    age: float


class Listing(NamedTuple):
    """A part of a listing of pieces: what was found, and where to go on (``None`` at the end)."""

    candidates: Sequence[Candidate]
    next: str | None


class ObjectStore(abc.ABC):
    """Objects of one namespace: heads, changed by comparison only, and pieces, never changed.

    Keys are those of `key_of`. All errors are those of `outlast.errors`, as for a `Driver`. What a
    method returned is durable as far as the store declares: a head that was read is never lost
    again (F4).
    """

    can_delete = True
    """Whether `delete` keeps its promise. If not, a sweep leaves tombstones where they are."""

    may_be_behind = False
    """Whether `read` may, for a moment after a failover, not know of the last changes (F4)."""

    @abc.abstractmethod
    async def read(self, key: str) -> Stored | None:
        """The head, or ``None``. Never waits for writers, never goes back."""

    async def read_surely(self, key: str) -> Stored | None:
        """`read`, and never behind; a refusal, or that nothing is left to do, rests on this."""
        return await self.read(key)

    async def read_with(
        self, key: str, refs: Sequence[Ref]
    ) -> tuple[Stored | None, Mapping[str, bytes]]:
        """`read`, and by their names those of the pieces that come in the same round trip.

        ``refs`` are a guess. A store that would read one behind the other returns no pieces.
        """
        return await self.read(key), {}

    async def is_current(self, key: str, token: object) -> bool | None:
        """Whether ``token`` stands for the present head, if that is known for less than a read.

        ``None``: only `swap` will tell.
        """
        return None

    @abc.abstractmethod
    async def create(self, key: str, data: bytes, head: Head) -> object | None:
        """Store a head where there is none, and return its token; ``None``: there is one.

        ``data`` is ``head`` encoded; a store may keep attributes of ``head`` beside it, to search
        by them.
        """

    @abc.abstractmethod
    async def swap(self, key: str, data: bytes, head: Head, token: object) -> object | None:
        """Replace the head that ``token`` stands for, and return the new token.

        ``None``: it is another one by now, or gone; nothing changed. Check and replacement are one
        step. ``data`` and ``head`` as for `create`.

        Raises:
            OutcomeUnknownError: The request went unanswered; it may yet be applied.
            UnavailableError: It was certainly not applied.
        """

    @abc.abstractmethod
    async def delete(self, key: str, token: object) -> bool:
        """Remove the head that ``token`` stands for; ``False``: it is another one, or gone."""

    @abc.abstractmethod
    async def put_pieces(self, key: str, pieces: Mapping[str, bytes]) -> None:
        """Store new pieces under new names; durable on return, so that a head may refer to them."""

    @abc.abstractmethod
    async def read_pieces(
        self, key: str, refs: Sequence[Ref], *, prefix: bool = False
    ) -> list[bytes | None]:
        """The pieces, or the first ``Ref.prefix`` bytes of each; ``None`` for a missing one."""

    @abc.abstractmethod
    async def delete_pieces(self, key: str, names: Sequence[str]) -> None:
        """Remove pieces; those that are gone are no error."""

    @abc.abstractmethod
    async def list_heads(self, kind: ScopeKind, after: str | None, limit: int) -> Sequence[str]:
        """Keys of heads of this kind behind ``after``, in a fixed order.

        Fewer than ``limit`` are returned at the end only.

        A head that is there throughout a sequence of calls is listed exactly once.
        """

    async def find_heads(
        self, kind: ScopeKind, where: Where, after: str | None, limit: int
    ) -> Sequence[Found]:
        """`list_heads`, for a scan; the reader applies ``where`` to what is found.

        A store that can search leaves out what does not match, and brings the others along.
        """
        return [Found(key) for key in await self.list_heads(kind, after, limit)]

    async def list_empty(self, kind: ScopeKind, after: str | None, limit: int) -> Sequence[str]:
        """`list_heads`, for a sweep: heads with data may be left out."""
        return await self.list_heads(kind, after, limit)

    @abc.abstractmethod
    async def list_pieces(self, after: str | None, limit: int) -> Listing:
        """About ``limit`` pieces, those of one key together as far as possible."""

    @abc.abstractmethod
    async def sweep_temporary(
        self, *, older_than: float, dry_run: bool, after: str | None
    ) -> tuple[int, str | None]:
        """Remove what the store itself leaves behind in a crash; how many, and where to go on."""

    @abc.abstractmethod
    async def floor(self, key: str) -> Floor:
        """The floor of the bucket of ``key``.

        Keys of one kind with the same first two digits are in the same bucket.
        """

    async def guess_floor(self, key: str) -> Floor:
        """Any floor that the bucket of ``key`` had at some time, to begin a record with.

        The true one is read afterwards. A store with round trips returns what it saw last, or none.
        """
        return await self.floor(key)

    @abc.abstractmethod
    async def raise_floor(self, key: str, floor: Floor) -> None:
        """Raise the floor of the bucket of ``key`` to at least ``floor``; durable on return."""

    @abc.abstractmethod
    async def now(self) -> float:
        """Seconds since 1970-01-01 UTC by the store's clock; ages are differences of these."""

    @abc.abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait before another attempt.

        Raises:
            UnavailableError: The call's time is over.
        """

    async def gather(self, reads: Sequence[Callable[[], Awaitable[ResultT]]]) -> list[ResultT]:
        """The results of independent calls; a store with round trips uses `gather_some`."""
        return [await read() for read in reads]

    @abc.abstractmethod
    def place(self, key: str, piece: str | None = None) -> str:
        """Where a head or piece is, in words for an error."""


async def gather_some(
    calls: Sequence[Callable[[], Awaitable[ResultT]]], at_once: int
) -> list[ResultT]:
    """The results of independent calls, ``at_once`` of them under way at a time.

    The first error ends it: then none of the calls goes on.
    """
    results: list[ResultT | None] = [None] * len(calls)
    waiting = iter(enumerate(calls))

    async def work() -> None:
        for place, call in waiting:
            results[place] = await call()

    workers = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(calls)))]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    return cast("list[ResultT]", results)


@lru_cache(maxsize=1024)
def key_of(scope: Scope) -> str:
    """The key of a scope's head: ``task/`` or ``run/`` and 64 hexadecimal digits.

    Of fixed length, safe as a file name and in an object's name, and still distinct where the store
    folds case or Unicode forms (I1 to I3). The head repeats the id, and readers compare it.
    """
    return f"{scope.kind}/{hashlib.sha256(scope.id.encode()).hexdigest()}"


def head_at(store: ObjectStore, key: str, data: bytes) -> Head:
    """The head in ``data``, found under ``key`` without knowing whose it is.

    Raises:
        UnsupportedVersionError: It has a newer format.
        CorruptDataError: It cannot be decoded, or belongs under another key.
    """
    place = store.place(key)
    head = decode_head(data, None, place)
    if key_of(head.scope) != key:
        raise CorruptDataError(f"{place} holds the {head.kind} {head.id!r}; it was moved or copied")
    return head


__all__ = [
    "Candidate",
    "Found",
    "Listing",
    "ObjectStore",
    "Stored",
    "gather_some",
    "head_at",
    "key_of",
]
