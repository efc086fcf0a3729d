"""The command ``outlast-contract URL``."""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from outlast.driver import NotWrittenError
from outlast.errors import OutlastError
from outlast.url import redact
from outlast_contract import __version__
from outlast_contract._interrupts import run_in_own_loop
from outlast_contract.clauses import CLAUSES
from outlast_contract.engine import TIERS, Check, Result, Settings, select_checks
from outlast_contract.printing import printable
from outlast_contract.report import Report, summary
from outlast_contract.report_files import FORMATS, written
from outlast_contract.runner import run_suite
from outlast_contract.servers import KINDS, ServerUnavailable, start_server
from outlast_contract.soak_command import add_arguments, run_soak
from outlast_contract.subject import Subject
from outlast_contract.unwritten import lines_of, missing_in
from outlast_contract.versions import versions_of

_COLOURS = {"verified": "32", "failed": "1;31", "not run": "33", "head": "1"}
_MARKS = {"passed": "pass", "failed": "FAIL", "not run": "NOT RUN"}


class _Parser(argparse.ArgumentParser):
    """Complaints about arguments quote them, and one of them may be a URL (E4)."""

    def error(self, message: str) -> NoReturn:
        super().error(redact(message))


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = _Parser(
        prog="outlast-contract",
        description="Hold a storage backend of outlast to its contract, clause by clause. It "
        "writes to random namespaces of its own in the store, and removes them; what a store of "
        "another family keeps of an empty namespace stays.",
        epilog="Exit code 0: something was executed and no clause failed; 1: a clause failed, or "
        "nothing was executed; 2: the store or the arguments cannot be used, or a report "
        "cannot be written.",
    )
    parser.add_argument(
        "url", nargs="?", help="the store, such as memory://, file:///dir or sqlite:///file.db"
    )
    parser.add_argument(
        "--server",
        choices=KINDS,
        metavar="KIND",
        help="instead of a URL: start a server for it, and others to kill and stop, from the extra "
        f"servers or from PATH; one of {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--harness",
        metavar="MODULE:NAME",
        help="instead of a URL: what makes a Harness of your own, which can offer more",
    )
    parser.add_argument(
        "--tier", action="append", choices=TIERS, help="only this tier; may be repeated"
    )
    parser.add_argument(
        "--clause",
        action="append",
        metavar="ID",
        help="only checks of this clause, such as F2; may be repeated",
    )
    parser.add_argument("--seed", type=int, help="of all random choices (default 0)")
    parser.add_argument("--rounds", type=int, help="of each race (default 10)")
    parser.add_argument("--kills", type=int, help="processes to kill in each check (default 10)")
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="try every kind of fault everywhere, instead of those that differ most",
    )
    parser.add_argument(
        "--server-faults",
        action="store_true",
        help="also do what all users of the server would notice; it is listed first",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report as a page for a browser"
    )
    parser.add_argument(
        "--badge", type=Path, metavar="FILE", help="write a badge for a README, as SVG"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="one line for each check")
    add_arguments(parser)
    parser.add_argument("--version", action="version", version=f"outlast-contract {__version__}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        return _run(arguments)
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python must not complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("\noutlast-contract: interrupted", file=sys.stderr)
        return 130


def _run(arguments: Sequence[str] | None) -> int:
    parser = build_parser()
    options = parser.parse_args(arguments)
    clauses = [clause.upper() for clause in options.clause or ()]
    for clause in clauses:
        if clause not in CLAUSES:
            parser.error(f"no clause {clause!r}; there are {', '.join(CLAUSES)}")
    for name in ("rounds", "kills", "owners", "calls"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1")
    for name in FORMATS:
        path = getattr(options, name)
        if path is not None and not path.parent.is_dir():
            parser.error(f"--{name} {path}: there is no directory {path.parent}")
    try:
        settings = Settings.from_environment(
            seed=options.seed, rounds=options.rounds, kills=options.kills
        )
        settings = settings.extended(thorough=options.thorough, server_faults=options.server_faults)
    except ValueError as error:
        parser.error(str(error))
    if [options.url, options.harness, options.server].count(None) != 2:
        parser.error("give a store: its URL, --server or --harness")
    with contextlib.ExitStack() as stack:
        try:
            subject = _subject(options, stack)
        except (OutlastError, ServerUnavailable) as error:
            print(f"outlast-contract: {printable(str(error))}", file=sys.stderr)
            return 2
        return _verify(subject, options, settings, clauses)


def _subject(options: argparse.Namespace, stack: contextlib.ExitStack) -> Subject:
    if options.server is not None:
        return Subject.of_server(stack.enter_context(start_server(options.server)))
    if options.harness is not None:
        return Subject.of_harness(options.harness)
    return Subject.of_url(options.url)


def _verify(
    subject: Subject, options: argparse.Namespace, settings: Settings, clauses: Sequence[str]
) -> int:
    make_harness = subject.make_harness
    checks = select_checks(tiers=options.tier or TIERS, clauses=clauses)
    is_soak = options.minutes is not None
    versions: Mapping[str, str] = {}
    try:
        versions = run_in_own_loop(lambda: versions_of(make_harness(), settings.run))
        if is_soak:
            return run_soak(options, subject, settings.seed, sys.stdout, versions)
    except OutlastError as error:
        # The checks say, each for itself, what a driver that is being written lacks.
        if is_soak or not isinstance(error, NotWrittenError):
            print(f"outlast-contract: {printable(str(error))}", file=sys.stderr)
            return 2
    print(f"Works in namespaces oc-{settings.run}-..., and removes what they hold.")
    if options.server_faults:
        harness = make_harness()
        found = [*harness.server_faults(), *(f"no {name}" for name in harness.shortages())]
        names = ", ".join(found) or "nothing: no such fault is known"
        print(f"Does to the whole server: {names}")
    # What backends log is part of what is checked; it would only tear the progress line.
    logging.getLogger("outlast").addHandler(logging.NullHandler())
    screen = Screen(sys.stdout, len(checks), verbose=options.verbose)
    report = run_suite(
        make_harness,
        checks=checks,
        settings=settings,
        subject=subject.name,
        versions=versions,
        secrets=subject.secrets,
        before=screen.before,
        after=screen.after,
    )
    screen.show(report)
    if not written(report, options):
        return 2
    return 0 if report.is_success else 1


class Screen:
    """Progress and report on a terminal or in a file."""

    def __init__(self, stream: TextIO, total: int, *, verbose: bool) -> None:
        """Write to ``stream``, in colour and with a moving line if it is a terminal."""
        self._stream = stream
        self._total = total
        self._verbose = verbose
        self._is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colours = self._is_terminal and "NO_COLOR" not in os.environ
        self._done = 0
        self._failed = 0

    def before(self, check: Check) -> None:
        """Say what is being run."""
        if self._is_terminal:
            line = f"[{self._done + 1}/{self._total}] {self._failed} failed  {check.name}"
            self._print(f"\r\x1b[2K{line[:100]}", end="")

    def after(self, result: Result) -> None:
        """Say how it ended."""
        self._done += 1
        self._failed += result.status == "failed"
        if self._is_terminal:
            self._print("\r\x1b[2K", end="")
        if not self._verbose and (result.status != "failed" or missing_in(result.detail)):
            return
        clauses = result.clause or ",".join(result.check.clauses)
        line = f"{_MARKS[result.status]:<7} {clauses:<12} {result.check.name}"
        style = "verified" if result.status == "passed" else result.status
        self._print(self._paint(f"{line}  ({result.seconds:.2f} s)", style))
        for text in (result.detail, *(text for _, text in result.notes)):
            if text:
                self._print(f"        {printable(text)}")
        if self._verbose and result.trace:
            self._print(printable(result.trace))

    def show(self, report: Report) -> None:
        """Print the report."""
        self._print("")
        self._print(f"Contract of outlast on {report.subject}, seed {report.seed}")
        self._print(summary(report.results))
        self._print("")
        for text, style in report.lines(verbose=self._verbose):
            self._print(self._paint(text, style))
        self._print("")
        unwritten = list(lines_of(report.results))
        for text in [*unwritten, ""] if unwritten else []:
            self._print(text)
        if report.failed:
            verdict, style = f"FAILED: {', '.join(report.failed)}", "failed"
        elif not report.executed:
            verdict, style = "NOT RUN: nothing was executed", "failed"
        else:
            where = " in what was run" if report.coverage.left_out else ""
            verdict, style = f"No clause failed{where}.", "verified"
        self._print(f"Level: {report.level}")
        self._print(self._paint(verdict, style))

    def _paint(self, text: str, style: str) -> str:
        code = _COLOURS.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if code and self._colours else text

    def _print(self, text: str, end: str = "\n") -> None:
        encoding = self._stream.encoding or "utf-8"
        safe = text.encode(encoding, "backslashreplace").decode(encoding)
        print(safe, end=end, file=self._stream, flush=True)


if __name__ == "__main__":
    sys.exit(main())
