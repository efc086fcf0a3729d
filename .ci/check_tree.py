"""Check what no linter checks: file lengths, fragment names, and that nothing can unpickle."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {".git", ".nox", ".venv", "build", "dist", "_build"}
MAX_LINES = 600
TYPES = ("breaking", "contract", "added", "changed", "fixed", "removed", "docs")
FRAGMENT = re.compile(rf"(\d+|\+[a-z0-9-]+)\.({'|'.join(TYPES)})(\.\d+)?\.md")
UNPICKLERS = {"_pickle", "cloudpickle", "cPickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def python_files() -> Iterator[Path]:
    """All Python files of the tree."""
    for path in sorted(ROOT.rglob("*.py")):
        if not SKIPPED.intersection(path.relative_to(ROOT).parts):
            yield path


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level name of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.partition(".")[0]


def problems_of_code(path: Path) -> Iterator[str]:
    """What is wrong with one Python file."""
    name = path.relative_to(ROOT)
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield f"{name}: {lines} lines; split it by subject (at most {MAX_LINES})"
    if "tests" in name.parts:  # tests show that values refuse to be pickled
        return
    for line, module in imported(ast.parse(text)):
        if module in UNPICKLERS:
            yield f"{name}:{line}: imports {module}; stored bytes must never be able to run code"


def problems_of_fragments() -> Iterator[str]:
    """What is wrong with the names and the form of the changelog's fragments."""
    for path in sorted((ROOT / "changelog.d").iterdir()):
        if path.name in {"README.md", ".gitignore"}:
            continue
        name = path.relative_to(ROOT)
        if not FRAGMENT.fullmatch(path.name):
            yield f"{name}: name it <issue>.<type>.md or +<slug>.<type>.md, type one of {TYPES}"
        elif not path.read_text(encoding="utf-8").startswith("**"):
            yield f"{name}: begin with the package in bold, as in **outlast**"


def main() -> int:
    """Print every problem; 1 if there is one."""
    found = [problem for path in python_files() for problem in problems_of_code(path)]
    found += problems_of_fragments()
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
