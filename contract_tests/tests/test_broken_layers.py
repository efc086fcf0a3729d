"""Defects of the layer above the drivers, which every backend on a driver shares, are found."""

import asyncio
import logging
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import outlast
from outlast.contracts import DriverBackend, calls
from outlast.contracts.driver_checkpoints import DriverCheckpoints
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.driver import Where
from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast_contract.checks import handing_out, replies
from outlast_contract.engine import run_check, run_check_sync, select_checks
from outlast_contract.harness import Harness
from outlast_contract.stores import MemoryHarness

pytestmark = pytest.mark.slow


class LooksBeforeItSaves(DriverBackend):
    """Each save reads first."""

    class Persistence(DriverPersistence):  # noqa: D106 - what it is stands above
        async def save_task_state(self, task_id: str, state: Any, *, claim: Any = None) -> None:
            await self.load_task_state(task_id)
            await super().save_task_state(task_id, state, claim=claim)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._persistence = self.Persistence(self._records, self._initialize)


class HasNoTimeout(DriverBackend):
    """The timeout is not kept."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "timeout": 6.0})


class CallsUnknownUnavailable(DriverBackend):
    """What may have been applied is reported as certainly not applied."""

    class Persistence(DriverPersistence):  # noqa: D106 - what it is stands above
        async def save_task_input(
            self, task_id: str, task_input: Any, *, claim: Any = None
        ) -> None:
            try:
                await super().save_task_input(task_id, task_input, claim=claim)
            except OutcomeUnknownError as error:
                raise UnavailableError("it did not work") from error

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._persistence = self.Persistence(self._records, self._initialize)


class CountsOnFromItsLook(DriverBackend):
    """delete_thread by force claims with the number after the one that it saw."""

    class Checkpoints(DriverCheckpoints):  # noqa: D106 - what it is stands above
        async def delete_thread(self, thread_id: str, *, force: bool = False) -> int:
            removed = 0
            where = Where(parent=thread_id, with_empty=True)
            async for item in self._records.scan("delete_thread", "run", where):
                owner = await self.claim(item.id, at_least=item.value.epoch + 1)
                await self.delete(item.id, claim=owner)
                removed += item.value.data is not None
            return removed

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._checkpoints = self.Checkpoints(self._records)


def is_found(clause: str) -> bool:
    """Whether some check of a clause finds it broken on the memory backend, whose own tests show
    that none does so without the defect.
    """
    checks = [check for check in select_checks(clauses=[clause]) if "driver" in check.needs]
    return any(run_check_sync(check, MemoryHarness).clause == clause for check in checks)


LAYERS: dict[type[DriverBackend], str] = {
    LooksBeforeItSaves: "P1",
    HasNoTimeout: "E6",
    CallsUnknownUnavailable: "E2",
    CountsOnFromItsLook: "F1",
}
"""Each with the clause that it breaks."""


@pytest.mark.parametrize("layer", LAYERS, ids=[layer.__name__ for layer in LAYERS])
def test_a_broken_layer_is_found(
    layer: type[DriverBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clause that it breaks."""
    for checks in (handing_out, replies):
        monkeypatch.setattr(checks, "DriverBackend", layer)
    assert is_found(LAYERS[layer])


ATTEMPTS: dict[str, tuple[int, str]] = {
    "Nothing is tried again: what a repetition would have saved is lost.": (1, "E2"),
    "What fails is tried again without end.": (10**9, "E5"),
}
"""How often something is tried, and the clause that this breaks."""


@pytest.mark.parametrize("defect", ATTEMPTS, ids=["no retries", "retries without end"])
def test_retries_are_counted(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None at all loses what could be saved; without an end they hammer a store that is down."""
    attempts, clause = ATTEMPTS[defect]
    monkeypatch.setattr(calls, "MAX_ATTEMPTS", attempts)
    monkeypatch.setattr(calls, "backoff", lambda attempt: 0.0)
    assert is_found(clause)


class Secretive(Harness):
    """A store whose URL has a password, opened by its class."""

    url = "memory://user:geheim@host"
    backend_class: type[DriverBackend] = DriverBackend

    async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
        if "no_such_option" in options:
            raise outlast.ConfigurationError(f"unknown option no_such_option of {self.shown}")
        driver = outlast.MemoryBackend("secretive", namespace=namespace).driver
        return self.backend_class(driver, namespace=namespace, **options)

    shown = "memory://user:***@host"


class ShowsItInErrors(Secretive):
    """An error shows the password of the URL."""

    shown = Secretive.url


class ShowsItInRepr(Secretive):
    """The repr of a backend shows it."""

    class backend_class(DriverBackend):  # noqa: D106, N801 - the harness's part and name
        def __repr__(self) -> str:
            return f"<backend of {Secretive.url}>"


class LogsIt(Secretive):
    """It is logged when a connection is made."""

    class backend_class(DriverBackend):  # noqa: D106, N801 - the harness's part and name
        async def open(self) -> None:
            logging.getLogger("anything").debug("connecting to %s", Secretive.url)
            await super().open()


class DecodesIt(Secretive):
    """The repr shows it as it is, where the URL has it percent-encoded."""

    url = "memory://user:ge%68eim@host"
    backend_class = ShowsItInRepr.backend_class


class TripsOverIt(Secretive):
    """An error quotes a password that cannot be encoded."""

    async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
        try:
            unquote(self.url).encode("latin-1")
        except UnicodeError as error:
            raise outlast.ConfigurationError(f"it cannot be used: {error.args[1]}") from error
        return await super().open_with(namespace, **options)


class TakesItForAPath(Secretive):
    """Of a URL without slashes it quotes the path, which is user, password and host."""

    async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
        parts = urlsplit(self.url)
        if not parts.netloc:
            raise outlast.ConfigurationError(f"there is no database {parts.path!r}")
        return await super().open_with(namespace, **options)


TALKATIVE: tuple[type[Secretive], ...] = (
    ShowsItInErrors,
    ShowsItInRepr,
    LogsIt,
    DecodesIt,
    TripsOverIt,
    TakesItForAPath,
)


@pytest.mark.parametrize("harness", [Secretive, *TALKATIVE], ids=lambda value: value.__name__)
def test_a_password_that_is_shown_is_found(harness: type[Harness]) -> None:
    """In errors, reprs and log lines; and what hides it passes."""
    results = [run_check_sync(check, harness) for check in select_checks(clauses=["E4"])]
    failed = [result.detail for result in results if result.status == "failed"]
    assert bool(failed) == (harness in TALKATIVE), failed
    assert {result.status for result in results} <= {"failed", "passed"}
    assert "geheim" not in "".join(failed)


def test_checks_leave_no_task_behind() -> None:
    """A check of a silent store ends all that it began."""
    (check,) = [one for one in select_checks(clauses=["E6"]) if "silent" in one.name]

    async def run() -> set[str]:
        own = asyncio.all_tasks()
        await run_check(check, MemoryHarness())
        return {task.get_name() for task in asyncio.all_tasks() - own}

    assert asyncio.run(run()) == set()
