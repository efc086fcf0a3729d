"""What an error means that the store answers, or that boto3 makes of a connection (E2, E3, E4)."""

import pytest
from botocore.exceptions import IncompleteReadError
from s3_support import (
    Forward,
    HttpProxy,
    Open,
    Request,
    Store,
    answering,
    client_for,
    is_head,
    losing,
)

from outlast.driver import Scope
from outlast.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    OutlastError,
    PayloadTooLargeError,
    UnavailableError,
)
from outlast_s3 import S3Driver
from outlast_s3._boto import repeats
from outlast_s3._errors import translate
from outlast_s3._probe import _expires

pytestmark = [pytest.mark.s3, pytest.mark.server]

RUN = Scope("run", "r")


@pytest.mark.parametrize(
    ("status", "code", "kind", "says"),
    [
        (503, "SlowDown", UnavailableError, "is busy"),
        (429, "Whatever", UnavailableError, "is busy"),
        (400, "RequestTimeout", UnavailableError, "is busy"),
        (400, "EntityTooLarge", PayloadTooLargeError, "of this size"),
        (403, "RequestTimeTooSkewed", ConfigurationError, "clock of this machine"),
        (403, "AccessDenied", ConfigurationError, "permission"),
        (401, "Whatever", ConfigurationError, "permission"),
        (404, "NoSuchBucket", ConfigurationError, "create the bucket first"),
        (400, "Whatever", ConfigurationError, "refused"),
        (500, "InternalError", OutcomeUnknownError, "failed"),
    ],
)
async def test_what_a_store_says_of_a_write_is_told_as_it_is(
    open_driver: Open,
    proxy: HttpProxy,
    status: int,
    code: str,
    kind: type[OutlastError],
    says: str,
) -> None:
    """Whether it did something, what there is to do about it, and no secret."""
    driver = await open_driver(proxy.port)
    proxy.once(is_head("PUT"), answering(status, code, "http://user:s3cret@host"))
    with pytest.raises(kind, match=says) as caught:
        await driver.write(RUN, "checkpoint", b"1", fence=None)
    assert "s3cret" not in str(caught.value)
    assert code in str(caught.value)


@pytest.mark.parametrize(
    ("retries", "expected"),
    [(None, True), ({"max_attempts": 2}, True), ({"max_attempts": 0}, False)],
    ids=str,
)
def test_whether_a_client_repeats_is_seen(retries: dict[str, int] | None, expected: bool) -> None:
    """As boto3 makes one, it does."""
    client = client_for(1, retries=retries)
    assert repeats(client) is expected
    client.close()


@pytest.mark.parametrize("then", ["busy", "gone"])
async def test_a_repetition_by_a_lent_client_leaves_the_outcome_open(
    server: Store, prefix: str, proxy: HttpProxy, then: str
) -> None:
    """E2: its first attempt may be in, whatever became of the last one."""
    retries = {"total_max_attempts": 2, "mode": "standard"}
    client = client_for(proxy.port, retries=retries)
    driver = S3Driver(client=client, bucket=server.bucket, prefix=prefix)
    await driver.setup(create=True)

    async def lose_and_leave(request: Request, forward: Forward) -> bytes | None:
        proxy.refuse()
        return await losing(request, forward)

    proxy.once(is_head("PUT"), losing if then == "busy" else lose_and_leave)
    proxy.once(is_head("PUT"), answering(503, "SlowDown"))
    with pytest.raises(OutcomeUnknownError, match="busy" if then == "busy" else "reached"):
        await driver.write(RUN, "checkpoint", b"1", fence=None)
    await driver.aclose()
    client.close()
    assert [name for name in server.objects(prefix) if "/run/" in name]


async def test_an_answer_that_breaks_off_is_none(open_driver: Open, proxy: HttpProxy) -> None:
    """Wherever it does, in order or not: it says nothing of the settings."""
    driver = await open_driver(proxy.port)
    await driver.write(RUN, "checkpoint", b"1" * 1000, fence=None)
    for left in (5, 500, 1200):

        async def cut(request: Request, forward: Forward, left: int = left) -> bytes | None:
            return (await forward(request))[:-left]

        proxy.once(is_head("GET"), cut)
        with pytest.raises(UnavailableError, match=r"did not answer.*longer timeout"):
            await driver.read(RUN, "checkpoint")
    short = IncompleteReadError(actual_bytes=1, expected_bytes=2)  # of older clients
    assert isinstance(translate(short, "it", changes=True, repeats=False), OutcomeUnknownError)


async def test_what_could_not_be_sent_is_not_applied(open_driver: Open, proxy: HttpProxy) -> None:
    driver = await open_driver(proxy.port)

    async def answer_and_leave(request: Request, forward: Forward) -> bytes | None:
        proxy.refuse()
        return await forward(request)

    proxy.once(is_head("GET"), answer_and_leave)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await driver.write(RUN, "checkpoint", b"1", fence=None)


EXPIRY = {"Status": "Enabled", "Expiration": {"Days": 7}}
TAG = {"Key": "k", "Value": "v"}


@pytest.mark.parametrize(
    ("rule", "matters"),
    [
        ({"Filter": {}, **EXPIRY}, True),
        ({"Prefix": "", **EXPIRY}, True),
        ({"Filter": {"Prefix": "a/"}, **EXPIRY, "Expiration": {"Date": "2030-01-01"}}, True),
        ({"Filter": {"Prefix": "a/root/task/"}, **EXPIRY}, True),
        ({"Filter": {"And": {"Prefix": "a/", "ObjectSizeLessThan": 9}}, **EXPIRY}, True),
        ({"Prefix": "", **EXPIRY, "Status": "Disabled"}, False),
        ({"Prefix": "b/", **EXPIRY}, False),
        ({"Filter": {"Prefix": "b/"}, **EXPIRY}, False),
        ({"Filter": {"Tag": TAG}, **EXPIRY}, False),
        ({"Filter": {"And": {"Prefix": "a/", "Tags": [TAG]}}, **EXPIRY}, False),
        ({"Filter": {"And": {"Prefix": "b/", "ObjectSizeLessThan": 9}}, **EXPIRY}, False),
        ({"Filter": {}, **EXPIRY, "Expiration": {"ExpiredObjectDeleteMarker": True}}, False),
        ({"Status": "Enabled", "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}, False),
    ],
    ids=str,
)
def test_a_lifecycle_rule_matters_if_it_takes_objects_of_the_namespace(
    rule: dict[str, object], matters: bool
) -> None:
    """D2: also a part of them; no object of outlast has tags."""
    assert _expires(rule, "a/root/") is matters
