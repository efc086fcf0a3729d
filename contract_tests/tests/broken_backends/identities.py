"""Defects of ids and namespaces."""

import posixpath
import unicodedata

from broken_backends.kit import BrokenHarness, mutant
from outlast.backends.memory import MemoryDriver
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.driver import Scope
from outlast.errors import InvalidIdError


class _Folded(MemoryDriver):
    """Keeps records under a folded id."""

    def fold(self, id: str) -> str:
        return id

    def _find(self, scope):
        return super()._find(Scope(scope.kind, self.fold(scope.id)))

    def _add(self, scope):
        return super()._add(Scope(scope.kind, self.fold(scope.id)))


@mutant("I1", "L4", "I3", "C1")
class IdsAreCaseFolded(_Folded):
    """Ids are case-folded, as by a collation or a file system."""

    def fold(self, id):
        return id.casefold() or id


@mutant("I1")
class TrailingSpacesDoNotCount(_Folded):
    """Trailing spaces do not count, as in PAD SPACE collations."""

    def fold(self, id):
        return id.rstrip(" ") or id


@mutant("I1", "L4")
class IdsAreNormalized(_Folded):
    """Ids are brought into one Unicode normal form, as by some file systems."""

    def fold(self, id):
        return unicodedata.normalize("NFC", id)


@mutant("I1", "L4")
class EmojiAreOne(_Folded):
    """Characters beyond the basic plane are one, as in old UTF-8 columns."""

    def fold(self, id):
        return "".join(one if one < "\U00010000" else "?" for one in id)


@mutant("I2", "I3", "C1")
class TheSeparatorIsNotEscaped(MemoryDriver):
    """The separator is not escaped: task 'a/b' lives below task 'a' and goes with it."""

    async def remove(self, scope, *, fence):
        await super().remove(scope, fence=fence)
        for space, other in list(self._store.records):
            if space == self._namespace and other.id.startswith(f"{scope.id}/"):
                del self._store.records[space, other]


@mutant("I2", "I1", "I3", "C1")
class PrefixesMatch(MemoryDriver):
    """Deleting t1 deletes what begins with t1."""

    async def remove(self, scope, *, fence):
        await super().remove(scope, fence=fence)
        for (space, other), record in list(self._store.records.items()):
            begins = other.kind == scope.kind and other.id.startswith(scope.id)
            if space == self._namespace and begins and other != scope:
                record.registers.clear()


@mutant("I3", "I1", "I2", "C1")
class IdsArePaths(_Folded):
    """'a//b' and 'a/b', './x' and 'x' are the same path."""

    def fold(self, id):
        return posixpath.normpath(id) if "\x00" not in id else id


@mutant("I3")
class IdsArePatterns(_Folded):
    """Braces in ids are taken for hash tags: what stands in them is the key."""

    def fold(self, id):
        _, brace, rest = id.partition("{")
        tag, end, _ = rest.partition("}")
        return tag if brace and end and tag else id


@mutant("I4")
class LongIdsAreRefused(MemoryDriver):
    """Ids of more than 255 bytes are refused."""

    def _find(self, scope):
        if len(scope.id.encode()) > 255:
            raise InvalidIdError("too long for a file name")
        return super()._find(scope)


@mutant("I4")
class AnEmptyIdIsFine(DriverPersistence):
    """The empty string is accepted as an id."""

    async def load_task_input(self, task_id):
        return None if task_id == "" else await super().load_task_input(task_id)


@mutant("I5")
class NamespacesAreCaseFolded(BrokenHarness):
    """Namespaces are folded like identifiers of a database."""

    async def open_with(self, namespace, **options):
        from outlast.values import check_id

        return await super().open_with(check_id(namespace, "namespace").lower().strip(), **options)


@mutant("I5")
class ListsShowOtherNamespaces(MemoryDriver):
    """Lists show the tasks of namespaces that begin alike."""

    async def scan(self, kind, *, where, after, limit):
        before = self._namespace
        try:
            for space, _ in list(self._store.records):
                if space.startswith(before) and space != before:
                    self._namespace = space
                    break
            return await super().scan(kind, where=where, after=after, limit=limit)
        finally:
            self._namespace = before
