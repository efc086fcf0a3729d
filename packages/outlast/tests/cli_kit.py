"""Runs `outlast` as a process of its own, and finds what it left behind."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = "from outlast.cli import main; main()"


class Command:
    """The command, with a temporary folder and a mark by which its processes are known."""

    def __init__(self, folder: Path, *search_path: Path) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self._mark = f"OUTLAST_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        path = [str(entry) for entry in search_path] + [os.environ.get("PYTHONPATH", "")]
        self.environment = {
            **os.environ,
            name: value,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "COLUMNS": "160",
            "HTTP_PROXY": "http://127.0.0.1:9",
        }

    def run(self, *arguments: str, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            [sys.executable, "-P", "-c", program, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    @contextmanager
    def start(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Start it, and end it if it has not ended."""
        with subprocess.Popen(
            [sys.executable, "-P", "-u", "-c", PROGRAM, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def processes(self) -> list[int]:
        """Processes of this command that are still there; zombies are not."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if self._mark.encode() in environment:
                found.append(int(entry.name))
        return found


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Ask until it holds; fail at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Read lines until one holds ``text``; return all of them."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"no line with {text!r} in:\n{''.join(lines)}")
