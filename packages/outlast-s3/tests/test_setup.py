"""Opening: URLs, credentials, unfit stores, buckets that lose data (S3, S4, S6, S12, D2)."""

import asyncio
import contextlib
import json
import logging
import secrets
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import boto3.session
import pytest
from s3_support import (
    ACCESS_KEY,
    HOST,
    KEYS,
    SECRET_KEY,
    Forward,
    HttpProxy,
    Open,
    Owner,
    Request,
    Store,
    answering,
    claim_id,
    client_for,
    losing,
    no_thread_works,
    wait_until,
)

import outlast
from outlast import TaskState
from outlast.driver import Entry, Scope
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    CorruptDataError,
    OutlastError,
    UnavailableError,
    UnsupportedVersionError,
)
from outlast_contract.stopwatch import Stopwatch
from outlast_s3 import S3Backend, S3Driver
from outlast_s3._boto import endpoint_of
from outlast_s3._driver import capabilities_at

pytestmark = [pytest.mark.s3, pytest.mark.server]


def ignoring(*headers: str) -> Callable[[Request, Forward], Any]:
    """A rule: the store does not know these headers."""

    async def rule(request: Request, forward: Forward) -> bytes | None:
        return await forward(request.without(*headers))

    return rule


def puts(request: Request) -> bool:
    return request.method == "PUT"


def deletes(request: Request) -> bool:
    return request.method == "DELETE" and "if-match" in request.headers


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://", "name of a bucket"),
        ("s3://user:s3cret@bucket/x", "credentials go as keywords"),
        ("s3://bucket:9000/x", "endpoint_url"),
        ("s3://bucket/a//b", "prefix"),
        ("s3://bucket/a/../b", "prefix"),
        ("s3://bucket/a%20b", "prefix"),
        ("s3://bucket/%C3%A9", "prefix"),
        ("s3://bucket/" + "/".join(["x" * 190] * 4), "prefix"),
        ("s3://bucket/x?unknown=1", "unknown option"),
        ("s3://bucket/x?aws_secret_access_key=s3cret", "unknown option"),
        ("s3://bucket/x?endpoint_url=localhost:9000", "http"),
        ("s3://bucket/x?endpoint_url=http://me:s3cret@localhost:9000", "without credentials"),
        ("s3://bucket/x?addressing_style=host", "addressing_style"),
        ("s3://bucket/x?region=", "region"),
        ("s3://name--use1-az4--x-s3/x", "directory bucket"),
    ],
    ids=lambda text: text.partition("//")[2][:40],
)
def test_a_url_that_does_not_fit_is_refused_before_anything_is_sent(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        outlast.open_backend(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"unknown": "1"},
        {"region": 5},
        {"endpoint_url": "http://h"},
        {"profile": ""},
        {"bucket": "b"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_does_not_fit_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        outlast.open_backend("s3://bucket?endpoint_url=http://h", **options)


async def test_only_an_s3_client_may_be_lent(server: Store) -> None:
    other = client_for(server.port)
    for given in ("s3", server.client.meta, object()):
        with pytest.raises(ConfigurationError, match=r"boto3\.client"):
            S3Backend(client=given, bucket=server.bucket)
    for arguments in ({}, {"client": other, "url": "s3://b"}):
        with pytest.raises(ConfigurationError, match="either"):
            S3Backend(**arguments)
    with pytest.raises(ConfigurationError, match="bucket"):
        S3Backend(client=other)
    with pytest.raises(ConfigurationError, match="no further options"):
        S3Backend(client=other, bucket="b", region="x")
    with pytest.raises(ConfigurationError, match="in the URL"):
        S3Backend(url="s3://b", prefix="x")
    other.close()


@pytest.mark.parametrize("wrong", ["secret", "user", "none"])
async def test_wrong_credentials_are_a_matter_of_configuration(
    server: Store, url: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    keys = {
        "secret": {**KEYS, "aws_secret_access_key": "wr0ng-word"},
        "user": {**KEYS, "aws_access_key_id": "wr0ng-user"},
        "none": {},
    }[wrong]
    backend = outlast.open_backend(url, **keys)
    with pytest.raises(ConfigurationError, match=server.bucket) as caught:
        await backend.open()
    shown = f"{caught.value} {caught.value!r} {backend!r} {caught.value.__cause__!r}"
    assert "wr0ng-word" not in shown
    assert SECRET_KEY not in shown


async def test_an_unknown_profile_is_a_matter_of_configuration(url: str) -> None:
    with pytest.raises(ConfigurationError, match="nobody"):
        await outlast.open_backend(url, profile="nobody").open()


@pytest.mark.parametrize(
    "how", ["nobody listens", "nobody accepts", "nobody answers", "tls where there is none"]
)
async def test_what_cannot_be_reached_is_said_in_time(server: Store, how: str) -> None:
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind((HOST, 0))
        if how == "nobody answers":
            deaf.listen()
        elif how == "nobody accepts":
            deaf.listen(0)
            for _ in range(2):  # One more than the kernel takes for nobody.
                caller = stack.enter_context(socket.socket())
                caller.setblocking(False)
                caller.connect_ex(deaf.getsockname())
        port = server.port if "tls" in how else deaf.getsockname()[1]
        scheme = "https" if "tls" in how else "http"
        url = f"s3://bucket/x?endpoint_url={scheme}://{HOST}:{port}"
        backend = outlast.open_backend(url, timeout=2.0, **KEYS)
        with Stopwatch() as watch:
            with pytest.raises(UnavailableError, match=f"{HOST}:{port}") as caught:
                await backend.open()
            assert watch.seconds < 5
        wait_until(no_thread_works, 5)
    assert how == "nobody answers" or "check that it runs" in str(caught.value)
    assert SECRET_KEY not in f"{caught.value} {caught.value.__cause__!r}"


async def test_a_bucket_that_does_not_exist_is_not_made(server: Store) -> None:
    """Some stores would make it when the first object is put there."""
    url = f"s3://misspelt?endpoint_url=http://{HOST}:{server.port}"
    with pytest.raises(ConfigurationError, match="create the bucket first"):
        await outlast.open_backend(url, **KEYS).open()
    names = [bucket["Name"] for bucket in server.client.list_buckets()["Buckets"]]
    assert "misspelt" not in names


@pytest.mark.parametrize("header", ["if-none-match", "if-match"])
async def test_a_store_that_ignores_a_condition_is_refused(
    server: Store, open_driver: Open, proxy: HttpProxy, prefix: str, header: str
) -> None:
    """And nothing of the trial stays there."""
    proxy.always(puts, ignoring(header))
    with pytest.raises(ConfigurationError, match=r"(?i)ignores the condition|at once succeed"):
        await open_driver(proxy.port)
    assert server.objects(prefix) == {}


@pytest.mark.parametrize("header", ["if-none-match", "if-match"])
async def test_a_store_that_does_not_know_conditions_is_refused(
    open_driver: Open, proxy: HttpProxy, header: str
) -> None:
    proxy.always(
        lambda request: puts(request) and header in request.headers,
        answering(501, "NotImplemented"),
    )
    with pytest.raises(ConfigurationError, match="does not know"):
        await open_driver(proxy.port)


async def test_a_store_that_reads_what_was_before_is_refused(
    server: Store, open_driver: Open, proxy: HttpProxy, prefix: str
) -> None:
    """S15: a record that was just written could be read as if it were not there."""
    proxy.always(
        lambda request: request.method == "GET" and "/probe/" in request.path,
        answering(404, "NoSuchKey"),
    )
    with pytest.raises(ConfigurationError, match="did not see the object that was just created"):
        await open_driver(proxy.port)
    assert server.objects(prefix) == {}


@pytest.mark.parametrize("how", ["ignores the condition", "does not know the condition"])
async def test_where_a_delete_keeps_no_condition_tombstones_stay(
    server: Store, open_driver: Open, proxy: HttpProxy, prefix: str, how: str
) -> None:
    """S6: epochs go on, all the same."""
    rule = ignoring("if-match") if "ignores" in how else answering(501, "NotImplemented")
    proxy.always(deletes, rule)
    driver = await open_driver(proxy.port)
    task = Scope("task", "t")
    owner = Owner((await driver.claim(task, claim_id(1))).fence)
    await driver.append(task, "api", [Entry("m", b"x" * 50_000)], fence=owner.fence())
    await driver.remove(task, fence=owner.fence())
    after: str | None = None
    while True:
        page = await driver.sweep(older_than=0, limit=9, dry_run=False, after=after)
        assert page.tombstones == 0
        after = page.next
        if after is None:
            break
    kept = [name for name in server.objects(prefix) if "/task/" in name or "/piece/" in name]
    assert len(kept) == 1
    assert (await driver.claim(task, claim_id(2))).epoch == owner.epoch + 1


async def test_setup_false_only_verifies(server: Store, open_driver: Open, prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="run: outlast setup s3://"):
        await open_driver(create=False)
    assert server.objects(prefix) == {}
    await open_driver()
    assert list(server.objects(prefix)) == [f"{prefix}/outlast.json"]
    await open_driver(create=False, namespace="another")


@pytest.mark.parametrize(
    ("mark", "kind"),
    [
        (json.dumps({"format": 99}).encode(), UnsupportedVersionError),
        (b"{", CorruptDataError),
        (b"[]", CorruptDataError),
        (b'{"format": "1"}', CorruptDataError),
    ],
    ids=["newer", "cut", "list", "text"],
)
async def test_another_format_is_refused(
    server: Store, open_driver: Open, prefix: str, mark: bytes, kind: type[OutlastError]
) -> None:
    server.client.put_object(Bucket=server.bucket, Key=f"{prefix}/outlast.json", Body=mark)
    with pytest.raises(kind, match=r"outlast\.json"):
        await open_driver()


async def test_several_clients_may_set_up_at_once(
    server: Store, open_driver: Open, prefix: str
) -> None:
    """X4."""
    await asyncio.gather(*(open_driver(timeout=30.0) for _ in range(8)))
    assert list(server.objects(prefix)) == [f"{prefix}/outlast.json"]


@pytest.mark.parametrize("hazard", ["versioning", "lifecycle"])
async def test_a_bucket_that_keeps_or_loses_data_is_reported(
    server: Store, hazard: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = f"hazard-{hazard}-{secrets.token_hex(6)}"

    def told() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name.startswith("outlast")]

    server.client.create_bucket(Bucket=bucket)
    if hazard == "versioning":
        server.client.put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
        )
    else:
        rule = {"ID": "tidy", "Status": "Enabled", "Expiration": {"Days": 7}}
        server.client.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": [{**rule, "Filter": {"Prefix": "a"}}]}
        )
    url = f"s3://{bucket}/a/b?endpoint_url=http://{HOST}:{server.port}"
    with caplog.at_level(logging.WARNING, "outlast"):
        async with outlast.open_backend(url, **KEYS):
            pass
    says = "old versions" if hazard == "versioning" else "'tidy'"
    assert [says in message for message in told()] == [True]
    with pytest.raises(ConfigurationError, match=says):
        await outlast.open_backend(url, strict=True, **KEYS).open()
    caplog.clear()
    beside = url.replace("/a/b?", "/b?")
    async with outlast.open_backend(beside, **KEYS):
        assert len(told()) == (1 if hazard == "versioning" else 0)


async def test_a_user_who_may_not_list_is_refused(
    server: Store, open_driver: Open, proxy: HttpProxy, prefix: str
) -> None:
    """Not only by the first sweep; and nothing of the trial stays there."""
    proxy.always(lambda request: "list-type=2" in request.path, answering(403, "AccessDenied"))
    with pytest.raises(ConfigurationError, match="get, put, delete and list"):
        await open_driver(proxy.port)
    assert server.objects(prefix) == {}


async def test_settings_that_may_not_be_seen_are_no_hazard(
    open_driver: Open, proxy: HttpProxy
) -> None:
    proxy.always(lambda request: "?versioning" in request.path, answering(403, "AccessDenied"))
    proxy.always(lambda request: "?lifecycle" in request.path, losing)
    driver = await open_driver(proxy.port)
    assert list(await driver.hazards()) == []


@pytest.mark.parametrize(
    ("endpoint", "is_aws"),
    [
        ("https://s3.amazonaws.com", True),
        ("https://s3.eu-central-1.amazonaws.com", True),
        ("https://bucket.s3.dualstack.us-west-2.amazonaws.com", True),
        ("https://s3.cn-north-1.amazonaws.com.cn", True),
        ("https://s3.amazonaws.com.example.org", False),
        ("https://example.org/s3.amazonaws.com", False),
        (f"http://{HOST}:9000", False),
        (None, False),
    ],
)
def test_more_is_declared_of_aws_than_of_other_stores(endpoint: str | None, is_aws: bool) -> None:
    """D1: a failover of a store that is not known promises nothing."""
    declared = capabilities_at(endpoint)
    assert declared.data_survives == declared.fences_survive
    assert {"process", "server"} <= declared.data_survives
    assert ("failover" in declared.data_survives) is is_aws


async def test_what_is_declared_follows_the_address_of_the_client(open_driver: Open) -> None:
    driver = await open_driver()
    assert driver.capabilities.data_survives == {"process", "server"}
    for region, endpoint in (("eu-central-1", None), ("eu-central-1", f"http://{HOST}:9000")):
        session = boto3.session.Session(**KEYS, region_name=region)
        client = session.client("s3", endpoint_url=endpoint)
        declared = capabilities_at(endpoint_of(client))
        assert ("failover" in declared.fences_survive) is (endpoint is None)
        client.close()


async def test_a_closed_driver_says_so(open_driver: Open) -> None:
    driver = await open_driver()
    await driver.aclose()
    await driver.aclose()
    for call in (driver.ping(), driver.setup(create=True), driver.hazards()):
        with pytest.raises(ClosedError):
            await call
    with pytest.raises(ClosedError):
        await S3Driver.from_url("s3://b").ping()


async def test_a_lent_client_with_checksums_of_its_own_works(server: Store, prefix: str) -> None:
    """S12: with the checksums that boto3 sends by default; it stays open."""
    client = client_for(server.port, request_checksum_calculation="when_supported")
    async with S3Backend(client=client, bucket=server.bucket, prefix=prefix) as backend:
        await backend.persistence.save_task_state("t", TaskState(id="t"))
        assert await backend.persistence.load_task_state("t") is not None
        await backend.sweep(older_than=timedelta(0))
    assert client.head_bucket(Bucket=server.bucket)
    client.close()
    assert ACCESS_KEY not in repr(backend)
