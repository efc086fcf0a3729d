"""Defects of what sweeps find: over the file backend, which keeps long lists in pieces."""

import tempfile

from broken_backends.kit import BrokenHarness, mutant
from outlast.backends._objects import FileStore
from outlast.backends.file import FileDriver
from outlast.contracts import DriverBackend
from outlast.heads.sweeping import sweep


class _HeadsStay(FileStore):
    async def swap(self, key, data, head, token):
        return token


class _SweepLeavesTheHead(FileDriver):
    async def sweep(self, *, older_than, limit, dry_run, after):
        async def operation(ticket):
            store = _HeadsStay(self._directory.path, self.filesystem, self._files, ticket)
            return await sweep(store, older_than, limit, after, dry_run=dry_run)

        return await self._workers.run(operation)


@mutant("C4")
class SweepLeavesTheHead(BrokenHarness):
    """A sweep removes pieces and leaves the head as it is: a write prepared earlier refers to them
    in its next step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()

    async def stop(self) -> None:
        self._folder.cleanup()

    async def open_with(self, namespace, **options):
        driver = _SweepLeavesTheHead(f"{self._folder.name}/store", namespace=namespace)
        return DriverBackend(driver, namespace=namespace, **options)

    async def wipe(self, namespace: str) -> None:
        """The folder goes as a whole."""
