"""What the command `outlast-contract` says when it is asked for little, or for what cannot be."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlast_contract.clauses import CLAUSES
from outlast_contract.cli import main

COMMAND = (sys.executable, "-m", "outlast_contract.cli")


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says as it refuses its arguments."""
    with pytest.raises(SystemExit) as refusal:
        main(arguments)
    assert refusal.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_a_chosen_clause_is_reported_and_the_others_are_named_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each clause is in the report once; those without a chosen check share one line."""
    assert main(["memory://", "--clause", "s5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "No clause failed in what was run."
    (others,) = (line for line in lines if line.startswith("not run, since no check was chosen: "))
    not_chosen = others.partition(": ")[2].split(", ")
    reported = [
        line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in CLAUSES
    ]
    assert "S5" in reported
    assert sorted([*not_chosen, *reported]) == sorted(CLAUSES)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite+aiosqlite://"])
def test_a_store_whose_clients_cannot_meet_is_refused(
    capsys: pytest.CaptureFixture[str], url: str
) -> None:
    """One line says what to give instead."""
    assert main([url, "--clause", "S5"]) == 2
    assert capsys.readouterr().err == (
        "outlast-contract: an SQLite database in memory belongs to one client; the suite needs a "
        "file, such as sqlite:///store.db\n"
    )


@pytest.mark.parametrize("option", ["--json", "--junit"])
def test_a_report_without_a_place_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    """Nobody waits for a run whose report is lost."""
    path = tmp_path / "missing" / "report"
    said = fails(capsys, "memory://", option, str(path))
    assert said.endswith(f"{option} {path}: there is no directory {path.parent}")


def test_a_report_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report on the screen stays; the exit code is 2."""
    assert main(["memory://", "--clause", "S5", "--json", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.err == (
        f"outlast-contract: the report cannot be written to {tmp_path}: Is a directory\n"
    )
    assert "No clause failed in what was run." in shown.out


def heed_interrupts() -> None:
    """Whoever runs the tests in the background has them ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


INTERRUPTED_IN = """
import asyncio, os, signal, sys
from outlast_contract.cli import main

was = asyncio.SelectorEventLoop.{method}

def interrupted(self, *arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return was(self, *arguments)

asyncio.SelectorEventLoop.{method} = interrupted
sys.exit(main(["memory://", "--clause", "S5"]))
"""


def assert_is_interrupted(program: str) -> None:
    """It says so, and nothing else."""
    done = subprocess.run(
        (sys.executable, "-c", program),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        preexec_fn=heed_interrupts,
    )
    assert (done.stderr.strip(), done.returncode) == ("outlast-contract: interrupted", 130)


@pytest.mark.parametrize("method", ["__init__", "close"])
def test_an_interrupt_while_a_loop_is_made_or_closed_ends_in_words(method: str) -> None:
    """Half a loop would be complained of by Python as it ends."""
    assert_is_interrupted(INTERRUPTED_IN.format(method=method))


INTERRUPTED_AT = """
import os, signal, sys
from outlast_contract.cli import main

calls = 0
was = signal.signal

def interrupted(number, handler):
    global calls
    result = was(number, handler)
    calls += number == signal.SIGINT
    if calls == {call}:
        os.kill(os.getpid(), signal.SIGINT)
    return result

signal.signal = interrupted
sys.exit(main(["memory://", "--clause", "S5"]))
"""


@pytest.mark.parametrize("call", range(1, 9))
def test_an_interrupt_while_signals_are_taken_over_ends_in_words(call: int) -> None:
    """Of two event loops in a row, however often each of them sets a handler."""
    assert_is_interrupted(INTERRUPTED_AT.format(call=call))


def test_an_interrupt_ends_the_run_in_words() -> None:
    """Control-C ends with 130 and without a traceback."""
    arguments = (*COMMAND, "memory://", "-v")
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - it asks for nothing that a thread could hold
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith("Works in namespaces oc-")
            assert process.stdout.readline().startswith("pass")
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.stderr.read().strip() == "outlast-contract: interrupted"
            assert process.wait(timeout=30) == 130
        finally:
            process.kill()
