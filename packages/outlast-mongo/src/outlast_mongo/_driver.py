"""`MongoDriver`: heads and pieces as documents of a MongoDB database."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import pymongo
from pymongo import ASCENDING
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import DuplicateKeyError

from outlast.errors import (
    ClosedError,
    ConfigurationError,
    CorruptDataError,
    UnsupportedVersionError,
)
from outlast.heads import HeadDriver, Layout, Operation, moment
from outlast_mongo._durability import Durability
from outlast_mongo._links import DriverName, MotorDatabase, link_of
from outlast_mongo._store import SCHEMA, Document, MongoStore, Place

ResultT = TypeVar("ResultT")

STORE_FORMAT: Final = 1
"""Of the collections and their fields; heads and pieces have format numbers of their own."""

LAYOUT: Final = Layout(
    # A run has no logs: with this, a checkpoint of any usual length is one document.
    run_inline_bytes=256 * 1024,
    task_inline_bytes=16 * 1024,
    # A flush rewrites the newest piece; to begin another one costs no more.
    merge_bytes=256 * 1024,
)
"""How this backend divides its records; see `outlast.heads.Layout`."""

_PATIENCE: Final = 0.9
"""The part of the timeout that a call uses, so that its answer comes before the caller's end."""


class MongoDriver(HeadDriver):
    """One document per scope, with its registers and the newest entries of its logs; see
    `HeadDriver`.

    **What survives** (D1). Writes wait for the journals of a majority, unless the client was given
    another write concern, and reads return only what a majority has: both survive the process, the
    server and a failover.

    **In a failover** a primary that was cut off and has not noticed yet may answer reads with what
    was true some seconds ago (F4). Mutations and claims it cannot finish.
    """

    name = "mongodb"
    layout = LAYOUT

    def __init__(
        self,
        *,
        url: str | None = None,
        database: AsyncDatabase[Any] | MotorDatabase | None = None,
        namespace: str = "default",
        timeout: float = 10.0,
        driver: DriverName = "pymongo",
        **options: Any,
    ) -> None:
        """Make a driver; no I/O.

        Args:
            url: Of ``mongodb://`` or ``mongodb+srv://``, for a client that the driver makes and
                closes.
            database: Instead: of a ready client, which stays open.
            namespace: A world of its own within the database (I5).
            timeout: Seconds that one call may take.
            driver: ``"motor"``: for ``url``, use Motor instead of PyMongo's asyncio client.
            **options: Of PyMongo's client, such as ``password``; for ``url`` only.

        Raises:
            ConfigurationError: What was given does not fit, or reads or writes would not keep
                the contract.
        """
        super().__init__(self.layout)
        self._link = link_of(url, database, driver, options)
        self._described = self._link.described
        self._durability = Durability(self._link.settings, self._described)
        self.capabilities = self._durability.capabilities
        self._namespace = namespace
        self._patience = timeout * _PATIENCE
        self._place: Place | None = None
        self._members = 1
        self._is_closed = False

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "default",
        timeout: float = 10.0,
        driver: DriverName = "pymongo",
        **options: Any,
    ) -> "MongoDriver":
        """A driver for a ``mongodb://`` URL; arguments as for the class."""
        return cls(url=url, namespace=namespace, timeout=timeout, driver=driver, **options)

    async def setup(self, *, create: bool) -> None:
        self._check_open()
        if self._place is None:
            self._place = Place(
                await self._link.connect(),
                self._namespace,
                self._durability.concern,
                self._described,
            )
        place = self._place
        with pymongo.timeout(self._patience):
            self._members = _members(await place.hello(), place)
            schema = place.collection(SCHEMA)
            with place.explained():
                found = await schema.find_one({"_id": "outlast"})
                if found is None and create:
                    await _make_indexes(place)
                    try:
                        await schema.insert_one({"_id": "outlast", "format": STORE_FORMAT})
                    except DuplicateKeyError:
                        found = await schema.find_one({"_id": "outlast"})
        if found is None and not create:
            raise ConfigurationError(
                f"{place.described} is not set up for outlast; open it once with setup=True"
            )
        stored = STORE_FORMAT if found is None else found.get("format")
        if not isinstance(stored, int):
            raise CorruptDataError(f"{SCHEMA} of {place.described} has lost its format number")
        if stored > STORE_FORMAT:
            raise UnsupportedVersionError(
                f"{place.described} has format {stored}, this version of outlast uses up to "
                f"{STORE_FORMAT}; upgrade outlast"
            )

    async def hazards(self) -> Sequence[str]:
        return self._durability.hazards(self._members)

    async def ping(self) -> None:
        place = self._ready()
        with pymongo.timeout(self._patience), place.explained():
            await place.database.command("ping")

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._link.close()

    async def _run(self, operation: Operation[ResultT]) -> ResultT:
        store = MongoStore(self._ready(), moment() + self._patience)
        with pymongo.timeout(self._patience):
            return await operation(store)

    def _ready(self) -> Place:
        self._check_open()
        if self._place is None:
            raise ClosedError("the MongoDB driver is not set up yet")
        return self._place

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the MongoDB driver is closed")


def _members(hello: Document, place: Place) -> int:
    """How many members the replica set has; 1 for a single server, and behind a router.

    Raises:
        ConfigurationError: The URL names one of several members, which may become a secondary.
    """
    members = len(hello.get("hosts", ())) or 1
    topology = place.database.client.topology_description.topology_type_name
    if members > 1 and topology == "Single":
        raise ConfigurationError(
            f"{place.described} names one member of a replica set directly, which answers reads "
            "as a secondary, too; leave directConnection out"
        )
    return members


async def _make_indexes(place: Place) -> None:
    """For scans by parent and status, and for tombstones; all in the order of ids."""
    for field in ("parent", "status"):
        await place.heads.create_index([(field, ASCENDING), ("_id", ASCENDING)])
    await place.heads.create_index(
        [("empty", ASCENDING), ("_id", ASCENDING)], partialFilterExpression={"empty": True}
    )


__all__ = ["LAYOUT", "STORE_FORMAT", "MongoDriver"]
