"""An object store in memory, with round trips that tests can watch, hold, lose and repeat."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from outlast.driver import Capabilities, ScopeKind
from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast.heads import (
    Candidate,
    Floor,
    Head,
    HeadDriver,
    Layout,
    Listing,
    ObjectStore,
    Operation,
    Ref,
    Stored,
)

ResultT = TypeVar("ResultT")
Hook = Callable[[str, str], Awaitable[None]]

CHANGES = ("create", "swap")


class Objects:
    """What is stored. Tokens are hashes of the content, as many servers have them."""

    def __init__(self) -> None:
        self.heads: dict[str, bytes] = {}
        self.pieces: dict[tuple[str, str], tuple[bytes, float]] = {}
        self.floors: dict[str, Floor] = {}
        self.time = 1_000_000.0


class MemoryObjects(ObjectStore):
    """One client of `Objects`.

    Attributes:
        calls: The round trips so far, by name.
        before: Awaited before each call takes effect, with its name and key.
        lose: Names of calls whose next answers are lost although they were applied.
        drop: Names of calls whose next requests are lost and not applied.
        refuse: Names of calls that fail next, certainly not applied.
        sent: Bytes of heads and pieces that were sent.
        received: Bytes of pieces that were read.
        gathers: Whether it reads pieces in one round trip with the head.
        behind: What `read` finds instead, until a change was made; as after a failover.
    """

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.calls: list[str] = []
        self.before: Hook | None = None
        self.lose: list[str] = []
        self.drop: list[str] = []
        self.refuse: list[str] = []
        self.sent = 0
        self.received = 0
        self.gathers = False
        self.behind: dict[str, bytes] | None = None
        self._floors: dict[str, Floor] = {}

    async def read(self, key: str) -> Stored | None:
        await self._send("read", key)
        data = (self.objects.heads if self.behind is None else self.behind).get(key)
        return None if data is None else Stored(data, _token(data))

    async def read_surely(self, key: str) -> Stored | None:
        await self._send("read_surely", key)
        data = self.objects.heads.get(key)
        return None if data is None else Stored(data, _token(data))

    async def read_with(
        self, key: str, refs: Sequence[Ref]
    ) -> tuple[Stored | None, Mapping[str, bytes]]:
        if not self.gathers:
            return await super().read_with(key, refs)
        await self._send("read_with", key)
        data = self.objects.heads.get(key)
        found = {ref.name: self.objects.pieces.get((key, ref.name)) for ref in refs}
        pieces = {name: item[0] for name, item in found.items() if item is not None}
        return None if data is None else Stored(data, _token(data)), pieces

    async def create(self, key: str, data: bytes, head: Head) -> object | None:
        await self._send("create", key, data)
        is_done = key not in self.objects.heads
        if is_done:
            self.objects.heads[key] = data
        return self._answer("create", _token(data) if is_done else None)

    async def swap(self, key: str, data: bytes, head: Head, token: object) -> object | None:
        await self._send("swap", key, data)
        is_done = key in self.objects.heads and _token(self.objects.heads[key]) == token
        if is_done:
            self.objects.heads[key] = data
            self.behind = None
        return self._answer("swap", _token(data) if is_done else None)

    async def delete(self, key: str, token: object) -> bool:
        await self._send("delete", key)
        if key not in self.objects.heads or _token(self.objects.heads[key]) != token:
            return False
        del self.objects.heads[key]
        return True

    async def put_pieces(self, key: str, pieces: Mapping[str, bytes]) -> None:
        for name, data in pieces.items():
            await self._send("put_piece", key, data)
            assert (key, name) not in self.objects.pieces
            self.objects.pieces[key, name] = data, self.objects.time

    async def read_pieces(
        self, key: str, refs: Sequence[Ref], *, prefix: bool = False
    ) -> list[bytes | None]:
        await self._send("read_ids" if prefix else "read_pieces", key)
        found = [self.objects.pieces.get((key, ref.name)) for ref in refs]
        answers = [
            None if item is None else item[0][: ref.prefix if prefix else ref.size]
            for item, ref in zip(found, refs, strict=True)
        ]
        self.received += sum(len(answer or b"") for answer in answers)
        return answers

    async def delete_pieces(self, key: str, names: Sequence[str]) -> None:
        await self._send("delete_pieces", key)
        for name in names:
            self.objects.pieces.pop((key, name), None)

    async def list_heads(self, kind: ScopeKind, after: str | None, limit: int) -> Sequence[str]:
        await self._send("list_heads", "")
        keys = sorted(key for key in self.objects.heads if key.startswith(f"{kind}/"))
        return [key for key in keys if after is None or key > after][:limit]

    async def list_pieces(self, after: str | None, limit: int) -> Listing:
        await self._send("list_pieces", "")
        found = [
            Candidate(key, name, self.objects.time - written)
            for (key, name), (_, written) in sorted(self.objects.pieces.items())
            if after is None or f"{key} {name}" > after
        ]
        last = found[:limit][-1] if len(found) > limit else None
        return Listing(found[:limit], None if last is None else f"{last.key} {last.name}")

    async def sweep_temporary(
        self, *, older_than: float, dry_run: bool, after: str | None
    ) -> tuple[int, str | None]:
        return 0, None

    async def floor(self, key: str) -> Floor:
        await self._send("floor", key)
        self._floors[key[:6]] = self.objects.floors.get(key[:6], Floor())
        return self._floors[key[:6]]

    async def guess_floor(self, key: str) -> Floor:
        return self._floors.get(key[:6], Floor())

    async def raise_floor(self, key: str, floor: Floor) -> None:
        await self._send("raise_floor", key)
        self.objects.floors[key[:6]] = self.objects.floors.get(key[:6], Floor()).raised_to(floor)

    async def now(self) -> float:
        return self.objects.time

    async def pause(self, seconds: float) -> None:
        self.calls.append("pause")
        await asyncio.sleep(0)

    async def gather(self, reads: Sequence[Callable[[], Awaitable[ResultT]]]) -> list[ResultT]:
        return list(await asyncio.gather(*(read() for read in reads)))

    def place(self, key: str, piece: str | None = None) -> str:
        return f"object {key if piece is None else f'{key}/{piece}'}"

    async def _send(self, name: str, key: str, data: bytes = b"") -> None:
        self.calls.append(name)
        self.sent += len(data)
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(name, key)
        if name in self.refuse:
            self.refuse.remove(name)
            raise UnavailableError(f"{name} was refused")
        if name in self.drop:
            self.drop.remove(name)
            raise OutcomeUnknownError(f"{name} went unanswered")

    def _answer(self, name: str, answer: object) -> object:
        if name in self.lose:
            self.lose.remove(name)
            raise OutcomeUnknownError(f"{name} went unanswered")
        return answer


def _token(data: bytes) -> bytes:
    return hashlib.md5(data).digest()


class MemoryHeadDriver(HeadDriver):
    """A driver on `Objects`; several may share them, each like a process of its own."""

    name = "objects"
    capabilities = Capabilities(frozenset(), frozenset(), "process", 2**30)

    def __init__(self, layout: Layout, objects: Objects | None = None) -> None:
        super().__init__(layout)
        self.store = MemoryObjects(objects or Objects())

    async def setup(self, *, create: bool) -> None:
        pass

    async def ping(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def _run(self, operation: Operation[ResultT]) -> ResultT:
        return await operation(self.store)

    def sibling(self) -> "MemoryHeadDriver":
        """Another process on the same store."""
        return MemoryHeadDriver(self._layout, self.store.objects)
