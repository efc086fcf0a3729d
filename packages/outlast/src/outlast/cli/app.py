"""The commands of `outlast`."""

import asyncio
import re
import secrets
import shlex
import time
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

import outlast
from outlast.url import redact

ResultT = TypeVar("ResultT")

_UsageError: Any = typer.BadParameter.__base__
"""Of click, or of the copy of it that newer versions of typer have."""


class _Commands(TyperGroup):
    """Complaints about arguments quote them, and one of them may be a URL (E4)."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            error.message = redact(error.message)
            raise


app: typer.Typer = typer.Typer(
    name="outlast",
    cls=_Commands,
    help="Storage with which LLM agents outlast their process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # Paragraphs are filled, not kept line by line.
    context_settings={"help_option_names": ["-h", "--help"]},
)

UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="The store, such as file:///dir or sqlite:///file.db.")
]
NamespaceOption = Annotated[str, typer.Option(help="The world within the store.")]

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def fail(message: str, code: int) -> NoReturn:
    """Say what was wrong, on standard error, and end."""
    typer.echo(message, err=True)
    raise typer.Exit(code)


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run to the end; errors of the library become their text and an exit code."""
    try:
        return asyncio.run(work)
    except outlast.OutlastError as error:
        fail_with(error)


def fail_with(error: outlast.OutlastError) -> NoReturn:
    """End with the error's text: 2 if the call was wrong, 1 if the store did not do it."""
    usage = (outlast.ConfigurationError, outlast.InvalidDataError, outlast.InvalidIdError)
    fail(f"Error: {error}", 2 if isinstance(error, usage) else 1)


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer calls it so
    if value:
        typer.echo(f"outlast {outlast.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[  # noqa: FBT002 - an option
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Storage with which LLM agents outlast their process."""


@app.command()
def demo(
    url: Annotated[
        str | None, typer.Option(help="The store; a temporary directory by default.")
    ] = None,
    kill_after: Annotated[
        str | None,
        typer.Option(
            help="Kill after so many deltas of the stream (40), or so many seconds (0.5s)."
        ),
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Repeat at so many moments, drawn from the seed.")
    ] = 1,
    seed: Annotated[int | None, typer.Option(help="Draw the same moments again.")] = None,
) -> None:
    """Kill a model turn in mid-stream, and see another process finish it.

    A worker streams from a model and saves as it goes. It is killed with SIGKILL; a second
    process takes the turn up. That one is stopped with SIGSTOP, superseded by a third, and
    woken: the store refuses what it still wants to write. Everything is in a namespace of its
    own and removed at the end.

    The exit code is 0 only if the committed conversation is exactly right.
    """
    from outlast.cli.demo.command import Settings, UsageError, run_demo
    from outlast.cli.demo.processes import DemoError

    if seed is None and runs > 1:
        seed = secrets.randbelow(1_000_000)  # Shown, so that it can be given again.
    settings = Settings(url=url, runs=runs, seed=seed, kill_after=kill_after)
    try:
        code = run_demo(settings, Console(highlight=False))
    except UsageError as error:
        fail(f"Error: {error}", 2)
    except outlast.OutlastError as error:
        fail_with(error)
    except DemoError as error:
        fail(f"The demo cannot go on: {error}", 1)
    except asyncio.CancelledError:
        fail("stopped; everything was removed", 143)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    raise typer.Exit(code)


@app.command()
def backends() -> None:
    """List the backends of this environment, with the plugins that could not be loaded."""
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("backend", "URLs", "from", ""):
        table.add_column(column, overflow="fold")
    plugins = outlast.installed_plugins()
    for plugin in plugins:
        for info in plugin.backends:
            schemes = " ".join(f"{scheme}://" for scheme in info.schemes)
            table.add_row(
                Text(info.name, style="bold"), schemes, Text(plugin.source), Text(info.summary)
            )
    console.print(table)
    broken = [plugin for plugin in plugins if plugin.error is not None]
    for plugin in broken:
        console.print(Text(f"\n{plugin.source} cannot be loaded: {plugin.error}", style="red"))
    raise typer.Exit(1 if broken else 0)


@app.command()
def setup(url: UrlArgument, namespace: NamespaceOption = "default") -> None:
    """Create or migrate what a store needs; harmless on a store that is ready."""

    async def work() -> None:
        async with outlast.open_backend(url, namespace=namespace):
            pass

    run(work())
    typer.echo(f"{redact(url)} is ready, namespace {namespace!r}")


@app.command()
def ping(url: UrlArgument, namespace: NamespaceOption = "default") -> None:
    """Reach a store that has been set up, and say how long that took."""

    async def work() -> tuple[str, float]:
        async with outlast.open_backend(url, namespace=namespace, setup=False) as backend:
            start = time.perf_counter()
            await backend.ping()
            return backend.name, time.perf_counter() - start

    name, seconds = run(work())
    typer.echo(f"{redact(url)} answers in {seconds * 1000:.1f} ms ({name})")


def parse_age(value: str) -> timedelta:
    """An age such as ``7d``, ``12h``, ``30m``, ``90s`` or ``2w``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value.strip())
    if found is None:
        raise typer.BadParameter(f"{value!r} is no age; expected one such as 7d, 12h, 30m or 90s")
    try:
        return timedelta(**{_UNITS[found[2]]: float(found[1])})
    except OverflowError:
        raise typer.BadParameter(f"{value!r} is longer than any store lives") from None


@app.command()
def sweep(
    url: UrlArgument,
    older_than: Annotated[
        timedelta,
        typer.Option(parser=parse_age, metavar="AGE", help="Retention time, such as 7d or 12h."),
    ],
    namespace: NamespaceOption = "default",
    limit: Annotated[int | None, typer.Option(min=0, help="Remove about so many at most.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,  # noqa: FBT002
) -> None:
    """Remove what deletions and crashes left behind, once it is older than the retention time."""

    async def work() -> outlast.SweepReport:
        async with outlast.open_backend(url, namespace=namespace, setup=False) as backend:
            return await backend.sweep(older_than=older_than, dry_run=dry_run, limit=limit)

    report = run(work())
    verb = "would remove" if report.dry_run else "removed"
    typer.echo(
        f"{verb} {report.tombstones} records of deleted tasks and runs, "
        f"{report.debris} left-overs of crashes"
    )
    if not report.complete:
        typer.echo("the limit was reached; there may be more")


@app.command()
def bench(
    url: UrlArgument,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, in less time.")] = False,  # noqa: FBT002
    output: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file, too.")
    ] = None,
) -> None:
    """Measure a store from here, beside its raw driver doing one plain durable write or read.

    Ratios are taken side by side: alternating, warm, medians. Everything is in a namespace of
    its own and removed at the end, the raw driver's tables and keys too. Not for a store that
    is busy with other work, which it would disturb.
    """
    from outlast.cli.bench.command import run_bench

    run(
        run_bench(
            url,
            quick=quick,
            output=output,
            console=Console(highlight=False),
            progress=Console(stderr=True),
        )
    )


@app.command("new-backend")
def new_backend(
    name: Annotated[
        str, typer.Argument(help="Of the store, such as nats; also the scheme of its URLs.")
    ],
    folder: Annotated[
        Path | None, typer.Option(help="Where; outlast-NAME in the working directory by default.")
    ] = None,
) -> None:
    """Write the project of a backend of your own, for you to fill in.

    It installs and is found at once. The contract suite fails on it, clause by clause, and says
    which method of the driver to write next.
    """
    from outlast.cli.new_backend import write_project

    try:
        target = write_project(name, folder)
    except outlast.OutlastError as error:
        fail_with(error)
    typer.echo(
        f"{target} is a project of its own now. The suite says what to write:\n\n"
        f"    cd {shlex.quote(str(target))}\n"
        '    python -m pip install --editable ".[test]"\n'
        f"    outlast-contract {name}://localhost\n"
        "    python -m pytest -x\n"
    )


__all__ = ["app"]
