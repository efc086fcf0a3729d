"""What a client is told, as seen on the wire (P1, E5, S12)."""

import asyncio
import logging
from concurrent.futures import Future

import pytest
from s3_support import (
    BUCKET,
    HOST,
    KEYS,
    Forward,
    Holding,
    HttpProxy,
    Open,
    Request,
    Store,
    client_for,
    is_head,
    losing,
)

from outlast import TaskState
from outlast.driver import Entry, Scope
from outlast.errors import OutcomeUnknownError, OutlastError, UnavailableError
from outlast_contract.stopwatch import Stopwatch
from outlast_s3 import S3Backend, S3Driver
from outlast_s3._boto import Settings, _loaders
from outlast_s3._bucket import Answer, Bucket
from outlast_s3._driver import _PATIENCE
from outlast_s3._lines import Line
from outlast_s3._links import CONNECTIONS, LentLink, open_link

pytestmark = [pytest.mark.s3, pytest.mark.server]

RUN = Scope("run", "r")
TASK = Scope("task", "t")


async def test_the_client_repeats_no_request(open_driver: Open, proxy: HttpProxy) -> None:
    """E5: it would take its own success for somebody else's."""
    driver = await open_driver(proxy.port)
    proxy.once(is_head("PUT"), losing)
    with pytest.raises(OutcomeUnknownError):
        await driver.write(RUN, "checkpoint", b"1", fence=None)
    assert len([line for line in proxy.requests if "PUT" in line and "/run/" in line]) == 1


async def test_no_header_is_sent_that_a_compatible_store_may_not_know(
    open_driver: Open, proxy: HttpProxy
) -> None:
    """S12: boto3's own choice is a checksum of each body, and to ask for one of each object."""
    names: set[str] = set()

    def note(request: Request) -> bool:
        names.update(request.headers)
        return False

    proxy.always(note, losing)
    driver = await open_driver(proxy.port)
    await driver.write(RUN, "checkpoint", b"1" * 300_000, fence=None)
    await driver.read(RUN, "checkpoint")
    assert "content-md5" in names
    assert not [name for name in names if "checksum" in name or "trailer" in name]


async def test_only_a_large_body_is_announced(open_driver: Open, proxy: HttpProxy) -> None:
    """P1: to ask whether the store wants it costs a round trip, and saves one that is refused."""
    driver = await open_driver(proxy.port)
    await driver.write(RUN, "checkpoint", b"1" * 200_000, fence=None)
    assert proxy.asked == []
    await driver.write(RUN, "checkpoint", b"1" * 2**21, fence=None)
    assert [length > 2**20 for length in proxy.asked] == [True]


async def test_the_bucket_is_in_the_path_where_the_endpoint_is_given(
    server: Store, prefix: str, proxy: HttpProxy
) -> None:
    """A compatible store seldom has a host name for each bucket."""
    url = f"s3://{server.bucket}/{prefix}?endpoint_url=http://localhost:{proxy.port}"
    driver = S3Driver.from_url(url, **KEYS)
    await driver.setup(create=True)
    await driver.aclose()
    assert all(f" /{server.bucket}" in line for line in proxy.requests)


async def test_as_many_requests_as_threads_are_under_way_at_once(
    open_driver: Open, proxy: HttpProxy
) -> None:
    driver = await open_driver(proxy.port)
    together = asyncio.Barrier(CONNECTIONS)

    async def answer_together(request: Request, forward: Forward) -> bytes | None:
        await together.wait()
        return await forward(request)

    proxy.always(is_head("GET"), answer_together)
    scopes = [Scope("run", f"r{number}") for number in range(CONNECTIONS)]
    values = await asyncio.gather(*(driver.read(scope, "checkpoint") for scope in scopes))
    assert [value.data for value in values] == [None] * CONNECTIONS


async def test_a_lent_client_has_no_more_requests_than_connections(server: Store) -> None:
    """It would open more, and throw each of them away behind one answer."""
    for connections, expected in ((3, 3), (50, CONNECTIONS)):
        client = client_for(server.port, max_pool_connections=connections)
        assert (await open_link(LentLink(client, server.bucket, ""))).threads == expected
        client.close()


async def test_a_request_whose_caller_left_before_its_turn_is_not_sent(
    open_driver: Open, proxy: HttpProxy
) -> None:
    driver = await open_driver(proxy.port)
    released = asyncio.Event()

    async def hold(request: Request, forward: Forward) -> bytes | None:
        await released.wait()
        return await forward(request)

    proxy.always(is_head("GET"), hold)
    scopes = [Scope("run", f"r{number}") for number in range(CONNECTIONS)]
    held = [asyncio.ensure_future(driver.read(scope, "checkpoint")) for scope in scopes]
    left, last = (asyncio.ensure_future(driver.read(RUN, "checkpoint")) for _ in range(2))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    released.set()
    await asyncio.gather(*held, last)
    assert len([line for line in proxy.requests if "/run/" in line]) == CONNECTIONS + 1


async def test_a_process_tries_the_conditions_of_a_store_once(
    open_driver: Open, proxy: HttpProxy
) -> None:
    """Of each user of a bucket: the trial takes more requests than all else of opening."""
    await open_driver(proxy.port)
    proxy.requests.clear()
    await open_driver(proxy.port)
    assert [line.partition(" ")[0] for line in proxy.requests] == ["GET"]


def test_a_second_client_reads_no_description_of_the_api() -> None:
    """That takes most of the time of making one; nor does what is kept of it grow."""
    settings = Settings(
        endpoint_url=f"http://{HOST}:1",
        region=None,
        profile=None,
        addressing_style=None,
        credentials=KEYS,
        timeout=1.0,
        connections=1,
    )
    clients = [settings.make_client() for _ in range(4)]
    assert len({id(client.meta.service_model.metadata) for client in clients}) == 1
    for loader in _loaders.values():
        assert len(loader.search_paths) <= len(set(loader.search_paths)) + 1
    for client in clients:
        client.close()


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_request_that_got_a_thread_when_its_time_was_over_was_not_sent(
    server: Store, has_begun: bool
) -> None:
    """E2: it is too late to be taken back then, but it never begins."""
    bucket = Bucket(server.client, server.bucket, "the bucket", user="u", threads=1)
    line, request = Line(), Future[Answer]()
    assert request.set_running_or_notify_cancel()
    if has_begun:
        line.begin()
    told = bucket._late(request, line, changes=True)
    assert type(told) is (OutcomeUnknownError if has_begun else UnavailableError)
    with pytest.raises(ConnectionAbortedError):
        line.begin()
    await bucket.close(1.0)


TOKEN = "t0ken+of/a/session=="
QUOTING = (
    "<Error><Code>ExpiredToken</Code><Message>as the test wants it</Message>"
    f"<Token-0>{TOKEN}</Token-0><CanonicalRequest>PUT\n/\n\nhost:x\n"
    f"x-amz-security-token:{TOKEN}\n\nhost</CanonicalRequest></Error>"
)
"""As AWS refuses."""


@pytest.mark.parametrize("is_lent", [False, True], ids=["own", "lent"])
async def test_the_token_of_a_session_is_not_logged(
    proxy: HttpProxy, prefix: str, is_lent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """E4: botocore would quote it in three ways; whose requests are not ours, it logs as ever."""

    async def without_token(request: Request, forward: Forward) -> bytes | None:
        assert request.headers["x-amz-security-token"] == TOKEN
        return await forward(request.without("x-amz-security-token"))

    async def quoting(request: Request, forward: Forward) -> bytes | None:
        head = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/xml\r\nConnection: close"
        return f"{head}\r\nContent-Length: {len(QUOTING)}\r\n\r\n{QUOTING}".encode()

    proxy.once(is_head(), quoting)
    proxy.always(lambda _: True, without_token)
    client = client_for(proxy.port, token=TOKEN)
    if is_lent:
        driver = S3Driver(client=client, bucket=BUCKET, prefix=prefix)
    else:
        url = f"s3://{BUCKET}/{prefix}?endpoint_url=http://{HOST}:{proxy.port}"
        driver = S3Driver.from_url(url, **KEYS, aws_session_token=TOKEN)
    with caplog.at_level(logging.DEBUG):
        await driver.setup(create=True)
        with pytest.raises(OutlastError) as caught:
            await driver.append(TASK, "api", [Entry("a", b"1")], fence=None)
        await driver.aclose()
        assert TOKEN not in f"{caplog.text} {caught.value} {caught.value.__cause__!r}"
        for words in ("x-amz-security-token:***", "'X-Amz-Security-Token': b'***'", "<Token-0>***"):
            assert words in caplog.text
        await asyncio.to_thread(client.head_bucket, Bucket=BUCKET)
        assert TOKEN in caplog.text
    client.close()


async def test_a_call_says_before_its_time_is_over_what_became_of_it(
    proxy: HttpProxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2, E6: of two saves on one connection, which is held up, only the first may be applied."""
    client = client_for(proxy.port, max_pool_connections=1)
    async with S3Backend(client=client, bucket=BUCKET, prefix=prefix) as backend:
        hold = Holding()
        proxy.always(is_head(), hold)
        assert isinstance(backend.driver, S3Driver)
        # What a timeout of 2 seconds gives; opening had more.
        monkeypatch.setattr(backend._calls, "_timeout", 2.0)
        monkeypatch.setattr(backend.driver, "_patience", 2.0 * _PATIENCE)
        save = backend.persistence.save_task_state
        saving = [asyncio.ensure_future(save(name, TaskState(id=name))) for name in ("a", "b")]
        with Stopwatch() as watch:
            first, second = await asyncio.gather(*saving, return_exceptions=True)
        assert isinstance(first, OutcomeUnknownError)
        assert isinstance(second, UnavailableError)
        if watch.late < 0.1:  # Or else this process did not run when they had time to say more.
            assert f"bucket {BUCKET!r} did not answer in time" in str(first)
            assert "all 1 connections" in str(second)
        hold.released.set()
    client.close()
