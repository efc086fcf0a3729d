"""Lost replies, late replies, closed connections, stopped and killed servers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis_proxy import Proxy
from redis_support import ClosingBackend, Open, client_of

import outlast
from outlast.driver import Entry, Scope
from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast_contract.servers import Server
from outlast_contract.stopwatch import Stopwatch
from outlast_redis import RedisBackend, RedisDriver
from outlast_redis._links import _is_readable

TASK = Scope("task", "t")
Start = Callable[..., Server]


@pytest.fixture
async def proxy(shared: Server) -> AsyncIterator[Proxy]:
    async with Proxy(shared.addresses[0]) as started:
        yield started


@pytest.fixture
async def proxied(proxy: Proxy, open_driver: Open) -> RedisDriver:
    """A driver behind the proxy, with one connection that is open."""
    driver: RedisDriver = await open_driver(proxy.url, max_connections=1)
    await driver.append(TASK, "api", [], fence=None)
    await driver.write(TASK, "state", b"old", fence=None)
    return driver


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def test_a_lost_reply_is_unknown_and_nothing_is_sent_twice(
    proxied: RedisDriver, proxy: Proxy, driver: RedisDriver
) -> None:
    """H-R1: the driver repeats nothing by itself, and does not call it a failure either."""
    before = proxy.requests
    proxy.lose()
    with pytest.raises(OutcomeUnknownError):
        await proxied.append(TASK, "api", [Entry("a", b"1")], fence=None)
    assert proxy.requests == before + 1
    assert await driver.load(TASK, "api") == [Entry("a", b"1")]
    # The next call has a connection that works.
    assert await proxied.append(TASK, "api", [Entry("a", b"2")], fence=None) == [Entry("a", b"1")]


@pytest.mark.parametrize("lend", [False, True], ids=["url", "lent client that retries"])
async def test_messages_are_stored_once_whatever_replies_are_lost(
    proxy: Proxy, namespace: str, lend: bool
) -> None:
    """H-R1: the caller hears success, the log holds the message once; with any client."""
    made: outlast.Backend
    if lend:
        made = ClosingBackend(Redis(port=proxy.port), namespace=namespace)
    else:
        made = RedisBackend(url=proxy.url, namespace=namespace)
    async with made as backend:
        tasks = backend.persistence
        claim = await tasks.claim_task("t")
        for number in range(10):
            proxy.lose()
            message = outlast.ApiMessage(id=f"m{number}", role="user", content="x")
            await tasks.append_api_message("t", message, claim=claim)
        found = await tasks.load_api_messages("t")
        assert [message.id for message in found] == [f"m{number}" for number in range(10)]


async def test_a_cancelled_call_leaves_no_reply_to_the_next_one(
    proxied: RedisDriver, proxy: Proxy, driver: RedisDriver
) -> None:
    """H-R2: on the one connection there is, the next call gets its own answer, 30 times of 30."""
    for number in range(30):
        proxy.hold()
        replies = proxy.replies
        call = asyncio.create_task(
            proxied.append(TASK, "api", [Entry(f"m{number}", b"%d" % number)], fence=None)
        )
        await wait_until(lambda before=replies: proxy.replies > before)  # type: ignore[misc]
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        proxy.release()
        assert (await proxied.read(TASK, "state")).data == b"old"
        # The cancelled call had reached the server.
        assert await driver.load(TASK, "api", last=1) == [Entry(f"m{number}", b"%d" % number)]


@pytest.mark.parametrize("lend", [False, True], ids=["url", "lent client"])
async def test_a_connection_closed_while_idle_costs_nothing(
    shared: Server, namespace: str, client: Redis, lend: bool
) -> None:
    """H-Q9 for Redis, C8: also an unclaimed write, which cannot be repeated, goes through."""
    lent = client_of(shared)
    if lend:
        driver = RedisDriver.from_client(lent, namespace=namespace)
    else:
        driver = RedisDriver.from_url(shared.url, namespace=namespace)
    await driver.setup(create=True)
    for number in range(20):
        await driver.write(TASK, "state", b"%d" % number, fence=None)
        assert driver._link is not None
        for connection in connections_of(driver._link):
            # By name: other tests use the same server.
            address = "{}:{}".format(*connection._writer.get_extra_info("sockname"))
            await client.client_kill(address)
            while not _is_readable(connection):  # The server says so before it does so.
                time.sleep(0.001)  # noqa: ASYNC251 - the event loop shall not see it yet
        await driver.write(TASK, "input", b"%d" % number, fence=None)
    assert (await driver.read(TASK, "input")).data == b"19"
    await driver.aclose()
    await lent.aclose()


async def test_what_nobody_asked_for_is_nobodys_answer(proxied: RedisDriver, proxy: Proxy) -> None:
    """R2: also if the event loop has read it already."""
    assert proxied._link is not None
    (idle,) = connections_of(proxied._link)
    proxy.say(b"$5\r\nstray\r\n")
    await wait_until(lambda: bool(idle._reader._buffer))
    assert (await proxied.read(TASK, "state")).data == b"old"


async def test_a_connection_that_was_reset_while_idle_costs_nothing(
    proxied: RedisDriver, proxy: Proxy
) -> None:
    """C8: also if the event loop has closed it already."""
    assert proxied._link is not None
    (idle,) = connections_of(proxied._link)
    end = idle._writer.get_extra_info("socket")
    proxy.reset()
    await wait_until(lambda: end.fileno() < 0)
    await proxied.write(TASK, "state", b"new", fence=None)


async def test_a_cancellation_is_neither_swallowed_nor_leaves_anything(
    shared: Server, namespace: str
) -> None:
    """X1, C8: whatever a lent client that looks at its own time was doing just then."""
    host, port = shared.addresses[0]
    pool = BlockingConnectionPool(
        host=host, port=port, max_connections=1, timeout=60, socket_timeout=60
    )
    client = Redis(connection_pool=pool)
    driver = RedisDriver.from_client(client, namespace=namespace)
    await driver.setup(create=True)
    await driver.write(TASK, "state", b"old", fence=None)
    for turns in range(40):
        call = asyncio.ensure_future(driver.read(TASK, "state"))
        for _ in range(turns):
            await asyncio.sleep(0)
        if call.cancel():
            await asyncio.wait([call])
            assert call.cancelled(), turns
        assert (await driver.read(TASK, "input")).data is None
    await driver.aclose()
    await pool.disconnect()


@pytest.mark.parametrize("kind", [ConnectionPool, BlockingConnectionPool])
@pytest.mark.parametrize("patience", [0.2, 60])
async def test_a_pool_without_a_connection_left_is_told_so(
    shared: Server, namespace: str, kind: type[ConnectionPool], patience: float
) -> None:
    """Host and TLS are not the matter, whoever loses patience first: the pool or the call."""
    host, port = shared.addresses[0]
    waiting: dict[str, Any] = {"timeout": patience} if kind is BlockingConnectionPool else {}
    pool: Any = kind(host=host, port=port, max_connections=1, **waiting)
    client = Redis(connection_pool=pool)
    driver = RedisDriver.from_client(client, namespace=namespace, timeout=1)
    await client.ping()  # Connected by now, it takes none of that second.
    await driver.setup(create=True)
    async with client.client():  # It keeps one connection.
        with pytest.raises(UnavailableError, match="in use; raise its max_connections") as caught:
            await driver.read(TASK, "state")
    assert "TLS" not in str(caught.value)
    assert (await driver.read(TASK, "state")).data is None
    await driver.aclose()
    await pool.disconnect()


class SlowPool(BlockingConnectionPool):
    """Of an application that does something whenever a connection comes back."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_releasing = asyncio.Event()

    async def release(self, connection: Any) -> None:
        self.is_releasing.set()
        await asyncio.sleep(0)
        await super().release(connection)


async def test_a_connection_comes_back_whoever_is_cancelled(shared: Server, namespace: str) -> None:
    """C8: or the pool, which counts, would have none left."""
    host, port = shared.addresses[0]
    pool = SlowPool(host=host, port=port, max_connections=1, timeout=30)
    driver = RedisDriver.from_client(Redis(connection_pool=pool), namespace=namespace)
    await driver.setup(create=True)
    for _ in range(3):
        pool.is_releasing.clear()
        call = asyncio.ensure_future(driver.read(TASK, "state"))
        await pool.is_releasing.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
    assert (await driver.read(TASK, "state")).data is None
    await driver.aclose()
    await pool.disconnect()


def connections_of(link: Any) -> list[Any]:
    """The idle connections of a single server's link."""
    lender = link._lender
    found = getattr(lender, "_free", None)
    return list(lender._pool._available_connections if found is None else found)


async def test_calls_wait_for_a_connection_within_the_limit(
    proxied: RedisDriver, proxy: Proxy
) -> None:
    """Fifty calls at once on one connection: each is answered, none is refused."""
    await asyncio.gather(
        *(proxied.append(TASK, "user", [Entry(f"m{n}", b"x")], fence=None) for n in range(50))
    )
    assert len(await proxied.load(TASK, "user")) == 50
    assert proxy.accepted == 1


async def test_a_stopped_server_ends_calls_in_time_and_serves_on(
    start: Start, namespace: str
) -> None:
    """E6: unknown for what was sent, unavailable for a read, and nothing is stuck afterwards."""
    server = start()
    backend = RedisBackend(url=server.url, namespace=namespace)
    async with backend:
        tasks = backend.persistence
        await tasks.save_task_state("t", outlast.TaskState(id="t"))
        await asyncio.to_thread(server.stop)
        with pytest.MonkeyPatch.context() as patch, Stopwatch() as watch:
            patch.setattr(backend._calls, "_timeout", 1.0)  # For now: opening had more.
            with pytest.raises(OutcomeUnknownError):
                await tasks.save_task_state("t", outlast.TaskState(id="t", retry_count=1))
            with pytest.raises(UnavailableError):
                await tasks.load_task_state("t")
            assert watch.seconds < 2.5
        await asyncio.to_thread(server.cont)
        state = await tasks.load_task_state("t")
        assert state is not None
        assert state.retry_count in (0, 1)
        await tasks.save_task_state("t", outlast.TaskState(id="t", retry_count=2))


async def test_a_server_that_is_away_is_named_and_nothing_was_applied(
    start: Start, open_driver: Open
) -> None:
    """E2: a refused connection means certainly not applied."""
    server = start()
    driver = await open_driver(server.url)
    server.kill()
    for call in (
        driver.write(TASK, "state", b"x", fence=None),
        driver.read(TASK, "state"),
        driver.ping(),
    ):
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1") as caught:
            await call
        assert caught.value.applied is False
    await asyncio.to_thread(server.restart)
    assert await driver.write(TASK, "state", b"x", fence=None) == 1


async def test_a_restarted_server_answers_loading_as_not_applied(
    start: Start, open_driver: Open
) -> None:
    """While it loads its data, a call may be repeated: every error of that time says so."""
    # It answers once in 1,024 commands of its log, which would take it 20 seconds.
    server = start("redis", "--key-load-delay", "500")
    driver = await open_driver(server.url)
    await driver.append(TASK, "api", [Entry("m", b"x")], fence=None)
    async with client_of(server) as client:
        fill = "for number = 1, 40960 do redis.call('SET', 'key' .. number, 'x') end"
        await client.eval(fill, 0)
    server.kill()
    restarting = asyncio.create_task(asyncio.to_thread(server.restart))
    refusals: list[UnavailableError] = []
    is_seen = False
    while not restarting.done():
        try:
            await driver.append(TASK, "user", [], fence=None)
        except UnavailableError as error:
            refusals.append(error)
            if "loading" in error.message and not is_seen:
                is_seen = True
                async with client_of(server) as client:
                    await client.config_set("key-load-delay", 0)
    await restarting
    assert is_seen
    assert all(error.applied is False for error in refusals)
    assert await driver.load(TASK, "api") == [Entry("m", b"x")]
