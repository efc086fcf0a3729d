"""What is particular to NATS: buckets that are missing, unfit, or lose data."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import nats
import pytest
from nats.js.api import KeyValueConfig, StorageType
from nats_server import NatsServer, shared

import outlast


def opened(url: str, **options: object) -> outlast.Backend:
    return outlast.open_backend(url, **options)  # type: ignore[arg-type]


async def keys_of(bucket: str) -> list[str]:
    """The keys of a bucket, past the driver, without the part that names the namespace."""
    async with await nats.connect(shared().address) as client:
        info = await client.jetstream().stream_info(f"KV_{bucket}", subjects_filter=">")
    return sorted(name.split(".", 3)[3] for name in info.state.subjects or {})


async def make_bucket(config: KeyValueConfig) -> str:
    async with await nats.connect(shared().address) as client:
        await client.jetstream().create_key_value(config)
    return f"{shared().address}/{config.bucket}"


@pytest.fixture
def narrow_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that takes small messages only."""
    settings = tmp_path / "narrow.conf"
    settings.write_text("max_payload: 65536\n")
    server = NatsServer("-c", str(settings))
    yield server
    server.close()


def test_a_bucket_that_is_not_there_is_said_to_be() -> None:
    async def run() -> None:
        backend = opened(f"{shared().address}/nowhere", setup=False)
        with pytest.raises(outlast.ConfigurationError, match=r"'nowhere'.*outlast setup"):
            await backend.open()

    asyncio.run(run())


def test_a_wrong_password_is_a_matter_of_configuration() -> None:
    async def run() -> None:
        backend = opened(f"nats://tests:wrong@127.0.0.1:{shared().port}/tests")
        with pytest.raises(outlast.ConfigurationError, match="refused the credentials") as caught:
            await backend.open()
        assert "wrong" not in str(caught.value)

    asyncio.run(run())


def test_a_bucket_in_memory_is_told_of_and_declares_less() -> None:
    async def run() -> None:
        url = await make_bucket(KeyValueConfig("in-memory", storage=StorageType.MEMORY))
        with pytest.raises(outlast.ConfigurationError, match="in memory"):
            await opened(url, strict=True).open()
        async with opened(url) as backend:
            assert backend.capabilities.data_survives == {"process"}

    asyncio.run(run())


def test_a_bucket_with_a_ttl_is_told_of() -> None:
    async def run() -> None:
        url = await make_bucket(KeyValueConfig("short-lived", ttl=3600))
        with pytest.raises(outlast.ConfigurationError, match="TTL"):
            await opened(url, strict=True).open()

    asyncio.run(run())


def test_a_server_that_takes_small_messages_only_is_refused(narrow_server: NatsServer) -> None:
    async def run() -> None:
        with pytest.raises(outlast.ConfigurationError, match="max_payload"):
            await opened(narrow_server.url).open()

    asyncio.run(run())


@pytest.mark.parametrize(
    "url", ["nats://", "nats://host/a/b", "nats://host/a.b", "nats://host/b?replicas=two"]
)
def test_a_url_that_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(outlast.ConfigurationError):
        opened(url)


def test_what_the_user_may_not_do_is_said_at_once(tmp_path: Path) -> None:
    settings = tmp_path / "denied.conf"
    settings.write_text(
        "accounts { A { jetstream: enabled, users: [{ user: a, password: b, permissions: "
        '{ publish: { deny: "$JS.API.STREAM.CREATE.>" } } }] } }\n'
    )
    server = NatsServer("-c", str(settings), user=None)

    async def run() -> None:
        with pytest.raises(outlast.ConfigurationError, match="ermissions"):
            await opened(f"nats://a:b@127.0.0.1:{server.port}/tests", timeout=30).open()

    try:
        asyncio.run(run())
    finally:
        server.close()


def test_a_large_message_is_stored_in_parts_that_go_with_its_task() -> None:
    async def run() -> None:
        message = outlast.ApiMessage(id="large", role="user", content="x" * 3_000_000)
        async with opened(f"{shared().address}/large") as backend:
            await backend.persistence.append_api_message("t1", message)
            parts = [key for key in await keys_of("large") if key.startswith("piece.")]
            assert len(parts) == 6
            assert await backend.persistence.load_api_messages("t1") == [message]
            await backend.persistence.delete_task("t1", force=True)
            await backend.sweep(older_than=timedelta(0))
        assert await keys_of("large") == ["clock", "floor"]

    asyncio.run(run())


def test_what_a_crash_left_of_a_large_message_is_swept() -> None:
    async def run() -> None:
        async with opened(f"{shared().address}/crashed") as backend:
            await backend.persistence.save_task_input("t1", outlast.TaskInput(message="m"))
            (head,) = [key for key in await keys_of("crashed") if key.startswith("task.")]
            digest = head.rpartition(".")[2]
            async with await nats.connect(shared().address) as client:
                js = client.jetstream()
                (full,) = (
                    await js.stream_info("KV_crashed", "$KV.crashed.*.task.>")
                ).state.subjects
                left = f"{full.rpartition('.task.')[0]}.piece.{digest[0]}.task.{digest}.{'0' * 32}"
                # Its first part never came.
                await js.publish(f"{left}.1", b"x")
            report = await backend.sweep(older_than=timedelta(0))
            assert report.debris == 1
            assert head in await keys_of("crashed")
            assert not [key for key in await keys_of("crashed") if key.startswith("piece.")]

    asyncio.run(run())
