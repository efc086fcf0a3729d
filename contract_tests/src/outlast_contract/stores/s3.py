"""S3 and compatible stores, read with boto3."""

import asyncio
import atexit
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from heapq import nlargest
from importlib import import_module
from itertools import chain, islice
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from outlast_contract.harness import UrlHarness
from outlast_contract.stores import MANY

# Neither has types.
_boto3: Any = import_module("boto3")
_Config: Any = import_module("botocore.config").Config
_errors: Any = import_module("botocore.exceptions")
_FAILURES: Any = (_errors.BotoCoreError, _errors.ClientError)

_CREDENTIALS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_FORBIDDEN = 403
_READ = 300
"""So many strange objects are read, each by a request."""

_NAMESPACE = re.compile("[0-9a-f]{32}/")
_SETTINGS = (*_CREDENTIALS, "endpoint_url", "region", "profile", "addressing_style")


class S3Harness(UrlHarness):
    """A prefix of a bucket, by the URL of outlast."""

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """All objects of the namespace, and the newest of those in the bucket that outlast does not
        make.
        """
        place = self._place(namespace)
        return await asyncio.to_thread(
            lambda: list(_objects(place, chain(*place.pages(), place.strange())))
        )

    async def versions(self) -> Mapping[str, str]:
        """What the store calls itself in its answers."""
        place = self._place("")
        answer = await asyncio.to_thread(place.client.head_bucket, Bucket=place.bucket)
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        return {"s3 server": str(headers.get("server", "does not say"))}

    async def wipe(self, namespace: str) -> None:
        """Remove all objects of the namespace, in a few requests whatever their number."""
        await asyncio.to_thread(_remove, self._place(namespace))

    def secrets(self) -> Sequence[str]:
        """Those of the URL and the options, or what boto3 finds by itself."""
        settings = self._settings()
        if _CREDENTIALS[0] in settings:
            return super().secrets()
        return [*super().secrets(), *_found_secrets(settings.get("profile"))]

    def _settings(self) -> dict[str, str]:
        given = {**dict(parse_qsl(urlsplit(str(self.url)).query)), **self.options}
        return {name: str(given[name]) for name in _SETTINGS if given.get(name)}

    def _place(self, namespace: str) -> "_Place":
        parts = urlsplit(str(self.url))
        known = self._settings()
        prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
        folder = f"{prefix}{sha256(namespace.encode()).hexdigest()[:32]}/"
        return _Place(_client(os.getpid(), **known), parts.netloc, prefix, folder)


class _Place(NamedTuple):
    client: Any
    bucket: str
    prefix: str
    folder: str

    def pages(self) -> Iterator[list[Any]]:
        """Objects as they are listed, page after page."""
        listing = self.client.get_paginator("list_objects_v2")
        for page in listing.paginate(Bucket=self.bucket, Prefix=self.folder):
            yield page.get("Contents", [])

    def strange(self) -> list[Any]:
        """The newest objects in no namespace; the namespaces' many objects are not listed."""
        listed = islice(self._strange_in(""), MANY)
        try:
            return nlargest(_READ, listed, key=lambda entry: entry["LastModified"])
        except self.client.exceptions.ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != _FORBIDDEN:
                raise
            return []  # This user may list its own prefix only.

    def _strange_in(self, folder: str) -> Iterator[Any]:
        listing = self.client.get_paginator("list_objects_v2")
        for page in listing.paginate(Bucket=self.bucket, Prefix=folder, Delimiter="/"):
            yield from page.get("Contents", ())
            for entry in page.get("CommonPrefixes", ()):
                below = str(entry["Prefix"])
                if self.prefix.startswith(below):
                    yield from self._strange_in(below)
                elif not (folder == self.prefix and _NAMESPACE.fullmatch(below, len(folder))):
                    yield from chain.from_iterable(self._replace(folder=below).pages())


def _found_secrets(profile: str | None) -> tuple[str, ...]:
    """Of the environment, of a file, or of wherever else boto3 looks for them."""
    try:
        found = _boto3.Session(profile_name=profile).get_credentials()
        keys = found and found.get_frozen_credentials()
    except _FAILURES:  # Opening the store says what is wrong.
        keys = None
    if keys is None:
        return ()
    return tuple(str(key) for key in (keys.secret_key, keys.token) if key)


@lru_cache
def _client(pid: int, **settings: str) -> Any:
    """A client for this process, which keeps it: making one takes longer than its requests."""
    session = _boto3.Session(
        profile_name=settings.get("profile"), region_name=settings.get("region")
    )
    style = settings.get("addressing_style")
    client = session.client(
        "s3",
        endpoint_url=settings.get("endpoint_url"),
        config=_Config(s3={"addressing_style": style}) if style else None,
        **{name: settings[name] for name in _CREDENTIALS if name in settings},
    )
    atexit.register(client.close)
    return client


def _objects(place: _Place, listed: Iterable[Any]) -> Iterator[tuple[str, bytes]]:
    client = place.client
    for entry in listed:
        name = str(entry["Key"])
        try:
            answer = client.get_object(Bucket=place.bucket, Key=name)
        except client.exceptions.NoSuchKey:  # removed in between
            continue
        yield name, answer["Body"].read()


def _remove(place: _Place) -> None:
    for page in place.pages():
        if page:
            place.client.delete_objects(
                Bucket=place.bucket,
                Delete={"Objects": [{"Key": entry["Key"]} for entry in page], "Quiet": True},
            )


__all__ = ["S3Harness"]
