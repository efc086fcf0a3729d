"""The demo from the outside: the store, the runs, the verdict, and leaving nothing behind."""

import asyncio
import contextlib
import importlib.util
import random
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
from rich.console import Console

import outlast
from outlast.cli._chat_server import ChatServer
from outlast.cli.demo import script
from outlast.cli.demo.moments import (
    KILL_PLACES,
    STOP_PLACES,
    Moment,
    draw,
    parse_kill_after,
    showcase,
)
from outlast.cli.demo.processes import Crew, Worker
from outlast.cli.demo.report import (
    SERIES_LEGEND,
    conclude,
    conversation_table,
    introduce,
    progress,
    series_table,
)
from outlast.cli.demo.run import Outcome, Run, Site
from outlast.cli.demo.timeline import Timeline
from outlast.url import redact

INSTALL = 'pip install "outlast[demo]"'
"""What the demo needs beyond the command itself."""

_WORKERS = ("A", "B", "C")


class UsageError(Exception):
    """The demo cannot be run as it was asked for."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for.

    Attributes:
        url: The store; ``None``: a directory that goes away again.
        runs: How many conversations.
        seed: Where the moments come from; ``None`` with one run: a fixed pair that shows much.
        kill_after: Deltas or seconds, as `parse_kill_after` reads them.
        served: What the model says; anything but the script must end with exit code 1.
    """

    url: str | None = None
    runs: int = 1
    seed: int | None = None
    kill_after: str | None = None
    served: script.Conversation = script.CONVERSATION


def run_demo(settings: Settings, console: Console) -> int:
    """Run the demo.

    Returns:
        0 if every committed conversation is exactly right, else 1.

    Raises:
        UsageError: It cannot be run as asked for.
        OutlastError: The store cannot be used.
    """
    if not _has_openai():
        raise UsageError(f"outlast demo needs openai, which is not installed:\n\n    {INSTALL}\n")
    with _store(settings.url) as url:
        return asyncio.run(_run(settings, url, console))


def _has_openai() -> bool:
    try:
        return importlib.util.find_spec("openai") is not None
    except (ImportError, ValueError):
        return False


@contextlib.contextmanager
def _store(url: str | None) -> Generator[str]:
    if url is not None:
        yield url
        return
    folder = tempfile.mkdtemp(prefix="outlast-demo-")
    try:
        yield Path(folder).as_uri()
    finally:
        shutil.rmtree(folder)


async def _run(settings: Settings, url: str, console: Console) -> int:
    namespace = f"demo-{secrets.token_hex(6)}"
    backend = outlast.open_backend(url, namespace=namespace)
    if backend.capabilities.reach == "process":
        raise UsageError(
            f"{redact(url)} ends with its process, and the demo is about what outlives one; "
            "use file:///dir, or another store that processes share"
        )
    moments = list(draw_moments(settings))
    main_task = asyncio.current_task()
    assert main_task is not None
    # As for an interrupt: end the workers, remove the namespace.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main_task.cancel)
    pace, interval = (0.012, 0.05) if settings.runs == 1 else (0.003, 0.02)
    async with backend, _removed_at_the_end(backend), Crew() as crew:
        with contextlib.ExitStack() as stack:
            servers = {
                name: stack.enter_context(ChatServer(settings.served.replies(), pace=pace))
                for name in _WORKERS
            }
            site = Site(url, namespace, backend, servers, interval, settings.served)
            crew.order(len(_WORKERS))
            introduce(console, site, is_temporary=settings.url is None, seed=settings.seed)
            if settings.runs == 1:
                outcomes = await _single(site, moments[0], crew, console)
            else:
                outcomes = await _series(site, moments, crew, console)
    return conclude(console, outcomes)


def draw_moments(settings: Settings) -> Iterator[tuple[Moment, Moment]]:
    """When to kill and when to stop, for each run."""
    first, second = script.CONVERSATION.turns[:2]
    given = None
    if settings.kill_after is not None:
        try:
            given = parse_kill_after(settings.kill_after, 1, first)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if settings.runs == 1 and settings.seed is None:
        yield given or showcase(1, first, "call", 0.4), showcase(2, second, "text", 0.6)
        return
    rng = random.Random(settings.seed)  # noqa: S311 - no secret
    shift = rng.randrange(12)
    for number in range(shift, shift + settings.runs):
        kill = draw(rng, 1, first, KILL_PLACES[number % len(KILL_PLACES)])
        stop = draw(rng, 2, second, STOP_PLACES[number % len(STOP_PLACES)])
        yield given or kill, stop


@contextlib.asynccontextmanager
async def _removed_at_the_end(backend: outlast.Backend) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await _remove(backend)


async def _remove(backend: outlast.Backend) -> None:
    """Remove everything in the demo's namespace."""
    await backend.persistence.delete_task(script.TASK_ID, force=True)
    await backend.sweep(older_than=timedelta(0))


async def _single(
    site: Site, moments: tuple[Moment, Moment], crew: Crew, console: Console
) -> list[Outcome]:
    timeline = Timeline(console)
    outcome = await Run(site, *moments, timeline).play(await crew.take(), crew)
    timeline.heading("Committed")
    console.print(conversation_table(outcome.messages, console.width))
    return [outcome]


async def _series(
    site: Site, moments: list[tuple[Moment, Moment]], crew: Crew, console: Console
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    first: Worker | None = await crew.take()
    with progress(console) as bar:
        for pair in bar.track(moments, description="runs"):
            if len(outcomes) + 1 < len(moments):
                crew.order(len(_WORKERS) - 1)
            if first is None:
                crew.order(1)
                first = await crew.take()
            timeline = Timeline(console, is_quiet=True)
            run = Run(site, *pair, timeline)
            outcomes.append(await run.play(first, crew))
            await run.dismiss()
            # The next one to be killed need not be new; those that take up what it leaves are.
            first = run.survivor
            if outcomes[-1].problems:
                timeline.replay()
            await _remove(site.backend)
    console.print(series_table(outcomes))
    console.print()
    console.print(SERIES_LEGEND, style="dim")
    return outcomes


__all__ = ["INSTALL", "Settings", "UsageError", "draw_moments", "run_demo"]
