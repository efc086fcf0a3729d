"""Opening, closing, errors and event loops (C7, C8, D2, E1, E3, E4, X3, X4)."""

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import outlast
from outlast.driver import Scope
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    ConflictError,
    FencedError,
    InvalidDataError,
    InvalidIdError,
    OutlastError,
    TaskNotFoundError,
)
from outlast_contract.checks.ids import ID_ARGUMENTS
from outlast_contract.engine import Context, check
from outlast_contract.expect import (
    LogLines,
    NotRun,
    error_of,
    eventually,
    expect,
    expect_equal,
    fenced,
    refused,
)
from outlast_contract.mutations import (
    Image,
    api_of,
    checkpoint_of,
    claim,
    expect_image,
    fill,
    state_of,
)

CALLS: dict[str, Callable[[outlast.Backend], Awaitable[object]]] = {
    **{
        name: (lambda backend, call=call: call(backend, "id"))  # type: ignore[misc]
        for name, call in ID_ARGUMENTS.items()
    },
    "ping": lambda backend: backend.ping(),
    "sweep": lambda backend: backend.sweep(older_than=timedelta(hours=1)),
    "initialize": lambda backend: backend.persistence.initialize(),
    "list_task_states": lambda backend: backend.persistence.list_task_states(),
    "check_claim": lambda backend: backend.persistence.check_claim(
        outlast.Claim(Scope("task", "id"), 1, "ab" * 16)
    ),
}
"""Every method of a backend and its two contracts."""


@check("C7", "E1")
async def a_closed_backend_stays_closed(context: Context) -> None:
    """aclose may be called again; every other call raises ClosedError, before opening as after
    closing.
    """
    backend = await context.make()
    for name, call in CALLS.items():
        await refused(call(backend), ClosedError, f"{name} before the backend was opened")
    await backend.open()
    await backend.open()
    await backend.ping()
    await backend.persistence.save_task_state("id", state_of("id", "kept"))
    before = descriptors()
    for _ in range(3):
        await backend.aclose()
    for name, call in CALLS.items():
        await refused(call(backend), ClosedError, f"{name} after aclose")
    await refused(backend.open(), ClosedError, "open after aclose")
    await backend.aclose()
    after = descriptors()
    expect(len(after) <= len(before), f"calls after aclose opened {sorted(after - before)}")
    other = await context.open()
    found = await other.persistence.load_task_state("id")
    expect_equal(
        found and found.context, {"mark": "kept"}, "the task after calls to a closed client"
    )
    never = await context.make()
    await never.aclose()
    await refused(never.ping(), ClosedError, "ping of a backend that was closed unopened")
    async with await context.make() as entered:
        await entered.ping()
    await refused(entered.ping(), ClosedError, "ping after the end of async with")


@check("C7", "E1")
async def closing_waits_for_what_was_called(context: Context) -> None:
    """Calls under way when aclose is called end as if nothing was; none is lost without an
    error.
    """
    other = await context.open()
    for attempt in range(6):
        backend = await context.make()
        await backend.open()
        task_id = context.new_id("task")
        owner = await backend.persistence.claim_task(task_id)
        appends = [
            asyncio.create_task(
                backend.persistence.append_api_message(task_id, api_of(f"m{number}"), claim=owner)
            )
            for number in range(40)
        ]
        for _ in range(attempt):
            await asyncio.sleep(0)
        await backend.aclose()
        for _ in range(2):  # the calls have ended; their callers still have to run
            await asyncio.sleep(0)
        pending = [task for task in appends if not task.done()]
        # Without a turn of the loop before aclose, none of them had been called.
        expect(
            not attempt or not pending, f"aclose returned while {len(pending)} calls were under way"
        )
        results = await asyncio.gather(*appends, return_exceptions=True)
        kept = [f"m{number}#0" for number, error in enumerate(results) if error is None]
        for error in results:
            expect(
                error is None or isinstance(error, ClosedError),
                f"a call during aclose ended with {error!r}",
            )
        log = [message.id for message in await other.persistence.load_api_messages(task_id)]
        expect_equal(log, kept, "the log after aclose, and the appends that were done")


def descriptors() -> set[str]:
    """The files and sockets that this process has open, where that can be seen."""
    folder = Path("/proc/self/fd")
    found: set[str] = set()
    if folder.is_dir():
        for entry in folder.iterdir():
            try:
                found.add(f"{entry.name} {entry.readlink()}")
            except OSError:  # the one that lists them
                continue
    return found


def _threads() -> set[threading.Thread]:
    """The threads of this process, without those of an event loop's own pool: clients look up names
    in it, and it lasts as long as the loop.
    """
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


@check("C7", "C8")
async def nothing_is_left_open(context: Context) -> None:
    """After aclose no file, connection, thread or asyncio task of the backend is left, whatever
    had failed.
    """
    if not descriptors():
        context.note("open files cannot be seen on this platform")
    await _live(context)
    gc.collect()
    files, threads = descriptors(), _threads()
    for _ in range(5):
        await _live(context)
    gc.collect()

    async def settled() -> bool:
        rest = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        return len(descriptors()) <= len(files) and len(_threads()) <= len(threads) and not rest

    what = "files, threads and tasks are as many as before"
    try:
        await eventually(settled, what, within=10)
    finally:
        left = sorted(descriptors() - files)[:5]
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        new = [thread.name for thread in _threads() - threads]
        if not await settled():
            expect(
                condition=False, message=f"left open: files {left}, threads {new}, tasks {tasks}"
            )


async def _live(context: Context) -> None:
    backend = await context.make()
    async with backend:
        task_id = context.new_id("task")
        owner = await backend.persistence.claim_task(task_id)
        await fill(backend, Scope("task", task_id), "m", owner)
        await error_of(backend.persistence.save_task_state(task_id, state_of(task_id, "x")))
        await error_of(
            backend.persistence.append_api_message(
                task_id, outlast.ApiMessage(id="m#1", role="x", content=""), claim=owner
            )
        )
        call = asyncio.create_task(backend.persistence.load_api_messages(task_id))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await backend.persistence.list_task_states()


@check("C8", "E1")
async def the_call_after_a_failed_one_works(context: Context) -> None:
    """After every kind of refusal the same client and others go on at once, many times over."""
    client, other = await context.open_many(2)
    task = Scope("task", context.new_id("task"))
    stale = await claim(client, task)
    owner = await claim(client, task)
    tasks = client.persistence
    await fill(client, task, "m", owner)
    missing = context.new_id("missing")
    for turn in range(12):
        await fenced(
            tasks.save_task_state(task.id, state_of(task.id, "x"), claim=stale),
            "superseded",
            "a stale write",
        )
        await refused(
            tasks.append_api_message(
                task.id, outlast.ApiMessage(id="m#1", role="x", content=""), claim=owner
            ),
            ConflictError,
            "a conflicting append",
            clause="A8",
        )
        await refused(
            tasks.update_task_state(missing, {"config": {}}),
            TaskNotFoundError,
            "an update of nothing",
            clause="S2",
        )
        await refused(
            tasks.save_task_input(task.id, outlast.TaskInput(message={1}), claim=owner),
            InvalidDataError,
            "a set in a message",
            clause="V6",
        )
        await refused(client.persistence.claim_task(""), InvalidIdError, "an empty id", clause="I4")
        await refused(
            client.persistence.claim_task(task.id, at_least=1),
            FencedError,
            "a low at_least",
            clause="F9",
        )
        written = await fill(other if turn % 2 else client, task, f"turn {turn}", owner)
        await expect_image(client, task, written, f"written after refusals, turn {turn}")
        await refused(
            tasks.append_api_message(
                task.id, outlast.ApiMessage(id=f"turn {turn}#1", role="x", content=""), claim=owner
            ),
            ConflictError,
            "a conflicting append",
            clause="A8",
        )
        await tasks.save_api_messages(task.id, [api_of("m", 1)], claim=owner)


@check("E3", "E1", "V6")
async def misuse_raises_errors_of_outlast(context: Context) -> None:
    """Arguments of wrong types raise errors of outlast that name operation, key and outcome."""
    client = await context.open()
    owner = await client.persistence.claim_task("t")
    run_owner = await client.checkpoints.claim("r")
    wrong: list[tuple[str, Callable[[], Awaitable[object]]]] = []
    tasks, runs = client.persistence, client.checkpoints
    bad: Any
    for bad in (7, "claim", object(), (1, "x"), {"epoch": 1}):
        shown = f"{bad!r:.20}"
        wrong += [
            (f"delete_task with claim={shown}", partial(tasks.delete_task, "t", claim=bad)),
            (f"put with claim={shown}", partial(runs.put, checkpoint_of("r", "m"), claim=bad)),
            (f"check_claim({shown})", partial(tasks.check_claim, bad)),
            (f"append of {shown}", partial(tasks.append_user_message, "t", bad, claim=owner)),
            (f"save of [{shown}]", partial(tasks.save_api_messages, "t", [bad], claim=owner)),
        ]
    wrong.append(("a run's claim", partial(tasks.delete_task, "t", claim=run_owner)))
    wrong.append(("a task's claim", partial(runs.delete, "r", claim=owner)))
    for what, call in wrong:
        await refused(call(), InvalidDataError, what)
    error = await refused(
        client.persistence.save_task_state("t", state_of("t", "x")),
        FencedError,
        "a save without a claim",
        clause="F8",
    )
    expect_equal(error.key, "t", "key of an error")
    expect_equal(error.operation, "save_task_state", "operation of an error")
    expect_equal(error.backend, client.name, "backend of an error")
    for part in ("save_task_state", "t", client.name):
        expect(part in str(error), f"the text does not name {part!r}: {error}")
    for kind in (InvalidDataError, InvalidIdError):
        expect(issubclass(kind, ValueError), f"{kind.__name__} is no ValueError")


@check("E4", needs=["secret"])
async def no_secret_is_shown(context: Context) -> None:
    """Neither reprs nor errors nor log lines show the password of the store's URL, or a secret
    among the options.
    """
    secrets = context.harness.secrets()
    with LogLines("", logging.DEBUG) as log:
        backend = await context.open()
        shown = [repr(backend), str(backend), repr(backend.persistence), repr(backend.checkpoints)]
        for call in CALLS.values():
            error = await error_of(call(backend))
            shown += [repr(error), str(error)]
        unknown = await error_of(_with_unknown_option(context))
        expect(isinstance(unknown, ConfigurationError), f"an unknown option gave {unknown!r}")
        shown += [repr(unknown), str(unknown)]
    leaks = [text for text in (*shown, *log.lines) if any(secret in text for secret in secrets)]
    expect(not leaks, f"{len(leaks)} of {len(shown) + len(log.lines)} texts show a secret")


async def _with_unknown_option(context: Context) -> None:
    await context.make(no_such_option=1)


@check("E3", "E1", needs=["options"])
async def unknown_options_are_refused(context: Context) -> None:
    """An option that the backend does not know is ConfigurationError that names it, before
    anything is opened.
    """
    error = await error_of(_with_unknown_option(context))
    expect(isinstance(error, ConfigurationError), f"no_such_option=1 gave {error!r}")
    expect("no_such_option" in str(error), f"the message does not name the option: {error}")
    for bad in (0, -1, "10", float("nan"), float("inf"), True):
        wrong = await error_of(context.make(timeout=bad))
        expect(isinstance(wrong, ConfigurationError), f"timeout={bad!r} gave {wrong!r}")


@check("D2", needs=["options"])
async def hazards_are_announced(context: Context) -> None:
    """What a warning announces on opening, strict=True refuses; where strict opens, there is no
    warning.
    """
    with LogLines("outlast", logging.WARNING) as log:
        lenient = await context.open()
        await lenient.ping()
    lines = log.lines
    error = await error_of(context.open(strict=True))
    if error is None:
        expect(not lines, f"strict=True opens, though opening warns: {lines}")
    else:
        expect(isinstance(error, ConfigurationError), f"strict=True gave {error!r}")
        expect(lines, f"strict=True refuses ({error}), though opening warns of nothing")


@check("X4", "C8")
async def set_up_may_be_done_by_many_at_once(context: Context) -> None:
    """16 clients that open a new namespace at the same time all can, and see each other's
    writes.
    """
    for _ in range(3 if context.settings.thorough else 1):
        namespace = context.new_namespace()
        clients = [await context.make(namespace) for _ in range(16)]
        try:
            await asyncio.gather(*(client.open() for client in clients))
            await asyncio.gather(*(client.persistence.initialize() for client in clients))
            await asyncio.gather(
                *(
                    client.persistence.append_api_message("t", api_of(str(number)))
                    for number, client in enumerate(clients)
                )
            )
            for client in (clients[0], clients[15]):
                log = [message.id for message in await client.persistence.load_api_messages("t")]
                wanted = sorted(f"{number}#0" for number in range(16))
                expect_equal(sorted(log), wanted, "appends of 16 clients that opened at once")
        finally:
            for client in clients:
                await client.aclose()


@check("X4")
async def set_up_may_be_repeated(context: Context) -> None:
    """initialize() again and again changes no data and fences nobody."""
    client = await context.open()
    task = Scope("task", context.new_id("task"))
    owner = await claim(client, task)
    written = await fill(client, task, "kept", owner)
    for _ in range(3):
        await client.persistence.initialize()
        other = await context.open()
        await other.persistence.initialize()
        await expect_image(other, task, written, "data after initialize()")
    await client.persistence.check_claim(owner)


@check("X4", needs=["options"])
async def verifying_alone_creates_nothing(context: Context) -> None:
    """setup=False opens what was set up, and otherwise works or raises ConfigurationError."""
    error = await error_of(_open_and_ping(context, context.new_namespace()))
    if error is not None:
        expect(
            isinstance(error, ConfigurationError),
            f"setup=False of a store that was not set up gave {error!r}",
        )
    await context.open()
    error = await error_of(_open_and_ping(context, context.namespace))
    expect(error is None, f"setup=False of a store that was set up gave {error!r}")


async def _open_and_ping(context: Context, namespace: str) -> None:
    backend = await context.make(namespace, setup=False)
    async with backend:
        await backend.ping()
        await expect_image(backend, Scope("task", "t"), Image(), "a new namespace")


async def _entered(client: outlast.Backend) -> None:
    async with client:
        pass


@check("X3", "E3")
async def a_second_event_loop_works_or_is_refused(context: Context) -> None:
    """Used from another event loop, a backend or a claim works or raises a clear error, and
    never hangs.
    """
    client = await context.open()
    task = Scope("task", context.new_id("task"))
    owner = await claim(client, task)
    written = await fill(client, task, "first loop", owner)
    outcomes: dict[str, BaseException | None] = {}

    async def attempt(name: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            async with asyncio.timeout(15):
                await call()
        except BaseException as error:  # noqa: BLE001 - judged below, in the main loop
            outcomes[name] = error
        else:
            outcomes[name] = None

    second = await context.make()

    async def elsewhere() -> None:
        await attempt("load_task_state", lambda: client.persistence.load_task_state(task.id))
        await attempt("ping", client.ping)
        await attempt(
            "append_api_message",
            lambda: client.persistence.append_api_message(task.id, api_of("x"), claim=owner),
        )
        await attempt("get", lambda: client.checkpoints.get("r"))
        if outcomes["ping"] is not None:
            # Its end would close the backend for its owner, who uses it further below.
            await attempt("async with", lambda: _entered(client))
        async with second:
            await attempt(
                "a claim through a client of the second loop",
                lambda: second.persistence.append_api_message(task.id, api_of("y"), claim=owner),
            )
            again = await claim(second, task, claim_id=owner.claim_id)
            await attempt(
                "a claim taken up in the second loop",
                lambda: second.persistence.append_api_message(task.id, api_of("z"), claim=again),
            )

    def run() -> None:
        with asyncio.Runner() as runner:
            runner.run(attempt("the second loop", elsewhere))

    thread = threading.Thread(target=run, name="second loop", daemon=True)
    thread.start()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 30
    while thread.is_alive() and loop.time() < deadline:
        await asyncio.sleep(0.01)
    expect(not thread.is_alive(), "a call from a second event loop still hangs after 30 s")
    for name, error in outcomes.items():
        expect(
            error is None or isinstance(error, OutlastError),
            f"{name} from a second event loop ended with {error!r}",
        )
    opened = "async with" in outcomes and outcomes["async with"] is None
    expect(not opened, "a second event loop, which is refused calls, opened and closed the backend")
    expect_equal(outcomes["a claim taken up in the second loop"], None, "taking a claim up there")
    done = {
        "append_api_message": "x",
        "a claim through a client of the second loop": "y",
        "a claim taken up in the second loop": "z",
    }
    marks = [api_of(mark) for name, mark in done.items() if outcomes[name] is None]
    log = await client.persistence.load_api_messages(task.id)
    expect_equal(list(log), [*written.api, *marks], "the log, and the appends that were done")


@check("X3")
async def a_forked_child_works_or_is_refused(context: Context) -> None:
    """A child of fork() that uses its parent's backend works or gets a clear error, and harms
    the parent in no way.
    """
    if not hasattr(os, "fork") or sys.platform == "darwin":
        raise NotRun("needs a platform where fork() is safe")
    client = await context.open()
    task = Scope("task", context.new_id("task"))
    owner = await claim(client, task)
    written = await fill(client, task, "parent", owner)
    tasks = client.persistence
    from outlast_contract.forking import in_forked_child

    async def use() -> str:
        answers: list[str] = []
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            partial(tasks.load_task_state, task.id),
            partial(tasks.save_task_state, task.id, state_of(task.id, "child"), claim=owner),
            client.ping,
            client.aclose,
        )
        for call in calls:
            try:
                async with asyncio.timeout(11):  # More than a call may take.
                    await call()
            except OutlastError as error:
                answers.append(type(error).__name__)
            except BaseException as error:  # noqa: BLE001 - told to the parent
                return f"{type(error).__name__}: {error}"
            else:
                answers.append("done")
        return "fine " + " ".join(answers)

    answer = await in_forked_child(use, within=45)
    expect(answer.startswith("fine"), f"in a forked child: {answer}")
    allowed = [written]
    if answer.split()[2] == "done" and client.capabilities.reach != "process":
        from outlast_contract.mutations import MUTATIONS

        allowed = [MUTATIONS["save_task_state"].model(written, task.id, "child")]
    await expect_image(client, task, allowed[0], "the parent's task after a forked child used it")
    if allowed[0] is written:
        written = await fill(client, task, "parent again", owner)
        await expect_image(client, task, written, "the parent's next write")
