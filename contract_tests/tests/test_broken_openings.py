"""Openings that are wrong only when the store says nothing are found."""

import asyncio
import contextlib
import gc
import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("outlast_redis")

from test_broken_networking import Harness, run

from outlast.contracts import DriverBackend
from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast_contract.checks import silence
from outlast_contract.faults import endings
from outlast_contract.servers import ServerUnavailable, shared_server
from outlast_redis import RedisDriver
from outlast_redis._links import pack

pytestmark = [pytest.mark.faults, pytest.mark.slow]

BLACK_HOLE = "an_opening_into_a_black_hole_leaves_nothing_behind[the request is swallowed]"
CANCELLED = "an_opening_that_nothing_answers_can_be_cancelled"


KEPT: list[object] = []
"""Lest a garbage collector closes what a defect leaves open; until it may, see ``kept``."""


class LeavesItsFirstConnection(RedisDriver):
    """Opening first looks at the server, over a connection that nobody closes unless it answers."""

    async def setup(self, *, create: bool) -> None:
        place = urlsplit(self._url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        KEPT.append((reader, writer))
        writer.writelines(pack([("EXISTS", self._keys.format)]))
        await reader.readline()
        writer.close()
        await super().setup(create=create)


class GoesOnOpening(RedisDriver):
    """A cancelled opening goes on in a task of its own, which connects when the store is back."""

    async def setup(self, *, create: bool) -> None:
        going_on = asyncio.ensure_future(self._greet())
        KEPT.append(going_on)
        await asyncio.shield(going_on)
        await super().setup(create=create)

    async def _greet(self) -> None:
        link = self._connect()
        KEPT.append(link)
        while True:
            with contextlib.suppress(UnavailableError, OutcomeUnknownError):
                await link.send(self._keys.format, ("EXISTS", self._keys.format))
                return


class OpensWithoutATimeout(DriverBackend):
    """Opening waits for the store as long as that takes."""

    async def _set_up_and_report(self) -> None:
        await self._set_up()


class SeesItsOpeningToItsEnd(DriverBackend):
    """A cancelled opening is first seen to its end."""

    async def open(self) -> None:
        opening = asyncio.ensure_future(super().open())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await opening
            raise


class CallsItsCancellationAFailure(DriverBackend):
    """A cancelled opening says that the store is not there."""

    async def open(self) -> None:
        try:
            await super().open()
        except asyncio.CancelledError as error:
            raise UnavailableError("it could not be opened") from error


BROKEN: dict[type[RedisDriver | DriverBackend], tuple[str, str]] = {
    LeavesItsFirstConnection: (BLACK_HOLE, "C7"),
    OpensWithoutATimeout: (BLACK_HOLE, "E6"),
    GoesOnOpening: (CANCELLED, "C7"),
    SeesItsOpeningToItsEnd: (CANCELLED, "X1"),
    CallsItsCancellationAFailure: (CANCELLED, "X1"),
}


@pytest.fixture(scope="module")
def url() -> str:
    try:
        return shared_server("redis").url
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")


@pytest.fixture
def kept() -> Iterator[None]:
    """Releases what defects kept open, without a word about it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        KEPT.clear()
        gc.collect()


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("broken", BROKEN, ids=[one.__name__ for one in BROKEN])
def test_an_opening_that_is_wrong_when_nothing_answers_is_found(
    url: str, broken: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the check that is about it, and with the clause that it breaks."""
    name, clause = BROKEN[broken]
    # What never ends is given up sooner.
    monkeypatch.setattr(silence, "_PROMPT", 3.0)
    if clause == "E6":
        monkeypatch.setattr(endings, "_SLACK", 1.0)
    part = "driver_class" if issubclass(broken, RedisDriver) else "backend_class"
    harness = type("BrokenHarness", (Harness,), {part: broken})
    result = run(name, lambda: harness(url))
    assert (result.status, result.clause) == ("failed", clause), result


@pytest.mark.parametrize("name", [BLACK_HOLE, CANCELLED])
def test_the_same_checks_pass_an_opening_that_is_right(url: str, name: str) -> None:
    """Nothing but the defects makes them fail."""
    result = run(name, lambda: Harness(url))
    assert result.status == "passed", result
