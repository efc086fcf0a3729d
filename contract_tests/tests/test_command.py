"""The command ``outlast-contract``: what it runs, writes, prints and returns."""

import contextlib
import json
import secrets
import socket
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from broken_backends import MUTANTS

from outlast_contract import cli, subject
from outlast_contract.clauses import CLAUSES
from outlast_contract.engine import Check, all_checks, select_checks
from outlast_contract.servers import Server, ServerUnavailable, start_server


def run(*arguments: str) -> int:
    return cli.main(arguments)


def test_a_clause_can_be_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary opens with three lines, and the exit code says that no clause failed."""
    assert run("memory://", "--clause", "s5", "--clause", "C2") == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("Fencing (F)"))
    assert [line.split()[0] for line in lines[place : place + 3]] == [
        "Fencing",
        "Atomicity",
        "Cleanup",
    ]
    every, chosen = len(select_checks()), len(select_checks(clauses=["S5", "C2"]))
    assert lines[place + 3].startswith(f"{chosen} of {every} checks were run; left out: ")
    assert lines[-1] == "No clause failed in what was run."
    assert any(line.startswith("S5   verified") for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_reports_are_written(tmp_path: Path) -> None:
    """As JSON and as JUnit XML."""
    report, junit = tmp_path / "report.json", tmp_path / "junit.xml"
    code = run(
        "memory://", "--clause", "S5", "--seed", "3", "--json", str(report), "--junit", str(junit)
    )
    assert code == 0
    found = json.loads(report.read_text())
    assert (found["seed"], found["success"], found["subject"]) == (3, True, "memory://")
    assert len(found["clauses"]) == len(CLAUSES)
    assert ET.parse(junit).getroot().get("failures") == "0"


def test_a_broken_backend_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the clause, the check, and what was found."""
    monkeypatch.setattr(subject, "harness_for", lambda url: MUTANTS["PutNeverCompares"].harness)
    assert run("memory://", "--clause", "F2") == 1
    output = capsys.readouterr().out
    assert "FAIL" in output
    assert "a_superseded_claim_cannot_write[put]" in output
    assert "Fencing (F)        failed" in output
    assert output.splitlines()[-1].startswith("FAILED: F2")


def test_nothing_executed_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    """A clause without checks proves nothing."""
    assert run("memory://", "--clause", "C9") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "NOT RUN: nothing was executed"


def test_verbose_shows_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    """With what was not run, and why."""
    assert run("memory://", "--clause", "E4", "--clause", "S5", "-v") == 1 - 1
    output = capsys.readouterr().out
    assert "pass    S5,C2" in output
    assert "NOT RUN E4" in output
    assert "neither Harness.url nor Harness.options has a password" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("memory://", "--clause", "Z9"),
        ("memory://", "--tier", "chaos"),
        ("memory://", "--kills", "0"),
        ("--server", "nosuch"),
        ("memory://", "--server", "redis"),
        (),
    ],
    ids=["unknown clause", "unknown tier", "no kills", "unknown server", "two stores", "no url"],
)
def test_bad_arguments_end_with_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names what there is."""
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    assert "usage: outlast-contract" in capsys.readouterr().err


@pytest.mark.parametrize("before", [(), ("--kills",)], ids=["stray", "value"])
def test_no_complaint_about_arguments_shows_a_password(
    before: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """E4: what is quoted may be the URL, in the wrong place."""
    with pytest.raises(SystemExit):
        run("memory://", *before, "redis://user:geheim@host")
    shown = capsys.readouterr().err
    assert "redis://user:***@host" in shown
    assert "geheim" not in shown


@pytest.mark.parametrize(
    "url",
    ["nosuch://user:geheim@host/x", "memory", "file://relative", "memory://user:geheim@x"],
)
def test_a_store_that_cannot_be_opened_ends_with_2(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said once, without the password."""
    assert run(url) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("outlast-contract: ")
    assert "geheim" not in captured.err + captured.out


def test_bad_environment_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings from the environment are checked like arguments."""
    monkeypatch.setenv("OUTLAST_CONTRACT_SEED", "seven")
    with pytest.raises(SystemExit) as ended:
        run("memory://", "--clause", "S5")
    assert ended.value.code == 2


def test_a_file_store_is_left_without_data(tmp_path: Path) -> None:
    """The command works in namespaces of its own and removes them."""
    store = tmp_path / "store"
    assert run(f"file://{store}", "--clause", "A10", "--clause", "I5", "--clause", "C5") == 0
    assert [path.name for path in store.iterdir()] == ["outlast.json"]


def test_a_database_is_left_without_rows(tmp_path: Path) -> None:
    """Not even what outlives a sweep stays of a namespace that nobody will use again."""
    store = tmp_path / "store.db"
    assert run(f"sqlite:///{store}", "--clause", "A10", "--clause", "I5", "--clause", "C5") == 0
    with contextlib.closing(sqlite3.connect(store)) as database:
        tables = ("floor", "scope", "register", "entry")
        counts = [database.execute(f"SELECT COUNT(*) FROM outlast_{name}") for name in tables]
        assert [count.fetchone() for count in counts] == [(0,)] * 4


@pytest.mark.server
def test_a_server_of_its_own_may_be_killed_and_is_gone_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what a URL leaves unverified is not."""
    started: list[Server] = []

    def start(kind: str) -> Server:
        started.append(start_server(kind))
        return started[-1]

    def chosen(**_: object) -> list[Check]:
        return [one for one in all_checks() if one.name == "a_stopped_server_ends_calls_in_time"]

    monkeypatch.setattr(cli, "start_server", start)
    monkeypatch.setattr(cli, "select_checks", chosen)
    try:
        code = run("--server", "redis")
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")
    shown = capsys.readouterr().out
    assert code == 0
    assert "on a server of its own (redis), seed 0\nchecks: 1 passed, 0 failed, 0 not run" in shown
    (server,) = started
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.addresses[0])


def test_it_works_without_pytest() -> None:
    """Whoever runs the command needs no test framework."""
    script = (
        "import sys; sys.modules['pytest'] = None\n"
        "from outlast_contract.cli import main\n"
        "sys.exit(main(['memory://', '--clause', 'S5']))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)


def test_a_closed_pipe_ends_it_quietly() -> None:
    """As when its output goes to a pager that was left."""
    script = (
        "import os, sys\n"
        "from outlast_contract.cli import main\n"
        "reader, writer = os.pipe(); os.dup2(writer, 1); os.close(reader); os.close(writer)\n"
        "sys.exit(main(['memory://', '--clause', 'S5']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, check=False
    )
    assert done.stderr == b""


def test_progress_and_colour_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moving line and colours on a terminal; no colours with NO_COLOR."""
    import io

    class Terminal(io.StringIO):
        encoding = "ascii"

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert run("memory://", "--clause", "S5") == 0
    assert "\r\x1b[2K[1/" in terminal.getvalue()
    assert "\x1b[32m" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    monkeypatch.setattr(sys, "stdout", plain)
    assert run("memory://", "--clause", "S5") == 0
    assert "\x1b[32m" not in plain.getvalue()


def test_a_harness_takes_the_place_of_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is imported from here, and what it offers beside its URL is used."""
    name = f"harness_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(
        "from outlast_contract.stores import MemoryHarness\n"
        "class Own(MemoryHarness):\n"
        "    async def versions(self):\n"
        "        return {'own': '7'}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    report = tmp_path / "report.json"
    assert run("--harness", f"{name}:Own", "--clause", "C3", "--json", str(report)) == 0
    assert "C3   verified" in capsys.readouterr().out
    found = json.loads(report.read_text())
    assert (found["subject"], found["versions"]["own"]) == (f"{name}:Own", "7")
    assert run("--harness", f"{name}:Own", "--minutes", "0", "--calls", "5") == 0
    assert f"No clause failed on {name}:Own" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["nosuchmodule:Own", "json:Own", "json:loads", "json", "json:JSONDecoder"]
)
def test_what_is_no_harness_ends_with_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what was looked for."""
    assert run("--harness", name) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("outlast-contract: --harness ")
    assert not captured.out
