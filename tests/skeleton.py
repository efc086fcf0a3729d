"""The project that "Start a backend" makes: the skeleton, with the blocks of the page filled in."""

import ast
import re
from pathlib import Path

from outlast.cli.new_backend import write_project

PAGE = Path(__file__).resolve().parent.parent / "docs/how-to/start-a-backend.md"
STEP = re.compile(r"^<!-- tested: [^\n]*-->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps() -> list[str]:
    """The blocks that a reader writes into the driver, in order."""
    return STEP.findall(PAGE.read_text(encoding="utf-8"))


def methods_of(step: str) -> list[str]:
    """The methods of the driver that a block brings."""
    return [
        method.name
        for node in ast.parse(step).body
        if isinstance(node, ast.ClassDef) and node.name == "DictDriver"
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def write(folder: Path, count: int | None = None) -> Path:
    """Make the project, and do the first ``count`` steps of the page, or all."""
    project = write_project("dict", folder / "outlast-dict")
    driver = project / "src/outlast_dict/driver.py"
    text = driver.read_text(encoding="utf-8")
    for step in steps()[:count]:
        text = filled(text, step)
    if count is None:
        text = text.replace("    NotWrittenError,\n", "")
    driver.write_text(text, encoding="utf-8")
    return project


def filled(text: str, step: str) -> str:
    """What an editor makes of it: statements above the class, methods in the place of theirs."""
    driver = _driver(ast.parse(text))
    lines = text.splitlines(keepends=True)
    if not methods_of(step):
        return "".join([*lines[: driver.lineno - 1], step, "\n\n", *lines[driver.lineno - 1 :]])
    block = step.splitlines(keepends=True)
    for method in _driver(ast.parse(step)).body:
        assert isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        source = block[method.lineno - 1 : method.end_lineno]
        old = [
            node
            for node in _driver(ast.parse("".join(lines))).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == method.name
        ]
        if old:
            lines[old[0].lineno - 1 : old[0].end_lineno] = source
        else:
            lines += ["\n", *source]
    return "".join(lines)


def _driver(tree: ast.Module) -> ast.ClassDef:
    (driver,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DictDriver"
    ]
    return driver
