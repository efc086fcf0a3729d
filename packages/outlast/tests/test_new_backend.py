"""`outlast new-backend` writes a project that installs, and refuses what it cannot use."""

import ast
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import outlast
from outlast.cli.app import app
from outlast.driver import Driver, NotWrittenError


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["new-backend", *arguments], env={"COLUMNS": "200"})


def read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def test_the_project_has_all_that_it_needs() -> None:
    """Files, names, the version of the suite; and no mark of a template is left."""
    result = invoke("my-store")
    assert result.exit_code == 0, result.output
    assert "cd outlast-my-store" in result.stdout
    assert "outlast-contract my-store://localhost" in result.stdout
    root = Path("outlast-my-store")
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert found == {
        ".github/workflows/ci.yml",
        ".gitignore",
        "README.md",
        "pyproject.toml",
        "src/outlast_my_store/__init__.py",
        "src/outlast_my_store/_plugin.py",
        "src/outlast_my_store/driver.py",
        "src/outlast_my_store/py.typed",
        "tests/test_contract.py",
    }
    for path in found:
        text = (root / path).read_text(encoding="utf-8")
        assert not any(f"@{word}@" in text for word in ("NAME", "CLASS", "PACKAGE", "VERSION"))
        if path.endswith(".py"):
            ast.parse(text)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "outlast-my-store"
    assert project["entry-points"]["outlast"] == {"my-store": "outlast_my_store._plugin"}
    extra = project["optional-dependencies"]["test"]
    assert f"outlast-contract=={outlast.__version__}" in extra


async def test_every_method_of_the_driver_says_what_it_is_to_do() -> None:
    """Each abstract method raises, naming itself and its task."""
    assert invoke("mine").exit_code == 0
    scope: dict[str, object] = {}
    exec(compile(read("outlast-mine/src/outlast_mine/driver.py"), "driver.py", "exec"), scope)
    kind = scope["MineDriver"]
    assert isinstance(kind, type)
    assert issubclass(kind, Driver)
    driver = kind("host", namespace="n", timeout=1.0)  # type: ignore[call-arg]
    needed: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {
        "setup": ((), {"create": True}),
        "ping": ((), {}),
        "aclose": ((), {}),
        "claim": ((None, "c"), {}),
        "read": ((None, "state"), {}),
        "write": ((None, "state", b""), {"fence": None}),
        "load": ((None, "api"), {}),
        "append": ((None, "api", []), {"fence": None}),
        "replace": ((None, "api", []), {"fence": None}),
        "remove": ((None,), {"fence": None}),
        "scan": (("task",), {"where": None, "after": None, "limit": 1}),
        "sweep": ((), {"older_than": 1, "limit": 1, "dry_run": False, "after": None}),
    }
    assert set(needed) == Driver.__abstractmethods__
    for name, (arguments, keywords) in needed.items():
        with pytest.raises(NotWrittenError, match=rf"{name}\(\) is not written yet: \w") as caught:
            await getattr(driver, name)(*arguments, **keywords)
        assert caught.value.method == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Nats", "cannot be the name"),
        ("my_store", "cannot be the name"),
        ("a--b", "cannot be the name"),
        ("-a", "cannot be the name"),
        ("3d", "cannot be the name"),
        ("../up", "cannot be the name"),
        ("", "cannot be the name"),
        ("x" * 41, "cannot be the name"),
        ("naïve", "cannot be the name"),
        ("outlast-nats", "give the store's name alone, 'nats'"),
        ("file", "served by outlast already"),
        ("valkey", "served by"),
        ("sql", "a package of outlast"),
        ("contract", "a package of outlast"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, reason: str) -> None:
    """One line says why; nothing is written."""
    result = invoke("--", name)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(Path.cwd().iterdir())


def test_what_exists_is_left_as_it_is() -> None:
    """A folder or a file of the name is not touched, empty or not."""
    Path("outlast-mine").mkdir()
    Path("a-file").write_text("kept")
    for arguments in (["mine"], ["mine", "--folder", "a-file"]):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert "exists already, and is left as it is" in result.stderr
    assert not list(Path("outlast-mine").iterdir())
    assert Path("a-file").read_text() == "kept"


def test_a_folder_that_cannot_be_made_is_said_to_be() -> None:
    """Without its parent nothing is written, and the parent is named."""
    result = invoke("mine", "--folder", "no/such/place")
    assert result.exit_code == 2
    assert str(Path("no/such")) in result.stderr
    assert not list(Path.cwd().iterdir())


def test_the_project_goes_where_it_is_told_to() -> None:
    """`--folder` names the project's folder."""
    assert invoke("mine", "--folder", "elsewhere").exit_code == 0
    assert Path("elsewhere/src/outlast_mine/driver.py").is_file()
