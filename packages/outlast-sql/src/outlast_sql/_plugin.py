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
            variants=("aiosqlite",),
        ),
        outlast.BackendInfo(
            name="postgresql",
            schemes=("postgresql",),
            factory="outlast_sql:SqlDriver.from_url",
            summary="PostgreSQL: a database on a server",
            variants=("asyncpg", "psycopg"),
        ),
        outlast.BackendInfo(
            name="mysql",
            schemes=("mysql",),
            factory="outlast_sql:SqlDriver.from_url",
            summary="MySQL: a database on a server",
            variants=("asyncmy",),
        ),
        outlast.BackendInfo(
            name="mariadb",
            schemes=("mariadb",),
            factory="outlast_sql:SqlDriver.from_url",
            summary="MariaDB: a database on a server",
            variants=("asyncmy",),
        ),
    ]
