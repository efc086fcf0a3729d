"""The way to a Redis Cluster: which node has a slot is learned here, and redirections followed.

A redirection is a refusal: the node did nothing, so following it repeats nothing. redis-py's own
cluster client gives the settings of connections only: it may send ASKING on another connection
than the command that it is for, and repeats what went unanswered.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError

from outlast.errors import OutlastError, UnavailableError
from outlast_redis._links import Command, Connection, Link, freshen

_REDIRECTS: Final = 5

_UNKNOWN: Final = ("", "?")
"""For a host that a node does not know: it is that by which the node itself was reached."""


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int


class NodeConnections:
    """The connections to one node."""

    def __init__(self, node: ClusterNode, patience: float | None) -> None:
        self._node: Any = node
        self._patience = patience
        # Before redis-py 6 it had no method for it.
        self._give_back: Any = getattr(node, "release", None) or self._node._free.append  # noqa: SLF001

    async def acquire(self) -> Connection:
        connection = self._node.acquire_connection()
        try:
            await freshen(connection, self._patience)
        except BaseException:
            await connection.disconnect(nowait=True)
            self._give_back(connection)
            raise
        return connection

    async def release(self, connection: Connection) -> None:
        self._give_back(connection)

    async def aclose(self) -> None:
        """Close all."""
        await self._node.disconnect()


class ClusterLink(Link):
    """The way to a cluster.

    Args:
        client: Knows how to connect, and some nodes to begin with; used for nothing else.
        patience: Seconds that connecting may take, the node's greeting included.
    """

    is_cluster = True

    def __init__(
        self, client: RedisCluster, place: str, limit: int, patience: float | None = None
    ) -> None:
        super().__init__(place, limit)
        self._patience = patience
        self._settings: dict[str, Any] = client.connection_kwargs
        manager: Any = client.nodes_manager
        self._remap: Any = getattr(manager, "address_remap", None)
        self._seeds = [
            Address(str(node.host), int(node.port)) for node in manager.startup_nodes.values()
        ]
        self._nodes: dict[Address, NodeConnections] = {}
        self._slots: list[tuple[int, int, Address]] = []
        self._learning = asyncio.Lock()
        self._is_stale = True
        self._cut_off: Address | None = None
        """Said last that the cluster is down, as a node does that has lost touch with the rest."""

    async def send_all(self, commands: Sequence[tuple[bytes, Command]]) -> list[Any]:
        if len(commands) == 1:
            return [await self._send(*commands[0])]
        groups: dict[Address, list[int]] = {}
        for place, (key, _) in enumerate(commands):
            groups.setdefault(await self._address_of(key), []).append(place)
        answers: list[Any] = [None] * len(commands)
        for address, places in groups.items():
            found = await self._on(address, [commands[place][1] for place in places])
            for place, answer in zip(places, found, strict=True):
                if isinstance(answer, AskError | MovedError):
                    answers[place] = await self._send(*commands[place])
                else:
                    answers[place] = self._judged(answer, address)
        return answers

    async def ask_all(self, command: Command) -> list[Any]:
        await self._learn()
        answers: list[Any] = []
        for address in dict.fromkeys(address for _, _, address in self._slots):
            answers += self.checked(await self._on(address, [command]), _name(address))
        return answers

    async def aclose(self) -> None:
        for node in self._nodes.values():
            await node.aclose()
        self._nodes.clear()

    async def _send(self, key: bytes, command: Command) -> Any:
        address = await self._address_of(key)
        asking: list[Command] = []
        for _ in range(_REDIRECTS):
            answer = (await self._on(address, [*asking, command]))[-1]
            if isinstance(answer, MovedError):
                self._is_stale = True
                address, asking = self._named(answer, address), []
            elif isinstance(answer, AskError):
                # For this once, and on the same connection.
                address = self._named(answer, address)
                asking = [("ASKING",)]
            else:
                return self._judged(answer, address)
        raise UnavailableError(
            f"{self.place}: a slot is on the move; no node keeps it long enough to be asked"
        )

    def _judged(self, answer: Any, address: Address) -> Any:
        """An answer that is no redirection, if it is no refusal either."""
        if isinstance(answer, ClusterDownError):
            self._is_stale = True
            self._cut_off = address
        return self.checked([answer], _name(address))[0]

    async def _on(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        node = self._nodes.get(address)
        if node is None:
            made = ClusterNode(address.host, address.port, **self._settings)
            node = self._nodes[address] = NodeConnections(made, self._patience)
        try:
            return await self.on(node, _name(address), commands)
        except OutlastError:
            self._is_stale = True
            raise

    async def _address_of(self, key: bytes) -> Address:
        await self._learn()
        slot = key_slot(key)
        for first, last, address in self._slots:
            if first <= slot <= last:
                return address
        self._is_stale = True
        raise UnavailableError(f"{self.place}: no node serves one of its slots")

    async def _learn(self) -> None:
        """Ask for the nodes and their slots, if what is known may be wrong."""
        async with self._learning:
            if not self._is_stale:
                return
            failure: OutlastError = UnavailableError("no node is known")
            known = dict.fromkeys([*(slots[2] for slots in self._slots), *self._seeds])
            for address in sorted(known, key=lambda one: one == self._cut_off):
                try:
                    answers = await self._on(address, [("CLUSTER", "SLOTS")])
                    found = self.checked(answers, _name(address))[0]
                except OutlastError as error:
                    failure = error
                    continue
                self._slots = [
                    (first, last, self._mapped((host or b"").decode(), port, address))
                    for first, last, (host, port, *_), *_ in found
                ]
                self._is_stale = False
                return
            raise type(failure)(f"{self.place}: {failure.message}") from failure

    def _named(self, redirection: Any, asked: Address) -> Address:
        """The node that a redirection names."""
        return self._mapped(redirection.host, int(redirection.port), asked)

    def _mapped(self, host: str, port: int, asked: Address) -> Address:
        if host in _UNKNOWN:
            host = asked.host
        return Address(*self._remap((host, port))) if self._remap else Address(host, port)


def _name(address: Address) -> str:
    return f"the Redis node {address.host}:{address.port}"


__all__ = ["ClusterLink"]
