"""Bad addresses, credentials and servers: a documented error, in time, that says what to do."""

import asyncio
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis_proxy import Proxy
from redis_support import Open, client_of

import outlast
from outlast.errors import ConfigurationError, UnavailableError, UnsupportedVersionError
from outlast_contract.servers import Server
from outlast_contract.stopwatch import Stopwatch
from outlast_redis._keys import Keys

Start = Callable[..., Server]
TIMEOUT = 1.5
"""Where nobody answers; whoever answers has more, and is quicker."""


async def refusal(url: str, says: str, **options: Any) -> outlast.OutlastError:
    """The error of opening ``url``, which holds the password hunter2 or none."""
    backend = outlast.open_backend(url, **options)
    with Stopwatch() as watch:
        with pytest.raises((ConfigurationError, UnavailableError)) as caught:
            await backend.open()
        assert watch.seconds < 1.5 * TIMEOUT
    await backend.aclose()  # What took longer than there was time.
    error: Any = caught.value
    # No time is left to say more, if this process did not run when it was over.
    is_late = watch.late > 0.1 * TIMEOUT and "no answer within" in str(error)
    if not is_late:
        assert re.search(says, str(error))
        assert url.replace("hunter2", "***") in str(error)
    assert error.applied is False
    chain: BaseException | None = error
    while chain is not None:
        assert "hunter2" not in f"{chain} {chain!r} {backend!r}"
        chain = chain.__cause__ or chain.__context__
    return error  # type: ignore[no-any-return]


async def test_a_wrong_password(start: Start) -> None:
    """Refused as a matter of configuration, whatever is wrong with the credentials."""
    host, port = start("redis", "--requirepass", "right").addresses[0]
    for credentials in (":hunter2@", "nobody:hunter2@", ""):
        error = await refusal(f"redis://{credentials}{host}:{port}/0", "check user name and pass")
        assert isinstance(error, ConfigurationError)
    async with outlast.open_backend(f"redis://:right@{host}:{port}/0") as backend:
        await backend.ping()


async def test_a_database_that_is_not_there(shared: Server) -> None:
    """The number is named as what to check."""
    host, port = shared.addresses[0]
    error = await refusal(f"redis://{host}:{port}/99", "check the number")
    assert isinstance(error, ConfigurationError)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
async def test_an_address_where_nobody_is(scheme: str) -> None:
    """Refused connections and unknown hosts."""
    for place in ("127.0.0.1:1", "host.invalid:6379"):
        url = f"{scheme}://:hunter2@{place}"
        error = await refusal(url, "check that it runs", timeout=TIMEOUT)
        assert isinstance(error, UnavailableError)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
async def test_a_server_that_never_says_anything(scheme: str) -> None:
    """It takes the connection, and that is all."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"{scheme}://:hunter2@127.0.0.1:{deaf.getsockname()[1]}"
        error = await refusal(url, "cannot be reached", timeout=TIMEOUT)
        assert isinstance(error, UnavailableError)


async def test_tls_where_there_is_none(shared: Server) -> None:
    """Redis takes the handshake for half a command and waits: the scheme is among what to check."""
    host, port = shared.addresses[0]
    says = r"whether it expects TLS \(rediss://\) or not \(redis://\)"
    error = await refusal(f"rediss://:hunter2@{host}:{port}/0", says, timeout=TIMEOUT)
    assert isinstance(error, UnavailableError)


@pytest.mark.parametrize("scheme", ["rediss", "valkeys", "rediss+cluster"])
@pytest.mark.parametrize("what", ["nothing", "a folder", "no certificates"])
async def test_certificates_that_cannot_be_used(scheme: str, what: str, tmp_path: Path) -> None:
    """Option and file are named, before anybody is asked."""
    path = tmp_path / "authorities.pem"
    if what == "a folder":
        path.mkdir()
    elif what == "no certificates":
        path.write_text("none here")
    says = f"ssl_ca_certs.*{path}"
    url = f"{scheme}://:hunter2@127.0.0.1:1"
    assert isinstance(await refusal(f"{url}?ssl_ca_certs={path}", says), ConfigurationError)
    assert isinstance(await refusal(url, says, ssl_ca_certs=str(path)), ConfigurationError)


async def test_advice_names_the_schemes_of_the_url(start: Start) -> None:
    """Who uses Valkey is not told of rediss://."""
    says = r"TLS \(valkeys://\) or not \(valkey://\)"
    for scheme in ("valkey", "valkeys", "valkey+cluster", "valkeys+cluster"):
        await refusal(f"{scheme}://:hunter2@127.0.0.1:1", says)
    host, port = start("redis-cluster").addresses[0]
    await refusal(f"valkey://{host}:{port}", r"valkey\+cluster://")


async def test_tls_with_a_certificate_of_ones_own(
    shared: Server, tmp_path: Path, namespace: str
) -> None:
    """Trusted if it is given, refused if it is not, and no plain talk to a TLS port."""
    if shutil.which("openssl") is None:
        pytest.skip("NOT RUN: needs openssl to make a certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    openssl = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    await asyncio.to_thread(
        subprocess.run, [*openssl.split(), *names], check=True, capture_output=True
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with Proxy(shared.addresses[0], context) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}/0"
        trusting = f"{url}?ssl_ca_certs={certificate}"
        async with outlast.open_backend(trusting, namespace=namespace) as backend:
            await backend.persistence.save_task_state("t", outlast.TaskState(id="t"))
        error = await refusal(url, "certificate is not trusted")
        assert isinstance(error, ConfigurationError)
        await refusal(url.replace("rediss", "redis"), "expects TLS")


async def test_a_cluster_where_there_is_none(shared: Server) -> None:
    """A single server cannot be used as a cluster."""
    host, port = shared.addresses[0]
    error = await refusal(f"redis+cluster://{host}:{port}", "cluster")
    assert isinstance(error, ConfigurationError)


async def test_a_replica(start: Start) -> None:
    """F4: reads from it may be old, and it takes no writes."""
    host, port = start().addresses[0]
    replica = start("redis", "--replicaof", f"{host} {port}")
    error = await refusal(replica.url, "give the primary")
    assert isinstance(error, ConfigurationError)


async def test_a_user_that_may_not(start: Start) -> None:
    """A missing permission is named; INFO and CONFIG may be missing without harm."""
    server = start()
    host, port = server.addresses[0]
    admin = client_of(server)
    assert isinstance(admin, Redis)
    app = ("on", ">hunter2", "~outlast:*", "+@all", "-config", "-info")
    await admin.execute_command("ACL", "SETUSER", "app", *app)
    reader = ("on", ">hunter2", "~*", "+@read", "+info")
    await admin.execute_command("ACL", "SETUSER", "reader", *reader)
    stranger = ("on", ">hunter2", "~theirs:*", "+@all")
    await admin.execute_command("ACL", "SETUSER", "stranger", *stranger)
    await admin.aclose()
    async with outlast.open_backend(f"redis://app:hunter2@{host}:{port}", strict=True) as backend:
        await backend.persistence.save_task_state("t", outlast.TaskState(id="t"))
        assert backend.capabilities.data_survives == {"process"}
        await backend.sweep(older_than=timedelta(0))
    for user in ("reader", "stranger"):
        error = await refusal(f"redis://{user}:hunter2@{host}:{port}/0", "may not")
        assert isinstance(error, ConfigurationError)


async def test_a_namespace_of_a_newer_format(
    shared: Server, client: Redis, namespace: str, open_driver: Open
) -> None:
    """V8: what cannot be understood is left alone; without the mark, setup is asked for."""
    with pytest.raises(ConfigurationError, match="outlast setup redis://"):
        await open_driver(shared.url, create=False)
    await open_driver(shared.url)
    await open_driver(shared.url, create=False)
    await client.set(Keys(namespace).format, "2")
    for create in (True, False):
        with pytest.raises(UnsupportedVersionError, match="upgrade") as caught:
            await open_driver(shared.url, create=create)
        assert shared.url in str(caught.value)
