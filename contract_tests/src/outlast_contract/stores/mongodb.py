"""MongoDB, read with PyMongo's blocking client."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from pymongo import MongoClient

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
        settings = {name: value for name, value in self.options.items() if name != "driver"}
        start = f"{sha256(namespace.encode()).hexdigest()[:32]}/"
        return await asyncio.to_thread(lambda: list(_documents(str(self.url), settings, start)))


def _documents(url: str, settings: dict[str, Any], start: str) -> Iterator[tuple[str, bytes]]:
    with MongoClient[dict[str, Any]](url, **settings) as client:
        database = client.get_default_database("outlast")
        for name in database.list_collection_names():
            if name.startswith("outlast_"):
                for document in database[name].find({"_id": {"$regex": f"^{start}"}}):
                    yield f"{name}/{document['_id']}", repr(document).encode()


__all__ = ["MongoHarness"]
