"""Lost replies, late replies, closed connections, stopped and killed servers."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from redis.asyncio import Redis
from redis_support import ClosingBackend, Open, client_of

import outlast
from outlast.driver import Entry, Scope
from outlast.errors import ConfigurationError, OutcomeUnknownError, UnavailableError
from outlast_contract.servers import Server
from outlast_redis import RedisBackend, RedisDriver

TASK = Scope("task", "t")
Start = Callable[..., Server]


class Proxy:
    """Passes bytes between clients and a server, and can hold replies back or lose them.

    Attributes:
        requests: How often a client sent something that contains ``counted``.
    """

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls
        self._pass = asyncio.Event()
        self._pass.set()
        self._losing = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.counted = b"EVALSHA"
        self.requests = 0
        self.replies = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def hold(self) -> None:
        """Keep replies back until `release`."""
        self._pass.clear()

    def release(self) -> None:
        self._pass.set()

    def lose(self, count: int = 1) -> None:
        """Close the connection instead of passing the next replies on."""
        self._losing = count

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream, upstream_writer = await asyncio.open_connection(*self._address)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(reader, upstream_writer))
                group.create_task(self._replies(upstream, writer))
        except* (OSError, EOFError):
            pass
        finally:
            for each in (writer, upstream_writer):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()
            self._tasks.discard(task)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.requests += data.count(self.counted)
            writer.write(data)
            await writer.drain()
        raise EOFError

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.replies += 1
            await self._pass.wait()
            if self._losing:
                self._losing -= 1
                break
            writer.write(data)
            await writer.drain()
        raise EOFError


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
        await driver.write(TASK, "input", b"%d" % number, fence=None)
    assert (await driver.read(TASK, "input")).data == b"19"
    await driver.aclose()
    await lent.aclose()


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


async def test_a_stopped_server_ends_calls_in_time_and_serves_on(
    start: Start, namespace: str
) -> None:
    """E6: unknown for what was sent, unavailable for a read, and nothing is stuck afterwards."""
    server = start()
    backend = outlast.open_backend(server.url, namespace=namespace, timeout=0.5)
    async with backend:
        tasks = backend.persistence
        await tasks.save_task_state("t", outlast.TaskState(id="t"))
        await asyncio.to_thread(server.stop)
        async with asyncio.timeout(5):
            with pytest.raises(OutcomeUnknownError):
                await tasks.save_task_state("t", outlast.TaskState(id="t", retry_count=1))
            with pytest.raises(UnavailableError):
                await tasks.load_task_state("t")
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
    # It answers once in 1,024 commands of its log.
    server = start("redis", "--key-load-delay", "500")
    driver = await open_driver(server.url)
    await driver.append(TASK, "api", [Entry("m", b"x")], fence=None)
    async with client_of(server) as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(4096):
            pipeline.set(f"key{number}", "x")
        await pipeline.execute()
    server.kill()
    restarting = asyncio.create_task(asyncio.to_thread(server.restart))
    refusals: list[UnavailableError] = []
    while not restarting.done():
        try:
            await driver.append(TASK, "user", [], fence=None)
        except UnavailableError as error:
            refusals.append(error)
    await restarting
    assert any("loading" in error.message for error in refusals)
    assert all(error.applied is False for error in refusals)
    assert await driver.load(TASK, "api") == [Entry("m", b"x")]


class TestSetUp:
    """Bad servers and bad addresses end in documented errors, in time, without the password."""

    async def refusal(self, url: str, **options: Any) -> outlast.OutlastError:
        backend = outlast.open_backend(url, timeout=3.0, **options)
        async with asyncio.timeout(10):
            with pytest.raises((ConfigurationError, UnavailableError)) as caught:
                await backend.open()
        error: Any = caught.value
        chain: BaseException | None = error
        while chain is not None:
            assert "hunter2" not in f"{chain} {chain!r}"
            chain = chain.__cause__ or chain.__context__
        return error  # type: ignore[no-any-return]

    async def test_a_wrong_password(self, start: Start) -> None:
        """Refused as a matter of configuration, whatever is wrong with the credentials."""
        host, port = start("redis", "--requirepass", "right").addresses[0]
        for credentials in (":hunter2", "nobody:hunter2"):
            error = await self.refusal(f"redis://{credentials}@{host}:{port}")
            assert isinstance(error, ConfigurationError)
            assert "password" in str(error)
        error = await self.refusal(f"redis://{host}:{port}")
        assert isinstance(error, ConfigurationError)
        async with outlast.open_backend(f"redis://:right@{host}:{port}") as backend:
            await backend.ping()

    async def test_a_database_that_is_not_there(self, shared: Server) -> None:
        """The number is named as what to check."""
        host, port = shared.addresses[0]
        error = await self.refusal(f"redis://{host}:{port}/99")
        assert isinstance(error, ConfigurationError)
        assert "number" in str(error)

    async def test_nobody_there(self) -> None:
        """Refused connections and unknown hosts."""
        assert isinstance(await self.refusal("redis://:hunter2@127.0.0.1:1"), UnavailableError)
        assert isinstance(await self.refusal("redis://host.invalid"), UnavailableError)
        assert isinstance(await self.refusal("redis+cluster://127.0.0.1:1"), UnavailableError)

    async def test_tls_where_there_is_none(self, shared: Server) -> None:
        """The scheme without TLS is named."""
        host, port = shared.addresses[0]
        error = await self.refusal(f"rediss://:hunter2@{host}:{port}")
        assert "redis://" in str(error)

    async def test_tls_with_a_certificate_of_ones_own(
        self, shared: Server, tmp_path: Path, namespace: str
    ) -> None:
        """Trusted if it is given, refused if it is not, and no plain talk to a TLS port."""
        if shutil.which("openssl") is None:
            pytest.skip("NOT RUN: needs openssl to make a certificate")
        certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        openssl = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test"
        names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
        await asyncio.to_thread(
            subprocess.run, [*openssl.split(), *names], check=True, capture_output=True
        )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        async with Proxy(shared.addresses[0], context) as proxy:
            url = f"rediss://127.0.0.1:{proxy.port}/0"
            trusting = f"{url}?ssl_ca_certs={certificate}"
            async with outlast.open_backend(trusting, namespace=namespace) as backend:
                await backend.persistence.save_task_state("t", outlast.TaskState(id="t"))
            error = await self.refusal(url)
            assert isinstance(error, ConfigurationError)
            assert "certificate" in str(error)
            await self.refusal(url.replace("rediss", "redis"))

    async def test_a_cluster_where_there_is_none(self, shared: Server) -> None:
        """A single server cannot be used as a cluster."""
        host, port = shared.addresses[0]
        assert isinstance(await self.refusal(f"redis+cluster://{host}:{port}"), ConfigurationError)

    async def test_a_replica(self, start: Start) -> None:
        """F4: reads from it may be old, and it takes no writes."""
        primary = start()
        host, port = primary.addresses[0]
        replica = start("redis", "--replicaof", f"{host} {port}")
        error = await self.refusal(replica.url)
        assert isinstance(error, ConfigurationError)
        assert "replica" in str(error)

    async def test_a_user_that_may_not(self, start: Start) -> None:
        """A missing permission is named; INFO and CONFIG may be missing without harm."""
        server = start()
        host, port = server.addresses[0]
        admin = client_of(server)
        assert isinstance(admin, Redis)
        app = ("on", ">pw", "~outlast:*", "+@all", "-config", "-info")
        await admin.execute_command("ACL", "SETUSER", "app", *app)
        reader = ("on", ">pw", "~*", "+@read", "+info")
        await admin.execute_command("ACL", "SETUSER", "reader", *reader)
        await admin.aclose()
        async with outlast.open_backend(f"redis://app:pw@{host}:{port}", strict=True) as backend:
            await backend.persistence.save_task_state("t", outlast.TaskState(id="t"))
            assert backend.capabilities.data_survives == {"process"}
            await backend.sweep(older_than=timedelta(0))
        error = await self.refusal(f"redis://reader:pw@{host}:{port}")
        assert isinstance(error, ConfigurationError)
        assert "may not" in str(error)
