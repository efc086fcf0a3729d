"""Servers of the test's own: one that restarts, one that keeps keys from doing what they need."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from s3_support import BUCKET, KEYS, Store, available

import outlast
from outlast import ApiMessage, TaskState
from outlast.errors import ConfigurationError, FencedError
from outlast_contract.servers import Server, start_server
from outlast_s3 import S3Backend

pytestmark = [pytest.mark.s3, pytest.mark.server]

READER = {"aws_access_key_id": "reader-access", "aws_secret_access_key": "reader-s3cret"}
STRANGER = {"aws_access_key_id": "stranger-access", "aws_secret_access_key": "stranger-s3cret"}
SAYS = "permission to get, put, delete and list"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that knows a user who may do everything, one who may read, and one without rights
    in the bucket.
    """
    actions = {
        tuple(KEYS.values()): ["Admin", "Read", "Write", "List", "Tagging"],
        tuple(READER.values()): [f"Read:{BUCKET}", f"List:{BUCKET}"],
        tuple(STRANGER.values()): ["Read:another", "Write:another", "List:another"],
    }
    identities = [
        {
            "name": access,
            "credentials": [{"accessKey": access, "secretKey": secret}],
            "actions": may,
        }
        for (access, secret), may in actions.items()
    ]
    config = tmp_path_factory.mktemp("s3") / "identities.json"
    config.write_text(json.dumps({"identities": identities}))
    server = available(lambda: start_server("s3", f"-s3.config={config}"))
    with server:
        yield server


@pytest.mark.parametrize("keys", [READER, STRANGER], ids=["reader", "stranger"])
@pytest.mark.parametrize("is_set_up", [False, True], ids=["new", "set up"])
async def test_a_missing_permission_is_said_when_the_backend_is_opened(
    own: Server, keys: dict[str, str], is_set_up: bool
) -> None:
    """With what is missing, where, and without a secret."""
    url = f"{own.url}/{keys['aws_access_key_id']}-{is_set_up}"
    if is_set_up:
        async with outlast.open_backend(url, **own.options):
            pass
    backend = outlast.open_backend(url, timeout=5.0, **{**own.options, **keys})
    with pytest.raises(
        ConfigurationError, match="permission to get, put, delete and list"
    ) as caught:
        await backend.open()
    shown = f"{caught.value} {caught.value!r} {backend!r} {caught.value.__cause__!r}"
    assert BUCKET in shown
    assert own.options["endpoint_url"] in shown
    assert keys["aws_secret_access_key"] not in shown


async def test_connections_that_were_closed_in_the_pool_cost_the_caller_nothing(
    own: Server,
) -> None:
    """Not even a save without a claim, which nobody could repeat."""
    async with outlast.open_backend(f"{own.url}/pooled", **own.options) as backend:
        tasks = backend.persistence
        await tasks.save_task_state("t", TaskState(id="t"))
        claim = await tasks.claim_task("claimed")
        for number in range(2):
            own.restart()
            await tasks.save_task_state("t", TaskState(id="t", retry_count=number))
            message = ApiMessage(id=f"m{number}", role="user", content="x")
            await tasks.append_api_message("claimed", message, claim=claim)
            stored = await tasks.load_task_state("t")
            assert stored is not None
            assert stored.retry_count == number
        assert len(await tasks.load_api_messages("claimed")) == 2


def denial(action: str, folder: str) -> str:
    """A policy that forbids one action to everybody."""
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": action,
        "Resource": f"arn:aws:s3:::{BUCKET}/{folder}/*",
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@pytest.mark.parametrize("action", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"])
async def test_each_permission_that_is_missing_is_said(own: Server, action: str) -> None:
    """Also that to delete, without which payloads of deleted tasks would stay."""
    folder = action.partition(":")[2]
    store = Store(own)
    store.client.put_bucket_policy(Bucket=BUCKET, Policy=denial(action, folder))
    # A client of its own: what this process has found out about others does not count for it.
    lent: dict[str, Any] = {"client": store.client, "bucket": BUCKET, "prefix": folder}
    try:
        with pytest.raises(ConfigurationError, match=SAYS):
            await S3Backend(**lent).open()
    finally:
        store.client.delete_bucket_policy(Bucket=BUCKET)
    async with S3Backend(**lent) as backend:
        await backend.persistence.claim_task("t")
    store.client.close()


async def test_a_permission_that_is_taken_away_is_an_error_and_comes_back(own: Server) -> None:
    """A backend stays usable: nothing of it has to be made anew (C8)."""
    store = Store(own)
    async with outlast.open_backend(f"{own.url}/denied", **own.options) as backend:
        tasks = backend.persistence
        claim = await tasks.claim_task("t")
        store.client.put_bucket_policy(Bucket=BUCKET, Policy=denial("s3:PutObject", "denied"))
        try:
            with pytest.raises(ConfigurationError, match="permission"):
                await tasks.save_task_state("t", TaskState(id="t"), claim=claim)
            with pytest.raises(ConfigurationError, match="permission"):
                await tasks.claim_task("t2")
        finally:
            store.client.delete_bucket_policy(Bucket=BUCKET)
        await tasks.save_task_state("t", TaskState(id="t", retry_count=1), claim=claim)
        await tasks.claim_task("t")
        with pytest.raises(FencedError):
            await tasks.save_task_state("t", TaskState(id="t"), claim=claim)
    store.client.close()
