"""SQLite keeps the contract."""

import tempfile

from outlast_contract import contract_suite
from outlast_contract.stores import SqliteHarness


class TemporaryDatabase(SqliteHarness):
    """A database for each test."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        super().__init__(f"sqlite:///{self._folder.name}/store.db")

    async def stop(self) -> None:
        self._folder.cleanup()

    async def wipe(self, namespace: str) -> None:
        """The folder goes as a whole."""


TestContract = contract_suite(TemporaryDatabase)
