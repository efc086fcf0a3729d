"""Opening a database on a server: what is made, what is refused, and what is reported."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from server_support import TABLES, Admin, until
from sql_support import Open, claim_id

import outlast
from outlast.driver import Entry, Scope
from outlast.errors import (
    ConfigurationError,
    OutlastError,
    UnavailableError,
    UnsupportedVersionError,
)
from outlast_contract.servers import Server
from outlast_contract.stopwatch import Stopwatch
from outlast_sql import SqlDriver

pytestmark = [pytest.mark.sql, pytest.mark.server]

TASK = Scope("task", "t")


def changed(url: str, **parts: str) -> str:
    """A URL with another scheme, user, host or database."""
    scheme, _, rest = url.partition("://")
    place, _, name = rest.partition("/")
    user, _, host = place.rpartition("@")
    return (
        f"{parts.get('scheme', scheme)}://{parts.get('user', user)}@{parts.get('host', host)}"
        f"/{parts.get('name', name)}{parts.get('query', '')}"
    )


async def refusal_of(url: str, **options: Any) -> OutlastError:
    """The error of opening; it says where, and keeps the password to itself."""
    backend = outlast.open_backend(url, **options)
    with pytest.raises(OutlastError) as caught:
        await backend.open()
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(caught.value.__cause__)
    return caught.value


BY_EACH_LIBRARY = pytest.mark.parametrize(
    ("admin", "library"),
    [("postgres", ""), ("postgres", "+psycopg"), ("mariadb", "")],
    indirect=True,
)


@pytest.fixture
def library(request: pytest.FixtureRequest, admin: Admin) -> str:
    """The URL of the database, for a test `BY_EACH_LIBRARY`."""
    scheme = admin.url.partition("://")[0]
    return changed(admin.url, scheme=scheme + request.param)


@BY_EACH_LIBRARY
async def test_a_database_that_is_missing_is_named(library: str) -> None:
    error = await refusal_of(changed(library, name="nowhere"))
    assert isinstance(error, ConfigurationError)
    assert "there is no such database" in str(error) or "may not use the database" in str(error)


@BY_EACH_LIBRARY
async def test_nobody_at_the_port_is_unavailable(library: str) -> None:
    with socket.socket() as deaf:  # Nobody else gets its port meanwhile.
        deaf.bind(("127.0.0.1", 0))
        url = changed(library, user="me:s3cret", host=f"127.0.0.1:{deaf.getsockname()[1]}")
        error = await refusal_of(url, timeout=5.0)
    assert isinstance(error, UnavailableError)
    assert "cannot be reached" in str(error)
    assert "check that it runs, and its host and port" in str(error)
    assert "me:***@127.0.0.1" in str(error)


@BY_EACH_LIBRARY
async def test_names_are_no_reasons(library: str) -> None:
    """E2: neither is a host that cannot be reached one where TLS is set in another way."""
    url = changed(library, user="ssl:s3cret", host="ssl.tls.localhost:1", name="certificate")
    error = await refusal_of(url, timeout=5.0)
    assert isinstance(error, UnavailableError), error


@BY_EACH_LIBRARY
async def test_a_server_that_says_nothing_is_unavailable_in_time(library: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        with Stopwatch() as watch:
            error = await refusal_of(changed(library, user="me:s3cret", host=host), timeout=1.0)
            assert watch.seconds < 5
    assert isinstance(error, UnavailableError)
    # No time is left to say more, if this process did not run when it was over.
    is_late = watch.late > 0.05 and "no answer within" in str(error)
    assert "me:***@127.0.0.1" in str(error) or is_late


@BY_EACH_LIBRARY
async def test_who_is_cancelled_while_nobody_answers_is_told_at_once(library: str) -> None:
    """X1, C7: closing waits for what the library does, and then leaves nothing behind."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        backend = outlast.open_backend(changed(library, host=host))
        opening = asyncio.create_task(backend.open())
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            with Stopwatch() as watch:
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening
                assert watch.seconds < 1.5  # Seeing it to its end takes two seconds.
            with pytest.raises(outlast.ClosedError):
                await backend.ping()
            await backend.aclose()
            connection.settimeout(5)
            while await asyncio.to_thread(connection.recv, 4096):
                pass  # Until its end: it is closed.


@BY_EACH_LIBRARY
async def test_tls_where_there_is_none_is_said(library: str) -> None:
    query = "?sslmode=require" if library.startswith("postgres") else "?ssl=true"
    error = await refusal_of(changed(library, query=query))
    assert isinstance(error, ConfigurationError)
    assert "TLS" in str(error)


@BY_EACH_LIBRARY
async def test_a_file_for_tls_that_is_missing_is_named(library: str, tmp_path: Path) -> None:
    names = {"postgres": ("sslrootcert", "sslcert"), "mariadb": ("ssl_ca", "ssl_cert")}
    mode = "sslmode=verify-ca&" if library.startswith("postgres") else ""
    for name in names["mariadb" if library.startswith("mariadb") else "postgres"]:
        error = await refusal_of(changed(library, query=f"?{mode}{name}={tmp_path}/none.pem"))
        assert isinstance(error, ConfigurationError), error
        if "psycopg" not in library:  # It asks the server first, which knows no TLS.
            assert f"that {name} names cannot be read: No such file" in str(error)
            assert f"{tmp_path}/none.pem" in str(error)


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("admin", ["postgres"], indirect=True)
async def test_a_database_without_a_schema_is_told(admin: Admin, library: str) -> None:
    """No set-up would be of help, and none is advised."""
    await admin.run("DROP SCHEMA public")
    error = await refusal_of(changed(admin.url, scheme=f"postgresql+{library}"))
    assert isinstance(error, ConfigurationError)
    assert "none of the schemas in search_path" in str(error)
    assert "outlast setup" not in str(error)


@BY_EACH_LIBRARY
@pytest.mark.parametrize(
    ("query", "needle"),
    [("?colour=red", "unknown option 'colour'"), ("?sslmode=odd&ssl=odd", "ssl")],
)
async def test_options_that_do_not_fit_are_refused(library: str, query: str, needle: str) -> None:
    """Never silently dropped."""
    with pytest.raises(ConfigurationError, match=needle):
        await outlast.open_backend(library + query).open()
    with pytest.raises(ConfigurationError, match="unknown option 'colour'"):
        outlast.open_backend(library, colour="red")


async def test_setup_false_verifies_and_names_the_command(admin: Admin, open_on: Open) -> None:
    with pytest.raises(ConfigurationError, match="outlast setup"):
        await open_on(create=False)
    assert await tables_of(admin) == set()
    await open_on()
    assert await tables_of(admin) == set(TABLES)
    await open_on(create=False)


async def tables_of(admin: Admin) -> set[str]:
    schema = "current_schema()" if admin.is_postgres else "DATABASE()"
    rows = await admin.rows(
        f"SELECT table_name FROM information_schema.tables WHERE table_schema = {schema}"
    )
    return {name for (name,) in rows}


async def test_sixteen_set_up_at_once(admin: Admin, open_on: Open) -> None:
    """X4: one makes the tables, the others find them."""
    drivers = await asyncio.gather(*(open_on() for _ in range(16)))
    await asyncio.gather(*(driver.setup(create=True) for driver in drivers))
    assert await admin.rows("SELECT version FROM outlast_schema") == [(1,)]


async def test_a_setup_that_was_broken_off_is_finished_by_the_next(
    admin: Admin, open_on: Open
) -> None:
    """X4: tables without a version are those of a set-up that did not come to its end."""
    first = await open_on()
    await first.aclose()
    await admin.run("DELETE FROM outlast_schema", "DROP TABLE outlast_entry")
    driver = await open_on()
    await driver.append(TASK, "api", [Entry("a", b"1")], fence=None)
    assert await driver.load(TASK, "api") == [Entry("a", b"1")]


async def test_tables_of_a_newer_version_are_refused(admin: Admin, open_on: Open) -> None:
    """V8, with the advice to upgrade."""
    await open_on()
    await admin.run("UPDATE outlast_schema SET version = 99")
    for create in (True, False):
        with pytest.raises(UnsupportedVersionError, match="upgrade"):
            await open_on(create=create)


async def test_a_lost_table_is_no_empty_store(admin: Admin, open_on: Open) -> None:
    driver = await open_on()
    await admin.run("DROP TABLE outlast_entry")
    with pytest.raises(ConfigurationError, match="lost its table 'outlast_entry'"):
        await open_on()
    with pytest.raises(ConfigurationError, match="outlast_entry"):
        await driver.load(TASK, "api")


async def test_a_user_without_permission_is_told(admin: Admin, open_on: Open) -> None:
    """Who may not create tables; who may only read them; and what is enough."""
    name = f"u{os.urandom(6).hex()}"
    if admin.is_postgres:
        made = [f"CREATE ROLE {name} LOGIN PASSWORD 's3cret'"]
        reading = [f"GRANT SELECT ON {table} TO {name}" for table in TABLES]
    else:
        made = [
            f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 's3cret'",
            f"CREATE USER {name}@'localhost' IDENTIFIED BY 's3cret'",
            *(
                f"GRANT SHOW VIEW ON t.* TO {name}@{host}"
                for host in ("'127.0.0.1'", "'localhost'")
            ),
        ]
        made = [line.replace("t.*", f"{admin.url.rpartition('/')[2]}.*") for line in made]
        reading = [
            f"GRANT SELECT ON {table} TO {name}@{host}"
            for table in TABLES
            for host in ("'127.0.0.1'", "'localhost'")
        ]
    await admin.run(*made)
    url = changed(admin.url, user=f"{name}:s3cret")
    error = await refusal_of(url)
    assert isinstance(error, ConfigurationError)
    assert "permission" in str(error)
    await open_on()
    await admin.run(*reading)
    async with outlast.open_backend(url, setup=False) as reader:
        assert await reader.persistence.load_task_state("t") is None
        with pytest.raises(ConfigurationError, match="permission"):
            await reader.persistence.save_task_state("t", outlast.TaskState(id="t"))
    writing = [line.replace("SELECT", "INSERT, UPDATE, DELETE") for line in reading]
    if admin.is_postgres:
        writing.append(f"GRANT USAGE ON SEQUENCE outlast_scope_sid_seq TO {name}")
    await admin.run(*writing)
    async with outlast.open_backend(url, setup=False) as writer:
        await writer.persistence.claim_task("t")
        await writer.persistence.save_task_state("u", outlast.TaskState(id="u"))
        await writer.persistence.delete_task("u")
        await writer.sweep(older_than=timedelta(0))
    if admin.is_postgres:
        await admin.run(f"DROP OWNED BY {name}", f"DROP ROLE {name}")
    else:
        await admin.run(f"DROP USER {name}@'127.0.0.1', {name}@'localhost'")


async def test_a_wrong_password_is_refused(
    admin: Admin, start: Callable[..., Server], tmp_path: Path
) -> None:
    """E4: and not shown. The shared PostgreSQL server asks for none: here is one that does."""
    if admin.is_postgres:
        rules = tmp_path / "hba.conf"
        rules.write_text("host all outlast 127.0.0.1/32 trust\nhost all all all scram-sha-256\n")
        for folder in (tmp_path, *list(tmp_path.parents)[:3]):
            with contextlib.suppress(PermissionError):
                folder.chmod(0o755)
        server = start("postgres", "-c", f"hba_file={rules}")
        owner = await Admin.on(server.url)
        await owner.run("CREATE ROLE known LOGIN PASSWORD 'r1ght'")
        await owner.close()
        libraries = [changed(server.url, scheme=f"postgresql+{n}") for n in ("asyncpg", "psycopg")]
    else:
        libraries = [admin.url]
    for url in libraries:
        for user in ("known:s3cret", "unknown:s3cret", "known"):
            error = await refusal_of(changed(url, user=user))
            assert isinstance(error, ConfigurationError), error
            assert "refused the user or the password" in str(error)


@pytest.mark.parametrize("password", ["pässé", "пароль", "日本😀", "it's %41 @/:?#"])
@pytest.mark.parametrize("admin", ["mariadb"], indirect=True)
async def test_a_password_may_have_any_characters(admin: Admin, password: str) -> None:
    """E4: in UTF-8, as the servers' own clients send it; a wrong one is refused, not shown."""
    user = f"u{os.urandom(6).hex()}"
    everywhere = ", ".join(f"{user}@{host}" for host in ("'127.0.0.1'", "'localhost'"))
    secret = password.replace("'", "''")
    for one in everywhere.split(", "):
        await admin.run(
            f"CREATE USER {one} IDENTIFIED BY '{secret}'",
            f"GRANT ALL ON {admin.url.rpartition('/')[2]}.* TO {one}",
        )
    right = changed(admin.url, user=f"{user}:{quote(password, safe='')}")
    async with outlast.open_backend(right) as backend:
        await backend.ping()
    error = await refusal_of(
        changed(admin.url, user=f"{user}:{quote('s3cret' + password, safe='')}")
    )
    assert isinstance(error, ConfigurationError)
    assert "refused the user or the password" in str(error)
    assert password not in str(error)
    await admin.run(f"DROP USER {everywhere}")


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("admin", ["postgres"], indirect=True)
async def test_what_passes_is_told_from_a_user_who_is_refused(admin: Admin, library: str) -> None:
    """E2: a call that meets it may be repeated. Users and databases are named in both."""
    user, name = f"u{os.urandom(6).hex()}", admin.url.rpartition("/")[2]
    url = changed(admin.url, scheme=f"postgresql+{library}", user=user)
    assert isinstance(await refusal_of(url), ConfigurationError)
    await admin.run(f"CREATE ROLE {user} NOLOGIN")
    assert isinstance(await refusal_of(url), ConfigurationError)
    for what in (f"ROLE {user} LOGIN", f"DATABASE {name}"):
        await admin.run(f"ALTER {what} CONNECTION LIMIT 0")
        error = await refusal_of(url)
        assert isinstance(error, UnavailableError), error
        assert "too many connections for" in str(error)
        await admin.run(f"ALTER {what} CONNECTION LIMIT -1")
    await admin.run(f"DROP ROLE {user}")


@pytest.mark.parametrize("admin", ["postgres"], indirect=True)
async def test_a_read_only_server_is_refused(admin: Admin, open_on: Open) -> None:
    """F4: a replica would answer with what was; a driver that meets one later says unavailable.

    To MariaDB it is a setting of the whole server: see the test of one that is changed.
    """
    driver = await open_on(pool_size=1)
    name = admin.url.rpartition("/")[2]
    await admin.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(ConfigurationError, match="read only"):
        await open_on()
    await admin.kill(*await admin.sessions())
    # As one statement, and by steps in a transaction.
    for append in (type(driver).append, SqlDriver.append):
        with pytest.raises(UnavailableError, match="read-only"):
            await append(driver, TASK, "api", [Entry("a", b"1")], fence=None)


async def hazards_of(url: str) -> tuple[list[str], frozenset[str]]:
    driver = SqlDriver.from_url(url, namespace="test")
    await driver.setup(create=True)
    found = list(await driver.hazards())
    survives = driver.capabilities.fences_survive
    assert survives == driver.capabilities.data_survives
    await driver.aclose()
    return found, survives


@pytest.fixture
async def unsafe_postgres(start: Callable[..., Server]) -> AsyncIterator[Admin]:
    server = start("postgres", "-c", "fsync=off", "-c", "full_page_writes=off")
    admin = await Admin.on(server.url)
    admin.url = server.url
    yield admin
    await admin.close()


async def test_settings_of_postgresql_that_lose_writes_are_reported(
    unsafe_postgres: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """D2 (H-Q10): and nothing is declared to survive a crash of the server."""
    url = unsafe_postgres.url
    await unsafe_postgres.run("ALTER DATABASE outlast SET synchronous_commit = off")
    await hazards_of(url)
    await unsafe_postgres.run("ALTER TABLE outlast_entry SET UNLOGGED")
    found, survives = await hazards_of(url)
    assert survives == {"process"}
    for needle in ("fsync is off", "full_page_writes", "synchronous_commit", "UNLOGGED"):
        assert any(needle in hazard for hazard in found), needle
    with caplog.at_level(logging.WARNING, "outlast"):
        async with outlast.open_backend(url):
            pass
    assert "synchronous_commit is off" in caplog.text
    with pytest.raises(ConfigurationError, match="fsync is off"):
        await outlast.open_backend(url, strict=True).open()


@pytest.fixture
async def unsafe_mariadb(start: Callable[..., Server]) -> AsyncIterator[Admin]:
    server = start("mariadb", "--innodb-doublewrite=0", "--log-bin")
    root = await Admin.on(changed(server.url, user="root"))
    root.url = server.url
    yield root
    await root.close()


async def test_settings_of_mariadb_that_lose_writes_are_reported(unsafe_mariadb: Admin) -> None:
    """D2 (H-Q10), F4, H-Q16: those that would lose writes at once are refused."""
    root, url = unsafe_mariadb, unsafe_mariadb.url
    found, survives = await hazards_of(url)
    assert survives == {"process"}
    assert len(found) == 1
    assert "innodb_doublewrite" in found[0]
    await root.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    found, _ = await hazards_of(url)
    assert "innodb_flush_log_at_trx_commit is 2" in found[0]

    await root.run("SET GLOBAL read_only = 1")
    with pytest.raises(ConfigurationError, match="read-only"):
        await hazards_of(url)
    await root.run("SET GLOBAL read_only = 0", "SET GLOBAL max_allowed_packet = 4194304")
    with pytest.raises(ConfigurationError, match="max_allowed_packet"):
        await hazards_of(url)
    await root.run("SET GLOBAL max_allowed_packet = 16777216")
    await root.run("SET GLOBAL binlog_format = 'STATEMENT'")
    async with outlast.open_backend(url) as backend:
        with pytest.raises(ConfigurationError, match="binlog_format"):
            await backend.persistence.save_task_state("t", outlast.TaskState(id="t"))
    await root.run("ALTER TABLE outlast.outlast_entry ENGINE = MyISAM")
    with pytest.raises(ConfigurationError, match="ENGINE = InnoDB"):
        await hazards_of(url)


async def test_default_settings_are_durable(admin: Admin) -> None:
    """D1, D2: the shared servers have no hazard."""
    assert await hazards_of(admin.url) == ([], {"process", "server"})


OTHER_LOOP = """
import asyncio, sys
from sqlalchemy.ext.asyncio import create_async_engine
from outlast_sql import SqlBackend

engine = create_async_engine(sys.argv[1])

async def use():
    async with engine.connect():
        pass

async def lend():
    async with SqlBackend(engine=engine):
        pass

asyncio.run(use())
try:
    asyncio.run(lend())
except BaseException as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_an_engine_of_another_loop_is_refused_clearly(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """X3, H-Q18: its pool holds a connection that this loop cannot use.

    In a process of its own: what is left of such a loop complains.
    """
    scheme = {"postgres": "postgresql+asyncpg", "mariadb": "mysql+asyncmy"}[kind]
    url = changed(request.getfixturevalue(kind).url, scheme=scheme)
    command = [sys.executable, "-c", OTHER_LOOP, url]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=40)
    assert result.stdout.startswith("NotSupportedError"), result.stdout + result.stderr


async def test_a_closed_driver_leaves_no_connection(admin: Admin, open_on: Open) -> None:
    """C7: nor does one that was closed in a loop that came later."""
    driver = await open_on()
    await asyncio.gather(*(driver.claim(Scope("task", str(n)), claim_id(1)) for n in range(20)))
    assert len(await admin.sessions()) > 1
    await driver.aclose()
    await driver.aclose()

    async def are_gone() -> bool:
        return await admin.sessions() == []

    await until(are_gone)
    with pytest.raises(outlast.ClosedError):
        await driver.ping()
