"""A sequence of mutations of every kind, for tests that break it off somewhere."""

import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from file_kit import OTHER, RUN, SCOPES, TASK, Claimed, Seen, entries, look, sweep_all

from outlast.driver import Driver, Index, Scope

World = dict[Scope, Seen]
Step = Callable[[Driver, dict[str, Claimed]], Coroutine[Any, Any, Any]]


def workload(appends: int = 30) -> list[Step]:
    """Every kind of mutation: inline, in pieces, flushed, folded, replaced, removed, swept.

    Run twice, it gives the same records, fences included.
    """
    numbers = itertools.count(1)

    def take(key: str, scope: Scope, parent: str | None = None) -> Step:
        claim_id = f"{next(numbers):032x}"

        async def step(driver: Driver, claims: dict[str, Claimed]) -> None:
            claims[key] = Claimed(scope, await driver.claim(scope, claim_id, parent=parent))

        return step

    def write(key: str, register: str, data: bytes | None) -> Step:
        async def step(driver: Driver, claims: dict[str, Claimed]) -> None:
            mine = claims[key]
            await driver.write(
                mine.scope, register, data, fence=mine.fence(), index=Index("p", "running", 7)
            )

        return step

    def append(*ids: str, log: str = "api", size: int = 8) -> Step:
        async def step(driver: Driver, claims: dict[str, Claimed]) -> None:
            assert not await driver.append(
                TASK, log, entries(*ids, size=size), fence=claims["t"].fence()
            )

        return step

    async def append_unclaimed(driver: Driver, claims: dict[str, Claimed]) -> None:
        await driver.append(OTHER, "user", entries("x", "y", size=90), fence=None)

    async def write_unclaimed(driver: Driver, claims: dict[str, Claimed]) -> None:
        await driver.write(OTHER, "input", b"large " * 20, fence=None)

    async def replace_unclaimed(driver: Driver, claims: dict[str, Claimed]) -> None:
        await driver.replace(OTHER, "user", entries(*"uvwxyz", size=60), fence=None)

    async def remove_unclaimed(driver: Driver, claims: dict[str, Claimed]) -> None:
        await driver.remove(OTHER, fence=None)

    async def replace(driver: Driver, claims: dict[str, Claimed]) -> None:
        many = entries(*"abcdefgh", size=50)
        await driver.replace(TASK, "api", many, fence=claims["t"].fence())

    async def remove(driver: Driver, claims: dict[str, Claimed]) -> None:
        await driver.remove(TASK, fence=claims["t"].fence())

    async def remove_run(driver: Driver, claims: dict[str, Claimed]) -> None:
        await driver.remove(RUN, fence=claims["r"].fence())

    async def sweep(driver: Driver, claims: dict[str, Claimed]) -> None:
        await sweep_all(driver)

    return [
        take("t", TASK),
        write("t", "state", b"small"),
        *(append(f"m{number}") for number in range(appends)),
        append("a1", "a2", "a3", "a4", log="user", size=70),
        write("t", "input", b"large " * 20),
        write("t", "input", b"larger " * 20),
        take("r", RUN, parent="t"),
        write("r", "checkpoint", b"so far"),
        write("r", "checkpoint", b"so far and more " * 8),
        append_unclaimed,
        write_unclaimed,
        replace,
        replace_unclaimed,
        append("i"),
        remove_unclaimed,
        append_unclaimed,
        take("t", TASK),
        remove_run,
        sweep,
        remove,
        take("r", RUN, parent="t"),
        sweep,
    ]


async def worlds_of(
    driver: Driver, viewer: Driver, steps: list[Step], done: Callable[[], None]
) -> tuple[list[World], list[dict[Scope, int]]]:
    """Run the steps: the world before the first and after each, and the epochs given by then."""
    worlds = [await world_of(viewer)]
    epochs: list[dict[Scope, int]] = [{}]
    claims: dict[str, Claimed] = {}
    done()
    for step in steps:
        await step(driver, claims)
        done()
        worlds.append(await world_of(viewer))
        epochs.append(epochs[-1] | {mine.scope: mine.epoch for mine in claims.values()})
    return worlds, epochs


async def world_of(viewer: Driver) -> World:
    """All that can be read."""
    return {scope: await look(viewer, scope) for scope in SCOPES}
