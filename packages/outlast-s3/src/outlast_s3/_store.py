"""Heads, pieces and floors as objects of one bucket."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar

from outlast.driver import ScopeKind, Where
from outlast.errors import UnavailableError
from outlast.heads import (
    Candidate,
    Floor,
    Found,
    Head,
    Listing,
    ObjectStore,
    Ref,
    Stored,
    decode_floor,
    encode_floor,
    gather_some,
    moment,
)
from outlast.heads.caches import LRU
from outlast.retry import backoff
from outlast_s3._bucket import Answer, Bucket

ResultT = TypeVar("ResultT")

PAGE: Final = 1000
"""Keys in one answer to a listing, at most."""

PROBE_SECONDS: Final = 60.0
"""No probe takes so long."""

_RETRY: Final = 0.02
_SEEN_BYTES: Final = 16 * 2**20
_SEEN_OVERHEAD: Final = 400


class Keys:
    """Names of objects: hexadecimal digits and a few words, of fixed form (S10, S11).

    All objects of one kind are in one folder, so that any store lists them in the same order.
    """

    def __init__(self, prefix: str, namespace: str) -> None:
        """Make names.

        Args:
            prefix: Before all names; empty, or with a slash at its end.
            namespace: Its world of ids; only a hash of it is stored.
        """
        self.marker = f"{prefix}outlast.json"
        self.probes = f"{prefix}probe/"
        self.root = f"{prefix}{sha256(namespace.encode()).hexdigest()[:32]}/"
        self.pieces = f"{self.root}piece/"

    def head(self, key: str) -> str:
        """Of a head; ``key`` is ``task/...`` or ``run/...``."""
        return self.root + key

    def piece(self, key: str, name: str) -> str:
        """Of a piece."""
        return f"{self.pieces}{key.replace('/', '-')}-{name}"

    def floor(self, key: str) -> str:
        """Of the floor that covers a head: one of 16."""
        return f"{self.root}floor/{key.partition('/')[2][:1]}"


class Place:
    """One namespace in one bucket, and what all calls of a driver share."""

    def __init__(self, bucket: Bucket, keys: Keys) -> None:
        """Make a place; no I/O."""
        self.bucket = bucket
        self.keys = keys
        self.can_delete = False
        self.seen_floors: dict[str, Floor] = {}
        self.seen_heads: LRU[str, Stored] = LRU(_SEEN_BYTES)

    def see(self, key: str, stored: Stored) -> None:
        """Remember a head: a listing tells whether it is still the same."""
        self.seen_heads.put(key, stored, len(stored.data) + _SEEN_OVERHEAD)


class S3Store(ObjectStore):
    """The store as one call sees it. A head's token is its ETag; no two heads have the same bytes.

    A delete of a scope is a head without data. Only a sweep deletes heads, and only where the store
    was seen to keep the condition of a DELETE (S6).
    """

    def __init__(self, place: Place, deadline: float) -> None:
        """Make a view.

        Args:
            place: Where.
            deadline: The `moment` until which the call may take.
        """
        self.can_delete = place.can_delete
        self._place = place
        self._keys = place.keys
        self._deadline = deadline

    async def read(self, key: str) -> Stored | None:
        found = await self._send("get_object", Key=self._keys.head(key))
        if found is None:
            return None
        stored = Stored(found.body, found.etag)
        self._place.see(key, stored)
        return stored

    async def read_with(
        self, key: str, refs: Sequence[Ref]
    ) -> tuple[Stored | None, Mapping[str, bytes]]:
        stored: Stored | None = None

        async def read_head() -> None:
            nonlocal stored
            stored = await self.read(key)

        # As many requests as one behind the other, but the pieces do not wait for the head.
        reads: list[Callable[[], Awaitable[bytes | None]]] = [read_head]
        reads += [partial(self._read_piece, key, ref) for ref in refs]
        _, *pieces = await self.gather(reads)
        found = zip((ref.name for ref in refs), pieces, strict=True)
        return stored, {name: piece for name, piece in found if piece is not None}

    async def create(self, key: str, data: bytes, head: Head) -> object | None:
        return await self._put_head(key, data, None)

    async def swap(self, key: str, data: bytes, head: Head, token: object) -> object | None:
        return await self._put_head(key, data, str(token))

    async def delete(self, key: str, token: object) -> bool:
        done = await self._send("delete_object", Key=self._keys.head(key), IfMatch=str(token))
        return done is not None

    async def put_pieces(self, key: str, pieces: Mapping[str, bytes]) -> None:
        # Nothing refers to them yet: an unanswered request is a failed one.
        await self.gather(
            [
                partial(self._send, "put_object", Key=self._keys.piece(key, name), Body=data)
                for name, data in pieces.items()
            ]
        )

    async def read_pieces(
        self, key: str, refs: Sequence[Ref], *, prefix: bool = False
    ) -> list[bytes | None]:
        return await self.gather(
            [partial(self._read_piece, key, ref, prefix=prefix) for ref in refs]
        )

    async def _read_piece(self, key: str, ref: Ref, *, prefix: bool = False) -> bytes | None:
        part = {"Range": f"bytes=0-{ref.prefix - 1}"} if prefix else {}
        found = await self._send("get_object", Key=self._keys.piece(key, ref.name), **part)
        return None if found is None else found.body

    async def delete_pieces(self, key: str, names: Sequence[str]) -> None:
        await self._delete([self._keys.piece(key, name) for name in names])

    async def list_heads(self, kind: ScopeKind, after: str | None, limit: int) -> Sequence[str]:
        return [found.key for found in await self.find_heads(kind, Where(), after, limit)]

    async def find_heads(
        self, kind: ScopeKind, where: Where, after: str | None, limit: int
    ) -> Sequence[Found]:
        folder = self._keys.head(f"{kind}/")
        start = None if after is None else self._keys.head(after)
        found: list[Found] = []
        for entry in await self._list(folder, start, limit):
            key = str(entry["Key"]).removeprefix(self._keys.root)
            stored = self._place.seen_heads.take(key)
            # No two heads have the same ETag: this one is what a request would return.
            if stored is not None and stored.token == entry.get("ETag"):
                self._place.see(key, stored)
                found.append(Found(key, stored))
            else:
                found.append(Found(key))
        return found

    async def list_pieces(self, after: str | None, limit: int) -> Listing:
        folder = self._keys.pieces
        entries = await self._list(folder, None if after is None else folder + after, limit)
        now = await self.now()
        found: list[Candidate] = []
        last = None
        for entry in entries:
            last = str(entry["Key"]).removeprefix(folder)
            kind, digest, name = last.split("-")
            written: datetime = entry["LastModified"]
            found.append(Candidate(f"{kind}/{digest}", name, now - written.timestamp()))
        return Listing(found, last if len(found) == limit else None)

    async def sweep_temporary(
        self, *, older_than: float, dry_run: bool, after: str | None
    ) -> tuple[int, str | None]:
        """Objects of set-ups that were broken off in the middle of a probe.

        One that is going on would take a store for unfit whose objects vanish: young ones stay.
        """
        now = await self.now()
        older_than = max(older_than, PROBE_SECONDS)
        entries = await self._list(self._keys.probes, None, PAGE)
        old = [
            str(entry["Key"])
            for entry in entries
            if max(0.0, now - entry["LastModified"].timestamp()) >= older_than
        ]
        if not dry_run:
            await self._delete(old)
        return len(old), None

    async def floor(self, key: str) -> Floor:
        return (await self._floor(key))[0]

    async def guess_floor(self, key: str) -> Floor:
        return self._place.seen_floors.get(self._keys.floor(key), Floor())

    async def raise_floor(self, key: str, floor: Floor) -> None:
        seen = await self.guess_floor(key)
        if seen.raised_to(floor) == seen:
            return  # It never sinks.
        attempt = 0
        while True:
            old, etag = await self._floor(key)
            raised = old.raised_to(floor)
            if raised == old:
                return
            if await self._put(self._keys.floor(key), encode_floor(raised), etag, changes=False):
                return
            await self.pause(backoff(attempt, base=_RETRY))
            attempt += 1

    async def now(self) -> float:
        return await self._place.bucket.now(self._deadline)

    async def pause(self, seconds: float) -> None:
        if moment() + seconds > self._deadline:
            raise UnavailableError("other writers of the same record were always faster")
        await asyncio.sleep(seconds)

    async def gather(self, reads: Sequence[Callable[[], Awaitable[ResultT]]]) -> list[ResultT]:
        return await gather_some(reads, self._place.bucket.threads)

    def place(self, key: str, piece: str | None = None) -> str:
        name = self._keys.head(key) if piece is None else self._keys.piece(key, piece)
        return f"object {name!r}"

    async def _floor(self, key: str) -> tuple[Floor, str | None]:
        name = self._keys.floor(key)
        found = await self._send("get_object", Key=name)
        if found is None:
            return Floor(), None
        floor = self._place.seen_floors[name] = decode_floor(found.body, f"object {name!r}")
        return floor, found.etag

    async def _put_head(self, key: str, data: bytes, etag: str | None) -> str | None:
        done = await self._put(self._keys.head(key), data, etag)
        if done is not None:
            self._place.see(key, Stored(data, done))
        return done

    async def _put(
        self, name: str, data: bytes, etag: str | None, *, changes: bool = True
    ) -> str | None:
        """Replace what ``etag`` stands for (or nothing); the new ETag, or ``None``: a lost race."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        parameters = {"Key": name, "Body": data, **condition}
        done = await self._place.bucket.send(
            self._deadline, "put_object", parameters, changes=changes
        )
        return None if done is None else done.etag

    async def _list(self, folder: str, start: str | None, limit: int) -> list[Mapping[str, Any]]:
        """The first ``limit`` objects of a folder behind ``start``, page after page."""
        entries: list[Mapping[str, Any]] = []
        more: dict[str, str] = {} if start is None else {"StartAfter": start}
        while len(entries) < limit:
            wanted = min(PAGE, limit - len(entries))
            page = await self._send("list_objects_v2", Prefix=folder, MaxKeys=wanted, **more)
            if page is None:
                break
            found = page.fields.get("Contents", ())
            entries += found
            if not page.fields.get("IsTruncated"):
                break
            token = page.fields.get("NextContinuationToken")
            if token is not None:
                more = {"ContinuationToken": token}
            elif found:  # No store should leave it out; where one does, the rest is not lost.
                more = {"StartAfter": str(found[-1]["Key"])}
            else:
                raise UnavailableError(
                    f"{self._place.bucket.described} cut a listing short without saying where it "
                    "goes on; check what stands between this process and the store"
                )
        return entries

    async def _delete(self, names: Sequence[str]) -> None:
        await self.gather([partial(self._send, "delete_object", Key=name) for name in names])

    async def _send(self, method: str, **parameters: Any) -> Answer | None:
        return await self._place.bucket.send(self._deadline, method, parameters)


__all__ = ["PROBE_SECONDS", "Keys", "Place", "S3Store"]
