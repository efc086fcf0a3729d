"""Lost replies, failures and retries, between the contracts and the driver (E1, E2, E3, E5, P1)."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

import outlast
from outlast.contracts import DriverBackend
from outlast.driver import Scope
from outlast.errors import OutcomeUnknownError, OutlastError, UnavailableError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, expect, expect_equal
from outlast_contract.mutations import (
    MUTATIONS,
    Image,
    Mutation,
    api_of,
    checkpoint_of,
    claim,
    expect_image,
    fill,
    image,
)
from outlast_contract.recording import watched
from outlast_contract.tampered import MUTATING, Failures, Step, TamperedDriver

_MANY: Final = 10**6


async def _tampered(
    context: Context, step: Step | None = None, timeout: float = 10.0
) -> tuple[DriverBackend, TamperedDriver]:
    """A client whose driver calls go through ``step``, on the real driver of a second client."""
    driver = TamperedDriver(await context.driver(), step)
    backend = watched(DriverBackend(driver, namespace=context.namespace, timeout=timeout))
    await backend.open()
    return backend, driver


@check_each(MUTATIONS, "E2", "A2", "E5", "F6", needs=["driver"])
async def a_lost_reply_changes_nothing_for_an_owner(context: Context, mutation: Mutation) -> None:
    """A claimed mutation whose first replies are lost, applied or not, is done for its caller and
    has one effect.
    """
    plain = await context.open()
    for how in ("lost reply", "lost request"):
        for count in (1, 2):
            scope = mutation.scope(context.new_id(mutation.kind))
            owner = await claim(plain, scope)
            current = await fill(plain, scope, "base", owner)
            failures = Failures(how, count)
            backend, _ = await _tampered(context, failures)
            async with backend:
                error = await error_of(mutation.apply(backend, scope.id, "new", owner))
            what = f"{mutation.name} after {count} {how} of an owner"
            expect(error is None, f"{what} raised {error!r}")
            current = mutation.model(current, scope.id, "new")
            await expect_image(plain, scope, current, what, clause="A2")
            expect_equal(failures.failed, count, "calls that the suite made fail")
            written = await fill(plain, scope, "next", owner)
            await expect_image(plain, scope, written, f"the owner's next writes after {what}")


@check_each(MUTATIONS, "E2", "F8", needs=["driver"])
async def a_lost_reply_is_told_to_an_unclaimed_user(context: Context, mutation: Mutation) -> None:
    """Without a claim an unanswered append is repeated and has one effect; an unanswered save,
    update or deletion raises OutcomeUnknownError and is not repeated.
    """
    plain = await context.open()
    is_append = mutation.name.startswith("append")
    for how in ("lost reply", "lost request"):
        scope = mutation.scope(context.new_id(mutation.kind))
        before = await fill(plain, scope, "base")
        backend, _ = await _tampered(context, Failures(how, 1))
        async with backend:
            error = await error_of(mutation.apply(backend, scope.id, "new", None))
        after = mutation.model(before, scope.id, "new")
        what = f"unclaimed {mutation.name} after a {how}"
        if is_append:
            expect(error is None, f"{what} raised {error!r}")
        else:
            expect(isinstance(error, OutcomeUnknownError), f"{what} ended with {error!r}")
            assert error is not None
            expect(error.applied is None, f"{what}: applied is {error.applied}")
        wanted = after if is_append or how == "lost reply" else before
        await expect_image(plain, scope, wanted, what)


@check_each(MUTATIONS, "E1", "E2", "E5", "E6", needs=["driver"])
async def failures_reach_the_caller(context: Context, mutation: Mutation) -> None:
    """If the store never answers, or always refuses, the caller is told so within the timeout, and
    told truly whether the mutation was applied.
    """
    plain = await context.open()
    async with asyncio.TaskGroup() as group:
        for how in ("refused", "lost request", "lost reply"):
            for owned in (True, False):
                group.create_task(_fail(context, plain, mutation, how, owned=owned))


async def _fail(
    context: Context,
    plain: outlast.Backend,
    mutation: Mutation,
    how: str,
    *,
    owned: bool,
    timeout: float = 0.5,
) -> None:
    failures = Failures(how, _MANY)
    backend, _ = await _tampered(context, failures, timeout=timeout)
    scope = mutation.scope(context.new_id(mutation.kind))
    owner = await claim(plain, scope) if owned else None
    before = await fill(plain, scope, "base", owner)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with backend:
        error = await error_of(mutation.apply(backend, scope.id, "new", owner))
    seconds = loop.time() - began
    if isinstance(error, UnavailableError) and not failures.failed and timeout < 5:
        # The time was up before anything was sent that changes something.
        await _fail(context, plain, mutation, how, owned=owned, timeout=4 * timeout)
        return
    what = f"{mutation.name} of a store that fails each call ({how})"
    expect(error is not None, f"{what} returned normally", clause="E1")
    assert error is not None
    kind = UnavailableError if how == "refused" else OutcomeUnknownError
    expect(isinstance(error, kind), f"{what} raised {error!r}", clause="E2")
    applied = False if how == "refused" else None
    expect(error.applied is applied, f"{what}: applied is {error.applied}", clause="E2")
    expect(seconds < 5 + 2 * timeout, f"{what} took {seconds:.1f} s of {timeout:g} s", clause="E6")
    expect(0 < failures.failed <= 50, f"{what} was tried {failures.failed} times", clause="E5")
    after = mutation.model(before, scope.id, "new")
    # On a slow machine the time may be up before the first attempt was applied.
    allowed = [after, before] if how == "lost reply" else [before]
    found = await image(plain, scope)
    if found not in allowed:
        expect_equal(found, allowed[0], f"data after {what}", clause="E2")


async def _never(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
    """A black hole: the request is taken, and no answer ever comes."""
    await asyncio.Event().wait()


_SHORT: Final = 0.4
"""Seconds that a call of a silent store may take."""


@check("E6", "E2", "C7", needs=["driver"])
async def every_call_ends_though_the_store_is_silent(context: Context) -> None:
    """If the store never answers, each call ends within its timeout: a read was not done, a
    mutation may have been; and the client can be closed.
    """
    plain = await context.open()
    backend, _ = await _tampered(context, _never, timeout=_SHORT)
    tasks, runs = backend.persistence, backend.checkpoints
    owner = await claim(plain, Scope("task", "id"))
    reads: dict[str, Callable[[], Awaitable[object]]] = {
        "load_task_state": partial(tasks.load_task_state, "id"),
        "load_api_messages": partial(tasks.load_api_messages, "id"),
        "list_task_states": tasks.list_task_states,
        "check_claim": partial(tasks.check_claim, owner),
        "get": partial(runs.get, "id"),
        "delete_thread": partial(runs.delete_thread, "id"),
        "ping": backend.ping,
        "sweep": partial(backend.sweep, older_than=timedelta(hours=1)),
    }
    async with asyncio.TaskGroup() as group:
        for name, read in reads.items():
            group.create_task(_ends(name, read(), UnavailableError))
        group.create_task(_ends("claim_task", tasks.claim_task("new"), OutcomeUnknownError))
        for mutation in MUTATIONS.values():
            scope = mutation.scope(f"id of {mutation.name}")
            call = mutation.apply(backend, scope.id, "m", await claim(plain, scope))
            # These two read before they write.
            looks = mutation.name in ("update_task_state", "delete_task")
            kind = UnavailableError if looks else OutcomeUnknownError
            group.create_task(_ends(mutation.name, call, kind))
    await _ends("aclose", backend.aclose(), None)


async def _ends(name: str, call: Awaitable[object], kind: type[OutlastError] | None) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    error = await error_of(call)
    seconds = loop.time() - began
    what = f"{name} of a store that never answers"
    is_right = error is None if kind is None else isinstance(error, kind)
    expect(is_right, f"{what} ended with {error!r}", clause="E2" if kind else "C7")
    expect(seconds < 5 + 2 * _SHORT, f"{what} took {seconds:.1f} s, the timeout is {_SHORT} s")


@check("E3", "E1", needs=["driver"])
async def foreign_errors_are_wrapped(context: Context) -> None:
    """An error of another kind below the contracts arrives as one of outlast, with its cause."""
    plain = await context.open()
    scope = Scope("task", context.new_id("task"))
    owner = await claim(plain, scope)
    await fill(plain, scope, "base", owner)
    for name in ("read", "load", "scan", "ping", "sweep", *sorted(MUTATING)):
        backend, _ = await _tampered(context, Failures("broken", _MANY, only=name), timeout=2)
        async with backend:
            error = await error_of(_use(backend, name, scope.id, owner))
        expect(error is not None, f"a driver whose {name} breaks: nobody was told", clause="E1")
        assert error is not None
        expect(
            isinstance(error.__cause__, RuntimeError),
            f"a driver whose {name} breaks: the cause of {error!r} is {error.__cause__!r}",
        )


async def _use(backend: outlast.Backend, name: str, id: str, owner: outlast.Claim) -> None:
    tasks = backend.persistence
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "read": partial(tasks.load_task_state, id),
        "load": partial(tasks.load_api_messages, id),
        "scan": tasks.list_task_states,
        "ping": backend.ping,
        "sweep": partial(backend.sweep, older_than=timedelta(hours=1)),
        "claim": partial(tasks.claim_task, f"{id} other"),
        "write": partial(tasks.save_task_input, id, outlast.TaskInput(message="m"), claim=owner),
        "append": partial(tasks.append_api_message, id, api_of("n"), claim=owner),
        "replace": partial(tasks.save_api_messages, id, [], claim=owner),
        "remove": partial(tasks.delete_task, id, claim=owner),
    }
    await calls[name]()


@check("F10", "E2", "E5", "F1", needs=["driver"])
async def a_claim_with_a_lost_reply_is_one_claim(context: Context) -> None:
    """A claim whose reply was lost is repeated under its claim_id: one epoch is handed out."""
    plain = await context.open()
    for kind in ("task", "run"):
        scope = Scope("task" if kind == "task" else "run", context.new_id(kind))
        first = await claim(plain, scope)
        for how in ("lost reply", "lost request"):
            backend, _ = await _tampered(context, Failures(how, 2))
            async with backend:
                owner = await claim(backend, scope)
            expect_equal(owner.epoch, first.epoch + 1, f"epoch of a claim after a {how}")
            await fill(plain, scope, how, owner)
            first = owner
        backend, _ = await _tampered(context, Failures("lost reply", _MANY), timeout=0.3)
        chosen = f"{context.rng.getrandbits(128):032x}"
        async with backend:
            error = await error_of(claim(backend, scope, claim_id=chosen))
        expect(isinstance(error, OutlastError), f"a claim that is never answered got {error!r}")
        owner = await claim(plain, scope, claim_id=chosen)
        expect_equal(owner.epoch, first.epoch + 1, "epoch of the repeated claim")
        again = await fill(plain, scope, "again", owner)
        await expect_image(plain, scope, again, "written through the repeated claim")


@check("P1", "A9", needs=["driver"])
async def one_call_is_one_step(context: Context) -> None:
    """Each mutation and each read is one call of the driver; so is an append to a long log."""
    backend, driver = await _tampered(context)
    async with backend:
        task, run = Scope("task", context.new_id("task")), Scope("run", context.new_id("run"))
        owners = {"task": await claim(backend, task), "run": await claim(backend, run)}
        expect_equal(driver.calls, ["claim", "claim"], "driver calls of two claims")
        await fill(backend, task, "base", owners["task"])
        await fill(backend, run, "base", owners["run"])
        for mutation in MUTATIONS.values():
            if mutation.name == "delete_task":
                continue
            scope = task if mutation.kind == "task" else run
            if mutation.needs_state:
                await fill(backend, scope, "with state", owners[mutation.kind])
            driver.calls.clear()
            await mutation.apply(backend, scope.id, f"m {mutation.name}", owners[mutation.kind])
            counted = Counter(driver.calls)
            changing = sum(count for name, count in counted.items() if name in MUTATING)
            expect_equal(changing, 1, f"mutating driver calls of {mutation.name}: {driver.calls}")
            most = 2 if mutation.needs_state else 1
            expect(len(driver.calls) <= most, f"{mutation.name} made the calls {driver.calls}")
        tasks = backend.persistence
        for name, call in (
            ("load_task_state", tasks.load_task_state(task.id)),
            ("load_task_input", tasks.load_task_input(task.id)),
            ("load_api_messages", tasks.load_api_messages(task.id)),
            ("load_user_messages", tasks.load_user_messages(task.id, last=2)),
            ("get", backend.checkpoints.get(run.id)),
            ("check_claim", tasks.check_claim(owners["task"])),
            ("list_task_states", tasks.list_task_states()),
        ):
            driver.calls.clear()
            await call
            expect_equal(len(driver.calls), 1, f"driver calls of {name}: {driver.calls}")
        messages = [api_of(f"m{number}") for number in range(500)]
        await tasks.save_api_messages(task.id, messages, claim=owners["task"])
        driver.calls.clear()
        await tasks.append_api_message(task.id, api_of("one more"), claim=owners["task"])
        expect_equal(driver.calls, ["append"], "driver calls of an append to 500", clause="A9")


@check("F2", "E2", "F6", needs=["driver"])
async def a_fenced_repetition_says_that_it_may_have_been_applied(context: Context) -> None:
    """If a newer claim comes between a lost reply and its repetition, the refusal carries
    applied=None, since the first attempt may have been in time.
    """
    plain = await context.open()
    scope = Scope("run", context.new_id("run"))
    owner = await claim(plain, scope)
    state: dict[str, outlast.Claim] = {}

    class _Overtaken(Failures):
        async def __call__(self, name: str, call: object) -> object:
            try:
                return await super().__call__(name, call)  # type: ignore[arg-type]
            except OutcomeUnknownError:
                state["newer"] = await claim(plain, scope)
                raise

    backend, _ = await _tampered(context, _Overtaken("lost reply", 1))
    async with backend:
        error = await error_of(
            backend.checkpoints.put(checkpoint_of(scope.id, "late"), claim=owner)
        )
    expect(isinstance(error, outlast.FencedError), f"an overtaken put ended with {error!r}")
    assert error is not None
    expect(
        error.applied is None, f"applied is {error.applied}, though the first attempt was applied"
    )
    newer = state["newer"]
    found = newer.checkpoint
    expect_equal(found and found.text, "late", "what the newer claim got to resume from")
    await expect_image(
        plain, scope, Image(checkpoint=checkpoint_of(scope.id, "late")), "the checkpoint"
    )
