"""S3 and compatible stores, read with boto3."""

import asyncio
from collections.abc import Iterable, Iterator
from hashlib import sha256
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from outlast_contract.harness import UrlHarness

# Neither has types.
_boto3: Any = import_module("boto3")
_Config: Any = import_module("botocore.config").Config

_CREDENTIALS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


class S3Harness(UrlHarness):
    """A prefix of a bucket, by the URL of outlast."""

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """All objects of the namespace."""
        parts = urlsplit(str(self.url))
        settings = {**dict(parse_qsl(parts.query)), **self.options}
        prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
        folder = f"{prefix}{sha256(namespace.encode()).hexdigest()[:32]}/"
        return await asyncio.to_thread(lambda: list(_objects(settings, parts.netloc, folder)))


def _objects(settings: dict[str, Any], bucket: str, folder: str) -> Iterator[tuple[str, bytes]]:
    session = _boto3.Session(
        profile_name=settings.get("profile"), region_name=settings.get("region")
    )
    style = settings.get("addressing_style")
    client: Any = session.client(
        "s3",
        endpoint_url=settings.get("endpoint_url"),
        config=_Config(s3={"addressing_style": style}) if style else None,
        **{name: settings[name] for name in _CREDENTIALS if name in settings},
    )
    try:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=folder):
            for entry in page.get("Contents", ()):
                name = str(entry["Key"])
                try:
                    answer = client.get_object(Bucket=bucket, Key=name)
                except client.exceptions.NoSuchKey:  # removed in between
                    continue
                yield name, answer["Body"].read()
    finally:
        client.close()


__all__ = ["S3Harness"]
