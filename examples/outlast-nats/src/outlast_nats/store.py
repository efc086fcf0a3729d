"""Heads, pieces and floors as keys of one bucket, changed by compare-and-swap on their revision."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import TypeVar

from nats.js.api import Header, RawStreamMsg
from nats.js.errors import APIError

from outlast.driver import ScopeKind
from outlast.errors import NotSupportedError, UnavailableError
from outlast.heads import (
    Candidate,
    Floor,
    Head,
    Listing,
    ObjectStore,
    Ref,
    StoreClock,
    Stored,
    decode_floor,
    encode_floor,
    gather_some,
    moment,
)
from outlast.retry import backoff
from outlast_nats.errors import is_lost_race, is_missing, translate
from outlast_nats.links import CONNECTIONS, Links

ResultT = TypeVar("ResultT")

CHUNK = 512 * 1024
"""A piece is stored as messages of at most so many bytes: servers limit the size of a message."""

_MOST_NAMES = 100_000
"""So many subjects are in one answer of the server, at most."""

_DIGITS = "0123456789abcdef"
"""Those with which hashes begin."""

_PAGE = 32
"""Pieces whose age one step of a sweep asks for; the answer brings the piece along."""

_CLOCK_AGE = 60.0


class Place:
    """One namespace of a bucket, and what all calls of a driver share.

    A bucket is a stream: a key is a subject, a revision is the sequence of a message.
    """

    def __init__(self, links: Links, bucket: str, namespace: str) -> None:
        """No I/O."""
        self.links = links
        self.stream = f"KV_{bucket}"
        # Only a hash: a subject takes fewer characters than a namespace, and a fixed length.
        self.root = f"$KV.{bucket}.{sha256(namespace.encode()).hexdigest()[:32]}."
        self.clock = StoreClock(resolution=0.0, max_age=_CLOCK_AGE)
        self.seen_floor = Floor()


class NatsStore(ObjectStore):
    """What `HeadDriver` needs of a store; one object serves one call."""

    def __init__(self, place: Place, deadline: float) -> None:
        """Make a view.

        Args:
            place: Where.
            deadline: The `moment` until which the call may take.
        """
        self._place = place
        self._deadline = deadline

    # Heads: the revision is the token, and no two heads have the same.

    async def read(self, key: str) -> Stored | None:
        found = await self._get(_head(key))
        return None if found is None else Stored(found.data or b"", found.seq)

    async def create(self, key: str, data: bytes, head: Head) -> object | None:
        return await self._put(_head(key), data, after=0, changes=True)

    async def swap(self, key: str, data: bytes, head: Head, token: object) -> object | None:
        assert isinstance(token, int)
        return await self._put(_head(key), data, after=token, changes=True)

    async def delete(self, key: str, token: object) -> bool:
        # All revisions up to this one: a newer one stays, since it has a greater sequence.
        assert isinstance(token, int)
        await self._purge(_head(key), before=token + 1)
        return await self.read(key) is None

    async def list_heads(self, kind: ScopeKind, after: str | None, limit: int) -> Sequence[str]:
        names = await self._list(kind, "" if after is None else _head(after), limit)
        return [f"{kind}/{name.rpartition('.')[2]}" for name in names[:limit]]

    # Pieces: immutable, and unknown to everybody until a head refers to them.

    async def put_pieces(self, key: str, pieces: Mapping[str, bytes]) -> None:
        chunks = {
            _piece(key, name, place // CHUNK): data[place : place + CHUNK]
            for name, data in pieces.items()
            for place in range(0, len(data), CHUNK)
        }
        await self.gather([partial(self._put, name, data) for name, data in chunks.items()])

    async def read_pieces(
        self, key: str, refs: Sequence[Ref], *, prefix: bool = False
    ) -> list[bytes | None]:
        async def read(ref: Ref) -> bytes | None:
            size = ref.prefix if prefix else ref.size
            chunks: list[bytes] = []
            for number in range((size + CHUNK - 1) // CHUNK):
                found = await self._get(_piece(key, ref.name, number))
                if found is None:
                    return None
                chunks.append(found.data or b"")
            return b"".join(chunks)[:size]

        return await self.gather([partial(read, ref) for ref in refs])

    async def delete_pieces(self, key: str, names: Sequence[str]) -> None:
        await self.gather([partial(self._purge, _piece(key, name, "*")) for name in names])

    async def list_pieces(self, after: str | None, limit: int) -> Listing:
        wanted = min(limit, _PAGE)
        # "/" stands behind ".": behind all chunks of that piece.
        names = await self._list("piece", "" if after is None else f"{after}/", wanted)
        chunks = {name.rpartition(".")[0]: name for name in names}
        pieces = list(chunks)[:wanted]
        now = await self.now()

        async def look(piece: str) -> Candidate | None:
            found = await self._get(chunks[piece])
            if found is None or found.time is None:
                return None  # removed in between
            _, _, kind, digest, name = piece.split(".")
            return Candidate(f"{kind}/{digest}", name, now - found.time.timestamp())

        candidates = await self.gather([partial(look, piece) for piece in pieces])
        return Listing(
            [found for found in candidates if found is not None],
            pieces[-1] if len(names) >= wanted else None,
        )

    async def sweep_temporary(
        self, *, older_than: float, dry_run: bool, after: str | None
    ) -> tuple[int, str | None]:
        return 0, None  # A message is stored whole or not at all.

    # The floor: raised by compare-and-swap, never lowered.

    async def floor(self, key: str) -> Floor:
        return (await self._floor())[0]

    async def guess_floor(self, key: str) -> Floor:
        return self._place.seen_floor

    async def raise_floor(self, key: str, floor: Floor) -> None:
        attempt = 0
        while True:
            old, revision = await self._floor()
            raised = old.raised_to(floor)
            if raised == old or await self._put("floor", encode_floor(raised), after=revision):
                return
            await self.pause(backoff(attempt))
            attempt += 1

    # Time, waiting, words

    async def now(self) -> float:
        clock = self._place.clock
        now = clock.now()
        if now is not None:
            return now
        # The server tells the time by the message that it stores now.
        sent = moment()
        await self._put("clock", b"")
        found = await self._get("clock")
        if found is None or found.time is None:
            raise UnavailableError(f"{self._place.links.server.place} does not tell the time")
        clock.tell(found.time.timestamp(), sent=sent, received=moment())
        return found.time.timestamp()

    async def pause(self, seconds: float) -> None:
        if moment() + seconds > self._deadline:
            raise UnavailableError("other writers of the same record were always faster")
        await asyncio.sleep(seconds)

    async def gather(self, reads: Sequence[Callable[[], Awaitable[ResultT]]]) -> list[ResultT]:
        return await gather_some(reads, CONNECTIONS)

    def place(self, key: str, piece: str | None = None) -> str:
        name = _head(key) if piece is None else _piece(key, piece, "*")
        return f"key {self._place.root.partition('.')[2]}{name}"

    # Requests

    async def _get(self, name: str) -> RawStreamMsg | None:
        place = self._place
        try:
            # Not a direct get, which any replica answers, also one that is behind (F4).
            return await place.links.call(
                lambda js: js.get_msg(place.stream, subject=place.root + name), self._deadline
            )
        except APIError as error:
            if is_missing(error):
                return None
            raise translate(error, place.links.server.place, changes=False) from error

    async def _put(
        self, name: str, data: bytes, *, after: int | None = None, changes: bool = False
    ) -> int | None:
        """Store a value; its revision, or ``None``: ``after`` is not the key's newest any more."""
        place = self._place
        headers = {} if after is None else {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(after)}
        try:
            stored = await place.links.call(
                lambda js: js.publish(place.root + name, data, headers=headers),
                self._deadline,
                changes=changes,
            )
        except APIError as error:
            if is_lost_race(error):
                return None
            raise translate(error, place.links.server.place, changes=changes) from error
        return stored.seq

    async def _purge(self, name: str, *, before: int | None = None) -> None:
        place = self._place
        try:
            await place.links.call(
                lambda js: js.purge_stream(place.stream, seq=before, subject=place.root + name),
                self._deadline,
            )
        except APIError as error:
            raise translate(error, place.links.server.place, changes=False) from error

    async def _list(self, folder: str, after: str, enough: int) -> list[str]:
        """Names in a folder behind ``after``, in order: so many, or more, or all that there are.

        The server returns them unsorted and all at once, so they are asked for in 16 parts.
        """
        found: list[str] = []
        for digit in _DIGITS[_DIGITS.index(after[len(folder) + 1 : len(folder) + 2]) :]:
            if len(found) >= enough:
                break
            found += sorted(
                name for name in await self._names(f"{folder}.{digit}.>") if name > after
            )
        return found

    async def _names(self, pattern: str) -> Sequence[str]:
        place = self._place
        try:
            info = await place.links.call(
                lambda js: js.stream_info(place.stream, place.root + pattern), self._deadline
            )
        except APIError as error:
            raise translate(error, place.links.server.place, changes=False) from error
        subjects = info.state.subjects or {}
        if len(subjects) >= _MOST_NAMES:
            raise NotSupportedError(f"more than {_MOST_NAMES:,} keys of the form {pattern}")
        return [subject.removeprefix(place.root) for subject in subjects]

    async def _floor(self) -> tuple[Floor, int]:
        found = await self._get("floor")
        if found is None:
            return Floor(), 0
        floor = decode_floor(found.data or b"", f"key {self._place.root}floor")
        self._place.seen_floor = floor
        return floor, found.seq or 0


def _head(key: str) -> str:
    kind, _, digest = key.partition("/")
    return f"{kind}.{digest[0]}.{digest}"


def _piece(key: str, name: str, number: int | str) -> str:
    kind, _, digest = key.partition("/")
    return f"piece.{digest[0]}.{kind}.{digest}.{name}.{number}"
