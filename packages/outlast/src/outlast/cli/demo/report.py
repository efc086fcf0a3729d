"""What the demo says before and after its runs."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from outlast.cli.demo import script
from outlast.cli.demo.moments import Moment
from outlast.cli.demo.run import Outcome, Site
from outlast.cli.demo.timeline import PLANS
from outlast.models import ApiMessage
from outlast.url import redact

_MOST_ROWS: Final = 60
_SHORT: Final = {"complete": "end"}
_ID_WIDTH: Final = 18
_EXCERPT: Final = 24


def introduce(console: Console, site: Site, *, is_temporary: bool, seed: int | None) -> None:
    """Say what is going to happen where."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    grid.add_row("store", Text(f"{redact(site.url)}{' (temporary)' if is_temporary else ''}"))
    grid.add_row("namespace", Text(site.namespace))
    grid.add_row("model", Text(f"scripted, at {site.servers['A'].url}, through the openai client"))
    grid.add_row("question", Text(script.CONVERSATION.question))
    if seed is not None:
        grid.add_row("moments", Text(f"drawn from seed {seed}"))
    console.print(grid)


def conversation_table(messages: Sequence[ApiMessage], width: int) -> Table:
    """A conversation, in lines of at most ``width`` characters."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=_ID_WIDTH)
    grid.add_column(no_wrap=True)
    for message in messages:
        text = Text.assemble(*_summary(message))
        text.truncate(width - _ID_WIDTH - 2, overflow="ellipsis")
        grid.add_row(message.id, text)
    return grid


def _summary(message: ApiMessage) -> Iterator[str | tuple[str, str]]:
    if isinstance(message.content, str):
        yield message.content
        return
    for block in script.blocks(message):
        match block["type"]:
            case "text":
                yield f"{block['text'][:_EXCERPT]}… ({len(block['text'])} characters) "
            case "tool_call":
                yield (f"{block['name']}(…)", "bold")
            case _:
                yield json.dumps(block["content"], ensure_ascii=False)


def progress(console: Console) -> Progress:
    """The bar of a series."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def series_table(outcomes: Sequence[Outcome]) -> Table:
    """One line for each run; of many runs, for those that went wrong."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("run", "killed", "on disk", "plan", "stopped", "plan", "epochs", "refused"):
        table.add_column(name, justify="right" if name == "run" else "left", no_wrap=True)
    table.add_column("")
    for number, outcome in enumerate(outcomes, 1):
        if len(outcomes) > _MOST_ROWS and not outcome.problems:
            continue
        plans = [*outcome.plans, "?", "?"]
        table.add_row(
            str(number),
            _where(outcome.kill),
            outcome.saved,
            plans[0],
            _where(outcome.stop),
            plans[1],
            f"{outcome.epochs[0]} to {outcome.epochs[-1]}" if outcome.epochs else "?",
            str(outcome.refused),
            Text("WRONG", style="bold red") if outcome.problems else Text("right", style="green"),
        )
    return table


SERIES_LEGEND: Final = (
    "killed, stopped: place and delta in the stream. early: before its first checkpoint; "
    "end: its tool call complete. on disk: characters of the text + of the arguments."
)


def _where(moment: Moment) -> str:
    if moment.seconds is not None:
        return f"{moment.seconds:g} s"
    return f"{_SHORT.get(moment.place, moment.place)} {moment.at}"


def conclude(console: Console, outcomes: Sequence[Outcome]) -> int:
    """Say whether all is right; the exit code."""
    console.print()
    if len(outcomes) > 1:
        counts = Counter(plan for outcome in outcomes for plan in outcome.plans)
        grid = Table.grid(padding=(0, 2, 0, 0))
        for plan, words in PLANS.items():
            grid.add_row(f"{counts[plan]} times", Text(plan, style="bold"), words)
        console.print(grid)
        console.print()
    for number, outcome in enumerate(outcomes, 1):
        for problem in outcome.problems:
            prefix = f"run {number}: " if len(outcomes) > 1 else ""
            console.print(Text(f"{prefix}{problem}", style="red"))
    wrong = sum(bool(outcome.problems) for outcome in outcomes)
    if wrong:
        which = (
            "this run did not go as it must"
            if len(outcomes) == 1
            else f"{wrong} of {len(outcomes)} runs did not go as they must"
        )
        verdict = Text.assemble(("WRONG", "bold red"), f": {which}")
    else:
        names = " and ".join(call.name for call in script.CONVERSATION.calls())
        each = "" if len(outcomes) == 1 else " in each run"
        console.print(f"{names} ran once each{each}; no unfinished call ever ran.")
        which = (
            "the committed conversation is"
            if len(outcomes) == 1
            else f"all {len(outcomes)} committed conversations are"
        )
        verdict = Text.assemble(
            ("Exactly right", "bold green"), f": {which} the script's, to the byte"
        )
    console.print(verdict, soft_wrap=True)
    return 1 if wrong else 0


__all__ = [
    "SERIES_LEGEND",
    "conclude",
    "conversation_table",
    "introduce",
    "progress",
    "series_table",
]
