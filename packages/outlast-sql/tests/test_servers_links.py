"""Connections to a server: closed by it, cancelled, in short supply; and what was sent on them."""

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from server_support import Admin, root_of, until
from server_ways import SERVERS, server_driver, url_of
from sql_support import Open, Owner, cancelled_at, claim_id
from sqlalchemy.ext.asyncio import create_async_engine

import outlast
from outlast.driver import Entry, Index, Scope
from outlast.errors import (
    OutcomeUnknownError,
    OutlastError,
    PayloadTooLargeError,
    UnavailableError,
)
from outlast_contract.servers import Server
from outlast_contract.stopwatch import Stopwatch
from outlast_sql import SqlBackend, SqlDriver

pytestmark = [pytest.mark.sql, pytest.mark.server]

TASK = Scope("task", "t")


@pytest.fixture(params=["asyncpg", "psycopg", "mariadb", "mysql"])
async def driver(request: pytest.FixtureRequest, namespace: str) -> AsyncIterator[SqlDriver]:
    """A driver with connections of its own."""
    async with server_driver(request.param, namespace) as opened:
        yield opened


BY_EACH_WAY = pytest.mark.parametrize(
    ("admin", "backend"),
    [
        ("postgres", "asyncpg"),
        ("postgres", "psycopg"),
        ("postgres", "lent asyncpg"),
        ("mariadb", "mariadb"),
        ("mariadb", "lent asyncmy"),
    ],
    indirect=True,
)
"""Servers, and the ways to a database there."""


@pytest.fixture
async def backend(request: pytest.FixtureRequest, admin: Admin) -> AsyncIterator[outlast.Backend]:
    """A backend on the database of ``admin``, for a test `BY_EACH_WAY`."""
    _, scheme = SERVERS[request.param]
    url = f"{scheme}://{admin.url.partition('://')[2]}"
    if request.param.startswith("lent"):
        engine = create_async_engine(url, pool_size=3)
        async with SqlBackend(engine=engine) as opened:
            yield opened
        await engine.dispose()
    else:
        async with outlast.open_backend(url, pool_size=3) as opened:
            yield opened


async def use_many(backend: outlast.Backend) -> None:
    """Make the backend open all the connections that it may."""
    states = [outlast.TaskState(id=f"t{number}") for number in range(8)]
    tasks = backend.persistence
    await asyncio.gather(*(tasks.save_task_state(state.id, state) for state in states))


@BY_EACH_WAY
async def test_connections_that_an_administrator_ends_cost_the_caller_nothing(
    backend: outlast.Backend, admin: Admin
) -> None:
    """H-Q9, C8: not even the calls that may not be repeated. All idle ones die, each time."""
    tasks = backend.persistence
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: tasks.load_task_state("t1"),
        lambda: tasks.save_task_state("t1", outlast.TaskState(id="t1")),
        lambda: tasks.update_task_state("t1", {"retry_count": 1}),
        lambda: tasks.append_api_message("t1", outlast.ApiMessage(id="a", role="user", content="")),
        lambda: tasks.claim_task("other"),
        lambda: tasks.delete_task("t3"),
        backend.ping,
    ]
    for call in calls:
        await use_many(backend)
        sessions = await admin.sessions()
        assert sessions
        await admin.kill(*sessions)
        await call()


@BY_EACH_WAY
async def test_calls_at_the_moment_of_the_kill_find_other_connections(
    backend: outlast.Backend, admin: Admin
) -> None:
    """C8: whatever the connections are doing; a mutation that may be applied says so."""
    tasks, rng = backend.persistence, random.Random(7)
    claim = await tasks.claim_task("t")
    done: list[str] = []

    async def work() -> None:
        for number in range(150):
            message = outlast.ApiMessage(id=f"m{number}", role="user", content="x")
            await tasks.append_api_message("t", message, claim=claim)
            done.append(message.id)
            await tasks.load_api_messages("t", last=1)

    working = asyncio.ensure_future(work())
    while not working.done():
        before = len(done)
        with contextlib.suppress(Exception):
            await admin.kill(*await admin.sessions())
        # Not before they got on: a slow machine would never be done with connecting.
        await until(lambda before=before: _is_further(working, done, before))
        await asyncio.sleep(rng.uniform(0, 0.1))
    await working
    assert [message.id for message in await tasks.load_api_messages("t")] == done


async def _is_further(working: asyncio.Future[None], done: list[str], before: int) -> bool:
    return working.done() or len(done) > before


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
async def test_a_killed_server_keeps_what_it_acknowledged(
    kind: str, start: Callable[..., Server]
) -> None:
    """D1, C8: and the backend goes on when it is back."""
    server = start(kind)
    async with outlast.open_backend(server.url, timeout=5.0) as backend:
        tasks = backend.persistence
        claim = await tasks.claim_task("t")
        done: list[str] = []

        async def work() -> None:
            while True:
                message = outlast.ApiMessage(id=f"m{len(done)}", role="user", content="x")
                await tasks.append_api_message("t", message, claim=claim)
                done.append(message.id)

        working = asyncio.ensure_future(work())
        while len(done) < 50:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(server.kill)
        with pytest.raises(OutlastError):
            await working
        await asyncio.to_thread(server.restart)
        found = [message.id for message in await tasks.load_api_messages("t")]
        assert found[: len(done)] == done
        assert len(found) <= len(done) + 1
        await tasks.append_api_message(
            "t", outlast.ApiMessage(id="last", role="user", content=""), claim=claim
        )


async def test_a_statement_whose_connection_is_ended_is_unknown(
    admin: Admin, open_on: Open
) -> None:
    """E2: sent and not answered; before a COMMIT it is certain that nothing happened."""
    driver = await open_on()
    await driver.append(TASK, "api", [Entry("a", b"1")], fence=None)
    root = await Admin.on(root_of(admin.url))
    ways = ((type(driver).append, OutcomeUnknownError), (SqlDriver.append, UnavailableError))
    for append, error in ways:
        await admin.run("BEGIN")
        await admin.rows("SELECT sid FROM outlast_scope FOR UPDATE")
        # The base class does it by steps, in a transaction.
        calling = asyncio.ensure_future(append(driver, TASK, "api", [Entry("b", b"")], fence=None))
        await until(lambda: _waits(root))
        await root.kill(*(set(await root.sessions()) - {await _own(admin)}))
        with pytest.raises(error):
            await calling
        await admin.run("COMMIT")
    assert [entry.id for entry in await driver.load(TASK, "api")] == ["a"]
    await root.close()


async def _waits(admin: Admin) -> bool:
    return await admin.waiting() > 0


async def _own(admin: Admin) -> int:
    query = "SELECT pg_backend_pid()" if admin.is_postgres else "SELECT CONNECTION_ID()"
    return int((await admin.rows(query))[0][0])


CALLS: dict[str, Callable[[SqlDriver, Owner, str], Awaitable[Any]]] = {
    "claim": lambda driver, owner, new: driver.claim(Scope("run", new), claim_id(1)),
    "read": lambda driver, owner, new: driver.read(TASK, "state"),
    "load": lambda driver, owner, new: driver.load(TASK, "api"),
    "write": lambda driver, owner, new: driver.write(
        TASK, "state", b"1", fence=owner.fence(), index=Index()
    ),
    "empty": lambda driver, owner, new: driver.write(TASK, "input", None, fence=owner.fence()),
    "append": lambda driver, owner, new: driver.append(
        TASK, "api", [Entry(new, b"1")], fence=owner.fence()
    ),
    "replace": lambda driver, owner, new: driver.replace(
        TASK, "api", [Entry(new, b"1"), Entry("x", b"")], fence=owner.fence()
    ),
    "remove": lambda driver, owner, new: driver.remove(TASK, fence=owner.fence()),
    "sweep": lambda driver, owner, new: driver.sweep(
        older_than=0, limit=9, dry_run=False, after=None
    ),
}


@pytest.mark.parametrize("name", CALLS)
async def test_cancelled_at_every_await_nothing_stays_behind(
    driver: SqlDriver, name: str, namespace: str
) -> None:
    """X1, X2, C8 (H-Q8): the next call gets its own answer, no transaction stays open."""
    claimed = await driver.claim(TASK, claim_id(1))
    owner = Owner(claimed.epoch, claim_id(1))
    admin = await Admin.on(root_of(url_of("asyncpg" if driver.name == "postgresql" else "mariadb")))
    step = 1
    while await cancelled_at(step, _ready(CALLS[name](driver, owner, secrets.token_hex(4)))):
        marker = secrets.token_hex(4)
        await driver.write(TASK, "input", marker.encode(), fence=owner.fence())
        assert (await driver.read(TASK, "input")).data == marker.encode()
        step += 1
    assert step > 1
    await admin.see_idle_transactions_end()
    await admin.close()


async def _ready(call: Awaitable[Any]) -> Any:
    return await call


async def test_a_cancelled_wait_for_a_lock_has_no_late_effect(admin: Admin, open_on: Open) -> None:
    """H-Q20, E6: PostgreSQL is told to forget the statement; MariaDB ends the wait in time."""
    driver = await open_on(timeout=2.0)
    await driver.append(TASK, "api", [Entry("a", b"1")], fence=None)
    root = await Admin.on(root_of(admin.url))
    await admin.run("BEGIN")
    await admin.rows("SELECT sid FROM outlast_scope FOR UPDATE")
    append = driver.append(TASK, "api", [Entry("b", b"1")], fence=None)
    appending = asyncio.ensure_future(append)
    await until(lambda: _waits(root))
    appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending

    async def has_none() -> bool:
        return await root.waiting() == 0

    await until(has_none)
    await admin.run("COMMIT")
    assert [entry.id for entry in await driver.load(TASK, "api")] == ["a"]
    await root.close()


async def test_a_lock_that_is_held_too_long_ends_the_call_in_time(
    admin: Admin, open_on: Open
) -> None:
    """E6: through the backend, which then goes on."""
    await open_on()
    async with outlast.open_backend(admin.url, timeout=3.0) as backend:
        tasks = backend.persistence
        await tasks.save_task_state("t", outlast.TaskState(id="t"))
        await admin.run("BEGIN")
        await admin.rows("SELECT sid FROM outlast_scope FOR UPDATE")
        with Stopwatch() as watch:
            with pytest.raises((UnavailableError, OutcomeUnknownError)):
                await tasks.save_task_state("t", outlast.TaskState(id="t", retry_count=1))
            assert watch.seconds < 5
        await admin.run("COMMIT")
        await tasks.save_task_state("t", outlast.TaskState(id="t", retry_count=2))
        state = await tasks.load_task_state("t")
        assert state is not None
        assert state.retry_count == 2


async def test_a_pool_that_is_used_up_is_unavailable_in_time(admin: Admin, open_on: Open) -> None:
    """E2, E6: it is certain that nothing was sent, and the message says what to raise."""
    driver = await open_on(timeout=3.0, pool_size=1)
    await driver.append(TASK, "api", [Entry("a", b"1")], fence=None)
    await admin.run("BEGIN")
    await admin.rows("SELECT sid FROM outlast_scope FOR UPDATE")
    waiting = asyncio.ensure_future(driver.append(TASK, "api", [Entry("b", b"1")], fence=None))
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="pool_size"):
        await driver.read(TASK, "state")
    await admin.run("COMMIT")
    with contextlib.suppress(UnavailableError):
        await waiting
    await driver.read(TASK, "state")


@BY_EACH_WAY
async def test_statements_prepared_before_a_change_of_the_tables_go_on(
    backend: outlast.Backend, admin: Admin
) -> None:
    """C8: a column of another type, and statements that a pooler has dropped."""
    tasks = backend.persistence
    for number in range(8):  # psycopg prepares what comes often
        await tasks.save_task_state("t", outlast.TaskState(id="t", retry_count=number))
        await tasks.load_task_state("t")
    kind = "ALTER COLUMN seq TYPE integer" if admin.is_postgres else "MODIFY seq INT NOT NULL"
    await admin.run(f"ALTER TABLE outlast_scope {kind}")
    state = await tasks.load_task_state("t")
    assert state is not None
    assert state.retry_count == 7
    await tasks.save_task_state("t", outlast.TaskState(id="t", retry_count=8))
    if admin.is_postgres and isinstance(backend, outlast.contracts.DriverBackend):
        driver = backend.driver
        assert isinstance(driver, SqlDriver)
        with contextlib.suppress(OutlastError):
            await driver._on_link(lambda link: link.run("DEALLOCATE ALL"), lambda: False)  # type: ignore[attr-defined]
        for number in range(4):
            await tasks.save_task_state("t", outlast.TaskState(id="t", retry_count=number))
            assert await tasks.load_task_state("t") is not None


@pytest.mark.parametrize("way", ["asyncpg", "psycopg", "mariadb", "mysql"])
async def test_values_of_many_megabytes_and_all_bytes_are_kept(way: str, namespace: str) -> None:
    """V3, V5, H-Q5, H-Q16: one message of the least limit, and a log of 64 MiB at once."""
    async with server_driver(way, namespace) as driver:
        every = bytes(range(256)) * (8 * 2**20 // 256)
        assert driver.capabilities.max_message_bytes >= len(every)
        await driver.write(TASK, "state", every, fence=None, index=Index())
        assert (await driver.read(TASK, "state")).data == every
        entries = [Entry(f"{number}", every) for number in range(8)]
        await driver.replace(TASK, "api", entries, fence=None)
        assert await driver.load(TASK, "api") == entries
        await driver.remove(TASK, fence=None)
        await driver.append(TASK, "user", entries, fence=None)
        assert await driver.load(TASK, "user", last=1) == entries[-1:]


async def test_mariadbs_default_packet_takes_the_least_limit(start: Callable[..., Server]) -> None:
    """V5, H-Q16: 16 MiB a packet, in which a message of 8 MiB travels as it is."""
    server = start("mariadb")
    driver = SqlDriver.from_url(server.url, namespace="test")
    await driver.setup(create=True)
    limit = driver.capabilities.max_message_bytes
    assert 8 * 2**20 <= limit < 16 * 2**20
    data = b"'\\\0\n" * (limit // 4)
    await driver.append(TASK, "api", [Entry("a", data)], fence=None)
    await driver.write(TASK, "state", data, fence=None, index=Index("p" * 512, "s" * 64))
    entries = [Entry(f"{number}", data) for number in range(5)]
    await driver.append(TASK, "user", entries, fence=None)
    await driver.replace(TASK, "api", entries, fence=None)
    assert await driver.load(TASK, "api") == entries
    assert (await driver.read(TASK, "state")).data == data
    # Eight of these, which as short ones would travel together, are more than a packet.
    entries = [Entry(f"{number}", b"x" * 2**21) for number in range(9)]
    await driver.replace(TASK, "api", entries, fence=None)
    assert await driver.load(TASK, "api") == entries
    await driver.aclose()


@pytest.mark.parametrize("mebibytes", [16, 32, 128])
async def test_larger_packets_of_mariadb_take_larger_messages(
    start: Callable[..., Server], mebibytes: int
) -> None:
    """V5: what is declared is what is stored, and what is refused; it is known once it is open."""
    server = start("mariadb", f"--max-allowed-packet={mebibytes}M")
    async with outlast.open_backend(server.url, timeout=60.0) as backend:
        limit = backend.capabilities.max_message_bytes
        assert (mebibytes - 1) * 2**20 < limit < mebibytes * 2**20
        empty = outlast.ApiMessage(id="m", role="u", content="")
        size = len(msgspec.json.encode(empty))
        full = msgspec.structs.replace(empty, content="x" * (limit - size))
        await backend.persistence.append_api_message("t", full)
        assert await backend.persistence.load_api_messages("t") == [full]
        larger = outlast.ApiMessage(id="l", role="u", content="x" * (limit - size + 1))
        with pytest.raises(outlast.PayloadTooLargeError, match=f"limit is {limit:,}"):
            await backend.persistence.append_api_message("t", larger)


@pytest.fixture
async def lax_mariadb(start: Callable[..., Server]) -> AsyncIterator[Admin]:
    """A server of the test's own with settings that it should not have; as root."""
    server = start("mariadb", "--sql-mode=", "--innodb-snapshot-isolation=ON")
    root = await Admin.on(root_of(server.url))
    root.url = server.url
    yield root
    await root.close()


@pytest.mark.parametrize("is_lent", [False, True], ids=["own", "lent"])
async def test_new_records_of_different_ids_never_end_in_a_deadlock(
    lax_mariadb: Admin, is_lent: bool
) -> None:
    """H-Q13, H-Q14: the default isolation level locks the gaps between records, too."""
    engine = None
    if is_lent:
        url = f"mysql+asyncmy://{lax_mariadb.url.partition('://')[2]}"
        engine = create_async_engine(url, pool_size=10)
        driver = SqlDriver.from_engine(engine, namespace="test")
    else:
        driver = SqlDriver.from_url(lax_mariadb.url, namespace="test")
    await driver.setup(create=True)
    for turn in range(3):
        scopes = [Scope("task", f"{turn} {number}") for number in range(40)]
        await asyncio.gather(*(driver.claim(scope, claim_id(1)) for scope in scopes))
    assert await lax_mariadb.rows("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'") == [
        ("Innodb_deadlocks", "0")
    ]
    await driver.aclose()
    if engine is not None:
        await engine.dispose()


@pytest.mark.parametrize("is_compound", [False, True], ids=["steps", "compound"])
async def test_a_value_that_is_too_long_is_never_cut(lax_mariadb: Admin, is_compound: bool) -> None:
    """H-Q16: the server would do it, and only warn."""
    driver = SqlDriver.from_url(lax_mariadb.url, namespace="test")
    await driver.setup(create=True)
    if not is_compound:
        driver._compound = False  # type: ignore[attr-defined]
    await driver.write(TASK, "state", b"first", fence=None, index=Index("p", "s" * 64))
    with pytest.raises(PayloadTooLargeError):
        await driver.write(TASK, "state", b"second", fence=None, index=Index("p", "s" * 65))
    found = await driver.read(TASK, "state")
    assert found.data == b"first"
    assert await lax_mariadb.rows("SELECT status FROM outlast.outlast_scope") == [(b"s" * 64,)]
    await driver.aclose()
