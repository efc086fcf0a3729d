"""Clocks that are wrong and jump (A4, F1, F2, S3, C5, C6): with libfaketime, below the process."""

import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Final

import outlast
from outlast.driver import Scope
from outlast_contract.engine import Context, check
from outlast_contract.expect import NotRun, expect, expect_equal
from outlast_contract.mutations import MUTATIONS, Image, claim, expect_image, fill, image
from outlast_contract.recording import injected
from outlast_contract.workers import Worker, Workers

_LIBRARIES: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib")
_AHEAD: Final = 600
"""Seconds; S3 takes no request whose clock is off by more than 15 minutes."""
_JUMPS: Final = (_AHEAD, -_AHEAD, 0, -_AHEAD, _AHEAD, 1, -1)


class _Clock:
    """The wall clock of some processes, which only this object sets; timers go on as they did.

    Attributes:
        environment: Of the processes.
    """

    def __init__(self, folder: str) -> None:
        found = [
            path for root in _LIBRARIES for path in Path(root).glob("**/faketime/libfaketime.so.1")
        ]
        if not found:
            raise NotRun("needs libfaketime, for processes whose clocks are wrong")
        self._file = Path(folder) / "clock"
        self.set(0)
        self.environment: dict[str, str] = {
            "LD_PRELOAD": str(found[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def set(self, seconds: int) -> None:
        """Put it so many seconds ahead of the true one, or behind it."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}s\n")
        fresh.replace(self._file)

    async def jump(self, worker: Worker, seconds: int) -> None:
        """`set` it, and see that it is so in a process.

        Raises:
            NotRun: It is not, since the library has no effect here.
        """
        injected("clock of a process jumps")
        self.set(seconds)
        ahead = (await worker.done("now"))["now"] - time.time()
        if abs(ahead - seconds) > _AHEAD / 4:
            raise NotRun(f"libfaketime puts the clock {ahead:.0f} s ahead instead of {seconds}")


@contextlib.asynccontextmanager
async def _elsewhere(context: Context, **options: float) -> AsyncGenerator[tuple[_Clock, Worker]]:
    """A process with a clock of its own."""
    with tempfile.TemporaryDirectory(prefix="outlast-contract-") as folder:
        clock = _Clock(folder)
        workers = Workers(
            context.harness, context.namespace, environment=clock.environment, **options
        )
        async with workers:
            yield clock, await workers.spawn()


@check("A4", "F1", "F2", "S3", "F8", tier="faults", needs=["same store in processes"])
async def clocks_decide_nothing(context: Context) -> None:
    """Two processes whose clocks disagree, one of which jumps back and forth, take turns as owners:
    epochs only rise, the former owner is refused, the log is in the order of the appends, and what
    was saved last is read.
    """
    client = await context.open()
    task, run = Scope("task", context.new_id("task")), Scope("run", context.new_id("run"))
    loose = context.new_id("unclaimed")
    images = {task: Image(), run: Image()}
    order: list[str] = []
    last = {"task": 0, "run": 0}
    async with _elsewhere(context) as (clock, worker):
        for number, jump in enumerate(_JUMPS):
            what = f"with the other process's clock set to {jump:+d} s"
            await clock.jump(worker, jump)
            for scope in images:
                answer = await worker.done("claim", kind=scope.kind, id=scope.id)
                _expect_raised(last, scope, answer["epochs"][0], what)
            for name in ("save_task_state", "append_api_message", "put"):
                scope = task if MUTATIONS[name].kind == "task" else run
                mark = f"there {number} "
                await worker.done("apply", mutation=name, id=scope.id, mark=mark, owned=True)
                images[scope] = MUTATIONS[name].model(images[scope], scope.id, mark)
            await worker.done("append", id=loose, prefix=f"there {number} ", count=2)
            for scope, now in images.items():
                await expect_image(client, scope, now, f"data {what}")
            for scope in images:
                owner = await claim(client, scope)
                _expect_raised(last, scope, owner.epoch, what)
                images[scope] = await fill(client, scope, f"here {number} ", owner)
            late = await worker.call("apply", mutation="put", id=run.id, mark="late", owned=True)
            expect_equal(late.get("error"), "FencedError", f"a late put {what}", clause="F2")
            await client.persistence.append_api_message(
                loose, outlast.ApiMessage(id=f"here {number}", role="user", content="")
            )
            order += [f"there {number} 0", f"there {number} 1", f"here {number}"]
            for scope, now in images.items():
                expect_equal(await image(client, scope), now, f"data {what}", clause="S3")
    found = [message.id for message in await client.persistence.load_api_messages(loose)]
    expect_equal(found, order, "the log of two processes whose clocks disagree")


def _expect_raised(last: dict[str, int], scope: Scope, epoch: int, what: str) -> None:
    expect(epoch > last[scope.kind], f"epoch {epoch} after {last[scope.kind]} {what}", clause="F1")
    last[scope.kind] = epoch


@check("C5", "C6", "F1", tier="faults", needs=["endpoints", "same store in processes"])
async def ages_are_counted_by_the_servers_clock(context: Context) -> None:
    """A process whose clock is ahead neither sweeps what is younger by the server's clock nor takes
    a checkpoint for too old.
    """
    half = timedelta(seconds=_AHEAD / 2)
    client = await context.open()
    kept, gone = Scope("run", context.new_id("run")), Scope("run", context.new_id("run"))
    now = await fill(client, kept, "young", await claim(client, kept))
    owner = await claim(client, gone)
    await fill(client, gone, "young", owner)
    await client.checkpoints.delete(gone.id, claim=owner)
    async with _elsewhere(context, checkpoint_ttl=half.total_seconds()) as (clock, worker):
        await clock.jump(worker, _AHEAD)
        assert now.checkpoint is not None
        found = await worker.done("get", run_id=kept.id)
        what = f"a checkpoint read {_AHEAD} s ahead, with half of that as checkpoint_ttl"
        expect_equal(found["text"], now.checkpoint.text, what, clause="C6")
        swept = await worker.done("sweep", seconds=half.total_seconds())
        expect_equal(swept["tombstones"], 0, "young tombstones swept by a process that is ahead")
    newer = await claim(client, gone)
    expect(newer.epoch > owner.epoch, "an epoch was repeated after the sweep", clause="F1")
    await expect_image(client, kept, now, "a young checkpoint after the sweep", clause="C5")
