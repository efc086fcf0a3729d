"""Swaps that wait for each other go in one command, and have nothing else in common."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pymongo
import pytest
from mongo_support import Commands, Open, Owner, Proxy, Start, admin, claim_id, hurry, node_url
from pymongo.errors import OperationFailure, WaitQueueTimeoutError

from outlast.driver import Entry, Scope
from outlast.errors import FencedError, OutcomeUnknownError, UnavailableError
from outlast.heads import key_of, moment
from outlast_contract.servers import Server
from outlast_contract.stopwatch import Stopwatch
from outlast_mongo import MongoDriver
from outlast_mongo._errors import _NOT_DONE, translate
from outlast_mongo._swaps import AT_ONCE, Swap, _outcomes

pytestmark = pytest.mark.mongo

Raw = pymongo.database.Database[dict[str, Any]]
LATE = {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}
SCOPES = [Scope("task", f"t{number}") for number in range(32)]


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    """Between a client and the server."""
    async with Proxy(server.addresses[0][1]).running() as running:
        yield running


def _through(proxy: Proxy, server: Server, name: str) -> str:
    port = str(server.addresses[0][1])
    return node_url(server, 0, name).replace(port, str(proxy.port))


async def _claimed(driver: MongoDriver, number: int = 1) -> list[Owner]:
    return [Owner((await driver.claim(scope, claim_id(number))).fence) for scope in SCOPES]


async def _append(driver: MongoDriver, owners: list[Owner], name: str) -> list[Any]:
    """One entry to each scope at once; what became of each."""
    return await asyncio.gather(
        *(
            driver.append(scope, "api", [Entry(name, name.encode())], fence=owner.fence())
            for scope, owner in zip(SCOPES, owners, strict=True)
        ),
        return_exceptions=True,
    )


async def _loaded(driver: MongoDriver) -> list[list[str]]:
    return [[entry.id for entry in await driver.load(scope, "api")] for scope in SCOPES]


async def test_what_waits_anyway_goes_in_one_command(
    watched: tuple[MongoDriver, Commands],
) -> None:
    """And what does not wait goes at once, by itself."""
    driver, commands = watched
    owners = await _claimed(driver)
    commands.names.clear()
    for number in range(5):
        assert await _append(driver, owners, f"m{number}") == [[]] * len(SCOPES)
    assert set(commands.names) == {"update"}
    assert len(commands.names) <= 5 * (AT_ONCE + 2)
    assert await _loaded(driver) == [[f"m{number}" for number in range(5)]] * len(SCOPES)
    commands.names.clear()
    for number in range(5):
        await driver.append(SCOPES[0], "api", [Entry(f"n{number}", b"")], fence=owners[0].fence())
    assert commands.names == ["update"] * 5


async def test_each_in_a_command_has_its_own_outcome(
    watched: tuple[MongoDriver, Commands], open_driver: Open, raw: Raw
) -> None:
    """Heads that others changed, took over or removed; those beside them are done."""
    driver, _ = watched
    other = await open_driver(namespace="default")
    owners = await _claimed(driver)
    await _append(driver, owners, "m0")
    taken, bumped, gone = (set(range(start, len(SCOPES), 4)) for start in (1, 2, 3))
    for number in taken:
        await other.claim(SCOPES[number], claim_id(2))
    for number in bumped:
        # The same owner by another process: the head is another one, the claim is not.
        fence = owners[number].fence()
        await other.append(SCOPES[number], "api", [Entry("between", b"")], fence=fence)
    heads = raw["outlast_head"]
    before = heads.count_documents({})
    for number in gone:
        await other.remove(SCOPES[number], fence=owners[number].fence())
    after: str | None = None
    while True:
        page = await other.sweep(older_than=0, limit=100, dry_run=False, after=after)
        after = page.next
        if after is None:
            break
    outcomes = await _append(driver, owners, "m1")
    loaded = await _loaded(driver)
    for number, outcome in enumerate(outcomes):
        if number in taken | gone:
            assert isinstance(outcome, FencedError)
            assert outcome.reason == ("superseded" if number in taken else "no_record")
            assert outcome.applied is False
            assert loaded[number] == (["m0"] if number in taken else [])
        else:
            assert outcome == []
            between = ["between"] if number in bumped else []
            assert loaded[number] == ["m0", *between, "m1"]
    assert heads.count_documents({}) == before - len(gone)


@pytest.mark.usefixtures("broken_connections")
@pytest.mark.parametrize("driver_name", ["pymongo", "motor"])
async def test_a_lost_answer_to_many_is_settled_one_by_one(
    open_driver: Open, proxy: Proxy, server: Server, name: str, driver_name: str
) -> None:
    driver = await open_driver(_through(proxy, server, name), driver=driver_name)
    owners = await _claimed(driver)
    for number in range(3):
        # Only a swap of several has this in it.
        proxy.lose_answer(b"setOnInsert")
        assert await _append(driver, owners, f"m{number}") == [[]] * len(SCOPES)
        assert proxy.lost == number + 1
    assert await _loaded(driver) == [["m0", "m1", "m2"]] * len(SCOPES)
    await driver.aclose()  # while its server is there, lest it is just connecting


@pytest.mark.usefixtures("broken_connections")
async def test_whatever_a_server_answers_in_a_failover_each_is_done_once(start: Start) -> None:
    """E2: applied by the primary alone, interrupted, refused by one that is none any more."""
    server = start("mongodb", "--setParameter", "enableTestCommands=1")
    driver = MongoDriver.from_url(server.url)
    await driver.setup(create=True)
    owners = await _claimed(driver)
    answers: list[dict[str, Any]] = [
        LATE,
        {"writeConcernError": {"code": 11602, "errmsg": "the primary stepped down"}},
        {"errorCode": 11602},
        {"errorCode": 10107},
        {"closeConnection": True},
    ]
    names: list[str] = []
    for answer in answers:
        for times in (1, AT_ONCE + 1):
            names.append(f"m{len(names)}")
            data = {"failCommands": ["update"], **answer}
            command = {"configureFailPoint": "failCommand", "mode": {"times": times}, "data": data}
            admin(server, command)
            outcomes = await _append(driver, owners, names[-1])
            admin(server, {"configureFailPoint": "failCommand", "mode": "off"})
            assert outcomes == [[]] * len(SCOPES), answer
    assert await _loaded(driver) == [names] * len(SCOPES)
    await driver.aclose()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"n": 3}, [True, True, True]),
        ({"n": 2, "writeErrors": [{"index": 1, "code": 66}]}, [True, False, True]),
        ({"n": 1, "writeErrors": [{"index": 1, "code": 11600}]}, [None, None, None]),
        ({"n": 2, "writeErrors": [{"index": 2, "code": 10334}]}, [True, True, None]),
        ({"n": 2, "writeErrors": [{"index": 0, "code": 66}], **LATE}, [False, None, None]),
    ],
    ids=str,
)
def test_a_member_is_done_or_refused_only_if_the_answer_says_so(
    answer: dict[str, Any], expected: list[bool | None]
) -> None:
    """The server goes on after some errors and stops at others, and then names only the last."""
    found = _outcomes(answer, len(expected))
    assert [None if isinstance(one, Exception) else one for one in found] == expected


@pytest.mark.parametrize("code", [6, 7, 50, 89, 90, 202, 9001, None, 77777])
@pytest.mark.parametrize("count", [1, 3])
def test_a_code_that_does_not_say_that_nothing_was_done_is_unknown(
    code: int | None, count: int
) -> None:
    """E2: mongos tells so of a shard whose answer was lost, after the write or before it."""
    error = {"index": 0, "code": code, "errmsg": "Write results unavailable from a shard"}
    outcome, *_ = _outcomes({"n": count - 1, "writeErrors": [error]}, count)
    assert isinstance(outcome, OperationFailure)
    assert isinstance(translate(outcome, "it", changes=True), OutcomeUnknownError)
    assert isinstance(translate(outcome, "it", changes=False), UnavailableError)


@pytest.mark.parametrize("code", sorted(_NOT_DONE))
def test_a_code_that_says_that_nothing_was_done_is_believed(code: int) -> None:
    error = OperationFailure("refused", code)
    assert isinstance(translate(error, "it", changes=True), UnavailableError)


def test_a_call_that_found_no_free_connection_is_not_applied() -> None:
    """And what to do about it is said."""
    found = translate(WaitQueueTimeoutError("timed out"), "it", changes=True)
    assert isinstance(found, UnavailableError)
    assert "raise maxPoolSize" in found.message


async def _swaps_of(driver: MongoDriver, raw: Raw, *ends: float) -> list[Any]:
    """The outcomes of a swap at once for each scope; none changes more than one field."""
    assert driver._place is not None
    swaps = driver._place.swaps
    prefix, calls = driver._place.prefix, list[Any]()
    for scope, end in zip(SCOPES, ends, strict=False):
        head_id = prefix + key_of(scope)
        document = raw["outlast_head"].find_one({"_id": head_id})
        assert document is not None
        changed = {**document, "status": b"swapped"}
        del changed["_id"]

        async def run(swap: Swap) -> bool:
            with pymongo.timeout(max(0.01, swap.until - moment())):
                return await swaps.run(swap)

        calls.append(run(Swap(head_id, document["token"], changed, 1, end)))
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_each_command_has_the_time_of_those_in_it(
    watched: tuple[MongoDriver, Commands], raw: Raw
) -> None:
    """E6: not what is left to somebody who was there before."""
    driver, commands = watched
    await _claimed(driver)
    commands.limits.clear()
    now = moment()
    outcomes = await _swaps_of(driver, raw, *[now + 5] * AT_ONCE, *[now + 100] * 8)
    assert outcomes == [True] * (AT_ONCE + 8)
    limits = sorted(commands.limits)
    assert all(0 < limit <= 5000 for limit in limits[:AT_ONCE])
    assert all(50_000 < limit <= 100_000 for limit in limits[AT_ONCE:])
    assert len(limits) > AT_ONCE


@pytest.mark.usefixtures("broken_connections")
async def test_what_was_not_sent_in_time_is_never_sent(
    open_driver: Open, proxy: Proxy, server: Server, name: str, raw: Raw
) -> None:
    """E2."""
    driver = await open_driver(_through(proxy, server, name))
    owners = await _claimed(driver)
    with proxy.holding(b"outlast_head", AT_ONCE) as held:
        hanging = [
            asyncio.ensure_future(
                driver.append(scope, "api", [Entry("held", b"")], fence=owner.fence())
            )
            for scope, owner in zip(SCOPES[1 : AT_ONCE + 1], owners[1:], strict=False)
        ]
        await held()
        (late,) = await _swaps_of(driver, raw, moment())
        assert isinstance(late, UnavailableError)
    await asyncio.gather(*hanging)
    await driver._shield.drain()
    assert raw["outlast_head"].count_documents({"status": b"swapped"}) == 0
    await driver.aclose()


async def test_who_is_cancelled_takes_nobody_along(watched: tuple[MongoDriver, Commands]) -> None:
    """X1: in line, in the command, whether first or not."""
    driver, _ = watched
    owners = await _claimed(driver)
    for turns in range(1, 25):
        calls = [
            asyncio.ensure_future(
                driver.append(scope, "api", [Entry(f"m{turns}", b"")], fence=owner.fence())
            )
            for scope, owner in zip(SCOPES, owners, strict=True)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        struck = {number for number in range(0, len(SCOPES), 3) if calls[number].cancel()}
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for number, outcome in enumerate(outcomes):
            if number in struck:
                assert isinstance(outcome, asyncio.CancelledError)
            else:
                assert outcome == []
    await _append(driver, owners, "last")
    sent = [f"m{turns}" for turns in range(1, 25)]
    for number, found in enumerate(await _loaded(driver)):
        assert found[-1] == "last"
        assert found[:-1] == [entry for entry in sent if entry in found]
        if number % 3:
            assert found[:-1] == sent


@pytest.mark.usefixtures("broken_connections")
async def test_nobody_waits_for_commands_that_hang(
    open_driver: Open, proxy: Proxy, server: Server, name: str
) -> None:
    """E6: neither those that come later, nor longer than the time of a call."""
    driver = await open_driver(_through(proxy, server, name))
    owners = await _claimed(driver)

    def hang(entry: str) -> list[asyncio.Future[Any]]:
        return [
            asyncio.ensure_future(
                driver.append(scope, "api", [Entry(entry, b"")], fence=owner.fence())
            )
            for scope, owner in zip(SCOPES[:AT_ONCE], owners, strict=False)
        ]

    with proxy.holding(b"outlast_head", AT_ONCE) as held:
        hanging = hang("held")
        await held()
        rest = SCOPES[AT_ONCE:]
        assert await asyncio.gather(
            *(
                driver.append(scope, "api", [Entry("m", b"")], fence=owner.fence())
                for scope, owner in zip(rest, owners[AT_ONCE:], strict=True)
            )
        ) == [[]] * len(rest)
        assert not any(call.done() for call in hanging)
    assert await asyncio.gather(*hanging) == [[]] * AT_ONCE
    hurry(driver, 3.0)
    with proxy.holding(b"outlast_head", AT_ONCE) as held, Stopwatch() as watch:
        hanging = hang("held for too long")
        await held()
        outcomes = await asyncio.gather(*hanging, return_exceptions=True)
        assert watch.seconds < 3.0
    for outcome in outcomes:
        assert isinstance(outcome, (OutcomeUnknownError, UnavailableError)) or outcome == []
    await driver.aclose()


@pytest.mark.usefixtures("broken_connections")
async def test_a_command_takes_no_more_than_others_may_wait_for(
    open_driver: Open, proxy: Proxy, server: Server, name: str
) -> None:
    """Of large heads only a few; and if it hangs as well, the rest is sent all the same."""
    driver = await open_driver(_through(proxy, server, name))
    runs = [Scope("run", f"r{number}") for number in range(20)]
    owners = [Owner((await driver.claim(run, claim_id(1))).fence) for run in runs]
    with proxy.holding(b"outlast_head", AT_ONCE + 1) as held:
        calls = [
            asyncio.ensure_future(
                driver.write(run, "checkpoint", b"x" * 250_000, fence=owner.fence())
            )
            for run, owner in zip(runs, owners, strict=True)
        ]
        await held()
        done: set[Any] = set()
        while len(done) < 8:
            done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            if len(done) < 8:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert all(call.exception() is None for call in done)
        assert len(done) < len(calls)
    await asyncio.gather(*calls, return_exceptions=True)
    await driver.aclose()


async def test_closing_waits_for_commands_whose_callers_left(url: str) -> None:
    """C7."""
    driver = MongoDriver.from_url(url)
    await driver.setup(create=True)
    owners = await _claimed(driver)
    calls = [
        asyncio.ensure_future(driver.append(scope, "api", [Entry("m", b"")], fence=owner.fence()))
        for scope, owner in zip(SCOPES, owners, strict=True)
    ]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await driver.aclose()
    here = {asyncio.current_task()}
    assert not [task for task in asyncio.all_tasks() - here if "swaps" in repr(task.get_coro())]


@pytest.mark.usefixtures("broken_connections")
async def test_closing_waits_for_requests_whose_callers_left(
    open_driver: Open, proxy: Proxy, server: Server, name: str
) -> None:
    """C7: they end by themselves, in the time of a call."""
    driver = await open_driver(_through(proxy, server, name))
    await driver.read(SCOPES[0], "state")
    hurry(driver, 1.0)
    with proxy.holding(b"outlast_head", 1) as held:
        reading = asyncio.ensure_future(driver.read(SCOPES[0], "state"))
        await held()
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        await driver.aclose()
        here = {asyncio.current_task()}
        assert not [
            task for task in asyncio.all_tasks() - here if "_in_time" in repr(task.get_coro())
        ]
