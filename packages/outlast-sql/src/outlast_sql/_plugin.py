"""The entry point: what this distribution offers, without importing a driver."""

import outlast


@outlast.hookimpl
def outlast_backends() -> list[outlast.BackendInfo]:
    """The backends of this distribution."""
    return [
        outlast.BackendInfo(
            name="sqlite",
            schemes=("sqlite",),
            factory="outlast_sql:SqlDriver.from_url",
            summary="SQLite: a database file on this host, shared by its processes",
        )
    ]
