"""Server processes: they end with their keeper, and are killed with all that they forked."""

import abc
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from outlast_contract.servers._recipe import Command

_PR_SET_PDEATHSIG = 1
_POLL = 0.01
_GONE_TIMEOUT = 5.0
_LOG_BYTES = 20_000


class StartError(Exception):
    """A server did not come up; the text has the end of its log."""


class Node(abc.ABC):
    """One node of a server, started again and again on the same data."""

    @property
    @abc.abstractmethod
    def pid(self) -> int | None:
        """Of the running process; ``None`` if there is none."""

    @abc.abstractmethod
    def launch(self, command: Command) -> None:
        """Start it; harmless if it runs.

        Raises:
            StartError: It cannot be started.
        """

    @abc.abstractmethod
    def kill(self) -> None:
        """End it by SIGKILL, with every process that it forked, and wait until all are gone."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop it, with every process that it forked.

        Raises:
            StartError: It does not run.
        """

    @abc.abstractmethod
    def cont(self) -> None:
        """Let it go on after `stop`.

        Raises:
            StartError: It does not run.
        """

    @abc.abstractmethod
    def log(self) -> str:
        """The end of what it printed."""

    @abc.abstractmethod
    def ended(self) -> int | None:
        """Its exit code, waited for a moment; ``None`` while it runs."""

    def discard(self) -> None:
        """Give it up for good."""
        self.kill()

    def start(self, command: Command, is_up: Callable[[], bool], timeout: float) -> None:
        """Start it and return when it serves; harmless if it runs.

        Raises:
            StartError: It ended, or did not serve within ``timeout`` seconds.
        """
        self.launch(command)
        self.wait_until(is_up, timeout)

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> None:
        """Ask until ``condition`` holds, as long as the node lives.

        Raises:
            StartError: It ended, or ``timeout`` seconds went by.
        """
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError):
                if condition():
                    return
            code = self.ended()
            if code is not None:
                raise StartError(f"it ended with code {code}; its log ends:\n{self.log()}")
            if time.monotonic() > deadline:
                raise StartError(f"not ready after {timeout:g} s; its log ends:\n{self.log()}")


class Child(Node):
    """A child process."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def launch(self, command: Command) -> None:
        if self.pid is None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [str(argument) for argument in command.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env=None if command.environment is None else dict(command.environment),
                    user=command.user,
                    start_new_session=True,
                    # The keeper has one thread.
                    preexec_fn=_die_with_parent  # noqa: PLW1509
                    if sys.platform == "linux"
                    else None,
                )

    def ended(self) -> int | None:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_POLL)
        return None

    def kill(self) -> None:
        pid = self.pid
        if self._process is None or pid is None:
            return
        # Stopped first, so that it forks nothing while its descendants are looked up.
        os.kill(pid, signal.SIGSTOP)
        family = [*_descendants(pid), pid]
        for member in family:
            _signal(member, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _GONE_TIMEOUT
        while any(map(_is_alive, family)) and time.monotonic() < deadline:
            time.sleep(_POLL)

    def stop(self) -> None:
        pid = self._running()
        for member in (pid, *_descendants(pid)):
            _signal(member, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def cont(self) -> None:
        pid = self._running()
        for member in (*_descendants(pid), pid):
            _signal(member, signal.SIGCONT)

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _LOG_BYTES))
            return file.read().decode(errors="replace")
        return ""

    def _running(self) -> int:
        pid = self.pid
        if pid is None:
            raise StartError("it does not run")
        return pid


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _stat(pid: int | str) -> list[str]:
    """State, parent and so on of a process, where the system tells (Linux)."""
    # The name in parentheses may hold anything.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _is_alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def _descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int(_stat(entry.name)[1])
    found: list[int] = []
    layer = {root}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found.extend(layer)
    return found


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


__all__ = ["Child", "Node", "StartError"]
