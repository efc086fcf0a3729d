"""The entry point: what this distribution offers, without importing a driver."""

import outlast


@outlast.hookimpl
def outlast_backends() -> list[outlast.BackendInfo]:
    """The backends of this distribution."""
    return [
        outlast.BackendInfo(
            name="mongodb",
            schemes=("mongodb", "mongodb+srv"),
            factory="outlast_mongo:MongoDriver.from_url",
            summary="MongoDB: a server, a replica set or a sharded cluster",
        )
    ]
