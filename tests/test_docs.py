"""The documentation says what the code does, and all of it."""

import ast
import importlib.util
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import typer

import outlast
from outlast import errors
from outlast.cli.app import app
from outlast.registry import EXTRAS, Registry
from outlast_contract.clauses import CLAUSES
from outlast_contract.cli import build_parser

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = (ROOT / "docs/reference/contract.md").read_text(encoding="utf-8")
SOURCES = [
    path
    for folder in (*ROOT.glob("packages/*/src"), ROOT / "contract_tests/src")
    for path in sorted(folder.rglob("*.py"))
]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("packages/*/README.md"),
    *ROOT.glob("contract_tests/README.md"),
    *(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
]


def test_every_clause_stands_in_the_contract_under_its_title() -> None:
    """The suite's clauses and the page's are the same ones, in the same order."""
    found = re.findall(r"^### ([A-Z]\d+)\n\n\*\*(.+?)\.\*\*", CONTRACT, re.MULTILINE | re.DOTALL)
    titles = {clause: " ".join(title.replace("`", "").split()) for clause, title in found}
    assert list(titles) == re.findall(r"^### (.*)$", CONTRACT, re.MULTILINE)[-len(titles) :]
    assert list(titles.items()) == [
        (clause, title.replace("`", "")) for clause, title in CLAUSES.items()
    ]


def test_every_clause_says_what_it_promises_and_what_it_asks() -> None:
    """Both readers of a clause, user and backend author, are answered."""
    parts = re.split(r"^### ([A-Z]\d+)$", CONTRACT, flags=re.MULTILINE)
    assert set(parts[1::2]) == set(CLAUSES)
    for clause, text in zip(parts[1::2], parts[2::2], strict=True):
        assert "Promise:" in text, clause
        assert "Backend:" in text, clause


def test_clauses_that_the_code_cites_exist() -> None:
    """A docstring's clauses are those of the contract."""
    cited = 0
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                for line in re.findall(r"\*\*Clauses?\*\*: (.*)", text):
                    found = re.findall(r"[A-Z]\d+", line)
                    cited += len(found)
                    assert set(found) <= set(CLAUSES), f"{path.name}: {line}"
    assert cited > 0


def error_classes() -> list[type[Exception]]:
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.OutlastError)
    ]


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_every_error_is_documented_and_public(error: type[Exception]) -> None:
    """The page of the errors has a row for each, and `outlast` has its name."""
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    assert f"`{error.__name__}`" in page
    assert getattr(outlast, error.__name__) is error


def test_links_between_pages_lead_somewhere() -> None:
    """Relative links name files that are there; links to clauses name clauses."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            assert path.exists(), f"{page.relative_to(ROOT)}: {target}"
            if path.name == "contract.md" and re.fullmatch(r"[a-z]\d+", anchor):
                assert anchor.upper() in CLAUSES, f"{page.relative_to(ROOT)}: {target}"


def first_party_schemes() -> set[str]:
    """Of all distributions of the workspace, whether they are installed here or not."""
    core = [plugin for plugin in outlast.installed_plugins() if plugin.source == "outlast"]
    backends = [info for plugin in core for info in plugin.backends]
    for project in (ROOT / "packages").glob("*/pyproject.toml"):
        declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        for module in declared.get("entry-points", {}).get("outlast", {}).values():
            path = project.parent / "src" / f"{module.replace('.', '/')}.py"
            # By its path: a plugin module imports no driver, so it loads anywhere.
            spec = importlib.util.spec_from_file_location(f"plugin_of_{declared['name']}", path)
            assert spec is not None
            assert spec.loader is not None
            plugin = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(plugin)
            backends += plugin.outlast_backends()
    return {name for info in backends for name in info.schemes}


def test_the_tables_of_backends_are_those_of_the_workspace() -> None:
    """README and reference name each scheme of the first-party backends, and no other."""
    schemes = first_party_schemes()
    for page in ("README.md", "docs/reference/urls-and-options.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        cells = re.findall(r"^\| (`\w[\w+]*://[^|]*) \|", text, re.MULTILINE)
        named = {name for cell in cells for name in re.findall(r"`(\w[\w+]*)://", cell)}
        # `sqlite+aiosqlite` is `sqlite` with its driver named.
        assert {name if name in schemes else name.partition("+")[0] for name in named} == schemes


def test_an_absent_package_is_known_by_each_of_its_schemes() -> None:
    """The core names the extra to install for each scheme that a sibling serves, and no other."""
    schemes = {name.partition("+")[0] for name in first_party_schemes()}
    assert set(EXTRAS) == schemes - {"memory", "file"}
    project = tomllib.loads((ROOT / "packages/outlast/pyproject.toml").read_text(encoding="utf-8"))
    assert set(EXTRAS.values()) <= set(project["project"]["optional-dependencies"])


def test_every_option_of_open_backend_is_documented() -> None:
    """The table of options has a row for each keyword."""
    page = (ROOT / "docs/reference/urls-and-options.md").read_text(encoding="utf-8")
    parameters = inspect.signature(outlast.open_backend).parameters.values()
    page = page.split("## Every backend", 1)[1].split("\n## ", 1)[0]
    names = {found.name for found in parameters if found.kind is found.KEYWORD_ONLY}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == names
    defaults = {found.name: found.default for found in parameters if found.name in names}
    for name, default in re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page, re.MULTILINE):
        assert ast.literal_eval(default) == defaults[name], name


def documented_options(page: str, heading: str) -> set[str]:
    """The options in the table below a heading."""
    section = page.split(f"\n{heading}\n", 1)[1]
    section = re.split(r"^##", section, maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"^\| `(--[a-z-]+)` \|", section, re.MULTILINE))


def test_every_command_and_option_of_outlast_is_documented() -> None:
    """The page of the commands has a section for each command, with exactly its options."""
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert re.findall(r"^### outlast ([\w-]+)$", page, re.MULTILINE) == list(group.commands)
    for name, command in group.commands.items():
        given = {flag for option in command.params for flag in option.opts if flag[:2] == "--"}
        assert documented_options(page, f"### outlast {name}") == given - {"--help"}, name


def test_every_option_of_outlast_contract_is_documented() -> None:
    """The same for the command of the suite."""
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    given = set(re.findall(r"--[a-z-]+", build_parser().format_help()))
    assert documented_options(page, "## outlast-contract") == given - {"--help", "--version"}


def test_every_public_name_is_in_the_reference() -> None:
    """What `outlast` exports is on a page of the reference."""
    pages = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference").glob("*.md")
    )
    for module in re.findall(r"automodule:: ([\w.]+)", pages):
        path = ROOT / "packages/outlast/src" / module.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        pages += file.read_text(encoding="utf-8")
    missing = [name for name in outlast.__all__ if not re.search(rf"\b{name}\b", pages)]
    assert missing == []


def test_the_readme_is_short() -> None:
    """What does not fit belongs into docs/."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_commands_of_the_readme_are_what_ci_runs() -> None:
    """The test command of the README is the one that `.ci/run` calls, and both sessions exist."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    set_up = "python3 -m venv .venv && . .venv/bin/activate && python -m pip install "
    commands = re.findall(rf"^{re.escape(set_up)}(.+)$", readme, re.MULTILINE)
    assert commands == [
        "'./packages/outlast[demo]' && outlast demo",
        "nox && python -m nox -s tests",
    ]
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert script.index("nox -s lint types") < script.index("python -m nox -s tests")


def test_every_url_in_the_docs_has_a_backend() -> None:
    """Those with a variant, such as ``redis+cluster://``, too."""
    pages = [*ROOT.glob("docs/reference/*.md"), *ROOT.glob("packages/*/README.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    schemes = set(re.findall(r"\b([a-z0-9]+\+[a-z]+)://", text))
    assert {"redis+cluster", "mongodb+srv", "postgresql+psycopg"} <= schemes
    for scheme in schemes:
        Registry().find(scheme)
