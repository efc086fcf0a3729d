"""The rows of the table: what is done through outlast, beside what the raw driver does."""

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import outlast
from outlast.cli.bench.measure import Step, Timing, side_by_side
from outlast.cli.bench.raw import Raw, write_all
from outlast.codec import Codec

KILOBYTE = 1024
FLEET = 64
WARMUP = 30
_TEXTS = 32


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        name: Of the row.
        value: The ratio; ``None`` without a raw driver.
        timings: What it is made of, by whose it is.
    """

    name: str
    value: float | None
    timings: Mapping[str, Timing] = field(default_factory=dict[str, Timing])


@dataclass(frozen=True)
class Profile:
    """How much is measured.

    Attributes:
        count: Times that each thing is done for a median.
        loaded: Messages that are loaded at once.
        long: Messages of a long history.
        each: Appends of each of the tasks that append at once.
        rounds: Times that they do.
    """

    count: int = 300
    loaded: int = 1000
    long: int = 10_000
    each: int = 10
    rounds: int = 6


WHOLE = Profile()
QUICK = Profile(count=60, long=2_000, each=4, rounds=4)


class Sent:
    """Bytes that were sent within a `Counter`; always 0 where nobody counts."""

    count: int = 0


Counter = Callable[[], AbstractContextManager[Sent]]


@dataclass(frozen=True)
class Target:
    """What is measured.

    Attributes:
        url: For ``outlast.open_backend``.
        options: Keywords that go with it.
        raw: Makes raw drivers of the same store, if there is one.
        sent: Counts what this process sends.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    raw: Callable[[], Raw] | None = None
    sent: Counter = field(default=lambda: nullcontext(Sent()))

    def open(self) -> outlast.Backend:
        """A backend in a namespace of its own, not yet opened."""
        namespace = f"bench-{secrets.token_hex(4)}"
        return outlast.open_backend(self.url, namespace=namespace, **self.options)


def text(number: int, size: int) -> str:
    """Words, not one letter: stores and wires may compress."""
    return "".join(f"{number * 7919 + place:x} " for place in range(size // 2))[:size]


_contents = [text(number, KILOBYTE) for number in range(_TEXTS)]
_codec = Codec()


def message(number: int) -> outlast.ApiMessage:
    """A message with a content of 1 KB."""
    return outlast.ApiMessage(id=f"m{number:08}", role="user", content=_contents[number % _TEXTS])


def encoded(record: Any) -> bytes:
    """The bytes that outlast stores of a record, which the raw driver is given, too."""
    return _codec.encode(record)[0]


async def measure(
    target: Target, profile: Profile, said: Callable[[str], object] = lambda name: None
) -> list[Row]:
    """Every row of one store, which is left as it was found."""
    found: list[Row] = []
    async with target.open() as backend:
        owner = _Owner(backend)
        raw = None if target.raw is None else target.raw()
        try:
            if raw is not None:
                await raw.open()
            for name, step in _ROWS.items():
                said(name)
                found += await step(target, owner, raw, profile)
        finally:
            if raw is not None:
                await raw.aclose()
            await owner.remove_all()
    return found


class _Owner:
    """Claims tasks and runs of a backend, and removes them."""

    def __init__(self, backend: outlast.Backend) -> None:
        self.backend = backend
        self.tasks = backend.persistence
        self.runs = backend.checkpoints
        self._claims: list[outlast.Claim] = []

    async def task(self, task_id: str) -> outlast.Claim:
        claim = await self.tasks.claim_task(task_id)
        self._claims.append(claim)
        return claim

    async def filled(self, task_id: str, length: int) -> outlast.Claim:
        """A task with so many messages."""
        claim = await self.task(task_id)
        for start in range(0, length, 100):
            batch = [message(number) for number in range(start, min(start + 100, length))]
            await self.tasks.append_api_messages(task_id, batch, claim=claim)
        return claim

    async def run(self, run_id: str) -> outlast.Claim:
        claim = await self.runs.claim(run_id)
        self._claims.append(claim)
        return claim

    async def remove_all(self) -> None:
        for claim in self._claims:
            if claim.scope.kind == "task":
                await self.tasks.delete_task(claim.scope.id, claim=claim)
            else:
                await self.runs.delete(claim.scope.id, claim=claim)
        await self.backend.sweep(older_than=timedelta(0))


async def _append(target: Target, owner: _Owner, raw: Raw | None, profile: Profile) -> list[Row]:
    claim = await owner.task("append")
    messages = map(message, itertools.count())
    data = itertools.cycle([encoded(message(number)) for number in range(_TEXTS)])

    async def ours() -> None:
        await owner.tasks.append_api_message("append", next(messages), claim=claim)

    return [await _beside("append", ours, _writes(raw, data), profile.count)]


async def _put(target: Target, owner: _Owner, raw: Raw | None, profile: Profile) -> list[Row]:
    claim = await owner.run("put")
    checkpoints = [
        outlast.StreamCheckpoint(
            run_id="put",
            thread_id="thread",
            message_id="m",
            model="model",
            text=text(number, 4 * KILOBYTE),
        )
        for number in range(_TEXTS)
    ]
    turns = itertools.cycle(checkpoints)
    data = itertools.cycle([encoded(each) for each in checkpoints])

    async def ours() -> None:
        await owner.runs.put(next(turns), claim=claim)

    return [await _beside("put", ours, _writes(raw, data), profile.count)]


async def _state(target: Target, owner: _Owner, raw: Raw | None, profile: Profile) -> list[Row]:
    claim = await owner.task("state")
    states = [
        outlast.TaskState(id="state", context={"text": text(number, 2 * KILOBYTE)})
        for number in range(_TEXTS)
    ]
    turns = itertools.cycle(states)
    data = itertools.cycle([encoded(each) for each in states])

    async def ours() -> None:
        await owner.tasks.save_task_state("state", next(turns), claim=claim)

    return [await _beside("state", ours, _writes(raw, data), profile.count)]


async def _load(target: Target, owner: _Owner, raw: Raw | None, profile: Profile) -> list[Row]:
    claim = await owner.task("load")
    for number in range(profile.loaded):
        await owner.tasks.append_api_message("load", message(number), claim=claim)
    read: Step | None = None
    if raw is not None:
        await raw.fill([encoded(message(number)) for number in range(profile.loaded)])
        read = raw.read

    async def ours() -> None:
        loaded = await owner.tasks.load_api_messages("load")
        if len(loaded) != profile.loaded:
            raise AssertionError(f"{len(loaded)} messages of {profile.loaded} were loaded")

    return [await _beside("load", ours, read, profile.count)]


async def _flat(target: Target, owner: _Owner, raw: Raw | None, profile: Profile) -> list[Row]:
    """Appends to a long and to a short history, compared in time and in bytes."""
    numbers = itertools.count(10_000_000)
    steps: list[Step] = []
    for length in (profile.long, 100):
        task = f"flat-{length}"
        claim = await owner.filled(task, length)

        async def one(task: str = task, claim: outlast.Claim = claim) -> None:
            await owner.tasks.append_api_message(task, message(next(numbers)), claim=claim)

        steps.append(one)
    long, short = await side_by_side(steps, profile.count, WARMUP)
    found = [Row("flat", long.median / short.median, {"long": long, "short": short})]
    sent: list[int] = []
    for step in steps:
        with target.sent() as counted:
            for _ in range(profile.count):
                await step()
        sent.append(counted.count)
    if all(sent):
        found.append(Row("flat-bytes", sent[0] / sent[1]))
    return found


async def _fleet(target: Target, owner: _Owner, raw: Raw | None, profile: Profile) -> list[Row]:
    claims = {f"fleet-{number}": await owner.task(f"fleet-{number}") for number in range(FLEET)}
    numbers = itertools.count()
    data = [encoded(message(number)) for number in range(profile.each)]

    async def ours(name: str) -> None:
        for _ in range(profile.each):
            await owner.tasks.append_api_message(name, message(next(numbers)), claim=claims[name])

    async def all_of_ours() -> None:
        await asyncio.gather(*(ours(name) for name in claims))

    if raw is None or target.raw is None:
        (mine,) = await side_by_side([all_of_ours], profile.rounds, 1)
        return [Row("fleet", None, {"outlast": mine})]
    connections = [target.raw() for _ in range(raw.pool)]
    try:
        await asyncio.gather(*(connection.open() for connection in connections))

        async def theirs() -> None:
            await write_all(connections, FLEET, data)

        mine, plain = await side_by_side([all_of_ours, theirs], profile.rounds, 1)
    finally:
        for connection in connections:
            await connection.aclose()
    return [Row("fleet", plain.median / mine.median, {"outlast": mine, "raw": plain})]


def _writes(raw: Raw | None, data: "itertools.cycle[bytes]") -> Step | None:
    if raw is None:
        return None
    driver = raw

    async def plain() -> None:
        await driver.write(next(data))

    return plain


async def _beside(name: str, ours: Step, plain: Step | None, count: int) -> Row:
    steps = [ours] if plain is None else [ours, plain]
    timings = await side_by_side(steps, count, WARMUP)
    value = None if plain is None else timings[0].median / timings[1].median
    return Row(name, value, dict(zip(("outlast", "raw"), timings, strict=False)))


_Measuring = Callable[[Target, _Owner, Raw | None, Profile], Any]
_ROWS: Mapping[str, _Measuring] = {
    "append": _append,
    "put": _put,
    "state": _state,
    "load": _load,
    "flat": _flat,
    "fleet": _fleet,
}

TITLES: Mapping[str, str] = {
    "append": "append one message of 1 KB",
    "put": "put a checkpoint of 4 KB",
    "state": "save a task state of 2 KB",
    "load": "load 1,000 messages into models",
    "flat": "append to a long history, times at 100",
    "flat-bytes": "bytes sent by that, times at 100",
    "fleet": "64 tasks appending at once, throughput times raw",
    "size": "stored bytes at 1,000 messages, times the payload",
}


__all__ = [
    "FLEET",
    "QUICK",
    "TITLES",
    "WHOLE",
    "Counter",
    "Profile",
    "Row",
    "Sent",
    "Target",
    "encoded",
    "measure",
    "message",
    "text",
]
