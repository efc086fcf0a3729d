"""`outlast demo`: real processes, real signals, and a verdict that cannot lie."""

import json
import os
import random
import signal
import sys
import textwrap
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from cli_kit import Command, read_until, wait_until
from rich.console import Console
from typer.testing import CliRunner

import outlast
from outlast.cli.app import app
from outlast.cli.demo import command as demo_command
from outlast.cli.demo import script
from outlast.cli.demo.command import Settings, run_demo
from outlast.cli.demo.events import Job, Saved, Saving
from outlast.cli.demo.moments import (
    KILL_PLACES,
    STOP_PLACES,
    deltas_of,
    draw,
    parse_kill_after,
)
from outlast.cli.demo.processes import Crew, DemoError
from outlast.cli.demo.verdict import compare

RIGHT = "Exactly right: the committed conversation is the script's, to the byte"

processes = pytest.mark.demo


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def assert_nothing_is_left(command: Command) -> None:
    assert command.processes() == []
    assert list(command.temporary.iterdir()) == []


# The whole demo


@processes
def test_the_demo_ends_with_the_right_conversation_and_leaves_nothing(command: Command) -> None:
    """One command shows the kill, the recovery and the refusals, and exits with 0."""
    done = command.run("demo")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[-1]) == (0, "", RIGHT), done.stdout
    for expected in (
        "SIGKILL to A in a tool call's arguments",
        "of 181 of the arguments of search_trains",
        "recovers by R3",
        "drops the unfinished call of search_trains: it never ran",
        "SIGSTOP to B in the text",
        "recovers by R1",
        "its checkpoint is refused: FencedError, superseded, epoch 1 < 2",
        "its message is refused: FencedError, superseded, epoch 2 < 3",
        "its state is refused: FencedError, superseded, epoch 2 < 3",
    ):
        assert expected in done.stdout
    assert done.stdout.count(" runs search_trains") == 1
    assert done.stdout.count(" runs book_seat") == 1
    assert_nothing_is_left(command)


@processes
def test_a_series_meets_every_recovery(command: Command) -> None:
    """Four runs are killed at the four places, and all of them end well."""
    done = command.run("demo", "--runs", "4", "--seed", "7")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert lines[-1] == (
        "Exactly right: all 4 committed conversations are the script's, to the byte"
    )
    counts = {
        words[2]: int(words[0])
        for line in lines
        if len(words := line.split()) > 2 and words[1] == "times"
    }
    assert set(counts) == {"R1", "R2", "R3", "R4"}
    assert min(counts.values()) >= 1
    assert sum(counts.values()) == 8
    assert_nothing_is_left(command)


@processes
@pytest.mark.parametrize("store", ["file", "sqlite"])
def test_a_given_store_keeps_nothing_of_the_demo(
    command: Command, tmp_path: Path, store: str
) -> None:
    """After a demo on one's own store, neither its tasks nor its bytes are there."""
    if store == "sqlite" and not os.environ.get("OUTLAST_REQUIRE_SERVERS"):
        pytest.importorskip("outlast_sql", reason="outlast-sql is not installed")
        pytest.importorskip("aiosqlite", reason="aiosqlite is not installed")
    folder = tmp_path / "store"
    folder.mkdir()
    url = folder.as_uri() if store == "file" else f"sqlite:///{folder}/agent.db"
    done = command.run("demo", "--url", url, "--kill-after", "50")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "SIGKILL to A in the text, 5" in done.stdout
    assert done.stdout.splitlines()[-1] == RIGHT
    kept = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    if store == "sqlite":
        done = command.run(str(folder / "agent.db"), program=_VACUUM)
        assert done.returncode == 0, done.stderr
        kept = (folder / "agent.db").read_bytes()
    for trace in (b"Milano", b"search_trains", script.TASK_ID.encode(), b"run-1", b"turn-1"):
        assert trace not in kept
    assert_nothing_is_left(command)


_VACUUM = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('VACUUM')"


@processes
def test_seconds_are_a_moment_too(command: Command) -> None:
    """`--kill-after 0.1s` kills in mid-stream, however slow or fast the machine is."""
    done = command.run("demo", "--kill-after", "0.1s")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "SIGKILL to A after 0.1 s" in done.stdout
    assert_nothing_is_left(command)


@processes
def test_a_terminal_without_unicode_gets_question_marks(command: Command) -> None:
    """What an ASCII output cannot show does not end the demo."""
    command.environment |= {"PYTHONIOENCODING": "ascii"}
    done = command.run("demo")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "from Z?rich to Milano" in done.stdout
    assert done.stdout.splitlines()[-1] == RIGHT
    assert_nothing_is_left(command)


# It tells when something is wrong


def _with_text(turn: int, text: str) -> script.Conversation:
    turns = list(script.CONVERSATION.turns)
    turns[turn] = msgspec.structs.replace(turns[turn], text=text)
    return msgspec.structs.replace(script.CONVERSATION, turns=tuple(turns))


def _run_in_process(settings: Settings) -> tuple[int, list[str]]:
    output = StringIO()
    code = run_demo(settings, Console(file=output, width=100, highlight=False))
    return code, output.getvalue().splitlines()


@processes
def test_one_wrong_character_makes_the_demo_fail() -> None:
    """A model that says something else than the script is found out, with the place."""
    text = script.CONVERSATION.turns[2].text.replace("61A", "61B")
    code, lines = _run_in_process(Settings(served=_with_text(2, text)))
    assert code == 1
    assert any(line.startswith("message turn-3 differs: ") and "61B" in line for line in lines)
    assert lines[-1] == "WRONG: this run did not go as it must"


@processes
def test_a_failing_run_fails_its_series_and_is_shown() -> None:
    """In a series the failed runs are counted, and their timelines printed."""
    text = script.CONVERSATION.turns[2].text + " "
    code, lines = _run_in_process(Settings(served=_with_text(2, text), runs=2, seed=1))
    assert code == 1
    assert lines[-1] == "WRONG: 2 of 2 runs did not go as they must"
    assert sum("SIGKILL to A" in line for line in lines) == 2


_LEAKY = """
    import outlast
    from outlast.backends.file import FileDriver
    from outlast.heads import changes

    changes.admit = lambda stored, fence: True


    class LeakyDriver(FileDriver):
        name = "leaky"

        @classmethod
        def from_url(cls, url, *, namespace="default", timeout=10.0):
            return super().from_url(
                url.replace("leaky:", "file:"), namespace=namespace, timeout=timeout
            )


    class Plugin:
        @outlast.hookimpl
        def outlast_backends(self):
            factory = "leaky_store:LeakyDriver.from_url"
            return [outlast.BackendInfo(name="leaky", schemes=("leaky",), factory=factory)]


    plugin = Plugin()
"""


def _install_leaky_store(folder: Path) -> None:
    """Install a distribution whose store accepts what it must refuse."""
    (folder / "leaky_store.py").write_text(textwrap.dedent(_LEAKY))
    information = folder / "leaky_store-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky-store\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[outlast]\nleaky = leaky_store:plugin\n")


@processes
def test_a_store_without_fencing_makes_the_demo_fail(tmp_path: Path) -> None:
    """On a store that lets a superseded process write, the demo exits with 1."""
    library = tmp_path / "library"
    library.mkdir()
    _install_leaky_store(library)
    command = Command(tmp_path, library)
    store = (tmp_path / "store").as_uri().replace("file:", "leaky:")
    done = command.run("demo", "--url", store)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stdout + done.stderr
    assert lines[-1] == "WRONG: this run did not go as it must"
    for what in ("checkpoint", "message", "state"):
        assert f"no late {what} was refused" in lines
    assert_nothing_is_left(command)


@processes
def test_a_worker_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo ends with 1 and says which process failed, instead of waiting."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert result.stderr.startswith("The demo cannot go on: worker ? (process ")


def test_the_comparison_sees_types_order_and_extra_messages() -> None:
    """1 and 1.0, two messages in the wrong order, and one too many are all differences."""
    wanted = script.CONVERSATION.messages()
    assert compare(wanted, wanted) == []
    assert compare(wanted[:-1], wanted) != []
    assert compare([*wanted, outlast.ApiMessage("more", "user", "x")], wanted) != []
    assert compare([wanted[1], wanted[0], *wanted[2:]], wanted) != []
    one, other = (outlast.ApiMessage("m", "tool", [{"n": number}]) for number in (1, 1.0))
    assert compare([one], [other]) != []
    assert compare([outlast.ApiMessage("m", "user", "x")], [outlast.ApiMessage("m", "tool", "x")])


# Ending early


@processes
@pytest.mark.parametrize(
    ("number", "code", "text"),
    [
        pytest.param(signal.SIGTERM, 143, "stopped; everything was removed", id="SIGTERM"),
        pytest.param(signal.SIGINT, 130, "interrupted", id="SIGINT"),
    ],
)
def test_a_demo_that_is_told_to_end_removes_everything(
    command: Command, tmp_path: Path, number: signal.Signals, code: int, text: str
) -> None:
    """Workers are ended, the stopped one too, and no task is left in the store."""
    folder = tmp_path / "store"
    with command.start("demo", "--url", folder.as_uri()) as process:
        read_until(process, "SIGSTOP to B")
        process.send_signal(number)
        assert process.wait(timeout=60) == code
        assert process.stderr is not None
        assert process.stderr.read() == f"{text}\n"
    assert command.processes() == []
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"Milano" not in kept


@processes
def test_workers_end_when_the_demo_is_killed(command: Command) -> None:
    """No worker outlives a demo that could not end it."""
    with command.start("demo") as process:
        read_until(process, "A     streams turn 1")
        process.kill()
        process.wait(timeout=60)
    wait_until(lambda: not command.processes(), "the workers have ended")


# What it refuses


@pytest.mark.parametrize("url", ["memory://", "memory://name"])
def test_a_store_that_ends_with_its_process_is_refused(url: str) -> None:
    """The demo is about what outlives a process; it says so, and exits with 2."""
    result = CliRunner().invoke(app, ["demo", "--url", url])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {url} ends with its process")
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", "the turn has deltas 1 to"),
        ("94", "the turn has deltas 1 to 93"),
        ("-1", "expected deltas"),
        ("soon", "expected deltas"),
        ("99s", "at most 20s"),
    ],
)
def test_a_moment_outside_the_stream_is_refused(value: str, text: str) -> None:
    """`--kill-after` names a place in the stream, or is a usage error."""
    result = CliRunner().invoke(app, ["demo", f"--kill-after={value}"])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: --kill-after")
    assert text in result.stderr


# Moments


def test_the_same_seed_draws_the_same_moments() -> None:
    """`--seed` repeats a series, and another seed makes another one."""

    def moments(seed: int) -> list[object]:
        return list(demo_command.draw_moments(Settings(runs=20, seed=seed)))

    assert moments(7) == moments(7)
    assert moments(7) != moments(8)


def test_twelve_runs_meet_every_pair_of_places() -> None:
    """However the seed falls, a series goes through all places of both turns."""
    for seed in range(20):
        pairs = {
            (kill.place, stop.place)
            for kill, stop in demo_command.draw_moments(Settings(runs=12, seed=seed))
        }
        assert len(pairs) == len(KILL_PLACES) * len(STOP_PLACES)


@pytest.mark.parametrize("place", KILL_PLACES)
def test_drawn_moments_lie_in_their_place(place: str) -> None:
    """A moment of a place holds the stream within that place, before its end."""
    turn = script.CONVERSATION.turns[0]
    text, total = deltas_of(turn)
    for seed in range(200):
        moment = draw(random.Random(seed), 1, turn, place)
        assert 1 <= moment.at <= moment.hold <= total
        if place in ("early", "text"):
            assert moment.hold <= text
        elif place == "call":
            assert text < moment.at <= moment.hold < total
        else:
            assert moment.hold == total


def test_deltas_are_counted_as_the_client_sees_them() -> None:
    """The server's events, less the one that only opens the message, are what the worker counts."""
    turn = script.CONVERSATION.turns[0]
    text, total = deltas_of(turn)
    units = len(turn.text.encode("utf-16-le")) // 2
    assert text == -(-units // script.PIECE)
    assert turn.call is not None
    assert total == text + 1 + -(-len(turn.call.text) // script.PIECE)


def test_kill_after_names_the_place() -> None:
    """A number of deltas falls into the text, the call, or behind it."""
    turn = script.CONVERSATION.turns[0]
    text, total = deltas_of(turn)
    places = [
        parse_kill_after(str(at), 1, turn).place for at in (1, text, text + 1, total - 1, total)
    ]
    assert places == ["text", "text", "call", "call", "complete"]


def test_every_tool_knows_only_the_scripts_arguments() -> None:
    """A call that ran with other arguments would show in the conversation."""
    for call in script.CONVERSATION.calls():
        assert script.run_tool(call.name, call.arguments) == (call.result, False)
        assert script.run_tool(call.name, {})[1]
        assert json.loads(call.text) == call.arguments


# Workers


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@processes
async def test_a_worker_within_a_write_is_not_left_stopped(tmp_path: Path) -> None:
    """SIGSTOP inside a write would hold the store's lock: the worker is woken again."""
    async with Crew() as crew:
        crew.order(1)
        worker = await crew.take()
        job = Job(tmp_path.as_uri(), "demo", "http://127.0.0.1:9/v1", holds_checkpoints=True)
        await worker.give(job, "A", lambda _: None)
        await worker.wait_for(lambda: worker.last(Saving) is not None, "its first write")
        assert worker.last(Saved) is None
        assert not await worker.stop()
        assert _state_of(worker.pid) != "T"


@processes
async def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    """What a worker could not do is in the error, whatever it was waited for."""
    path = tmp_path / "file"
    path.write_text("x")
    async with Crew() as crew:
        crew.order(1)
        worker = await crew.take()
        await worker.give(Job(path.as_uri(), "demo", "http://127.0.0.1:9/v1"), "A", lambda _: None)
        with pytest.raises(DemoError, match=r"worker A .* failed before it was ready:\n.*Error"):
            await worker.wait_until_ready()
