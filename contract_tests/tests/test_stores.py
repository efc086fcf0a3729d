"""The command's look past the adapter, on each store of the family that has a server."""

import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest

import outlast
from outlast_contract.servers import ServerUnavailable, shared_server, start_server
from outlast_contract.stores import harness_for

KINDS = (
    "postgres",
    "mariadb",
    "redis",
    "valkey",
    "redis-cluster",
    "mongodb",
    "mongodb-replicas",
    "s3",
)


@pytest.fixture
def store(kind: str) -> Iterator[tuple[str, dict[str, str]]]:
    """One of its own for S3, where whatever others stored would be read, too."""
    try:
        made = start_server(kind) if kind == "s3" else nullcontext(shared_server(kind))
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")
    with made as server:
        yield server.url, dict(server.options)


@pytest.mark.server
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_stored_is_seen_until_it_is_deleted_and_swept(
    store: tuple[str, dict[str, str]],
) -> None:
    """Payloads and ids show while they are there; afterwards nothing of the task does (C3)."""
    url, options = store
    harness = harness_for(url, **options)()
    namespace = f"oc {{*}}-{secrets.token_hex(6)}"
    marker = secrets.token_hex(12)
    async with await harness.open(namespace) as backend:
        tasks = backend.persistence
        claim = await tasks.claim_task(marker)
        message = outlast.ApiMessage(id="m", role="user", content=f"content {marker}")
        await tasks.append_api_message(marker, message, claim=claim)
        seen = list(await harness.raw(namespace))
        assert any(f"content {marker}".encode() in data for _, data in seen)
        await tasks.delete_task(marker, claim=claim)
        await backend.sweep(older_than=timedelta(0))
        left = [name for name, data in await harness.raw(namespace) if marker.encode() in data]
        left += [name for name, _ in await harness.raw(namespace) if marker in name]
        assert left == []
        await tasks.append_api_message(marker, message)
        await backend.sweep(older_than=timedelta(0))
    await harness.wipe(namespace)

    # Nor what outlives a sweep. What any namespace is shown belongs to none, and others that use
    # the server store and delete all the time.
    async def names(namespace: str) -> set[str]:
        return {name for name, _ in await harness.raw(namespace)}

    kept = await names(namespace)
    for _ in range(3):
        kept -= await names(f"oc-{secrets.token_hex(6)}")
        kept &= await names(namespace)
    assert kept == set()


@pytest.mark.server
@pytest.mark.parametrize("kind", ["mongodb"])
async def test_motor_may_be_named_in_the_url(store: tuple[str, dict[str, str]]) -> None:
    """As the command is given it."""
    url, options = store
    url += ("&" if "?" in url else "?") + "driver=motor"
    harness = harness_for(url, **options)()
    namespace = f"contract-{secrets.token_hex(8)}"
    assert await harness.versions()
    async with await harness.open_with(namespace) as backend:
        await backend.persistence.save_task_state("t", outlast.TaskState(id="t"))
        there = {name for name, _ in await harness.raw(namespace)}
    await harness.wipe(namespace)
    assert there - {name for name, _ in await harness.raw(namespace)}


def test_what_boto3_finds_by_itself_is_a_secret_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the environment, so that nothing that is verified by them may show them (E4)."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "public")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden one")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hidden two")
    assert set(harness_for("s3://bucket")().secrets()) == {"hidden one", "hidden two"}
    given = {"aws_access_key_id": "own", "aws_secret_access_key": "hidden three"}
    assert set(harness_for("s3://bucket", **given)().secrets()) == {"hidden three"}


def test_a_profile_that_is_not_there_is_left_to_opening(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A harness of it can be asked all the same."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    assert harness_for("s3://bucket?profile=nobody")().secrets() == []


@pytest.mark.server
def test_a_cluster_tells_all_its_nodes() -> None:
    """So that proxies can stand before each of them, though the URL names one."""
    try:
        server = shared_server("redis-cluster")
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")
    found = harness_for(server.url)().endpoints()
    assert (set(found.addresses), found.wire) == (set(server.addresses), "redis")
    assert len(found.addresses) == 3
