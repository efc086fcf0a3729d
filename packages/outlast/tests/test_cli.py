"""The commands of `outlast` beside the demo."""

import asyncio
import importlib.metadata
import json
from pathlib import Path

import pytest
from cli_kit import Command
from typer.testing import CliRunner, Result

import outlast
from outlast import registry
from outlast.cli.app import app
from outlast.cli.bench.raw import raw_for
from outlast.cli.bench.rows import Profile, Target, measure

BLOCK = """
import sys
from importlib.abc import MetaPathFinder
class Block(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def block(*names: str) -> str:
    """A program that begins by making imports fail, as if a package were not installed."""
    return BLOCK.format(blocked=set(names)) + "from outlast.cli import main; main()"


def test_version_is_that_of_the_library() -> None:
    """`--version` prints one line."""
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"outlast {outlast.__version__}\n")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_install_line_is_printed(command: Command, missing: str) -> None:
    """A core without typer or rich says what to install, and exits with 2."""
    done = command.run("backends", program=block(missing))
    assert done.returncode == 2
    assert 'pip install "outlast[cli]"' in done.stderr.splitlines()[2].strip()
    assert "Traceback" not in done.stderr


def test_without_openai_the_demo_prints_the_install_line(command: Command) -> None:
    """The demo says what to install, and exits with 2; nothing is left."""
    done = command.run("demo", program=block("openai"))
    assert done.returncode == 2
    assert '    pip install "outlast[demo]"' in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert not list(command.temporary.iterdir())


def test_another_missing_module_is_not_blamed_on_the_extra(command: Command) -> None:
    """An error that the extra does not explain is shown as it is."""
    done = command.run("backends", program=block("msgspec"))
    assert done.returncode == 1
    assert "outlast[cli]" not in done.stderr
    assert "msgspec" in done.stderr


def test_backends_lists_names_schemes_and_sources() -> None:
    """The built-in backends are there with their URLs."""
    result = invoke("backends")
    rows = [line.split()[:3] for line in result.stdout.splitlines()]
    assert ["memory", "memory://", "outlast"] in rows
    assert ["file", "file://", "outlast"] in rows


def test_backends_shows_a_broken_plugin_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that cannot be imported is named with its error, beside the others."""
    broken = importlib.metadata.EntryPoint("broken", "no_such_module_of_a_plugin", "outlast")
    monkeypatch.setattr(registry, "_registry", registry.Registry(lambda: (broken,)))
    result = invoke("backends")
    assert result.exit_code == 1
    assert "broken cannot be loaded: ModuleNotFoundError" in result.stdout
    assert "no_such_module_of_a_plugin" in result.stdout
    assert "file://" in result.stdout


def test_ping_needs_a_store_that_was_set_up(tmp_path: Path) -> None:
    """Before `setup`, ping fails and creates nothing; after it, ping answers."""
    folder = tmp_path / "store"
    before = invoke("ping", folder.as_uri())
    assert (before.exit_code, folder.exists()) == (2, False)
    assert before.stderr.startswith("Error: ")
    made = invoke("setup", folder.as_uri())
    assert (made.exit_code, made.stdout) == (
        0,
        f"{folder.as_uri()} is ready, namespace 'default'\n",
    )
    again = invoke("setup", folder.as_uri())
    assert again.exit_code == 0
    after = invoke("ping", folder.as_uri())
    assert after.exit_code == 0
    assert after.stdout.startswith(f"{folder.as_uri()} answers in ")


def test_setup_takes_a_namespace(tmp_path: Path) -> None:
    """What was set up in one namespace is ready there."""
    assert invoke("setup", tmp_path.as_uri(), "--namespace", "other").exit_code == 0
    assert invoke("ping", tmp_path.as_uri(), "--namespace", "other").exit_code == 0


async def _delete_a_task(url: str) -> None:
    async with outlast.open_backend(url) as backend:
        await backend.persistence.save_task_state("gone", outlast.TaskState("gone"))
        await backend.persistence.delete_task("gone")


def test_sweep_removes_what_deletions_left(tmp_path: Path) -> None:
    """A tombstone is counted in a dry run, kept before its age, and removed once."""
    url = tmp_path.as_uri()
    asyncio.run(_delete_a_task(url))
    young = invoke("sweep", url, "--older-than", "7d")
    assert young.stdout.startswith("removed 0 records"), young.output
    dry = invoke("sweep", url, "--older-than", "0s", "--dry-run")
    assert dry.stdout.startswith("would remove 1 records")
    assert invoke("sweep", url, "--older-than", "0s").stdout.startswith("removed 1 records")
    assert invoke("sweep", url, "--older-than", "0s").stdout.startswith("removed 0 records")


@pytest.mark.parametrize("age", ["7", "d", "-1d", "7y", "1e9d", "9999999999w", ""])
def test_sweep_refuses_what_is_no_age(tmp_path: Path, age: str) -> None:
    """An age without a unit, or beyond all measure, is a usage error that says so."""
    result = invoke("sweep", tmp_path.as_uri(), f"--older-than={age}")
    assert result.exit_code == 2
    assert "Invalid value" in result.stderr
    assert not list(tmp_path.iterdir())


def test_sweep_asks_for_an_age(tmp_path: Path) -> None:
    """There is no default retention time."""
    assert invoke("sweep", tmp_path.as_uri()).exit_code == 2


@pytest.mark.parametrize("name", ["ping", "setup", "demo"])
@pytest.mark.parametrize(
    ("url", "text"),
    [
        pytest.param("bogus://host", "no backend serves bogus:// URLs", id="unknown-scheme"),
        pytest.param("no-url", "is not a store URL", id="no-url"),
        pytest.param("file://relative/dir", "file:///", id="host-in-a-file-url"),
        pytest.param("file:///dir?colour=red", "unknown option 'colour'", id="unknown-option"),
    ],
)
def test_a_bad_url_gives_the_librarys_error(name: str, url: str, text: str) -> None:
    """The error's text is printed, without a traceback; the exit code is 2."""
    result = invoke(name, *(("--url", url) if name == "demo" else (url,)))
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert text in result.stderr
    assert "Traceback" not in result.output


def test_a_directory_that_cannot_be_used_gives_the_librarys_error(tmp_path: Path) -> None:
    """A file where a directory should be is no traceback either."""
    path = tmp_path / "file"
    path.write_text("x")
    for arguments in (("setup", path.as_uri()), ("demo", "--url", path.as_uri())):
        result = invoke(*arguments)
        assert result.exit_code in (1, 2)
        assert result.stderr.startswith("Error: ")


def test_no_message_shows_a_password() -> None:
    """E4 holds for what the command prints, too."""
    result = invoke("ping", "bogus://user:open-sesame@host/x?token=open-sesame")
    assert result.exit_code == 2
    assert "open-sesame" not in result.output
    reachable = invoke("ping", "memory://name")
    assert reachable.exit_code == 0


URL = "redis://user:open-sesame@host"


@pytest.mark.parametrize(
    "arguments",
    [("demo", URL), ("ping", URL, URL), (URL,)],
    ids=["stray", "second", "command"],
)
def test_no_complaint_about_arguments_shows_a_password(arguments: tuple[str, ...]) -> None:
    """E4: what is quoted may be the URL, in the wrong place."""
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "***" in result.stderr
    assert "sesame" not in result.output


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
async def test_bench_measures_each_row_beside_the_raw_driver_and_removes_all(
    tmp_path: Path,
) -> None:
    """Ratios are those of the medians; the store is left without a message or a file of ours."""
    url, tiny = f"file://{tmp_path}", Profile(count=3, loaded=40, long=200, each=1, rounds=2)
    rows = {row.name: row for row in await measure(Target(url, raw=raw_for(url)), tiny)}
    assert list(rows) == ["append", "put", "state", "load", "flat", "fleet"]
    for name, row in rows.items():
        first, second = row.timings.values()
        if name == "fleet":  # It is a throughput.
            first, second = second, first
        assert row.value == pytest.approx(first.median / second.median)
        assert first.p95 >= first.median > 0
    assert size_of(tmp_path) < 4096


@pytest.mark.slow
def test_bench_of_a_store_without_a_raw_driver_shows_the_times_alone(tmp_path: Path) -> None:
    """It says so, and the figures are written as JSON."""
    figures = tmp_path / "figures.json"
    result = invoke("bench", "--quick", "memory://", "--json", str(figures))
    assert result.exit_code == 0, result.output
    assert "no raw driver" in result.stdout
    assert "append one message of 1 KB" in result.stdout
    rows = {row["name"]: row for row in json.loads(figures.read_text())["rows"]}
    assert rows["append"]["value"] is None
    assert rows["append"]["timings"]["outlast"]["count"] == 60
