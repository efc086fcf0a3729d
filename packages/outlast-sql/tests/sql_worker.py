"""``python sql_worker.py URL``: forks a process for each line ``INPUT OUTPUT JOB [ARGUMENT ...]``.

It imports what they need before it forks them, so that fifty processes cost no fifty imports.
INPUT and OUTPUT are files, or pipes with a name. A job flushes every line that it prints, so that
what a test has read was done.
"""

import asyncio
import importlib
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable

from outlast.driver import Entry, Fence, Index, PreconditionFailedError, Scope
from outlast.errors import FencedError
from outlast_sql import SqlDriver

TASK = Scope("task", "t")


def say(*words: object) -> None:
    print(*words, flush=True)


def hear() -> str:
    return sys.stdin.readline().strip()


async def setup(driver: SqlDriver) -> None:
    """Set the store up when the test says so."""
    say("ready")
    hear()
    await driver.setup(create=True)
    await driver.append(Scope("task", secrets.token_hex(8)), "api", [], fence=None)
    say("done")


async def append(driver: SqlDriver, name: str, rounds: str) -> None:
    """Append one by one to a log that others append to as well, ten entries in each round."""
    await driver.setup(create=True)
    say("ready")
    for turn in range(int(rounds)):
        hear()
        for number in range(10 * turn, 10 * turn + 10):
            entry = Entry(f"{name}.{number}", b"x")
            assert await driver.append(TASK, "api", [entry], fence=None) == []
        say("done")


async def churn(driver: SqlDriver) -> None:
    """Write for ever, and say what was acknowledged; all parts of a step carry its number."""
    await driver.setup(create=True)
    claim = await driver.claim(TASK, secrets.token_hex(16))
    say("ready", claim.epoch)
    seq, number = 0, int(claim.data or b"0")
    assert claim.fence is not None

    def fence() -> Fence:
        nonlocal seq
        assert claim.fence is not None
        seq += 1
        return Fence(claim.fence.epoch, claim.fence.claim_id, seq, secrets.token_hex(8))

    while True:
        number += 1
        batch = [Entry(f"{number}.{part}", b"%d" % number * 500) for part in range(3)]
        await driver.append(TASK, "api", batch, fence=fence())
        say("api", number)
        body = b"%d" % number
        await driver.write(TASK, "state", body, fence=fence(), index=Index(status=f"{number}"))
        say("state", number)
        whole = [Entry(f"{number}.{part}", body) for part in range(50)]
        await driver.replace(TASK, "user", whole, fence=fence())
        say("user", number)


async def contend(driver: SqlDriver, name: str, rounds: str) -> None:
    """Take part in races: one of each kind a round, all contenders at once."""
    await driver.setup(create=True)
    say("ready")
    for number in range(int(rounds)):
        hear()
        for kind, call in contests(driver, name, number).items():
            try:
                won = await call()
            except (FencedError, PreconditionFailedError):
                won = False
            say(kind, int(won))


def contests(driver: SqlDriver, name: str, number: int) -> dict[str, Callable[[], Awaitable[bool]]]:
    """Of each, exactly one contender of a round wins."""

    async def claim() -> bool:
        scope = Scope("task", f"claim{number}")
        await driver.claim(scope, secrets.token_hex(16), at_least=number + 1)
        return True

    async def owner() -> bool:
        """The newest claim wins; the others are fenced when they write."""
        scope = Scope("task", f"owner{number}")
        value = await driver.claim(scope, secrets.token_hex(16))
        assert value.fence is not None
        gate = Scope("task", f"gate{number}")
        await driver.append(gate, "api", [Entry(name, b"")], fence=None)
        while len(await driver.load(gate, "api")) < 8:
            await asyncio.sleep(0.001)
        fence = Fence(value.fence.epoch, value.fence.claim_id, 1, secrets.token_hex(8))
        await driver.write(scope, "state", name.encode(), fence=fence, index=Index())
        return True

    async def compare_and_set() -> bool:
        scope = Scope("task", f"cas{number}")
        await driver.write(scope, "state", name.encode(), fence=None, index=Index(), if_version=0)
        return True

    async def append() -> bool:
        entry = Entry("one", name.encode())
        return not await driver.append(Scope("task", f"append{number}"), "api", [entry], fence=None)

    async def replace() -> bool:
        scope = Scope("task", f"replace{number}")
        await driver.replace(
            scope, "api", [Entry(str(n), name.encode()) for n in range(20)], fence=None
        )
        found = {entry.data for entry in await driver.load(scope, "api")}
        assert len(found) == 1, found
        return (await driver.append(scope, "user", [Entry("one", b"")], fence=None)) == []

    return {
        "claim": claim,
        "owner": owner,
        "compare and set": compare_and_set,
        "append": append,
        "replace": replace,
    }


async def hold(driver: SqlDriver) -> None:
    """Stop inside the write transaction until the test goes on."""
    await driver.setup(create=True)

    def step(_: object) -> None:
        say("inside")
        hear()

    await driver._mutate(step)
    say("done")


async def main(job: str, url: str, *arguments: str) -> None:
    driver = SqlDriver.from_url(url, namespace="test", timeout=30.0)
    try:
        await globals()[job](driver, *arguments)
    finally:
        await driver.aclose()


def nursery(url: str) -> None:
    """Fork before there is a thread or a connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    importlib.import_module("outlast_sql._sqlite")
    for line in sys.stdin:
        heard, said, job, *arguments = line.split()
        child = os.fork()
        if child:
            say(child)
            continue
        sys.stdin = open(heard, encoding="utf-8")  # noqa: PTH123, SIM115
        sys.stdout = open(said, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        asyncio.run(main(job, url, *arguments))
        os._exit(0)


if __name__ == "__main__":
    nursery(sys.argv[1])
