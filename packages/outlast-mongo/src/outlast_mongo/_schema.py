"""What a database must have before it is used: indexes, and the number of its format."""

from typing import Final

from pymongo import ASCENDING
from pymongo.errors import DuplicateKeyError

from outlast.errors import ConfigurationError, CorruptDataError, UnsupportedVersionError
from outlast_mongo._store import Document, Place

SCHEMA: Final = "outlast_schema"
STORE_FORMAT: Final = 1
"""Of the collections and their fields; heads and pieces have format numbers of their own."""

_MARK: Final = "outlast"


async def set_up(place: Place, *, create: bool, hint: str) -> bool:
    """Verify a database; with ``create``, make what is missing.

    Args:
        place: The database.
        create: Whether to make what is missing.
        hint: What to do about a database that is not set up, for people.

    Returns:
        Whether another server may take over: only from one that is in no replica set none can.

    Raises:
        ConfigurationError: It is not set up, or is reached in a way that will not do, or there are
            no such members as writes shall wait for.
        UnsupportedVersionError: A newer version of outlast set it up.
        CorruptDataError: The number of its format is none.
    """
    has_failovers = _has_failovers(await place.hello(), place)
    await place.check_concern()
    schema = place.collection(SCHEMA)
    with place.explained():
        found = await schema.find_one({"_id": _MARK})
        if found is None and create:
            await _make_indexes(place)
            try:
                await schema.insert_one({"_id": _MARK, "format": STORE_FORMAT})
            except DuplicateKeyError:
                found = await schema.find_one({"_id": _MARK})
    if found is None and not create:
        raise ConfigurationError(f"{place.described} is not set up for outlast; {hint}")
    stored = STORE_FORMAT if found is None else found.get("format")
    if not isinstance(stored, int):
        raise CorruptDataError(f"{SCHEMA} of {place.described} has lost its format number")
    if stored > STORE_FORMAT:
        raise UnsupportedVersionError(
            f"{place.described} has format {stored}, this version of outlast uses up to "
            f"{STORE_FORMAT}; upgrade outlast"
        )
    return has_failovers


def _has_failovers(hello: Document, place: Place) -> bool:
    """Whether the server is a member of a replica set, or a router before some.

    Raises:
        ConfigurationError: The URL names one of several members, which may become a secondary.
    """
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    topology = place.database.client.topology_description.topology_type_name
    if members > 1 and topology == "Single":
        raise ConfigurationError(
            f"{place.described} names one member of a replica set directly, which answers reads "
            "as a secondary, too; leave directConnection out"
        )
    return "setName" in hello or hello.get("msg") == "isdbgrid"


async def _make_indexes(place: Place) -> None:
    """For scans by parent and status, and for tombstones; all in the order of ids."""
    for field in ("parent", "status"):
        await place.heads.create_index([(field, ASCENDING), ("_id", ASCENDING)])
    await place.heads.create_index(
        [("empty", ASCENDING), ("_id", ASCENDING)], partialFilterExpression={"empty": True}
    )


__all__ = ["SCHEMA", "STORE_FORMAT", "set_up"]
