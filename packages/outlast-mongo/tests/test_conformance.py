"""MongoDB keeps the contract, through PyMongo's asyncio client and through Motor."""

import atexit
import functools
import secrets
from typing import Any

import pytest
from mongo_support import admin, server_of, url_of
from motor.motor_asyncio import AsyncIOMotorClient

import outlast
from outlast_contract import Settings, contract_suite
from outlast_contract.servers import shared_server, start_server
from outlast_contract.stores.mongodb import MongoHarness
from outlast_mongo import MongoBackend

pytestmark = [pytest.mark.mongo, pytest.mark.server]


@pytest.fixture(autouse=True)
def dropped_sockets(request: pytest.FixtureRequest) -> None:
    """Checks that spoil the network close clients that are connecting."""
    if request.node.get_closest_marker("faults"):
        request.getfixturevalue("broken_connections")


class PyMongoHarness(MongoHarness):
    """A replica set of one, through the client that a URL gives."""

    server_kind = "mongodb"

    def __init__(self) -> None:
        server = server_of(lambda: shared_server("mongodb"))
        super().__init__(url_of(server, "contract"))
        self.is_temporary = not server.is_external


class PasswordHarness(MongoHarness):
    """A server that asks for a password, one for all tests of a process."""

    is_temporary = True

    def __init__(self) -> None:
        super().__init__(_guarded_url())


@functools.cache
def _guarded_url() -> str:
    server = server_of(lambda: start_server("mongodb-standalone", "--auth"))
    atexit.register(server.close)
    password = secrets.token_hex(12)
    # As long as there are no users, whoever is on the same machine may make the first one.
    command = {"createUser": "owner", "pwd": password, "roles": ["root"]}
    admin(server, command)
    host, port = server.addresses[0]
    return f"mongodb://owner:{password}@{host}:{port}/contract?authSource=admin"


class _Lending(MongoBackend):
    """A backend with a client of an application that ends with it."""

    async def open(self) -> None:
        try:
            await super().open()
        except outlast.NotSupportedError:
            raise  # To another event loop than the one that has it open.
        except Exception:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            self.client.close()

    client: AsyncIOMotorClient[dict[str, Any]]


class MotorHarness(MongoHarness):
    """A server of no replica set, through Motor clients that the application has already."""

    server_kind = "mongodb-standalone"

    def __init__(self) -> None:
        server = server_of(lambda: shared_server("mongodb-standalone"))
        # Child processes have a Motor client by the URL.
        super().__init__(url_of(server, "contract"), driver="motor")
        self.is_temporary = not server.is_external

    async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
        client = AsyncIOMotorClient[dict[str, Any]](self.url, tz_aware=True)
        database = client.get_default_database()
        try:
            made = _Lending(database=database, namespace=namespace, **options)
        except BaseException:
            client.close()
            raise
        made.client = client
        return made


KNOWN = {
    "test_e3_unknown_options_are_refused": "a client that is passed in takes no options at all",
}

# The other servers ask for no password.
TestPassword = contract_suite(PasswordHarness, only=["host", "secret"])
if Settings.from_environment().thorough:  # Thousands of tests, which take long to collect, too.
    TestPyMongo = contract_suite(PyMongoHarness)
    TestMotor = contract_suite(MotorHarness, xfail=KNOWN)
else:
    # What takes thousands of requests takes a client in pure Python many seconds.
    LESS = Settings.from_environment().shortened()
    TestPyMongo = contract_suite(
        PyMongoHarness, settings=LESS, lacks=["http", "secret", "server faults"]
    )
    # What another client does differently is the way to the server.
    TestMotor = contract_suite(
        MotorHarness,
        tiers=["contract", "race"],
        settings=LESS,
        xfail=KNOWN,
        cases=1,
        lacks=["host", "secret"],
    )
