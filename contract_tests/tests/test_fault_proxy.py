"""The proxy between raw clients and real servers: it strikes the one exchange that it aims at."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Self

import pytest

from outlast_contract.faults import BlackHole, Delay, Exchange, Fault, Hold, Proxy, Slow, kinds
from outlast_contract.servers import Server, ServerUnavailable, mongodb, s3, shared_server
from outlast_contract.servers.postgres import query
from outlast_contract.servers.redis import ask

pytestmark = pytest.mark.faults


def server(kind: str) -> Server:
    try:
        return shared_server(kind)
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """Before the shared Redis server."""
    address = server("redis").addresses[0]
    async with Proxy(address, "redis") as running:
        yield running
    assert not running.connections


class Client:
    """A raw connection to Redis."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(*self._proxy.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def send(self, *commands: str) -> None:
        self.writer.write("".join(f"{command}\r\n" for command in commands).encode())

    async def line(self) -> str:
        """The next line; empty at the end of the connection."""
        async with asyncio.timeout(10):
            return (await self.reader.readline()).decode().rstrip()

    async def ask(self, command: str) -> str:
        self.send(command)
        return await self.line()


def direct(command: str) -> str:
    """An answer without the proxy."""
    return ask(server("redis").addresses[0][1], command)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    name = f"proxy:{request.node.name}".replace(" ", "_")
    direct(f"DEL {name}")
    return name


async def test_without_a_fault_everything_passes(proxy: Proxy, key: str) -> None:
    """One by one, and many requests at once."""
    async with Client(proxy) as client:
        assert await client.ask(f"SET {key} 0") == "+OK"
        client.send(*[f"INCR {key}"] * 50)
        assert [await client.line() for _ in range(50)] == [f":{n}" for n in range(1, 51)]
        assert await client.ask("NONSENSE") != ""
    assert proxy.script.calls == 52


BROKEN: dict[Fault, bool] = {
    kinds.cut: False,
    kinds.reset: False,
    kinds.cut_short: False,
    kinds.lose_reply: True,
    kinds.reset_reply: True,
    kinds.Truncate(0): True,
    kinds.Truncate(0.5): True,
    kinds.Truncate(1): True,
}


@pytest.mark.parametrize("fault", BROKEN, ids=[str(number) for number in range(len(BROKEN))])
@pytest.mark.parametrize("at", [1, 3])
async def test_the_aimed_exchange_breaks_and_no_other(
    proxy: Proxy, key: str, fault: Fault, at: int
) -> None:
    """The request has its effect if the fault lets it through; the connection is closed."""
    async with Client(proxy) as client:
        assert await client.ask(f"SET {key} 0") == "+OK"
        shot = proxy.script.arm(fault, at=at)
        for number in range(1, at):
            assert await client.ask(f"INCR {key}") == f":{number}"
        client.send(f"INCR {key}")
        try:
            async with asyncio.timeout(10):
                line = await client.reader.readline()
        except ConnectionResetError:
            line = b"reset"
        assert line in (b"reset", *(f":{at}\r\n".encode()[:length] for length in range(4)))
        assert (line == b"reset") == (fault in (kinds.reset, kinds.reset_reply))
    assert len(shot.hits) == 1
    assert shot.hits[0].request == f"INCR {key}\r\n".encode()
    assert direct(f"GET {key}") == str(at if BROKEN[fault] else at - 1)
    async with Client(proxy) as client:
        assert (await client.ask(f"INCR {key}")).startswith(":")


async def test_bytes_of_a_request_can_be_aimed_at(proxy: Proxy, key: str) -> None:
    """The second request that names the key, on whichever connection it comes."""
    shot = proxy.script.arm(kinds.lose_reply, at=2, matches=key.encode())
    async with Client(proxy) as one, Client(proxy) as other:
        assert await one.ask(f"INCR {key}") == ":1"
        assert await other.ask("GET another") == "$-1"
        assert await other.ask(f"INCR {key}") == ""
        assert await one.ask(f"INCR {key}") == ":3"
    assert shot.seen == 3
    assert len(shot.hits) == 1


async def test_several_in_a_row_and_all(proxy: Proxy, key: str) -> None:
    """``times`` counts from the one aimed at; after ``disarm`` everything passes."""
    proxy.script.arm(kinds.lose_reply, at=2, times=2)
    lines = []
    for _ in range(4):
        async with Client(proxy) as client:
            lines.append(await client.ask(f"INCR {key}"))
    assert lines == [":1", "", "", ":4"]
    proxy.script.arm(kinds.cut, times=None)
    for _ in range(3):
        async with Client(proxy) as client:
            assert await client.ask(f"INCR {key}") == ""
    proxy.script.disarm()
    async with Client(proxy) as client:
        assert await client.ask(f"INCR {key}") == ":5"


@pytest.mark.parametrize("is_gone", [True, False], ids=["the client gone", "the client waiting"])
async def test_a_held_request_arrives_when_it_is_released(
    proxy: Proxy, key: str, is_gone: bool
) -> None:
    """Also if its client has closed the connection: it becomes a late request."""
    hold = Hold()
    proxy.script.arm(hold)
    async with Client(proxy) as client:
        client.send(f"SET {key} late")
        await hold.arrived()
        if is_gone:
            client.writer.close()
            await client.writer.wait_closed()
        async with Client(proxy) as other:
            assert await other.ask(f"SET {key} new") == "+OK"
        assert direct(f"GET {key}") == "new"
        await hold.release()
        assert hold.reply == b"+OK\r\n"
        assert direct(f"GET {key}") == "late"
        if not is_gone:
            assert await client.line() == "+OK"


async def test_a_held_reply_comes_when_it_is_released(proxy: Proxy, key: str) -> None:
    """The server has done it long before."""
    hold = Hold(delivered=True)
    proxy.script.arm(hold)
    async with Client(proxy) as client:
        client.send(f"SET {key} done")
        await hold.arrived()
        assert direct(f"GET {key}") == "done"
        await hold.release()
        assert await client.line() == "+OK"


@pytest.mark.parametrize("delivered", [True, False])
async def test_a_black_hole_answers_nothing(proxy: Proxy, key: str, delivered: bool) -> None:
    """The connection stays open; other connections are served."""
    direct(f"SET {key} old")
    shot = proxy.script.arm(BlackHole(delivered=delivered))
    async with Client(proxy) as client, Client(proxy) as other:
        client.send(f"SET {key} new")
        async with asyncio.timeout(10):
            await shot.struck()
        assert await other.ask("PING") == "+PONG"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.reader.read(1)
        assert proxy.connections == 2
    assert direct(f"GET {key}") == ("new" if delivered else "old")


async def test_a_trickle_never_ends(proxy: Proxy, key: str) -> None:
    """All of the reply but its last byte arrives; then the connection stays open."""
    proxy.script.arm(kinds.Trickle(seconds=0.01))
    async with Client(proxy) as client:
        client.send(f"SET {key} new")
        async with asyncio.timeout(10):
            assert await client.reader.readexactly(4) == b"+OK\r"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.reader.read(1)
        assert proxy.connections == 1
    assert direct(f"GET {key}") == "new"


@pytest.mark.parametrize(
    "fault", [Delay(request=0.1), Delay(reply=0.1), Slow(seconds=0.1)], ids=["1", "2", "3"]
)
async def test_what_is_late_or_slow_arrives_whole(proxy: Proxy, key: str, fault: Fault) -> None:
    loop = asyncio.get_running_loop()
    value = "x" * 1000
    proxy.script.arm(fault)
    async with Client(proxy) as client:
        began = loop.time()
        assert await client.ask(f"SET {key} {value}") == "+OK"
        assert loop.time() - began >= 0.05
        proxy.script.arm(fault)
        assert await client.ask(f"GET {key}") == "$1000"
        assert await client.line() == value


async def test_a_fault_can_answer_what_it_likes(proxy: Proxy, key: str) -> None:
    """Instead of the server, or in other words than it."""

    async def invent(exchange: Exchange) -> None:
        await exchange.answer(b"-BUSY\r\n")

    async def change(exchange: Exchange) -> None:
        await exchange.deliver(exchange.request.replace(b"one", b"two"))
        await exchange.answer((await exchange.receive()).replace(b"OK", b"KO"))

    async with Client(proxy) as client:
        proxy.script.arm(invent)
        assert await client.ask(f"SET {key} one") == "-BUSY"
        proxy.script.arm(change)
        assert await client.ask(f"SET {key} one") == "+KO"
        assert await client.ask("GET another") == "$-1"
    assert direct(f"GET {key}") == "two"


async def test_a_server_that_refuses_connections_and_comes_back(proxy: Proxy) -> None:
    """At the same address; what was open is reset."""
    async with Client(proxy) as client:
        assert await client.ask("PING") == "+PONG"
        await proxy.refuse()
        with pytest.raises(ConnectionResetError):
            await client.line()
    with pytest.raises(ConnectionRefusedError):
        await Client(proxy).__aenter__()
    with pytest.raises(OSError, match=f"{proxy.address[1]}.*in use"):
        await asyncio.start_server(lambda _, __: None, *proxy.address)
    await proxy.accept()
    async with Client(proxy) as client:
        assert await client.ask("PING") == "+PONG"
    assert proxy.accepted == 2


async def test_a_closed_proxy_gives_its_port_back(proxy: Proxy) -> None:
    """Anybody may listen there then."""
    await proxy.aclose()
    (await asyncio.start_server(lambda _, __: None, *proxy.address)).close()


async def test_a_request_that_is_held_too_long_finds_the_server_gone(
    proxy: Proxy, key: str
) -> None:
    """The server may close the connection meanwhile; releasing ends all the same."""
    hold = Hold()
    async with Client(proxy) as client:
        await client.ask(f"CLIENT SETNAME {key.rpartition(':')[2]}")
        number = (await client.ask("CLIENT ID")).removeprefix(":")
        proxy.script.arm(hold)
        client.send(f"SET {key} late")
        await hold.arrived()
        direct(f"CLIENT KILL ID {number}")
        async with asyncio.timeout(10):
            await hold.release()
            assert await client.line() == ""
    assert direct(f"EXISTS {key}") == ":0"


async def test_a_server_that_is_gone_is_gone_behind_the_proxy() -> None:
    """Connections are closed at once."""
    async with Proxy(("127.0.0.1", 1), "redis") as proxy, Client(proxy) as client:
        with pytest.raises((ConnectionError, AssertionError)):
            assert await client.ask("PING") != ""


def redis_call(port: int, number: int) -> None:
    ask(port, "SETNX proxied:redis 0")
    if not ask(port, "INCR proxied:redis"):
        raise EOFError


def redis_count() -> int:
    return int(direct("GET proxied:redis"))


def postgres_call(port: int, number: int) -> None:
    query(port, "outlast", f"INSERT INTO proxied VALUES ({number})")


def postgres_count() -> int:
    port = server("postgres").addresses[0][1]
    return int(query(port, "outlast", "SELECT count(*) FROM proxied")[0][6:])


def mariadb_run(port: int, statement: str) -> str:
    access = ["--host=127.0.0.1", f"--port={port}", "--user=outlast", "--password=s3cret"]
    command = ["mariadb", "--no-defaults", "--skip-ssl", *access, "--batch", "outlast"]
    try:
        return subprocess.check_output(
            [*command, "--execute", statement], text=True, stderr=subprocess.PIPE
        )
    except subprocess.CalledProcessError as error:
        raise ConnectionError(error.stderr) from error


def mariadb_call(port: int, number: int) -> None:
    mariadb_run(port, f"INSERT INTO proxied VALUES ({number})")


def mariadb_count() -> int:
    port = server("mariadb").addresses[0][1]
    return int(mariadb_run(port, "SELECT count(*) FROM proxied").split()[-1])


def mongodb_call(port: int, number: int) -> None:
    documents = mongodb.Array({"0": {"n": number}})
    answer = mongodb.run(port, {"insert": "proxied", "documents": documents})
    assert b"\x10n\x00\x01" in answer


def mongodb_count() -> int:
    port = server("mongodb").addresses[0][1]
    answer = mongodb.run(port, {"count": "proxied"})
    return answer[answer.index(b"\x10n\x00") + 3]


def s3_call(port: int, number: int) -> None:
    s3.ask(port, "PUT", f"/buckets/outlast/proxied/{number}", b"x")


def s3_count() -> int:
    port = server("s3").ports[s3.FILER]
    paths = [f"/buckets/outlast/proxied/{number}" for number in range(1, 6)]
    return sum(s3.ask(port, "GET", path)[0] == 200 for path in paths)


@pytest.mark.parametrize(
    ("kind", "wire", "prepare", "call", "count"),
    [
        ("redis", "redis", lambda: direct("SET proxied:redis 0"), redis_call, redis_count),
        (
            "postgres",
            "postgresql",
            lambda: query(
                server("postgres").addresses[0][1],
                "outlast",
                "DROP TABLE IF EXISTS proxied; CREATE TABLE proxied (n int)",
            ),
            postgres_call,
            postgres_count,
        ),
        (
            "mariadb",
            "mysql",
            lambda: mariadb_run(
                server("mariadb").addresses[0][1],
                "CREATE OR REPLACE TABLE proxied (n int)",
            ),
            mariadb_call,
            mariadb_count,
        ),
        (
            "mongodb",
            "mongodb",
            lambda: mongodb.run(server("mongodb").addresses[0][1], {"drop": "proxied"}),
            mongodb_call,
            mongodb_count,
        ),
        ("s3", "http", lambda: None, s3_call, s3_count),
    ],
    ids=["redis", "postgresql", "mariadb", "mongodb", "s3"],
)
async def test_every_wire_is_understood_on_a_real_server(
    kind: str,
    wire: str,
    prepare: Callable[[], object],
    call: Callable[[int, int], None],
    count: Callable[[], int],
) -> None:
    """A request passes; one is cut and has no effect; one loses its reply and has its effect."""
    running = await asyncio.to_thread(server, kind)
    await asyncio.to_thread(prepare)
    host, port = running.addresses[0]
    if kind == "s3":
        port = running.ports[s3.FILER]  # which asks for no signature

    async def run(port: int, number: int) -> None:
        await asyncio.to_thread(call, port, number)

    async with Proxy((host, port), wire) as proxy:
        _, number = proxy.address
        base = await asyncio.to_thread(count)
        await run(number, 1)
        assert await asyncio.to_thread(count) == base + 1
        before = proxy.script.calls
        await run(number, 2)
        calls = proxy.script.calls - before
        shot = proxy.script.arm(kinds.cut, at=calls)
        with pytest.raises((OSError, EOFError)):
            await run(number, 3)
        assert len(shot.hits) == 1
        assert await asyncio.to_thread(count) == base + 2
        proxy.script.disarm()
        shot = proxy.script.arm(kinds.lose_reply, at=calls)
        with pytest.raises((OSError, EOFError)):
            await run(number, 4)
        assert len(shot.hits) == 1
        assert await asyncio.to_thread(count) == base + 3
        proxy.script.disarm()
        await run(number, 5)
        assert await asyncio.to_thread(count) == base + 4


async def test_asking_before_a_body_is_sent_is_a_way_there_and_back_of_its_own() -> None:
    """P1 counts it: a client with ``Expect: 100-continue`` waits twice for one call."""
    running = await asyncio.to_thread(server, "s3")
    head = "PUT /buckets/outlast/asked HTTP/1.1\r\nHost: s3\r\nContent-Length: 1\r\n"
    async with Proxy((running.addresses[0][0], running.ports[s3.FILER]), "http") as proxy:
        for asks, header in enumerate(["", "Expect: 100-continue\r\n"]):
            reader, writer = await asyncio.open_connection(*proxy.address)
            writer.write(f"{head}{header}\r\n".encode())
            if asks:
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"x")
            assert (await reader.readline()).startswith(b"HTTP/1.1 20")
            writer.transport.abort()
            assert (proxy.script.calls, proxy.script.asked) == (asks + 1, asks)
