"""MongoDB, read with PyMongo's blocking client."""

import asyncio
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection

from outlast_contract.harness import UrlHarness


class MongoHarness(UrlHarness):
    """A database, by the URL of outlast."""

    async def versions(self) -> Mapping[str, str]:
        """The server's."""
        settings = {name: value for name, value in self.options.items() if name != "driver"}

        def ask() -> str:
            with MongoClient[dict[str, Any]](str(self.url), **settings) as client:
                return str(client.server_info()["version"])

        return {"mongodb server": await asyncio.to_thread(ask)}

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """All documents of the namespace."""
        return await asyncio.to_thread(lambda: list(self._documents(namespace)))

    async def wipe(self, namespace: str) -> None:
        """Remove all documents of the namespace."""
        await asyncio.to_thread(self._remove, namespace)

    def _documents(self, namespace: str) -> Iterator[tuple[str, bytes]]:
        with self._collections() as collections:
            for collection in collections:
                for document in collection.find(_within(namespace)):
                    yield f"{collection.name}/{document['_id']}", repr(document).encode()

    def _remove(self, namespace: str) -> None:
        with self._collections() as collections:
            for collection in collections:
                collection.delete_many(_within(namespace))

    @contextmanager
    def _collections(self) -> Generator[list[Collection[dict[str, Any]]]]:
        settings = {name: value for name, value in self.options.items() if name != "driver"}
        with MongoClient[dict[str, Any]](str(self.url), **settings) as client:
            database = client.get_default_database("outlast")
            names = database.list_collection_names()
            yield [database[name] for name in names if name.startswith("outlast_")]


def _within(namespace: str) -> dict[str, Any]:
    return {"_id": {"$regex": f"^{sha256(namespace.encode()).hexdigest()[:32]}/"}}


__all__ = ["MongoHarness"]
