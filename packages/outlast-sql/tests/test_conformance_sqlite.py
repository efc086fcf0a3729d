"""SQLite keeps the contract."""

import tempfile
from pathlib import Path

from outlast_contract import contract_suite
from outlast_contract.engine import NO_SERVER
from outlast_contract.stores import SqliteHarness

# Memory where there is such a folder: processes are killed here, machines are not.
FAST = next((path for path in ("/dev/shm",) if Path(path).is_dir()), None)


class TemporaryDatabase(SqliteHarness):
    """A database for each test."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=FAST)
        super().__init__(f"sqlite:///{self._folder.name}/store.db")

    async def stop(self) -> None:
        self._folder.cleanup()

    async def wipe(self, namespace: str) -> None:
        """The folder goes as a whole."""


TestContract = contract_suite(TemporaryDatabase, lacks=NO_SERVER)
