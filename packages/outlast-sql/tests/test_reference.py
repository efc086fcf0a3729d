"""Random calls answer alike in every database and in the core's memory, the reference."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from server_ways import ON_SERVERS, server_driver
from sql_support import claim_id

from outlast.backends.memory import MemoryDriver
from outlast.driver import (
    LOGS,
    PRIMARY,
    REGISTERS,
    Driver,
    Entry,
    Fence,
    Index,
    PreconditionFailedError,
    Scope,
    StoredFence,
    Value,
    Where,
)
from outlast.errors import FencedError
from outlast_sql import SqlDriver

pytestmark = pytest.mark.sql

SCOPES = [Scope("task", "a"), Scope("task", "a "), Scope("run", "a")]
IDS = ["1", "2", "3", "A", "a", "é"]

Call = Callable[[Driver], Awaitable[Any]]


class Script:
    """Draws calls; what depends on a driver's own numbers is drawn as a choice between them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fences: list[Fence] = []

    def fence(self, stored: StoredFence | None) -> Fence | None:
        if stored is None or not stored.epoch or self.rng.random() < 0.1:
            return None
        if self.fences and self.rng.random() < 0.2:
            return self.rng.choice(self.fences)
        fence = Fence(
            stored.epoch + self.rng.choice([0] * 12 + [-1, 1]),
            self.rng.choice([stored.claim_id] * 12 + [claim_id(9)]),
            stored.seq + self.rng.choice([1, 1, 1, 1, 2, 0]),
            f"{self.rng.getrandbits(64):016x}",
        )
        self.fences = [*self.fences[-9:], fence]
        return fence

    def entries(self) -> list[Entry]:
        ids = self.rng.sample(IDS, self.rng.choice([0, 1, 1, 1, 2, 3]))
        return [Entry(entry_id, self.rng.randbytes(3)) for entry_id in ids]

    async def draw(self, reference: Driver) -> tuple[str, Call]:
        rng = self.rng
        scope = rng.choice(SCOPES)
        register = rng.choice(REGISTERS[scope.kind])
        log = rng.choice(LOGS["task"])
        fence = self.fence((await reference.read(scope, register)).fence)
        entries = self.entries()
        kind = rng.choice(
            ["claim", "write", "write", "append", "append", "append", "replace", "remove", "sweep"]
        )
        if kind == "claim":
            arguments = {
                "at_least": rng.choice([None, None, rng.randint(1, 6)]),
                "if_epoch": rng.choice([None, None, 0, rng.randint(1, 6)]),
                "parent": rng.choice([None, "p"]),
            }
            owner = claim_id(rng.randint(1, 3))
            return kind, lambda driver: driver.claim(scope, owner, **arguments)
        if kind == "write":
            data = rng.choice([None, rng.randbytes(3), rng.randbytes(3)])
            index = Index(rng.choice([None, "p", "q"]), rng.choice([None, "x"]), rng.randint(0, 9))
            is_primary = register == PRIMARY[scope.kind] and data is not None
            expects = rng.choice([None, None, "stored", "wrong"])

            async def write(driver: Driver) -> int:
                version = (await driver.read(scope, register)).version
                if_version = {None: None, "stored": version, "wrong": version + 1}[expects]
                await driver.write(
                    scope,
                    register,
                    data,
                    fence=fence,
                    index=index if is_primary else None,
                    if_version=if_version,
                )
                changed: int = (await driver.read(scope, register)).version
                return changed > version

            return kind, write
        if kind == "append":
            rest = [name for name in IDS if name not in {entry.id for entry in entries}]
            present = rng.sample(rest, rng.choice([0, 0, 0, 1]))
            return kind, lambda driver: driver.append(
                scope, log, entries, fence=fence, present=present
            )
        if kind == "replace":
            return kind, lambda driver: driver.replace(scope, log, entries, fence=fence)
        if kind == "remove":
            return kind, lambda driver: driver.remove(scope, fence=fence)
        # A real one raises the floor, above which each driver numbers epochs in its own way.
        return kind, lambda driver: driver.sweep(older_than=0, limit=99, dry_run=True, after=None)


def normal(answer: Any) -> Any:
    """An answer without what a driver may number in its own way."""
    return answer._replace(age=0, version=0) if isinstance(answer, Value) else answer


async def answer_of(driver: Driver, call: Call) -> Any:
    try:
        return normal(await call(driver))
    except FencedError as error:
        return error.reason, error.stored_epoch
    except PreconditionFailedError:
        return "precondition"


async def contents(driver: Driver) -> list[Any]:
    found: list[Any] = []
    for scope in SCOPES:
        found += [normal(await driver.read(scope, name)) for name in REGISTERS[scope.kind]]
        found += [await driver.load(scope, log) for log in LOGS["task"]]
    for kind in PRIMARY:
        for where in (
            Where(with_empty=True),
            Where(),
            Where(parent="p"),
            Where(status="x", updated_before=5),
        ):
            page = await driver.scan(kind, where=where, after=None, limit=9)
            found.append([(item.id, normal(item.value)) for item in page.items])
    return found


async def compare(driver: Driver, seed: int, calls: int, look: int) -> None:
    """Make random calls; look at all that can be read after every so many."""
    script = Script(seed)
    reference = MemoryDriver(namespace="test")
    await reference.setup(create=True)
    outcomes: set[tuple[str, str]] = set()
    for number in range(calls):
        kind, call = await script.draw(reference)
        answers = [await answer_of(each, call) for each in (driver, reference)]
        assert answers[0] == answers[1], (number, kind)
        if number % look == 0 or number == calls - 1:
            assert await contents(driver) == await contents(reference), (number, kind)
        refused = isinstance(answers[0], str) or type(answers[0]) is tuple
        outcomes.add((kind, "refused" if refused else "accepted"))
    kinds = ("claim", "write", "append", "replace", "remove")
    assert outcomes >= {(kind, how) for kind in kinds for how in ("accepted", "refused")}


@pytest.mark.sqlite
@pytest.mark.parametrize("seed", range(6))
async def test_random_calls_answer_like_the_reference(seed: int) -> None:
    """400 calls, and all that can be read after each."""
    sqlite = SqlDriver.from_url("sqlite://", namespace="test")
    await sqlite.setup(create=True)
    try:
        await compare(sqlite, seed, 400, 1)
    finally:
        await sqlite.aclose()


@pytest.mark.parametrize("way", ON_SERVERS)
async def test_random_calls_to_servers_answer_like_the_reference(way: str, namespace: str) -> None:
    """Whether a call is one statement or a transaction of steps."""
    async with server_driver(way, namespace) as driver:
        await compare(driver, 11, 300, 7)
