"""MongoDB, read with PyMongo's blocking client."""

import asyncio
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection

from outlast_contract.harness import UrlHarness
from outlast_contract.stores import MANY

_DRIVER = re.compile(r"(?<=[?&])driver=[^&]*(?:&|$)")


class MongoHarness(UrlHarness):
    """A database, by the URL of outlast."""

    async def versions(self) -> Mapping[str, str]:
        """The server's."""

        def ask() -> str:
            with self._client() as client:
                return str(client.server_info()["version"])

        return {"mongodb server": await asyncio.to_thread(ask)}

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """All documents of the namespace, and all that outlast does not make: of the collections
        of others those with at most `MANY` documents.
        """
        return await asyncio.to_thread(lambda: list(self._documents(namespace)))

    async def wipe(self, namespace: str) -> None:
        """Remove all documents of the namespace."""
        await asyncio.to_thread(self._remove, namespace)

    def _documents(self, namespace: str) -> Iterator[tuple[str, bytes]]:
        with self._collections() as collections:
            for collection in collections:
                is_ours = collection.name.startswith(_OURS)
                if not is_ours and collection.estimated_document_count() > MANY:
                    continue
                wanted = {"$or": [_within(namespace), _OUTSIDE]} if is_ours else {}
                for document in collection.find(wanted):
                    yield f"{collection.name}/{document['_id']}", repr(document).encode()

    def _remove(self, namespace: str) -> None:
        with self._collections() as collections:
            for collection in collections:
                if collection.name.startswith(_OURS):
                    collection.delete_many(_within(namespace))

    def _client(self) -> MongoClient[dict[str, Any]]:
        """PyMongo's, whichever one outlast is told to use."""
        settings = {name: value for name, value in self.options.items() if name != "driver"}
        url = str(self.url)
        plain = _DRIVER.sub("", url).rstrip("?&") if _DRIVER.search(url) else url
        return MongoClient(plain, **settings)

    @contextmanager
    def _collections(self) -> Generator[list[Collection[dict[str, Any]]]]:
        with self._client() as client:
            database = client.get_default_database("outlast")
            # A view has no documents of its own.
            names = database.list_collection_names(filter={"type": "collection"})
            yield [database[name] for name in names if not name.startswith("system.")]


_OURS = "outlast_"
_OUTSIDE = {"_id": {"$not": {"$regex": "^[0-9a-f]{32}/"}}}
"""What is in no namespace, although it is in a collection of outlast."""


def _within(namespace: str) -> dict[str, Any]:
    return {"_id": {"$regex": f"^{sha256(namespace.encode()).hexdigest()[:32]}/"}}


__all__ = ["MongoHarness"]
