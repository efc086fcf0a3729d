"""Heads, pieces and floors as documents of three collections."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from hashlib import sha256
from inspect import isawaitable
from typing import Any, Final, TypeVar

from bson.codec_options import CodecOptions
from pymongo import ASCENDING, ReadPreference, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import DuplicateKeyError, OperationFailure
from pymongo.read_concern import ReadConcern

from outlast.driver import PRIMARY, ScopeKind, Where
from outlast.errors import ConfigurationError, CorruptDataError, UnavailableError
from outlast.heads import (
    HEAD_STAMP,
    Candidate,
    Floor,
    Found,
    Head,
    Listing,
    ObjectStore,
    Ref,
    Shield,
    StoreClock,
    Stored,
    gather_some,
    moment,
    prefix_size,
)
from outlast_mongo._errors import explained
from outlast_mongo._swaps import Document, Swap, Swaps

ResultT = TypeVar("ResultT")
Collection = AsyncCollection[Document]
Database = AsyncDatabase[Document]

HEADS: Final = "outlast_head"
PIECES: Final = "outlast_piece"
FLOORS: Final = "outlast_floor"

_CODEC: Final[CodecOptions[Document]] = CodecOptions(tz_aware=True)
_AT_ONCE: Final = 8
_UNMET: Final = frozenset({2, 79, 100})
"""The write concern makes no sense here, names what is not there, or more members than there are.
"""

_CLOCK_AGE: Final = 60.0
"""Seconds after which the server is asked for its time again."""


class Place:
    """One namespace in one database, and what all calls of a driver share.

    All that is sent goes to the primary; what is read there is there to stay (F4).
    """

    def __init__(
        self,
        database: Database,
        namespace: str,
        *,
        write_concern: WriteConcern,
        read_concern: ReadConcern,
        described: str,
        shield: Shield,
    ) -> None:
        """Make a place; no I/O.

        Args:
            database: Of PyMongo's asyncio client, or one of Motor, which has the same methods.
            namespace: Its world of ids; only a hash of it is stored.
            write_concern: For every write.
            read_concern: For every read.
            described: Which database it is, for people.
            shield: For requests that are of no single call.
        """
        self.database = database
        self.described = described
        self.prefix = sha256(namespace.encode()).hexdigest()[:32] + "/"
        self._write_concern = write_concern
        self._read_concern = read_concern
        self.heads = self.collection(HEADS)
        self.sure_heads = self.heads
        self.is_read_for_good = read_concern.level == "majority"
        self.may_be_behind = not self.is_read_for_good
        self.pieces = self.collection(PIECES)
        self.floors = self.collection(FLOORS)
        self.swaps = Swaps(database, HEADS, write_concern, shield)
        self.seen_floors: dict[str, Floor] = {}
        self._clock = StoreClock(resolution=0.001, max_age=_CLOCK_AGE)

    def collection(self, name: str) -> Collection:
        """A collection with the settings that outlast needs, whatever those of the database are."""
        return self.database.get_collection(
            name,
            codec_options=_CODEC,
            read_preference=ReadPreference.PRIMARY,
            write_concern=self._write_concern,
            read_concern=self._read_concern,
        )

    def expect_failovers(self) -> None:
        """Another server may take over, which knows all that a majority has, but for a moment does
        not know that a majority has it, and answers with what was true before.
        """
        if self.is_read_for_good:
            self.may_be_behind = True
            self.sure_heads = self.heads.with_options(read_concern=ReadConcern("linearizable"))

    def explained(self, *, changes: bool = False) -> AbstractContextManager[None]:
        """`outlast_mongo._errors.explained` for this place."""
        return explained(self.described, changes=changes)

    async def hello(self) -> Document:
        """Ask the server who it is, and what time it is there."""
        sent = moment()
        with self.explained():
            answer: Document = await self.database.command("hello", codec_options=_CODEC)
        told: datetime = answer["localTime"]
        self._clock.tell(told.timestamp(), sent=sent, received=moment())
        return answer

    async def check_concern(self) -> None:
        """Ask whether the members that writes wait for can exist, without waiting for them.

        Raises:
            ConfigurationError: There are fewer, or none of that name: no write would ever be done.
        """
        if self.is_read_for_good:
            return
        concern = {**self._write_concern.document, "wtimeout": 1}
        nothing = {"q": {"_id": ""}, "u": {"$set": {"_id": ""}}}
        with self.explained():
            try:
                answer: Document = await self.database.command(
                    {"update": HEADS, "updates": [nothing], "writeConcern": concern}
                )
                error: Document = answer.get("writeConcernError", {})
            except OperationFailure as refusal:
                if refusal.code not in _UNMET or "journal" in str(refusal):
                    raise
                error = dict(refusal.details or {})
        if error.get("code") in _UNMET:
            raise ConfigurationError(
                f"{self.described} cannot acknowledge writes with w={concern.get('w')}: "
                f"{error.get('errmsg')}; leave w out"
            )

    async def ping(self) -> None:
        """Reach the server once."""
        with self.explained():
            await self.database.command("ping")

    async def now(self) -> float:
        """The server's time."""
        now = self._clock.now()
        if now is None:
            await self.hello()
            now = self._clock.now()
        return time.time() if now is None else now


class MongoStore(ObjectStore):
    """The store as one call sees it.

    A head is one document; its token is the stamp of the stored bytes, in a field of its own, which
    an update names in its filter. The attributes by which a scan filters are fields beside it.
    """

    def __init__(self, place: Place, deadline: float) -> None:
        """Make a view.

        Args:
            place: Where.
            deadline: The `moment` until which the call may wait for others.
        """
        self._place = place
        self._deadline = deadline
        self.may_be_behind = place.may_be_behind

    async def read(self, key: str) -> Stored | None:
        return await self._read(key, self._place.heads)

    async def read_surely(self, key: str) -> Stored | None:
        if self._place.is_read_for_good:
            return await self._read(key, self._place.sure_heads)
        while True:
            stored = await self._read(key, self._place.heads)
            if await self._is_confirmed(key, stored):
                return stored

    async def _is_confirmed(self, key: str, stored: Stored | None) -> bool:
        """Whether what was read is still there, and survives what a done write survives (D1).

        An update that changes nothing waits like others for the members and the journals: for all
        that the server has written so far.
        """
        head_id = self._id(key)
        found = {"_id": head_id} if stored is None else {"_id": head_id, "token": stored.token}
        with self._place.explained():
            done = await self._place.heads.update_one(found, {"$set": {"_id": head_id}})
        return done.matched_count == (stored is not None)

    async def _read(self, key: str, heads: Collection) -> Stored | None:
        with self._place.explained():
            found = await heads.find_one({"_id": self._id(key)}, {"head": True, "token": True})
        return None if found is None else self._stored(found, key)

    async def read_with(
        self, key: str, refs: Sequence[Ref]
    ) -> tuple[Stored | None, Mapping[str, bytes]]:
        head_id = self._id(key)
        pieces = {self._id(key, ref.name): ref.name for ref in refs}
        together = {"coll": PIECES, "pipeline": [{"$match": {"_id": {"$in": list(pieces)}}}]}
        with self._place.explained():
            cursor: Any = self._place.heads.aggregate(
                [{"$match": {"_id": head_id}}, {"$unionWith": together}]
            )
            if isawaitable(cursor):  # With PyMongo; Motor's cursor is there at once.
                cursor = await cursor
            documents: list[Document] = await cursor.to_list(None)
        found = {document["_id"]: document for document in documents}
        head = found.pop(head_id, None)
        return None if head is None else self._stored(head, key), {
            pieces[piece_id]: _piece(document) for piece_id, document in found.items()
        }

    async def create(self, key: str, data: bytes, head: Head) -> object | None:
        token, document = _document(data, head)
        with self._place.explained(changes=True):
            try:
                await self._place.heads.insert_one({"_id": self._id(key), **document})
            except DuplicateKeyError:
                return None  # Somebody else was first, which says nothing of who may write.
        return token

    async def swap(self, key: str, data: bytes, head: Head, token: object) -> object | None:
        new, document = _document(data, head)
        head_id = self._id(key)
        assert isinstance(token, bytes)
        with self._place.explained(changes=True):
            if head.fence.epoch:
                swap = Swap(head_id, token, document, len(data), self._deadline)
                return new if await self._place.swaps.run(swap) else None
            # Without a claim, only PyMongo's own retry can tell what an unanswered request did.
            done = await self._place.heads.replace_one({"_id": head_id, "token": token}, document)
        return new if done.matched_count else None

    async def delete(self, key: str, token: object) -> bool:
        with self._place.explained():
            done = await self._place.heads.delete_one({"_id": self._id(key), "token": token})
        return bool(done.deleted_count)

    async def put_pieces(self, key: str, pieces: Mapping[str, bytes]) -> None:
        written_at = await self.now()
        documents: list[Document] = []
        for name, data in pieces.items():
            size = prefix_size(data)
            documents.append(
                {
                    "_id": self._id(key, name),
                    "prefix": data[:size],
                    "rest": data[size:],
                    "written_at": written_at,
                }
            )
        # Nothing refers to them yet: an unanswered request is a failed one.
        with self._place.explained():
            await self._place.pieces.insert_many(documents, ordered=False)

    async def read_pieces(
        self, key: str, refs: Sequence[Ref], *, prefix: bool = False
    ) -> list[bytes | None]:
        fields = {"prefix": True} if prefix else {"prefix": True, "rest": True}
        ids = [self._id(key, ref.name) for ref in refs]
        with self._place.explained():
            documents = await self._place.pieces.find({"_id": {"$in": ids}}, fields).to_list(None)
        found = {document["_id"]: _piece(document) for document in documents}
        return [found.get(piece_id) for piece_id in ids]

    async def delete_pieces(self, key: str, names: Sequence[str]) -> None:
        ids = [self._id(key, name) for name in names]
        with self._place.explained():
            await self._place.pieces.delete_many({"_id": {"$in": ids}})

    async def list_heads(self, kind: ScopeKind, after: str | None, limit: int) -> Sequence[str]:
        return [found.key for found in await self._find(kind, after, limit, {}, {"_id": True})]

    async def list_empty(self, kind: ScopeKind, after: str | None, limit: int) -> Sequence[str]:
        found = await self._find(kind, after, limit, {"empty": True}, {"_id": True})
        return [head.key for head in found]

    async def find_heads(
        self, kind: ScopeKind, where: Where, after: str | None, limit: int
    ) -> Sequence[Found]:
        wanted: Document = {} if where.with_empty else {"has_value": True}
        if where.parent is not None:
            wanted["parent"] = where.parent.encode()
        if where.status is not None:
            wanted["status"] = where.status.encode()
        if where.updated_before is not None:
            wanted["updated_at"] = {"$lt": where.updated_before}
        return await self._find(kind, after, limit, wanted, {"head": True, "token": True})

    async def list_pieces(self, after: str | None, limit: int) -> Listing:
        start = self._place.prefix
        with self._place.explained():
            documents = await (
                self._place.pieces.find(
                    {"_id": {"$gt": start + (after or ""), "$lt": _end(start)}},
                    {"written_at": True},
                )
                .sort("_id", ASCENDING)
                .limit(limit)
                .to_list(None)
            )
        now = await self.now()
        found: list[Candidate] = []
        for document in documents:
            key, _, name = document["_id"].removeprefix(start).rpartition("/")
            found.append(Candidate(key, name, now - document["written_at"]))
        is_full = len(found) == limit
        return Listing(found, documents[-1]["_id"].removeprefix(start) if is_full else None)

    async def sweep_temporary(
        self, *, older_than: float, dry_run: bool, after: str | None
    ) -> tuple[int, str | None]:
        return 0, None

    async def floor(self, key: str) -> Floor:
        bucket = self._bucket(key)
        with self._place.explained():
            found = await self._place.floors.find_one({"_id": bucket})
        if found is None:
            return Floor()
        floor = Floor(int(found["epoch"]), int(found["version"]))
        self._place.seen_floors[bucket] = floor
        return floor

    async def guess_floor(self, key: str) -> Floor:
        return self._place.seen_floors.get(self._bucket(key), Floor())

    async def raise_floor(self, key: str, floor: Floor) -> None:
        seen = await self.guess_floor(key)
        if seen.raised_to(floor) == seen:
            return  # It never sinks.
        raised = {"$max": {"epoch": floor.epoch, "version": floor.version}}
        with self._place.explained():
            while True:
                try:
                    await self._place.floors.update_one(
                        {"_id": self._bucket(key)}, raised, upsert=True
                    )
                except DuplicateKeyError:
                    continue  # Another one inserted it in between; now it is there.
                return

    async def now(self) -> float:
        return await self._place.now()

    async def pause(self, seconds: float) -> None:
        if moment() + seconds > self._deadline:
            raise UnavailableError("other writers of the same record were always faster")
        await asyncio.sleep(seconds)

    async def gather(self, reads: Sequence[Callable[[], Awaitable[ResultT]]]) -> list[ResultT]:
        return await gather_some(reads, _AT_ONCE)

    def place(self, key: str, piece: str | None = None) -> str:
        collection = HEADS if piece is None else PIECES
        return f"document {self._id(key, piece)!r} of {collection}"

    async def _find(
        self, kind: ScopeKind, after: str | None, limit: int, wanted: Document, fields: Document
    ) -> Sequence[Found]:
        start = self._id(f"{kind}/")
        between = {"$gt": start if after is None else self._id(after), "$lt": _end(start)}
        with self._place.explained():
            documents = await (
                self._place.heads.find({"_id": between, **wanted}, fields)
                .sort("_id", ASCENDING)
                .limit(limit)
                .to_list(None)
            )
        found: list[Found] = []
        for document in documents:
            key = document["_id"].removeprefix(self._place.prefix)
            found.append(Found(key, self._stored(document, key) if "head" in fields else None))
        return found

    def _stored(self, document: Document, key: str) -> Stored:
        head, token = document.get("head"), document.get("token")
        if not isinstance(head, bytes) or not isinstance(token, bytes):
            raise CorruptDataError(f"{self.place(key)} has lost fields, or others' values in them")
        return Stored(head, token)

    def _id(self, key: str, piece: str | None = None) -> str:
        head = self._place.prefix + key
        return head if piece is None else f"{head}/{piece}"

    def _bucket(self, key: str) -> str:
        """Which floor covers a head: one of 256."""
        return self._place.prefix + key.partition("/")[2][:2]


def _document(data: bytes, head: Head) -> tuple[bytes, Document]:
    """The token of a head, and its document without its id."""
    index, token = head.index, data[:HEAD_STAMP]
    return token, {
        "token": token,
        "head": data,
        "parent": None if index.parent is None else index.parent.encode(),
        "status": None if index.status is None else index.status.encode(),
        "updated_at": index.updated_at,
        "has_value": not head.register(PRIMARY[head.kind]).is_empty,
        "empty": head.is_empty,
    }


def _piece(document: Document) -> bytes:
    # What is missing or replaced fails the checksum of the piece.
    parts = document.get("prefix"), document.get("rest")
    return b"".join(part for part in parts if isinstance(part, bytes))


def _end(start: str) -> str:
    """Behind all that begins with ``start``, which ends in a slash."""
    return start[:-1] + "0"


__all__ = ["Database", "Document", "MongoStore", "Place"]
