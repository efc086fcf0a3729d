"""The steps of a mutation as one transaction on a link.

The steps are blocking code. SQLAlchemy's greenlets run them in the event loop, so that they need
neither a thread nor a second version of themselves.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn

from outlast_sql._links import Link
from outlast_sql._reads import Database, Dialect, Row

ResultT = TypeVar("ResultT")


class Rows:
    """What a statement returned."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    @property
    def rowcount(self) -> int:
        """Not known."""
        return -1

    def fetchone(self) -> Any:
        """The first row, or ``None``."""
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Any]:
        """All rows."""
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def close(self) -> None:
        """They are here already."""


class Session:
    """A link as the steps see it: a blocking database.

    Args:
        link: Idle.
        dialect: As the statements need it.
        written: Turns a statement with ``?`` into one that the link understands.
    """

    __slots__ = ("_link", "_written", "committing", "dialect")

    def __init__(self, link: Link, dialect: Dialect, written: Callable[[str], str]) -> None:
        self.dialect = dialect
        self._link = link
        self._written = written
        self.committing = False
        """Whether COMMIT was sent, so that the effect may be beyond recall."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        """Run one statement."""
        return Rows(await_only(self._link.fetch(self._written(sql), parameters)))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        """Run one statement for each of many rows."""
        await_only(self._link.run_many(self._written(sql), parameters))

    async def transaction(self, step: Callable[[Database], ResultT]) -> ResultT:
        """Run a step between BEGIN and COMMIT, or leave no trace of it."""
        await self._link.start()
        try:
            answer: ResultT = await greenlet_spawn(step, self)
            self.committing = True
            await self._link.run("COMMIT")
        except Exception as error:
            if self._is_open_after(error):
                await self._link.run("ROLLBACK")
            raise
        return answer

    def _is_open_after(self, error: Exception) -> bool:
        return self._link.survives(error)


@lru_cache(maxsize=256)
def numbered(statement: str) -> str:
    """``statement`` with ``$1``, ``$2`` and so on for its ``?``."""
    number = itertools.count(1)
    return re.sub(r"\?", lambda _: f"${next(number)}", statement)


__all__ = ["Session", "numbered"]
