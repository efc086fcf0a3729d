"""One connection to a server, and what the driver asks of it."""

import abc
import select
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from outlast.errors import ConfigurationError
from outlast.url import StoreURL, redact
from outlast_sql._reads import Row

CLOSING_SECONDS: Final = 2.0
"""How long a server may take to say goodbye."""
IDLE_SECONDS: Final = 2
"""How long a process that was stopped in the middle of a transaction may hold others up: then the
server ends its connection, and with it the transaction."""


class Link(abc.ABC):
    """A connection in autocommit mode: a statement by itself is a transaction.

    What it raises are the errors of the library beneath; `survives` judges them.
    """

    begin: ClassVar[str]
    """Begins a transaction in which each statement sees what is committed before it."""
    is_used: bool = False
    """Whether a call has ended well on it; it may have died since."""

    async def borrowed(self) -> None:  # noqa: B027 - nothing to do for some
        """Enter autocommit mode, on a connection that somebody else owns."""

    async def returned(self) -> None:  # noqa: B027
        """Leave it as it was."""

    @abc.abstractmethod
    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[Row]:
        """Run one statement; its rows, or none."""

    @abc.abstractmethod
    async def run(self, sql: str) -> None:
        """Run a statement, without parameters, for its effect."""

    async def start(self) -> None:
        """Begin a transaction."""
        await self.run(self.begin)

    @abc.abstractmethod
    async def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run an INSERT for each of many rows, inside a transaction."""

    @abc.abstractmethod
    def survives(self, error: BaseException) -> bool:
        """Whether it may be used again after this error: a refusal of the server, no more."""

    @abc.abstractmethod
    def sent_nothing(self, error: BaseException) -> bool:
        """Whether the library refused to send the statement, since the connection is closed."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Say goodbye, within `CLOSING_SECONDS`."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """Close the socket, from wherever: its event loop may have ended."""

    @property
    @abc.abstractmethod
    def _socket(self) -> Any:
        """Something with a file descriptor, or ``None`` if it is closed."""

    def is_fresh(self) -> bool:
        """Whether it is open, and nothing arrived while it was idle.

        What arrives unasked is its end, which the event loop may not have seen yet: noticed here,
        it costs the caller nothing, since nothing was sent (H-Q9).
        """
        source = self._socket
        if source is None:
            return False
        if not hasattr(select, "poll"):  # Windows has none.
            return True
        poll = select.poll()
        try:
            poll.register(source, select.POLLIN)
        except ValueError:  # It has been closed.
            return False
        return not poll.poll(0)


def abandon_transport(transport: Any) -> None:
    """Close a transport's socket although its event loop has ended."""
    if transport is None:
        return
    try:
        transport.abort()
    except RuntimeError:
        # It cannot be told so by a loop that is closed; its owner is told nothing either.
        source = getattr(transport, "_sock", None)
        if source is not None:
            transport._sock = None  # noqa: SLF001 - or the garbage collector complains
            source.close()


def check_files(url: StoreURL, *options: str) -> None:
    """Refuse files that ``options`` of the URL name and this process cannot read: a library may not
    say which it was.

    Raises:
        ConfigurationError: There is one.
    """
    for name in options:
        if name in url.query:
            try:
                Path(url.query[name]).open("rb").close()
            except OSError as error:
                raise ConfigurationError(
                    f"{redact(url.text)!r}: the file that {name} names cannot be read: "
                    f"{error.strerror}"
                ) from error


__all__ = ["CLOSING_SECONDS", "IDLE_SECONDS", "Link", "abandon_transport", "check_files"]
