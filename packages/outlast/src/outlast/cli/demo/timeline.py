"""What the demo shows: a timeline of who did what."""

import time
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from outlast.cli.demo.events import (
    Accepted,
    AnyEvent,
    CallCancelled,
    CallReady,
    Claimed,
    Committed,
    Fenced,
    Finished,
    Recovered,
    Refused,
    Streaming,
    ToolRun,
)

_STYLES: Final = {"A": "cyan", "B": "green", "C": "magenta", "demo": "bold yellow", "store": "blue"}

PLANS: Final = {
    "R1": "go on behind the text",
    "R2": "complete without asking the model again",
    "R3": "drop the unfinished call, go on behind the text",
    "R4": "begin anew",
}


class Timeline:
    """Rows of time, actor and action; printed as they come, or kept for later.

    Args:
        console: Where to print.
        is_quiet: Whether to keep the rows, for `replay`.
    """

    def __init__(self, console: Console, *, is_quiet: bool = False) -> None:
        self._console = console
        self._is_quiet = is_quiet
        self._kept: list[RenderableType] = []
        self._start = time.monotonic()
        self._live: Live | None = None
        self._turns: set[tuple[str, int]] = set()

    def restart_clock(self) -> None:
        """Let times count from now."""
        self._start = time.monotonic()

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._print(Text())
        self._print(Rule(Text(text, style="bold"), align="left", style="dim"))

    def row(self, actor: str, text: str | Text) -> None:
        """Say that something happened now."""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=8, justify="right", style="dim", no_wrap=True)
        grid.add_column(width=5, style=_STYLES.get(actor, ""), no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(f"{time.monotonic() - self._start:.3f} s", actor, text)
        self._print(grid)

    def heard(self, actor: str, pid: int, event: AnyEvent) -> None:
        """Show what a worker said, if it is for people."""
        if isinstance(event, Streaming):
            self._stream(actor, event)
            return
        self._settle()
        text = _describe(event, pid)
        if text is not None:
            self.row(actor, text)

    def replay(self) -> None:
        """Print the rows that were kept."""
        for item in self._kept:
            self._console.print(item)

    def close(self) -> None:
        """Leave the terminal in order."""
        self._settle()

    def _stream(self, actor: str, event: Streaming) -> None:
        """Show a growing stream in one line that goes away again."""
        if (actor, event.turn) not in self._turns:
            self._turns.add((actor, event.turn))
            self.row(actor, f"streams turn {event.turn}")
        if self._is_quiet or not self._console.is_terminal:
            return
        if self._live is None:
            self._live = Live(
                console=self._console, transient=True, refresh_per_second=20, auto_refresh=False
            )
            self._live.start()
        shown = f"{event.text} characters"
        if event.call:
            shown += f", {event.call}(… {event.arguments} characters"
        line = Text.assemble(" " * 9, (f"{actor}     ", _STYLES.get(actor, "")), (shown, "dim"))
        self._live.update(line, refresh=True)

    def _settle(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, item: RenderableType) -> None:
        self._settle()
        if self._is_quiet:
            self._kept.append(item)
        else:
            self._console.print(item)


def _describe(event: AnyEvent, pid: int) -> Text | None:
    match event:
        case Claimed("task"):
            return Text.assemble(
                f"process {pid} claims the task: ", (f"epoch {event.epoch}", "bold")
            )
        case Claimed("run"):
            found = "finds a checkpoint" if event.found else "finds no checkpoint"
            return Text.assemble(
                f"claims {event.id}: ", (f"epoch {event.epoch}", "bold"), f", {found}"
            )
        case Recovered():
            return recovery_text(event.plan)
        case CallCancelled():
            return Text.assemble(
                ("drops", "yellow"),
                f" the unfinished call of {event.name}: it never ran",
            )
        case CallReady():
            return Text(f"call {event.name} is complete")
        case Committed():
            calls = f" and {event.calls} tool call" if event.calls else ""
            return Text.assemble(
                ("commits", "bold green"), f" turn {event.turn}: {event.text} characters{calls}"
            )
        case ToolRun():
            return Text.assemble(("runs", "bold"), f" {event.name}, from the committed message")
        case Refused():
            return _refusal(event)
        case Accepted():
            return Text(f"its late {event.what} was ACCEPTED", style="bold red")
        case Fenced():
            return Text("stops its turn, and tries what else it would have written")
        case Finished():
            return Text("is done")
        case _:
            return None


def recovery_text(plan: str) -> Text:
    """A recovery plan, by its name and in words."""
    return Text.assemble("recovers by ", (plan, "bold"), f": {PLANS[plan]}")


def _refusal(event: Refused) -> Text:
    return Text.assemble(
        f"its {event.what} is ",
        ("refused", "bold red"),
        f": FencedError, {event.reason}, epoch {event.epoch} < {event.stored_epoch}",
    )


__all__ = ["PLANS", "Timeline", "recovery_text"]
