"""Where a database comes from: a client made for a URL, or one that the application lends."""

import abc
import asyncio
import re
import ssl
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal, Protocol, cast
from urllib.parse import parse_qsl

from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.database import Database as BlockingDatabase
from pymongo.driver_info import DriverInfo

from outlast.errors import ConfigurationError, shown
from outlast.url import ESCAPING, redact, scheme_of
from outlast_mongo._store import Database, Document

DEFAULT_DATABASE: Final = "outlast"

_FILES: Final = frozenset({"tlscafile", "tlscertificatekeyfile", "tlscrlfile"})
"""Options of PyMongo that name a file."""

_DRIVER: Final = re.compile(r"(?<=[?&])driver=([^&]*)(?:&|$)")

DriverName = Literal["pymongo", "motor"]


class MotorDatabase(Protocol):
    """A database of Motor's asyncio client, ``AsyncIOMotorDatabase``."""

    @property
    def delegate(self) -> Any:
        """PyMongo's own database beneath it."""


class Link(abc.ABC):
    """Gives a database.

    Attributes:
        described: Which database, for people.
        hint: How to set it up, for people.
        settings: It, or one of the same settings; not for requests.
    """

    described: str
    hint: str
    settings: Database

    @abc.abstractmethod
    async def connect(self) -> Database:
        """The database; without a request."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close the client, unless it was lent."""


class LentLink(Link):
    """A database that the application lends.

    Raises:
        ConfigurationError: It is of no asyncio client.
    """

    def __init__(self, database: AsyncDatabase[Any] | MotorDatabase) -> None:
        """Take it."""
        kind = type(database)
        is_motor = kind.__module__.startswith("motor.") and isinstance(
            getattr(database, "delegate", None), BlockingDatabase
        )
        if not isinstance(database, AsyncDatabase) and not is_motor:
            raise ConfigurationError(
                "database must be of pymongo.AsyncMongoClient or of Motor's AsyncIOMotorClient, "
                f"such as client['outlast'], not {kind.__module__}.{kind.__name__}"
            )
        self.settings = cast("Database", database)
        self.described = f"the MongoDB database {self.settings.name!r}"
        self.hint = "open it once with setup=True"

    async def connect(self) -> Database:
        return self.settings

    async def close(self) -> None:
        return


class PyMongoLink(Link):
    """A client of PyMongo for a URL.

    Raises:
        ConfigurationError: No MongoDB URL, or an option that does not fit.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Check everything and make the client; it connects when it is first used."""
        shown = redact(url)
        if scheme_of(url) not in ("mongodb", "mongodb+srv"):
            raise ConfigurationError(f"{shown!r} is not a mongodb:// or mongodb+srv:// URL")
        if "." in url.partition("?")[0].partition("://")[2].partition("/")[2]:
            raise ConfigurationError(f"{shown!r} cannot be used: a database has no dot in its name")
        try:
            with warnings.catch_warnings():
                # Of an option that is unknown, given twice or no number, PyMongo only warns.
                warnings.simplefilter("error", UserWarning)
                self._client = AsyncMongoClient[Document](
                    without_driver(url), driver=DriverInfo("outlast"), **options
                )
        except Exception as error:  # noqa: BLE001 - of files, TLS or options: there is no client
            raise ConfigurationError(
                f"{shown!r} cannot be used: {_advice(error, url, options)}"
            ) from None
        self.settings = self._client.get_default_database(DEFAULT_DATABASE)
        level = self.settings.read_concern.level
        if level not in (None, "majority"):
            raise ConfigurationError(
                f"{shown!r} cannot be used: outlast reads with the read concern that fits the "
                f"write concern, not with {level!r}; leave readConcernLevel out"
            )
        self.described = f"the MongoDB database {self.settings.name!r} at {shown}"
        self.hint = f"run: outlast setup {shown}"

    async def connect(self) -> Database:
        return self.settings

    async def close(self) -> None:
        await self._client.close()


class MotorLink(PyMongoLink):
    """A client of Motor for a URL; made when it is first used, since it may look up names at once.

    Raises:
        ConfigurationError: As for `PyMongoLink`, or Motor is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Check everything."""
        super().__init__(url, options)
        try:
            from motor.motor_asyncio import AsyncIOMotorClient
        except ImportError as error:
            raise ConfigurationError(
                'driver="motor" needs a package that is not installed: pip install "outlast[motor]"'
            ) from error
        self._make = partial(AsyncIOMotorClient[Document], without_driver(url))
        self._url = url
        self._options = options
        self._motor: Any = None

    async def connect(self) -> Database:
        if self._motor is None:
            try:
                self._motor = await asyncio.to_thread(
                    self._make, io_loop=asyncio.get_running_loop(), **self._options
                )
            except Exception as error:  # noqa: BLE001 - as above
                raise ConfigurationError(
                    f"{self.described} cannot be used: {_advice(error, self._url, self._options)}"
                ) from None
        return cast("Database", self._motor.get_default_database(DEFAULT_DATABASE))

    async def close(self) -> None:
        if self._motor is not None:
            await asyncio.to_thread(self._motor.close)


def link_of(
    url: str | None,
    database: AsyncDatabase[Any] | MotorDatabase | None,
    driver: DriverName,
    options: Mapping[str, Any],
) -> Link:
    """The link for the arguments of a `MongoDriver`.

    Raises:
        ConfigurationError: They do not fit.
    """
    if (url is None) == (database is None):
        raise ConfigurationError("give either database=... or url=...")
    named = [] if url is None else _DRIVER.findall(url)
    if len(named) > 1 or (named and driver not in ("pymongo", named[0])):
        raise ConfigurationError(f"option 'driver' is given twice, also in {redact(url or '')!r}")
    driver = named[0] if named else driver
    if driver not in ("pymongo", "motor"):
        raise ConfigurationError(f"driver must be 'pymongo' or 'motor', not {shown(driver)}")
    if url is not None:
        return (MotorLink if driver == "motor" else PyMongoLink)(url, options)
    if options or driver != "pymongo":
        raise ConfigurationError("a client that is passed in takes no further options")
    assert database is not None
    return LentLink(database)


def without_driver(url: str) -> str:
    """The URL as clients of MongoDB know it: without the option that names one of them."""
    return _DRIVER.sub("", url).rstrip("?&") if _DRIVER.search(url) else url


def _advice(error: Exception, url: str, options: Mapping[str, Any]) -> str:
    """What is wrong, and for files what to do about it."""
    text = _redacted(error, url)
    files = _files_of(url, options)
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return f"{text}; check the path, and that this process may read it{files}"
    if isinstance(error, ssl.SSLError) or "SSL" in text:
        return f"{text}; check that the files are PEM and belong together{files}"
    return text


def _files_of(url: str, options: Mapping[str, Any]) -> str:
    """The files that a URL or options name, for people."""
    found = [*parse_qsl(url.partition("?")[2]), *options.items()]
    named = [f"{name}={value}" for name, value in found if name.lower() in _FILES]
    return f": {', '.join(named)}" if named else ""


def _redacted(error: Exception, url: str) -> str:
    """The driver's own words, unless it may have taken a part of the password for something else:
    they would be of no help, and before PyMongo 4.13 named what they did not like.
    """
    rest = url.partition("://")[2]
    authority = re.split("[/?]", rest, maxsplit=1)[0]
    if ":" in authority and "@" not in authority and "@" in rest:
        return f"{type(error).__name__}; {ESCAPING}"
    return str(error)


__all__ = ["DriverName", "Link", "MotorDatabase", "link_of", "without_driver"]
