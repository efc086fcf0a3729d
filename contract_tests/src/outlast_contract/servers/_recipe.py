"""What each kind of server says of itself; the rest of the package is the same for all kinds."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from outlast_contract.servers._programs import Search

HOST = "127.0.0.1"
SOCKET = "socket"
"""Name of the keeper's socket in the folder of a server."""


@dataclasses.dataclass(frozen=True)
class Command:
    """How one process is started.

    Attributes:
        arguments: Program first.
        user: Whom it runs as; ``None``: whoever we are.
        environment: Instead of ours, if given.
    """

    arguments: Sequence[str | Path]
    user: str | None = None
    environment: Mapping[str, str] | None = None


class Recipe(abc.ABC):
    """How one kind of server is started as child processes on this host.

    A server has one or more nodes; each has a port, a data folder of its own below ``home``, and
    comes back on both when it is started again.
    """

    kind: ClassVar[str]
    variable: ClassVar[str]
    """Of the environment: the URL of a server that is there already."""
    nodes: ClassVar[int] = 1
    ports_per_node: ClassVar[int] = 1
    start_timeout: ClassVar[float] = 30.0
    image: ClassVar[tuple[str, str] | None] = None
    """The container image that serves where no program is found, and the program in it."""
    program: Path
    """What is started; known once it is found."""

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        """Make a recipe.

        Args:
            arguments: Given to each server process, behind our own.
        """
        self.arguments: tuple[str, ...] = tuple(arguments)

    @abc.abstractmethod
    def find(self, search: Search) -> bool:
        """Look for the programs; keep them."""

    def prepare(self, home: Path, ports: Sequence[int]) -> None:  # noqa: B027 - often nothing
        """Lay out what the nodes need before their first start."""

    @abc.abstractmethod
    def command(self, home: Path, ports: Sequence[int], node: int) -> Command:
        """How a node is started, the first time and again."""

    @abc.abstractmethod
    def is_up(self, port: int) -> bool:
        """Ask the node once, over the wire, whether it serves.

        Raises:
            OSError: It does not answer; asked again.
        """

    def settle(self, ports: Sequence[int]) -> None:  # noqa: B027 - often nothing
        """Once, when all nodes are up for the first time: join them, create the database."""

    def is_ready(self, ports: Sequence[int]) -> bool:
        """Whether the server as a whole serves; asked after `settle` and after each restart."""
        return True

    def leftovers(self, ports: Sequence[int]) -> Sequence[Path]:
        """What a killed server leaves outside its folder."""
        return ()

    @abc.abstractmethod
    def url(self, ports: Sequence[int]) -> str:
        """The store URL for ``outlast.open_backend``."""

    def options(self, ports: Sequence[int]) -> dict[str, str]:
        """Keywords that go with the URL."""
        return {}


def address(ports: Sequence[int], node: int, per_node: int) -> tuple[str, int]:
    """Where a node's main port is."""
    return HOST, ports[node * per_node]


__all__ = ["HOST", "SOCKET", "Command", "Recipe", "address"]
