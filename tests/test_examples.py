"""Every Python block of the documentation runs as it stands."""

import ast
import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("packages/*/README.md")),
    ROOT / "contract_tests/README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
]
BLOCK = re.compile(
    r"(?:<!-- (?P<note>[^\n]*) -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


def blocks(page: Path) -> list[tuple[str, types.CodeType]]:
    """The blocks of a page: their note, and their code, which keeps the page's lines."""
    found: list[tuple[str, types.CodeType]] = []
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        lines = text.count("\n", 0, match.start("code"))
        source = "\n" * lines + match["code"]
        code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        found.append((match["note"] or "", code))
    return found


WITH_EXAMPLES = [page for page in PAGES if blocks(page)]


@pytest.mark.parametrize(
    "page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)).replace("/", ".")
)
def test_the_examples_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page share their names, as a reader who types them in would have it."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)

    async def run() -> None:
        for note, code in blocks(page):
            if note.startswith(("not run:", "tested:")):
                continue
            result = eval(code, module.__dict__)
            if inspect.isawaitable(result):
                await result

    asyncio.run(run())


def test_the_program_of_the_readme_is_killed_and_goes_on(tmp_path: Path) -> None:
    """Run as two processes, it does what the text below it says."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    program = tmp_path / "program.py"
    (code,) = (
        found["code"] for found in BLOCK.finditer(page) if found["note"] == "tested: program"
    )
    program.write_text(code, encoding="utf-8")

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )

    first, second = run(), run()
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert first.stdout == "done before: 0\n"
    assert second.returncode == 0, second.stderr
    results = [f"result {step}" for step in range(6)]
    assert second.stdout == f"done before: 3\nfinished: {results}\n"


def test_blocks_that_are_not_run_say_why() -> None:
    """A block is left out only with a reason, and still compiles."""
    notes = [note for page in WITH_EXAMPLES for note, _ in blocks(page) if note]
    assert notes
    for note in notes:
        assert re.fullmatch(r"not run: .{10,}|tested: \w+", note), note
