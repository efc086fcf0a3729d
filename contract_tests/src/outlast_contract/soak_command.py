"""``outlast-contract URL --minutes N``: random owners and faults, until something breaks."""

import argparse
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

from outlast_contract._interrupts import run_in_own_loop
from outlast_contract.engine import Check, Result
from outlast_contract.outages import History
from outlast_contract.printing import printable
from outlast_contract.recording import NOTHING, Call, Injected, Recording
from outlast_contract.report import Report
from outlast_contract.report_files import written
from outlast_contract.soak import KINDS, KINDS_WITHIN, PREFIX, Finding, Round, soak
from outlast_contract.subject import Subject


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the soak."""
    group = parser.add_argument_group(
        "soak",
        "Instead of the checks: rounds of random owners whose calls, cancellations and faults of "
        "the network are drawn from a seed, until a clause is broken or the time is over.",
    )
    group.add_argument("--minutes", type=float, metavar="N", help="how long; 0 is one round")
    group.add_argument("--owners", type=int, default=Round.owners, help="in each round (default 6)")
    group.add_argument(
        "--calls", type=int, default=Round.calls, help="that each owner makes (default 80)"
    )
    group.add_argument(
        "--first-owner",
        type=int,
        default=Round.first,
        metavar="NUMBER",
        help="number of the first owner (default 0): what one does depends on seed and number",
    )
    group.add_argument(
        "--fault",
        action="append",
        choices=(*KINDS, *KINDS_WITHIN),
        metavar="KIND",
        help=f"only this kind; may be repeated: {', '.join(KINDS)}; without a network "
        f"{', '.join(KINDS_WITHIN)}",
    )
    group.add_argument(
        "--cancels",
        type=float,
        default=Round.cancels,
        metavar="SHARE",
        help=f"of the calls that are cancelled (default {Round.cancels:g})",
    )


def run_soak(
    options: argparse.Namespace,
    subject: Subject,
    seed: int,
    stream: TextIO,
    versions: Mapping[str, str],
) -> int:
    """Run it and return the exit code."""
    began, started = datetime.now(UTC), time.monotonic()
    first = Round(
        seed=seed,
        owners=options.owners,
        calls=options.calls,
        kinds=tuple(options.fault or ()),
        cancels=options.cancels,
        first=options.first_owner,
    )
    logging.getLogger("outlast").addHandler(logging.NullHandler())
    print(f"Works in namespaces {PREFIX}..., and removes what they hold.", file=stream)
    screen = _Screen(stream)
    found = run_in_own_loop(
        lambda: soak(subject.make_harness(), first, seconds=60 * options.minutes, told=screen.told)
    )
    screen.clear()
    text = f"No clause failed on {subject.name}: {screen.summary}"
    print(text if found is None else report(found, subject.argument), file=stream)
    sum_up = Report(
        [result_of(found, seconds=time.monotonic() - started, note=screen.summary)],
        subject=subject.name,
        seed=seed,
        versions=versions,
        began=began,
        secrets=subject.secrets,
        suite=(),
    )
    if not written(sum_up, options):
        return 2
    return 0 if found is None else 1


async def _play(context: object) -> None:
    """What a check would do; the command does it."""


def result_of(found: Finding | None, *, seconds: float, note: str) -> Result:
    """The whole soak as one check."""
    clauses = ("F1", "F2", "F5", "F13", "D1", "E2", "E6", "C8")
    title = "Random owners, cancelled calls and random faults leave a history that is allowed."
    check = Check("random_owners", clauses, "faults", title, _play)
    if found is None:
        return Result(check, "passed", notes=(("", note),), seconds=seconds)
    return Result(
        check,
        "failed",
        found.broken.clause or clauses[0],
        f"{found.broken.message}\nrepeat: outlast-contract URL --minutes 0 {found.round.options}",
        seconds=seconds,
        recording=recording_of(found),
    )


def recording_of(found: Finding) -> Recording:
    """The calls of the owner that shows it, and what was injected meanwhile."""
    history = found.history
    if history.broken is None:
        return NOTHING
    scope, last = history.broken
    events = history.events[scope][: last + 1]
    origin = events[0].began
    calls = tuple(
        Call(1, event.call, event.began - origin, event.ended - origin, event.outcome, event.error)
        for event in events
    )
    injected = tuple(
        Injected(what, max(0.0, began - origin), ended - origin)
        for began, ended, what in found.injected
        if ended >= origin and began <= events[-1].ended
    )
    return Recording(calls[-60:], max(0, len(calls) - 60), injected, len(injected))


def report(found: Finding, argument: str) -> str:
    """What was found, for people: the clause, the calls, what was injected, how to repeat it.

    ``argument``: how the command is told of the store.
    """
    injected = "\n".join(f"  {_told(*one)}" for one in found.injected) or "  nothing"
    return printable(
        f"FAILED: {found.broken.clause}, in a round of seed {found.round.seed}\n"
        f"{found.broken.message}\n"
        f"injected:\n{injected}\n"
        "Repeat this round, as short as it could be made; cancellations, and faults of a network, "
        "meet calls in time, so with those it may take some attempts:\n"
        f"  outlast-contract {argument} --minutes 0 {found.round.options}"
    )


def _told(began: float, ended: float, what: str) -> str:
    return f"{began:.3f}: {what}" if began == ended else f"{began:.3f} to {ended:.3f}: {what}"


class _Screen:
    """Counts, in one moving line if the stream is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._began = time.monotonic()
        self._rounds = self._calls = self._faults = self._unknown = self._applied = 0

    @property
    def summary(self) -> str:
        seconds = time.monotonic() - self._began
        return (
            f"{self._rounds} rounds, {self._calls} calls, {self._faults} faults, "
            f"{self._unknown} outcomes unknown ({self._applied} of them applied), "
            f"in {seconds:.0f} s"
        )

    def told(self, one: Round, history: History) -> None:
        self._rounds += 1
        self._calls += history.count()
        self._unknown += history.count(outcome="unknown")
        self._applied += history.count(outcome="unknown", fate="applied")
        self._faults += len(history.outages)
        if self._is_terminal:
            print(
                f"\r\x1b[2Kseed {one.seed}: {self.summary}", end="", file=self._stream, flush=True
            )

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\x1b[2K", end="", file=self._stream)


__all__ = ["add_arguments", "report", "run_soak"]
