"""The way to a Redis Cluster: redis-py knows the nodes, redirections are followed here.

A redirection is a refusal: the node did nothing, so following it repeats nothing.
"""

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.exceptions import AskError, ClusterDownError, MovedError, SlotNotCoveredError

from outlast.errors import OutlastError, UnavailableError
from outlast_redis._errors import RAISED, translate
from outlast_redis._links import Command, Connection, Link, freshen

_REDIRECTS: Final = 5


class NodeConnections:
    """The connections of one node, kept by redis-py."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        # Before redis-py 6 it had no method for it.
        self._give_back: Any = getattr(node, "release", None) or getattr(node, "_free").append  # noqa: B009

    async def acquire(self) -> Connection:
        connection = self._node.acquire_connection()
        try:
            await freshen(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            self._give_back(connection)
            raise
        return connection

    async def release(self, connection: Connection) -> None:
        self._give_back(connection)


class ClusterLink(Link):
    """The way to a cluster.

    Args:
        client: Knows the cluster's nodes; closed here only if ``owned``.
    """

    is_cluster = True

    def __init__(self, client: RedisCluster, place: str, limit: int, *, owned: bool) -> None:
        super().__init__(place, limit)
        self._client = client
        self._owned = owned
        self._is_stale = True

    async def send_all(self, commands: Sequence[tuple[bytes, Command]]) -> list[Any]:
        if len(commands) == 1:
            return [await self._send(*commands[0])]
        groups: dict[str, tuple[ClusterNode, list[int]]] = {}
        for place, (key, _) in enumerate(commands):
            node = await self._node_of(key)
            groups.setdefault(node.name, (node, []))[1].append(place)
        answers: list[Any] = [None] * len(commands)
        for node, places in groups.values():
            found = await self._on(node, [commands[place][1] for place in places])
            for place, answer in zip(places, found, strict=True):
                if isinstance(answer, AskError | MovedError):
                    answers[place] = await self._send(*commands[place])
                else:
                    answers[place] = self.checked([answer], self._name(node))[0]
        return answers

    async def ask_all(self, command: Command) -> list[Any]:
        await self._learn()
        answers: list[Any] = []
        for node in self._client.get_primaries():
            answers += self.checked(await self._on(node, [command]), self._name(node))
        return answers

    async def aclose(self) -> None:
        if self._owned:
            await self._client.nodes_manager.aclose()
            await self._client.nodes_manager.aclose("startup_nodes")

    async def _send(self, key: bytes, command: Command) -> Any:
        node = await self._node_of(key)
        asking: list[Command] = []
        for _ in range(_REDIRECTS):
            answer = (await self._on(node, [*asking, command]))[-1]
            if isinstance(answer, MovedError):
                self._is_stale = True
                await self._learn()
                node, asking = await self._named(answer, key), []
            elif isinstance(answer, AskError):
                # For this once, and on the same connection.
                node = await self._named(answer, key)
                asking = [("ASKING",)]
            else:
                self._is_stale = self._is_stale or isinstance(answer, ClusterDownError)
                return self.checked([answer], self._name(node))[0]
        raise UnavailableError(
            f"{self.place}: a slot is on the move; no node keeps it long enough to be asked"
        )

    async def _on(self, node: ClusterNode, commands: Sequence[Command]) -> list[Any]:
        try:
            return await self.on(NodeConnections(node), self._name(node), commands)
        except OutlastError:
            self._is_stale = True
            raise

    async def _node_of(self, key: bytes) -> ClusterNode:
        await self._learn()
        try:
            return self._client.get_node_from_key(key.decode("latin-1")) or self._nowhere()
        except SlotNotCoveredError as error:
            self._is_stale = True
            raise UnavailableError(f"{self.place}: no node serves one of its slots") from error

    def _nowhere(self) -> ClusterNode:
        raise SlotNotCoveredError("no node has this slot")

    async def _named(self, redirection: AskError, key: bytes) -> ClusterNode:
        where: Any = redirection
        node = self._client.get_node(where.host, int(where.port))
        return node or await self._node_of(key)

    async def _learn(self) -> None:
        """Ask for the nodes and their slots again, if what is known may be wrong."""
        if not self._is_stale:
            return
        try:
            if not self._owned:
                # It is half initialized otherwise, and of no use to its owner any more.
                await self._client.initialize()
            await self._client.nodes_manager.initialize()
        except RAISED as error:
            raise translate(error, self.place, sent=False) from error
        self._is_stale = False

    @staticmethod
    def _name(node: ClusterNode) -> str:
        return f"the Redis node {node.host}:{node.port}"


__all__ = ["ClusterLink"]
