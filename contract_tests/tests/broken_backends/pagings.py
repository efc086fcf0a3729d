"""Defects of pages of filtered lists."""

from broken_backends.kit import mutant
from outlast.backends.memory import MemoryDriver


@mutant("L4")
class FilteredListsStartAgain(MemoryDriver):
    """With a filter, a list does not go on behind ``after`` but begins at its first item."""

    async def scan(self, kind, *, where, after, limit):
        if kind == "task" and (where.status is not None or where.parent is not None):
            page = await super().scan(kind, where=where, after=None, limit=10**9)
            return page._replace(next=None)
        return await super().scan(kind, where=where, after=after, limit=limit)
