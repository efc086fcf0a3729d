"""Opening and closing that are cancelled, repeated, or done by several at once."""

import asyncio
import contextlib
import gc
import logging
from urllib.parse import quote

import outlast
from outlast.driver import Scope
from outlast.errors import ClosedError, OutlastError
from outlast_contract.checks.cancelling import cancelled_after
from outlast_contract.checks.lifecycle import descriptors
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import (
    LogLines,
    error_of,
    eventually,
    expect,
    expect_equal,
    refused,
)
from outlast_contract.harness import Harness, with_password, with_url
from outlast_contract.mutations import api_of, expect_image, fill, state_of

_TURNS = (*range(10), 14, 20, 30, 45, 70, 110, 170, 260, 400)


@check("X1", "C7", "C8")
async def a_cancelled_opening_leaves_nothing_behind(context: Context) -> None:
    """Cancelled at any moment, opening tells its caller so and can be closed; the next client opens
    as if nothing was.
    """
    keeper = await context.open()
    task = Scope("task", context.new_id("task"))
    written = await fill(keeper, task, "kept")
    for turns in _TURNS:
        backend = await context.make()
        struck = await cancelled_after(backend.open(), turns)
        if struck:
            error = await error_of(backend.ping())
            expect(
                isinstance(error, OutlastError),
                f"a client whose opening was cancelled after {turns} turns answers ({error!r})",
                clause="C7",
            )
        else:
            await expect_image(backend, task, written, "read by a client just opened")
        await backend.aclose()
        await backend.aclose()
        await refused(backend.ping(), ClosedError, "ping after aclose", clause="C7")
        other = await context.make()
        async with other:
            await expect_image(
                other, task, written, f"after an opening cut at {turns}", clause="C8"
            )
        if not struck:
            break


@check("C7", "X1")
async def a_cancelled_closing_is_finished_by_the_next(context: Context) -> None:
    """Cancelled at any moment, aclose can be called again, and then leaves nothing open."""
    await _live_once(context)
    gc.collect()
    before = descriptors()
    for turns in _TURNS:
        backend = await context.make()
        await backend.open()
        task_id = context.new_id("task")
        appends = [asyncio.ensure_future(_append(backend, task_id, number)) for number in range(8)]
        await asyncio.sleep(0)
        struck = await cancelled_after(backend.aclose(), turns)
        await backend.aclose()
        await refused(backend.ping(), ClosedError, "ping after a closing cut short", clause="C7")
        results = await asyncio.gather(*appends, return_exceptions=True)
        for result in results:
            expect(
                result is None or isinstance(result, OutlastError),
                f"an append beside a closing cut after {turns} turns ended with {result!r}",
                clause="C7",
            )
        done = [f"m{number}#0" for number, result in enumerate(results) if result is None]
        async with await context.make() as other:
            log = [message.id for message in await other.persistence.load_api_messages(task_id)]
        expect(set(done) <= set(log), f"done appends {done} are not all in {log}", clause="A1")

        async def settled() -> bool:
            if len(descriptors()) > len(before):
                gc.collect()
            return len(descriptors()) <= len(before)

        await eventually(
            settled, f"a closing cut after {turns} turns leaves no file open", within=10
        )
        if not struck:
            break


async def _live_once(context: Context) -> None:
    async with await context.make() as backend:
        await _append(backend, context.new_id("task"), 0)


async def _append(backend: outlast.Backend, task_id: str, number: int) -> None:
    await backend.persistence.append_api_message(task_id, api_of(f"m{number}"))


@check("C7", "X4")
async def opening_and_closing_at_once(context: Context) -> None:
    """open() and aclose() may be called by several tasks of one client at the same time."""
    for _ in range(4):
        backend = await context.make()
        errors = await asyncio.gather(*(error_of(backend.open()) for _ in range(4)))
        expect_equal(errors, [None] * 4, "four times open() at once")
        await backend.persistence.save_task_state("t", state_of("t", "m"))
        errors = await asyncio.gather(*(error_of(backend.aclose()) for _ in range(4)))
        expect_equal(errors, [None] * 4, "four times aclose() at once")
        await refused(backend.ping(), ClosedError, "ping after aclose")
    backend = await context.make()
    opening = asyncio.ensure_future(error_of(backend.open()))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(error_of(backend.aclose()))
    opened, closed = await asyncio.gather(opening, closing)
    expect(closed is None, f"aclose() during open() raised {closed!r}")
    expect(
        opened is None or isinstance(opened, OutlastError),
        f"open() ended with {opened!r} when it was closed meanwhile",
    )
    await refused(backend.ping(), ClosedError, "ping after aclose() during open()")
    await backend.aclose()


@check("C8", "L1", "C7")
async def a_list_may_be_left_early(context: Context) -> None:
    """Whoever stops reading a list holds nothing: others write, and the client closes."""
    client = await context.open()
    for number in range(30):
        name = f"n{number:02}"
        await client.persistence.save_task_state(name, state_of(name, "m"))
        await client.checkpoints.put(
            outlast.StreamCheckpoint(run_id=name, thread_id="t", message_id="m", model="m")
        )
    for _ in range(3):
        reader = await context.make()
        async with reader:
            async for state in reader.persistence.iter_task_states():
                await client.persistence.save_task_state(state.id, state_of(state.id, "again"))
                break
            async for point in reader.checkpoints.iter_checkpoints():
                await client.checkpoints.delete(point.run_id)
                await client.checkpoints.put(point)
                break
            gc.collect()
            await reader.persistence.save_task_state("n01", state_of("n01", "written"))
            tasks = [asyncio.ensure_future(reader.persistence.list_task_states()) for _ in range(4)]
            await asyncio.sleep(0)
            for task in tasks[1:]:
                task.cancel()
            expect_equal(len(await tasks[0]), 30, "tasks listed beside lists that were cancelled")
            await asyncio.wait(tasks)
    expect_equal(len(await client.persistence.list_task_states()), 30, "tasks in the end")


_PASSWORDS = {
    "of Latin-1": "pässwörtlich",
    "of no single-byte charset": "пароль-パスワード-😀",
    "of marks": 'it\'s "1" %41 {} \\ @/:?#&=+',
    "of control characters": "pass\x07\x1b\x00word",
    "of a kilobyte": "Long" * 256,
}


@check_each(_PASSWORDS, "E4", "E3", needs=["host"])
async def a_password_of_any_characters_is_not_shown(context: Context, password: str) -> None:
    """If a wrong password, or one that nobody asks for, stands in the URL, of whatever characters,
    neither the error nor a log line shows it.
    """
    texts = await _texts_of(context, with_password(context.harness, password))
    forms = {password, quote(password), quote(password, safe=""), repr(password)[1:-1]}
    forms |= {ascii(password)[1:-1], ascii(password.encode())[2:-1]}
    leaks = [text for text in texts if any(form in text for form in forms)]
    expect(not leaks, f"{len(leaks)} of {len(texts)} texts show the password")


_UNESCAPED = {
    "a slash": "Qart/Zart",
    "digits and a slash": "12/Zart",
    "a question mark": "Qart?Zart",
    "an option": "12?Zart=Zart",
    "a slash and an option": "Qart/Zart?Zart=Zart",
}


@check_each(_UNESCAPED, "E4", "E3", needs=["host"])
async def no_part_of_a_password_that_is_not_escaped_is_shown(
    context: Context, password: str
) -> None:
    """If marks of URLs stand in the password as they are, so that a part of it may be taken for a
    port, a path or an option, neither the error nor a log line shows one.
    """
    texts = await _texts_of(context, with_password(context.harness, password, safe="/?&="))
    leaks = [text for text in texts if "Qart" in text or "Zart" in text]
    expect(not leaks, f"{len(leaks)} of {len(texts)} texts show a part of the password")


_WITHOUT_SLASHES = {"one slash": ":/", "no slash": ":"}


@check_each(_WITHOUT_SLASHES, "E4", "E3", needs=["host"])
async def a_url_that_lacks_slashes_does_not_show_its_password(
    context: Context, separator: str
) -> None:
    """If ``//`` is left out of the URL, so that user, password and host look like a path, neither
    an error nor a log line shows the password.
    """
    harness = with_password(context.harness, "Qart")
    harness = with_url(harness, (harness.url or "").replace("://", separator, 1))
    texts = await _texts_of(context, harness)
    leaks = [text for text in texts if "Qart" in text]
    expect(not leaks, f"{len(leaks)} of {len(texts)} texts show the password")


async def _texts_of(context: Context, harness: Harness) -> list[str]:
    """What is shown while a backend is opened."""
    shown: list[str] = []
    with LogLines("", logging.DEBUG) as log, contextlib.suppress(OutlastError):
        backend = None
        try:
            backend = await harness.open_with(context.namespace)
            shown.append(repr(backend))
            await backend.open()  # A server may ask for none.
        except Exception as error:  # noqa: BLE001 - it is judged
            shown += [str(error), repr(error)]
            expect(isinstance(error, OutlastError), f"raised {type(error).__name__}", clause="E3")
        finally:
            if backend is not None:
                await backend.aclose()
    return [*shown, *log.lines]
