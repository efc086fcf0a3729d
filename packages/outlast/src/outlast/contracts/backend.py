"""What `open_backend` returns: the two contracts over one store, with its life cycle."""

import abc
import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Self

import msgspec

from outlast.codec import Codec
from outlast.contracts.calls import Calls
from outlast.contracts.checkpoints import StreamCheckpointStore
from outlast.contracts.driver_checkpoints import DriverCheckpoints
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.contracts.persistence import PersistenceManager
from outlast.contracts.records import Records
from outlast.driver import Capabilities, Driver, SweepPage
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    InvalidDataError,
    NotSupportedError,
    OutlastError,
    UnavailableError,
    shown,
)
from outlast.values import check_bool, check_id

_SWEEP_PAGE = 200
_MAX_TIMEOUT = 1e9
_FAREWELL = 0.25
"""Seconds in which a cancelled opening tries to leave nothing behind; the rest goes on without it.
"""
_MAX_AGE = 1e11
"""Seconds, some 3,000 years; in microseconds still an integer of every server."""

_log = logging.getLogger("outlast")


class SweepReport(msgspec.Struct, frozen=True):
    """What a sweep removed (or would remove, with ``dry_run``).

    Attributes:
        tombstones: Records of deleted tasks and runs, and of claimed ones without data.
        debris: Left-overs of crashes: temporary files, unreferenced pieces.
        complete: Whether the sweep went through the whole namespace; ``False`` if ``limit`` ended
            it.
        dry_run: Whether nothing was removed.
    """

    tombstones: int = 0
    debris: int = 0
    complete: bool = True
    dry_run: bool = False


class Backend(abc.ABC):
    """A store with a namespace in it: open it, use its two contracts, close it.

    ``async with backend:`` opens and closes; nothing is sent before. A backend serves the event
    loop and the process that opened it, and no other (X3). After `aclose` every call raises
    `ClosedError` (C7).
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The kind of backend, such as ``"sqlite"``."""

    @property
    @abc.abstractmethod
    def persistence(self) -> PersistenceManager:
        """The tasks: state, input and messages."""

    @property
    @abc.abstractmethod
    def checkpoints(self) -> StreamCheckpointStore:
        """The runs: the model turn in flight."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What the backend declares; known without I/O."""

    @abc.abstractmethod
    async def open(self) -> None:
        """Connect, and set the store up or verify it; harmless on an open backend.

        Raises:
            ConfigurationError: URL, options or the store's settings do not fit.
            UnavailableError: The store cannot be reached within ``timeout``.
            UnsupportedVersionError: The store was set up by a newer version of outlast.
            ClosedError: It was closed before.
            NotSupportedError: It is open in another event loop or process (X3).
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """See what was sent to its end, then release what was opened; idempotent.

        **Clauses**: C7.
        """

    @abc.abstractmethod
    async def ping(self) -> None:
        """Reach the store once.

        Raises:
            UnavailableError: It cannot be reached within ``timeout``.
        """

    @abc.abstractmethod
    async def sweep(
        self, *, older_than: timedelta, dry_run: bool = False, limit: int | None = None
    ) -> SweepReport:
        """Remove what deletions and crashes left behind; harmless beside running owners.

        **Guarantees.** Nothing that is referenced, and no record with data, is removed. Epochs
        never repeat afterwards. **Not guaranteed.** A claim that was never written through for
        ``older_than`` ends.

        Args:
            older_than: The retention time: only what has not changed for so long, by the store's
                clock.
            dry_run: Only count.
            limit: Remove about so many at most.

        **Clauses**: C3, C4, C5, F1.
        """

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class DriverBackend(Backend):
    """A backend on top of a `Driver`; what is the same for all stores is here and below."""

    def __init__(
        self,
        driver: Driver,
        *,
        namespace: str = "default",
        setup: bool = True,
        strict: bool = False,
        codec: Codec | None = None,
        timeout: float = 10.0,
        checkpoint_ttl: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """Make a backend; no I/O.

        Args:
            driver: The store, with the same namespace.
            namespace: A world of its own within the store (I5); an id.
            setup: ``True``: create or migrate on opening; ``False``: only verify.
            strict: Refuse settings of the store that lose data silently, instead of warning (D2).
            codec: How records become bytes.
            timeout: Seconds that one call may take, or one step of a call through many records
                (E6).
            checkpoint_ttl: Age beyond which a checkpoint reads as ``None`` (C6).
            clock: Source of ``updated_at``, aware; the system's clock by default.

        Raises:
            ConfigurationError: An option that does not fit.
            InvalidIdError: ``namespace`` is not an id.
        """
        check_id(namespace, "namespace")
        self._driver = driver
        self._namespace = namespace
        self._create = _check_option(setup, "setup")
        self._strict = _check_option(strict, "strict")
        self._timeout = check_timeout(timeout)
        self._calls = Calls(driver.name, self._timeout)
        self._records = Records(
            driver,
            self._calls,
            _check_codec(codec),
            checkpoint_ttl=_check_ttl(checkpoint_ttl),
            clock=clock or _utc_now,
        )
        self._persistence = DriverPersistence(self._records, self._initialize)
        self._checkpoints = DriverCheckpoints(self._records)
        self._opening: asyncio.Task[None] | None = None
        self._openers = 0
        self._release: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self._driver.name

    @property
    def namespace(self) -> str:
        """The namespace that this backend serves."""
        return self._namespace

    @property
    def driver(self) -> Driver:
        """The driver below; for tools and tests. What is written through it is not checked."""
        return self._driver

    @property
    def persistence(self) -> PersistenceManager:
        return self._persistence

    @property
    def checkpoints(self) -> StreamCheckpointStore:
        return self._checkpoints

    @property
    def capabilities(self) -> Capabilities:
        return self._driver.capabilities

    async def open(self) -> None:
        with self._calls.describing("open", self._namespace):
            if self._is_open():
                self._calls.check_usable()
                return
            deadline = asyncio.get_running_loop().time() + self._timeout
            opening = self._join_opening()
            self._openers += 1
            try:
                await asyncio.wait([opening])
            except asyncio.CancelledError:
                if self._openers == 1 and not self._is_open():
                    await asyncio.wait([self._give_up(opening)], timeout=_FAREWELL)
                raise
            finally:
                self._openers -= 1
            error = None if opening.cancelled() else opening.exception()
            if error is not None:
                # What takes longer than there is time is released by and by.
                left = deadline - asyncio.get_running_loop().time()
                await asyncio.wait([self._give_up(opening)], timeout=max(0.0, left))
                raise error
            if opening.cancelled():
                self._give_up(opening)
            self._refuse_closed("was closed while it was being opened")
            self._calls.opened()

    def _join_opening(self) -> asyncio.Task[None]:
        """The opening under way, or a new one: all who wait for it learn how it ends."""
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening.done():
            self._refuse_closed("was closed; make a new one")
        if self._opening is None:
            self._calls.bind()
            self._opening = loop.create_task(self._set_up_and_report(), name="outlast-open")
            self._opening.add_done_callback(_retrieve)
        elif self._opening.get_loop() is not loop:
            raise NotSupportedError(
                "the backend is being opened in another event loop; open one backend for each loop"
            )
        return self._opening

    def _give_up(self, opening: asyncio.Task[None]) -> asyncio.Task[None]:
        """Nobody needs the opening any more: end it, and release what it opened."""
        opening.cancel()
        self._calls.shut()
        return self._begin_release()

    async def aclose(self) -> None:
        with self._calls.describing("aclose", self._namespace):
            self._calls.shut()
            if self._calls.is_forked:
                return
            known, release = self._release, self._begin_release()
            is_elsewhere = release.get_loop() is not asyncio.get_running_loop()
            if is_elsewhere or (known is not None and known.done()):
                return
            # Who gives up waiting leaves the release to its end; whoever comes next waits for it.
            await asyncio.shield(release)

    def _begin_release(self) -> asyncio.Task[None]:
        if self._release is None:
            loop = asyncio.get_running_loop()
            self._release = loop.create_task(self._release_driver(), name="outlast-aclose")
            self._release.add_done_callback(_retrieve)
        return self._release

    async def _release_driver(self) -> None:
        await self._calls.idle()
        opening = self._opening
        if opening is not None and opening.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([opening])
            # How it was cancelled, and with that the library's connection, is kept by nobody.
            del opening
            self._opening = None
        try:
            # A driver may wait for what is under way as long as a call may take.
            async with asyncio.timeout(2 * self._timeout):
                await self._driver.aclose()
        except OutlastError:
            raise
        except Exception as error:
            raise UnavailableError(
                f"not everything could be released: {type(error).__name__}; see the cause"
            ) from error

    def _is_open(self) -> bool:
        return self._calls.state == "open"

    def _refuse_closed(self, what: str) -> None:
        if self._calls.state == "closed":
            raise ClosedError(f"the backend {what}")

    async def ping(self) -> None:
        await self._calls.read("ping", self._namespace, self._driver.ping)

    async def sweep(
        self, *, older_than: timedelta, dry_run: bool = False, limit: int | None = None
    ) -> SweepReport:
        with self._calls.describing("sweep", self._namespace):
            age = _check_age(older_than)
            check_bool(dry_run, "dry_run")
            if limit is not None and (type(limit) is not int or limit < 0):
                raise InvalidDataError(
                    f"limit must be an int of at least 0 or None, not {shown(limit)}"
                )
            with self._calls.as_one():
                return await self._sweep(age, limit, dry_run=dry_run)

    async def _sweep(self, age: float, limit: int | None, *, dry_run: bool) -> SweepReport:
        tombstones = debris = 0
        after: str | None = None
        while limit is None or tombstones + debris < limit:
            wanted = _SWEEP_PAGE if limit is None else min(_SWEEP_PAGE, limit - tombstones - debris)
            page: SweepPage = await self._calls.read(
                "sweep",
                self._namespace,
                partial(
                    self._driver.sweep, older_than=age, limit=wanted, dry_run=dry_run, after=after
                ),
            )
            tombstones += page.tombstones
            debris += page.debris
            after = page.next
            if after is None:
                return SweepReport(tombstones, debris, complete=True, dry_run=dry_run)
        return SweepReport(tombstones, debris, complete=False, dry_run=dry_run)

    def __repr__(self) -> str:
        place = f"{self.name}, namespace {self._namespace!r}"
        return f"<{type(self).__name__} {place}, {self._calls.state}>"

    async def _set_up_and_report(self) -> None:
        for hazard in await self._calls.read("open", self._namespace, self._set_up, setup=True):
            _log.warning("%s, namespace %r: %s", self.name, self._namespace, hazard)

    async def _set_up(self) -> Sequence[str]:
        """Within the time of one call; what the settings of the store would lose."""
        await self._driver.setup(create=self._create)
        hazards = await self._driver.hazards()
        if hazards and self._strict:
            raise ConfigurationError("; ".join(hazards))
        return hazards

    async def _initialize(self) -> None:
        await self._calls.read(
            "initialize", self._namespace, partial(self._driver.setup, create=True)
        )


def _retrieve(task: asyncio.Task[None]) -> None:
    """What a task ended with is told to whoever waits for it, and else to nobody."""
    if not task.cancelled():
        task.exception()


def _utc_now() -> datetime:
    return datetime.now(UTC)


def check_timeout(timeout: object) -> float:
    """Return ``timeout`` if it is a positive, finite number of seconds.

    Raises:
        ConfigurationError: It is not.
    """
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not 0 < timeout < _MAX_TIMEOUT
    ):
        raise ConfigurationError(
            f"timeout must be a positive number of seconds, not {shown(timeout)}"
        )
    return float(timeout)


def _check_option(value: object, name: str) -> bool:
    try:
        return check_bool(value, name)
    except InvalidDataError as error:
        raise ConfigurationError(error.message) from None


def _check_ttl(ttl: object) -> timedelta | None:
    if ttl is None:
        return None
    if not isinstance(ttl, timedelta) or ttl <= timedelta(0):
        raise ConfigurationError(
            f"checkpoint_ttl must be a positive timedelta or None, not {shown(ttl)}"
        )
    return ttl


def _check_codec(codec: object) -> Codec:
    if codec is None:
        return Codec()
    if not isinstance(codec, Codec):
        raise ConfigurationError(f"codec must be a Codec or None, not {type(codec).__name__}")
    return codec


def _check_age(older_than: object) -> float:
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise InvalidDataError(
            f"older_than must be a timedelta of at least 0, not {shown(older_than)}"
        )
    return min(older_than.total_seconds(), _MAX_AGE)


__all__ = ["Backend", "DriverBackend", "SweepReport", "check_timeout"]
