"""MongoDB keeps the contract, through PyMongo's asyncio client and through Motor."""

from collections.abc import Iterable
from typing import Any

import pymongo
import pytest
from mongo_support import Mongod

from outlast_contract import contract_suite
from outlast_contract.harness import UrlHarness

pytestmark = pytest.mark.mongo

_servers: list[Mongod] = []


@pytest.fixture(scope="module", autouse=True)
def running(server: Mongod) -> None:
    _servers[:] = [server]


class MongoHarness(UrlHarness):
    """A database of the server, read with PyMongo's blocking client."""

    def __init__(self, driver: str) -> None:
        super().__init__(f"{_servers[0].url}contract", driver=driver)

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        with pymongo.MongoClient[dict[str, Any]](str(self.url)) as client:
            database = client.get_default_database()
            return [
                (f"{name}/{document['_id']}", repr(document).encode())
                for name in database.list_collection_names()
                for document in database[name].find()
            ]


TestPyMongo = contract_suite(lambda: MongoHarness("pymongo"))
TestMotor = contract_suite(lambda: MongoHarness("motor"))
