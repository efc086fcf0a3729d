"""Answers that are lost, late or odd: S1, S2, S3, S14."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from s3_support import (
    HOST,
    KEYS,
    Forward,
    Holding,
    HttpProxy,
    Open,
    Owner,
    Request,
    Store,
    answering,
    claim_id,
    client_for,
    dropping,
    in_a_hurry,
    is_head,
    is_piece,
    losing,
)

import outlast
from outlast import ApiMessage, TaskState
from outlast.driver import Entry, Scope
from outlast.errors import OutcomeUnknownError, OutlastError, UnavailableError
from outlast_contract.stopwatch import Stopwatch
from outlast_s3 import S3Backend

pytestmark = [pytest.mark.s3, pytest.mark.server]

TASK = Scope("task", "t")
RACES = [(404, "NoSuchKey"), (409, "ConditionalRequestConflict"), (412, "PreconditionFailed")]
FAILURES = [(500, "InternalError"), (503, "SlowDown"), (503, "ServiceUnavailable")]


@pytest.fixture(params=["own client", "lent client", "lent client with retries"])
async def backend(
    request: pytest.FixtureRequest, server: Store, proxy: HttpProxy, prefix: str
) -> AsyncIterator[outlast.Backend]:
    """A backend behind the proxy."""
    kind = request.param
    client: Any = None
    if kind == "own client":
        url = f"s3://{server.bucket}/{prefix}?endpoint_url=http://{HOST}:{proxy.port}"
        made = S3Backend(url=url, **KEYS)
    else:
        retries = {"retries": {"total_max_attempts": 4, "mode": "standard"}}
        client = client_for(proxy.port, **(retries if "retries" in kind else {}))
        made = S3Backend(client=client, bucket=server.bucket, prefix=prefix)
    async with made:
        yield made
    if client is not None:
        assert await asyncio.to_thread(client.head_bucket, Bucket=server.bucket)
        client.close()


async def test_a_claimed_mutation_whose_answer_is_lost_is_done_once(
    backend: outlast.Backend, proxy: HttpProxy
) -> None:
    """With or without repetitions by the client, which meet the first one's success as 412."""
    tasks = backend.persistence
    claim = await tasks.claim_task("t")
    messages = [ApiMessage(id=f"m{number}", role="user", content="x") for number in range(3)]
    for message in messages:
        proxy.once(is_head(), losing)
        await tasks.append_api_message("t", message, claim=claim)
    assert await tasks.load_api_messages("t") == messages
    proxy.once(is_head(), losing)
    await tasks.save_task_state("t", TaskState(id="t"), claim=claim)
    proxy.once(is_head(), losing)
    await tasks.delete_task("t", claim=claim)
    assert await tasks.load_task_state("t") is None


async def test_a_claim_whose_answer_is_lost_is_taken_once(
    backend: outlast.Backend, proxy: HttpProxy
) -> None:
    """Whichever of its requests goes unanswered, the first claim of a task has the epoch 1."""
    for number, matches in enumerate(
        [is_head("GET"), is_head("PUT"), lambda request: "/floor/" in request.path]
    ):
        proxy.once(matches, losing)
        assert (await backend.persistence.claim_task(f"t{number}")).epoch == 1


async def test_an_unclaimed_append_whose_answer_is_lost_is_done_once(
    backend: outlast.Backend, proxy: HttpProxy
) -> None:
    tasks = backend.persistence
    messages = [ApiMessage(id=f"m{number}", role="user", content="x") for number in range(2)]
    for message in messages:
        proxy.once(is_head(), losing)
        await tasks.append_api_message("t", message)
    assert await tasks.load_api_messages("t") == messages


async def test_an_unclaimed_save_whose_answer_is_lost_ends_as_unknown(
    backend: outlast.Backend, proxy: HttpProxy
) -> None:
    """Also if the client repeated it: 412 may be the answer to its own first attempt."""
    tasks = backend.persistence
    await tasks.save_task_state("t", TaskState(id="t"))
    proxy.once(is_head(), losing)
    with pytest.raises(OutcomeUnknownError):
        await tasks.save_task_state("t", TaskState(id="t", retry_count=1))
    stored = await tasks.load_task_state("t")
    assert stored is not None
    assert stored.retry_count == 1


@pytest.mark.parametrize(("status", "code"), RACES, ids=[code for _, code in RACES])
async def test_a_lost_race_is_no_answer_to_the_question_who_owns_it(
    backend: outlast.Backend, proxy: HttpProxy, status: int, code: str
) -> None:
    """Stores differ in how they say that a condition does not hold, or could not be decided."""
    tasks = backend.persistence
    proxy.once(is_head(), answering(status, code), times=2)
    claim = await tasks.claim_task("t")
    assert claim.epoch == 1
    proxy.once(is_head(), answering(status, code), times=2)
    message = ApiMessage(id="m", role="user", content="x")
    await tasks.append_api_message("t", message, claim=claim)
    proxy.once(is_head(kind="run"), answering(status, code))
    assert await backend.checkpoints.get("r") is None
    assert await tasks.load_api_messages("t") == [message]


@pytest.mark.parametrize(("status", "code"), FAILURES, ids=[f"{s} {c}" for s, c in FAILURES])
async def test_a_failure_of_the_store_is_overcome(
    backend: outlast.Backend, proxy: HttpProxy, status: int, code: str
) -> None:
    tasks = backend.persistence
    proxy.once(is_head(), answering(status, code))
    claim = await tasks.claim_task("t")
    for matches in (is_head("PUT"), is_piece, is_head("GET")):
        proxy.once(matches, answering(status, code))
        state = TaskState(id="t", context={"x": "y" * 50_000})
        await tasks.save_task_state("t", state, claim=claim)
        assert await tasks.load_task_state("t") is not None


async def test_lost_requests_for_pieces_leave_no_hole(
    backend: outlast.Backend, proxy: HttpProxy
) -> None:
    tasks = backend.persistence
    claim = await tasks.claim_task("t")
    messages: list[ApiMessage] = []
    for number in range(6):
        messages.append(ApiMessage(id=f"m{number}", role="user", content="x" * 20_000))
        proxy.once(is_piece, losing if number % 2 else dropping)
        await tasks.append_api_message("t", messages[-1], claim=claim)
        assert await tasks.load_api_messages("t") == messages


async def test_a_late_put_never_overwrites_a_newer_one(open_driver: Open, proxy: HttpProxy) -> None:
    """S14: "old" times out and arrives after "new" was done; claimed and unclaimed."""
    slow, quick = await open_driver(proxy.port), await open_driver()
    for scope, owned in ((TASK, True), (Scope("task", "free"), False)):
        owner = Owner((await quick.claim(scope, claim_id(1))).fence) if owned else None
        if owner is None:
            await quick.write(scope, "state", b"base", fence=None)
        await slow.read(scope, "state")
        held = Holding()
        proxy.once(is_head(), held)
        with in_a_hurry(slow, 1.5), pytest.raises(OutcomeUnknownError):
            await slow.write(scope, "state", b"old", fence=owner and owner.fence())
        assert held.arrived.is_set()
        await quick.write(scope, "state", b"new", fence=owner and owner.fence())
        held.released.set()
        answer = await held.answered
        assert b" 412 " in answer.splitlines()[0]
        assert (await quick.read(scope, "state")).data == b"new"


async def test_a_black_hole_ends_in_time_and_closing_does_not_wait_for_ever(
    open_driver: Open, proxy: HttpProxy
) -> None:
    driver = await open_driver(proxy.port)
    owner = Owner((await driver.claim(TASK, claim_id(1))).fence)
    held = Holding()
    proxy.always(lambda request: True, held)
    with in_a_hurry(driver, 1.5), Stopwatch() as watch:
        with pytest.raises(OutcomeUnknownError):
            await driver.append(TASK, "api", [Entry("m", b"")], fence=owner.fence())
        with pytest.raises(UnavailableError):
            await driver.read(TASK, "state")
        assert watch.seconds < 4
        await driver.aclose()
        assert watch.seconds < 8


async def test_an_answer_that_nobody_waits_for_is_not_missed(
    open_driver: Open, proxy: HttpProxy
) -> None:
    """C7: closing waits for it; and that it is an error is no news for the event loop."""
    driver = await open_driver(proxy.port)
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    held = Holding()
    proxy.once(is_head("PUT"), held)
    call = asyncio.ensure_future(driver.write(TASK, "state", b"x", fence=None))
    await held.arrived.wait()
    call.cancel()
    await asyncio.wait([call])
    held.released.set()
    await driver.aclose()
    assert held.answered.done()
    del driver, call
    gc.collect()
    assert reported == []


async def test_requests_that_wait_for_a_free_connection_are_never_sent_late(
    open_driver: Open, proxy: HttpProxy
) -> None:
    """When all threads hang, the others are told that nothing was sent; but who got a thread of
    those that gave up, just before its own time was over.
    """
    driver = await open_driver(proxy.port)
    await driver.write(TASK, "state", b"base", fence=None)
    held, sent = Holding(), list[bytes]()

    async def hold(request: Request, forward: Forward) -> bytes | None:
        sent.append(request.body)
        return await held(request, forward)

    proxy.always(is_head(), hold)
    marks = [b"mark %d." % number for number in range(40)]
    with in_a_hurry(driver, 3.0):
        results = await asyncio.gather(
            *(
                driver.write(Scope("run", f"r{number}"), "checkpoint", mark, fence=None)
                for number, mark in enumerate(marks)
            ),
            return_exceptions=True,
        )
    assert len(sent) >= 16
    for mark, error in zip(marks, results, strict=True):
        was_sent = any(mark in body for body in sent)
        assert isinstance(error, OutcomeUnknownError if was_sent else OutlastError)
        if isinstance(error, UnavailableError):
            assert "not sent" in str(error)


async def test_a_cancelled_call_leaves_the_next_one_in_order(open_driver: Open) -> None:
    """Cancelled at any moment, what was sent is there once or not at all."""
    driver = await open_driver()
    owner = Owner((await driver.claim(TASK, claim_id(1))).fence)
    done: list[str] = []
    cancelled: list[str] = []
    for number in range(24):
        entry = [Entry(f"m{number}", b"x" * 2000)]
        task = asyncio.ensure_future(driver.append(TASK, "api", entry, fence=owner.fence()))
        await asyncio.sleep(0.0007 * number)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            cancelled.append(f"m{number}")
        else:
            done.append(f"m{number}")
    await driver.append(TASK, "api", [Entry("last", b"")], fence=owner.fence())
    found = [entry.id for entry in await driver.load(TASK, "api")]
    assert cancelled
    assert len(found) == len(set(found))
    assert set(done) <= set(found) <= {*done, *cancelled, "last"}
    assert found[-1] == "last"
