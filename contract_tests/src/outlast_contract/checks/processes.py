"""Several processes on one store: sharing it, racing, stopped and killed."""

import asyncio
import contextlib
import re
import secrets
import signal
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import outlast
from outlast.driver import Scope
from outlast.errors import OutcomeUnknownError, OutlastError, UnavailableError
from outlast_contract.engine import Context, check
from outlast_contract.expect import NotRun, Violation, error_of, expect, expect_equal
from outlast_contract.mutations import (
    MUTATIONS,
    Image,
    claim,
    expect_image,
    fill,
    image,
)
from outlast_contract.workers import Answer, Worker, Workers


@check("F4", "F2", "F10", "F11", needs=["same store in processes"])
async def two_processes_share_a_store(context: Context) -> None:
    """What one process does another sees at once; claimed elsewhere, a process writes nothing more,
    and takes the claim up by its claim_id.
    """
    client = await context.open()
    async with Workers(context.harness, context.namespace) as workers:
        worker = await workers.spawn()
        for mutation in MUTATIONS.values():
            scope = mutation.scope(context.new_id(mutation.kind))
            what = f"{mutation.name} of another process"
            answer = await worker.done("claim", kind=scope.kind, id=scope.id)
            there = answer["epochs"][0]
            await _fill_there(worker, scope, "there")
            current = await image(client, scope)
            expect(current != Image(), "what another process wrote is not there")
            await worker.done("apply", mutation=mutation.name, id=scope.id, mark="x", owned=True)
            current = mutation.model(current, scope.id, "x")
            await expect_image(client, scope, current, what)
            owner = await claim(client, scope)
            expect(owner.epoch > there, f"epoch {owner.epoch} after {there}", clause="F1")
            current = await fill(client, scope, "here", owner)
            late = await worker.call(
                "apply", mutation=mutation.name, id=scope.id, mark="late", owned=True
            )
            expect_equal(
                (late.get("error"), late.get("reason")),
                ("FencedError", "superseded"),
                f"{what} that was superseded",
                clause="F2",
            )
            await expect_image(client, scope, current, f"data after late {what}", clause="F2")
            await worker.done("claim", kind=scope.kind, id=scope.id, claim_id=owner.claim_id)
            await worker.done("apply", mutation=mutation.name, id=scope.id, mark="up", owned=True)
            current = mutation.model(current, scope.id, "up")
            await expect_image(
                client, scope, current, f"{what} that took the claim up", clause="F10"
            )


async def _fill_there(worker: Worker, scope: Scope, mark: str) -> None:
    names = (
        ("put",)
        if scope.kind == "run"
        else ("save_task_state", "save_task_input", "save_api_messages", "save_user_messages")
    )
    for name in names:
        await worker.done("apply", mutation=name, id=scope.id, mark=mark, owned=True)


@check("A1", "A2", "A4", "F8", needs=["same store in processes"])
async def processes_append_at_once(context: Context) -> None:
    """Two processes append 200 messages each to one log without a claim: all are there, none twice,
    those of each in its order.
    """
    client = await context.open()
    task_id = context.new_id("task")
    count = 200
    async with Workers(context.harness, context.namespace) as workers:
        pair = [await workers.spawn() for _ in range(2)]
        for number, worker in enumerate(pair):
            worker.tell("append", id=task_id, prefix=f"{number}-", count=count)
        for worker in pair:
            answer = await worker.answer()
            expect("error" not in answer, f"an append beside another process: {answer}")
    found = [message.id for message in await client.persistence.load_api_messages(task_id)]
    expect(len(found) == len(set(found)), "messages are doubled", clause="A2")
    for number in range(2):
        own = [name for name in found if name.startswith(f"{number}-")]
        wanted = [f"{number}-{index}" for index in range(count)]
        expect(len(own) == count, f"{len(own)} of {count} appends of process {number} are there")
        expect_equal(own, wanted, f"the order of process {number}", clause="A4")
    expect_equal(len(found), 2 * count, "messages in the log", clause="A3")


@check("F1", "F2", tier="race", needs=["same store in processes"])
async def processes_claim_at_once(context: Context) -> None:
    """Contenders in processes of their own claim one scope again and again: no epoch twice."""
    count = max(2, context.settings.contenders // 2)
    async with Workers(context.harness, context.namespace) as workers:
        crowd = [await workers.spawn() for _ in range(count)]
        for kind in ("task", "run"):
            await _claim_at_once(crowd, kind, context.new_id(kind))


async def _claim_at_once(crowd: list[Worker], kind: str, id: str) -> None:
    for worker in crowd:
        worker.tell("claim", kind=kind, id=id, times=20)
    answers = [await worker.answer() for worker in crowd]
    epochs: list[list[int]] = [answer.get("epochs", []) for answer in answers]
    every = [epoch for part in epochs for epoch in part]
    expect_equal(len(every), 20 * len(crowd), f"claims that were completed: {answers}")
    expect(len(set(every)) == len(every), "an epoch was handed out twice")
    for part in epochs:
        expect(part == sorted(part), f"epochs went back within one process: {part}")
    name = "put" if kind == "run" else "save_task_state"
    errors = [
        (await worker.call("apply", mutation=name, id=id, mark="m", owned=True)).get("error")
        for worker in crowd
    ]
    newest = [None if max(part) == max(every) else "FencedError" for part in epochs]
    expect_equal(errors, newest, "what each was told that wrote afterwards", clause="F2")


@check("X4", needs=["same store in processes"])
async def processes_set_up_at_once(context: Context) -> None:
    """16 processes open a new namespace at the same time; each can, and none undoes another's."""
    async with Workers(context.harness, context.namespace) as workers:
        crowd = [await workers.spawn(opened=False) for _ in range(16)]
        for worker in crowd:
            worker.tell("open")
        for number, worker in enumerate(crowd):
            answer = await worker.answer()
            expect("error" not in answer, f"opening beside 15 others: {answer}")
            worker.tell("append", id="t", prefix=f"{number}-", count=1)
        for worker in crowd:
            answer = await worker.answer()
            expect("error" not in answer, f"an append after opening beside 15 others: {answer}")
    client = await context.open()
    found = [message.id for message in await client.persistence.load_api_messages("t")]
    expect_equal(sorted(found), sorted(f"{number}-0" for number in range(16)), "appends of all")


_SLACK = 6.0
"""Seconds that a busy machine may add to calls."""
_LOOKING = 4.0
"""Seconds after which enough was seen, also of a store in which writers and readers wait long."""

_WRITES = [
    "save_task_state",
    "append_api_message",
    "put",
    "append_api_messages",
    "save_user_messages",
    "save_task_input",
    "update_task_state",
    "append_user_message",
    "put",
    "save_api_messages",
]


class _Victim:
    """A worker that writes to one task and one run, and what is known of its writes."""

    def __init__(self, worker: Worker, task: Scope, run: Scope, mark: str) -> None:
        self.worker = worker
        self.task = task
        self.run = run
        self.mark = mark
        self.first = 0
        self.begun = -1
        self.done = -1
        self.epochs: dict[str, int] = {}

    async def claim(self) -> None:
        """Let it claim both."""
        for scope in (self.task, self.run):
            answer = await self.worker.done("claim", kind=scope.kind, id=scope.id)
            self.epochs[scope.kind] = answer["epochs"][0]

    def start(self, first: int) -> None:
        """Let it write until it is killed or refused, beginning somewhere in the list of writes."""
        self.first, self.begun, self.done = first, first - 1, first - 1
        self.worker.tell(
            "write",
            task=self.task.id,
            run=self.run.id,
            mark=self.mark,
            mutations=_WRITES,
            first=first,
        )

    def note(self, answer: Answer) -> None:
        """Take in what it said."""
        self.begun = answer.get("begun", self.begun)
        self.done = answer.get("done", self.done)

    def outcomes(self, before: dict[Scope, Image]) -> list[dict[Scope, Image]]:
        """What may be stored: all writes that it called done, and perhaps the one begun."""
        current = dict(before)
        for number in range(self.first, self.done + 1):
            self._apply(current, number)
        if self.begun == self.done:
            return [current]
        further = dict(current)
        self._apply(further, self.begun)
        return [current, further]

    def _apply(self, images: dict[Scope, Image], number: int) -> None:
        mutation = MUTATIONS[_WRITES[number % len(_WRITES)]]
        scope = self.task if mutation.kind == "task" else self.run
        images[scope] = mutation.model(images[scope], scope.id, f"{self.mark}-{number}-")


@check("D1", "A1", "A7", "S3", "F1", "C4", needs=["same store in processes"])
async def killed_writers_leave_whole_values(context: Context) -> None:
    """Processes that write are killed at random moments: every done write is there, the one under
    way is there as a whole or not at all, and whoever claims goes on.
    """
    client = await context.open()
    if "process" not in client.capabilities.data_survives:
        raise NotRun("the backend declares that its data do not survive the end of a process")
    if "failover" in client.capabilities.data_survives:
        context.note("failovers of the server are not tried", clause="D1")
    # Another run with the same seed may be under way on the same server.
    stem = f"mark{secrets.token_hex(8)}"
    task, run = Scope("task", context.new_id("task")), Scope("run", context.new_id("run"))
    images = {task: Image(), run: Image()}
    owner = await claim(client, task)
    images[task] = await fill(client, task, f"{stem}-start-", owner)
    epochs = {"task": owner.epoch, "run": 0}
    marks: list[str] = [f"{stem}-start-"]
    async with Workers(context.harness, context.namespace) as workers:
        for kill in range(context.settings.kills):
            victim = _Victim(await workers.spawn(), task, run, f"{stem}-{kill}")
            await victim.claim()
            for kind, epoch in victim.epochs.items():
                what = f"epoch {epoch} of a {kind} after {epochs[kind]}, kill {kill}"
                expect(epoch > epochs[kind], what, clause="F1")
            epochs = victim.epochs
            victim.start(context.rng.randrange(len(_WRITES)))
            await _listen(victim, seconds=context.rng.random() ** 2 * 0.06)
            for answer in await victim.worker.kill():
                victim.note(answer)
            marks += [f"{victim.mark}-{n}-" for n in range(victim.first, victim.begun + 1)]
            allowed = victim.outcomes(images)
            what = f"kill {kill}, writes {victim.first} to {victim.done}"
            # What was sent last may still be on its way to the store, until a claim settles it.
            _expect_one_of(allowed, {one: await image(client, one) for one in (task, run)}, what)
            epochs = {one.kind: (await claim(client, one)).epoch for one in (task, run)}
            images = {one: await image(client, one) for one in (task, run)}
            _expect_one_of(allowed, images, f"{what}, and a claim")
            other = await context.open()
            for scope in (task, run):
                await expect_image(other, scope, images[scope], f"read anew after kill {kill}")
            await other.aclose()
    owner = await claim(client, task)
    expect(owner.epoch > epochs["task"], "an epoch was repeated", clause="F1")
    images[task] = await fill(client, task, f"{stem}-last-", owner)
    await expect_image(client, task, images[task], "the successor's writes after all kills")
    await _check_debris(context, client, images, marks)


def _expect_one_of(
    allowed: Sequence[dict[Scope, Image]], found: dict[Scope, Image], after: str
) -> None:
    if found in allowed:
        return
    for scope, one in found.items():
        wanted = [images[scope] for images in allowed if images[scope] == one]
        expect_equal(one, (wanted or [allowed[0][scope]])[0], f"{scope.kind} after {after}")
    expect(condition=False, message=f"task and run do not fit each other after {after}")


async def _listen(victim: _Victim, seconds: float) -> None:
    """So long from its first word on: before that it may not even run."""
    victim.note(await victim.worker.answer())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                victim.note(await victim.worker.answer())


async def _check_debris(
    context: Context,
    client: outlast.Backend,
    images: dict[Scope, Image],
    marks: list[str],
) -> None:
    """What crashes left is removed by a sweep, and nothing that is referenced."""
    await client.sweep(older_than=timedelta(0))
    for scope, wanted in images.items():
        await expect_image(client, scope, wanted, "data after kills and a sweep", clause="C4")
    try:
        entries = list(await context.harness.raw(context.namespace))
    except NotRun as error:
        context.note(error.reason, clause="C4")
        return
    shown = repr(images)
    stale = [mark for mark in marks if mark not in shown]
    trace = next(
        (
            f"{mark} in {name!r}"
            for name, data in entries
            for mark in stale
            if mark.encode() in data
        ),
        None,
    )
    expect(trace is None, f"after kills and a sweep the store holds {trace}", clause="C4")


@check("F4", "S3", "A5", "A4", needs=["same store in processes"])
async def reads_beside_another_process_are_whole(context: Context) -> None:
    """While another process writes, each read shows a whole value, and none goes back."""
    client = await context.open()
    task, run = Scope("task", context.new_id("task")), Scope("run", context.new_id("run"))
    owner = await claim(client, task)
    await fill(client, task, "start", owner)
    async with Workers(context.harness, context.namespace) as workers:
        victim = _Victim(await workers.spawn(), task, run, "m")
        await victim.claim()
        victim.start(0)
        newest: dict[str, int] = {}
        reads = 0
        listening = asyncio.ensure_future(_listen(victim, 60))
        try:
            loop = asyncio.get_running_loop()
            until = loop.time() + _LOOKING
            # Some writes are seen on any machine, however late they begin.
            while min(reads, victim.done) <= 3 or (victim.done < 150 and loop.time() < until):
                expect(not listening.done(), "the other process stopped writing")
                found = await image(client, task)
                parts: dict[str, Any] = {
                    "state": found.state and found.state.context,
                    "input": found.input and found.input.params,
                    "user": found.user[-1].content if found.user else None,
                    "api": found.api[-1].content if found.api else None,
                }
                point = await client.checkpoints.get(run.id)
                parts["run"] = point and point.text
                if found.state is not None:
                    _whole(found.state.context, found.state.config)
                if found.input is not None:
                    expect_equal(found.input.params, {"mark": found.input.message}, "an input")
                if point is not None:
                    expect_equal(point.message_id, point.text, "two fields of a checkpoint")
                for part, mark in parts.items():
                    number = _number(mark)
                    least = newest.get(part, -1)
                    expect(number >= least, f"{part} shows {number} after {least}")
                    newest[part] = number
                reads += 1
                await asyncio.sleep(0)  # a backend may never wait for anything
        finally:
            listening.cancel()
            await asyncio.wait([listening])
        await victim.worker.kill()
    expect(reads > 3 and victim.done > 3, f"{reads} reads beside {victim.done} writes")


def _whole(context: dict[str, Any], config: dict[str, Any]) -> None:
    if "mark" in config:
        expect_equal(config, context, "two fields of a state", clause="S3")


def _number(mark: Any) -> int:
    found = re.search(r"m-(\d+)-", str(mark))
    return int(found[1]) if found else -1


@check("E6", "F2", "F5", "C8", needs=["same store in processes", "options"])
async def a_stopped_process_holds_nobody_up_for_ever(context: Context) -> None:
    """While a process is stopped at a random moment of its writing, every call of others ends
    within its timeout; claimed meanwhile, the process writes nothing once it goes on.
    """
    patient = await context.open()
    may_block = patient.capabilities.stopped_writer_blocks
    # Whoever is held up waits for all of its time; who is not needs little, on whatever machine.
    timeout = 1.0 if may_block else 10.0
    client = await context.open_impatient(timeout) if may_block else patient
    async with Workers(context.harness, context.namespace) as workers:
        worker = await workers.spawn()
        for stop in range(max(3, context.settings.kills // 2)):
            task, run = Scope("task", context.new_id("task")), Scope("run", context.new_id("run"))
            owner = await claim(patient, task)
            await fill(patient, task, "start", owner)
            victim = _Victim(worker, task, run, f"m{stop}")
            await victim.claim()
            victim.start(stop)
            await _listen(victim, 0.01 + context.rng.random() * 0.03)
            worker.signal(signal.SIGSTOP)
            try:
                error = await _taken_over(client, task, run, timeout)
                if error is not None:
                    expect(
                        isinstance(error, UnavailableError | OutcomeUnknownError),
                        f"a call beside a stopped process got {error!r}",
                    )
                    expect(
                        may_block,
                        f"a call beside a stopped process got {error!r}, though the backend does "
                        "not declare stopped_writer_blocks",
                    )
            finally:
                worker.signal(signal.SIGCONT)
            if error is not None:
                await _take_over(patient, task, run)
            held = {scope: await image(patient, scope) for scope in (task, run)}
            answer = await _refusal(worker)
            expect_equal(
                (answer["error"], answer["reason"]),
                ("FencedError", "superseded"),
                "what the process that was stopped was told",
                clause="F2",
            )
            for scope, wanted in held.items():
                what = f"the {scope.kind} after the stopped process went on"
                await expect_image(patient, scope, wanted, what, clause="F5")


async def _taken_over(
    client: outlast.Backend, task: Scope, run: Scope, timeout: float
) -> OutlastError | None:
    """The error of whoever takes both over, each call of whom must end in time."""
    loop = asyncio.get_running_loop()
    for scope in (task, run):
        owners: list[outlast.Claim] = []

        async def take(scope: Scope = scope, owners: list[outlast.Claim] = owners) -> None:
            owners.append(await claim(client, scope))

        async def write(scope: Scope = scope, owners: list[outlast.Claim] = owners) -> None:
            await fill(client, scope, "taken over", owners[0])

        for call, count in ((take, 1), (write, 4)):
            began = loop.time()
            error = await error_of(call())
            seconds = loop.time() - began
            text = f"{count} calls at most beside a stopped process took {seconds:.1f} s"
            expect(seconds < count * timeout + _SLACK, text)
            if error is not None:
                return error
    return None


async def _refusal(worker: Worker) -> Answer:
    """What a worker is told that no longer owns what it writes to."""
    try:
        async with asyncio.timeout(20):
            while True:
                answer = await worker.answer()
                if "refused" in answer:
                    return answer
    except TimeoutError:
        raise Violation("a process whose claims were superseded goes on writing", "F2") from None


async def _take_over(client: outlast.Backend, task: Scope, run: Scope) -> None:
    for scope in (task, run):
        owner = await claim(client, scope)
        await fill(client, scope, "taken over", owner)


@check("F4", "X3", needs=["processes"])
async def the_reach_is_as_declared(context: Context) -> None:
    """A backend of one process's reach shows nothing to another; any other shows all."""
    client = await context.open()
    task = Scope("task", context.new_id("task"))
    await fill(client, task, "mark")
    async with Workers(context.harness, context.namespace) as workers:
        worker = await workers.spawn()
        answer = await worker.call(
            "apply", mutation="update_task_state", id=task.id, mark="there", owned=False
        )
    if client.capabilities.reach == "process":
        error = answer.get("error")
        expect_equal(error, "TaskNotFoundError", "an update in a process out of reach")
        return
    expect("error" not in answer, f"an update in another process: {answer}")
    found = await client.persistence.load_task_state(task.id)
    expect_equal(found and found.config, {"updated": "there"}, "the state it updated")
