"""Defects of what sweeps find: over the file backend, which keeps long lists in pieces."""

import tempfile
from pathlib import Path

from broken_backends.kit import BrokenHarness, mutant
from outlast.backends._objects import FileStore
from outlast.backends.file import FileDriver
from outlast.heads.sweeping import sweep
from outlast.values import check_id
from outlast_contract.stores import FileHarness

# Memory where there is such a folder: no machine is stopped here.
FAST = next((path for path in ("/dev/shm",) if Path(path).is_dir()), None)


class _SlowStore(FileStore):
    """On a disk that takes its time, as real ones do."""

    async def put_pieces(self, key, pieces):
        await super().put_pieces(key, pieces)
        await self.pause(0.01)


class _HeadsStay(FileStore):
    async def swap(self, key, data, head, token):
        return token


class _SweepLeavesTheHead(FileDriver):
    def _store(self, ticket, kind=_SlowStore):
        return kind(self._directory.path, self.filesystem, self._files, ticket)

    async def sweep(self, *, older_than, limit, dry_run, after):
        async def operation(ticket):
            store = self._store(ticket, _HeadsStay)
            return await sweep(store, older_than, limit, after, dry_run=dry_run)

        return await self._workers.run(operation)


@mutant("C4")
class SweepLeavesTheHead(BrokenHarness):
    """A sweep removes pieces and leaves the head as it is: a write prepared earlier refers to them
    in its next step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir=FAST)
        self._path = f"{self._folder.name}/store"

    async def stop(self) -> None:
        self._folder.cleanup()

    def make_driver(self, namespace: str) -> FileDriver:
        return _SweepLeavesTheHead(self._path, namespace=check_id(namespace, "namespace"))

    async def raw(self, namespace: str):
        return await FileHarness(f"file://{self._path}").raw(namespace)

    async def wipe(self, namespace: str) -> None:
        """The folder goes as a whole."""
