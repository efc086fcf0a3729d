"""MariaDB: one server from PATH, with a database and a user for the tests."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from outlast_contract.servers._children import StartError
from outlast_contract.servers._programs import Search
from outlast_contract.servers._recipe import HOST, Command, Recipe
from outlast_contract.servers._wire import receive, talk

_USER = "outlast"
_PASSWORD = "s3cret"  # noqa: S105
"""Unlike every other word of the URL, so that a check can tell whether it is shown."""
_INIT_TIMEOUT = 120.0
_START = f"""
CREATE DATABASE IF NOT EXISTS {_USER} CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS '{_USER}'@'{HOST}' IDENTIFIED BY '{_PASSWORD}';
GRANT ALL ON {_USER}.* TO '{_USER}'@'{HOST}';
"""
"""Run by the server at each start."""


class MariadbRecipe(Recipe):
    """One MariaDB server that syncs at each commit."""

    kind = "mariadb"
    variable = "OUTLAST_TEST_MYSQL_URL"
    start_timeout: ClassVar[float] = 60.0

    _server: Path
    _installer: Path

    def find(self, search: Search) -> bool:
        server = search.on_path("mariadbd")
        installer = search.on_path("mariadb-install-db")
        if server is None or installer is None:
            return False
        self._server, self._installer = server, installer
        return True

    def prepare(self, home: Path, ports: Sequence[int]) -> None:
        (home / "start.sql").write_text(_START)
        done = subprocess.run(
            [
                self._installer,
                "--no-defaults",
                f"--datadir={home / 'data0'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                *(["--user=root"] if os.geteuid() == 0 else []),
                "--innodb-log-file-size=32M",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INIT_TIMEOUT,
            cwd="/",
            check=False,
        )
        if done.returncode:
            raise StartError(f"mariadb-install-db failed: {done.stdout}{done.stderr}")

    def command(self, home: Path, ports: Sequence[int], node: int) -> Command:
        options = {
            "datadir": home / "data0",
            "socket": home / "data0" / "socket",
            "pid-file": home / "data0" / "pid",
            "init-file": home / "start.sql",
            "bind-address": HOST,
            "port": ports[0],
            "innodb-flush-log-at-trx-commit": 1,
            "innodb-log-file-size": "32M",
            "max-connections": 300,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        user = ["--user=root"] if os.geteuid() == 0 else []
        return Command([self._server, "--no-defaults", *words, *user, *self.arguments])

    def is_up(self, port: int) -> bool:
        with talk(port) as connection:
            # The greeting's protocol number; 255 would begin an error. It comes after init-file.
            return receive(connection, 5)[4] == 10

    def url(self, ports: Sequence[int]) -> str:
        return f"mysql://{_USER}:{_PASSWORD}@{HOST}:{ports[0]}/{_USER}"


__all__ = ["MariadbRecipe"]
