"""S3 and compatible object stores as a store for outlast.

``outlast.open_backend("s3://bucket/prefix")`` needs nothing from here; `S3Backend` takes a client
of boto3 that the application has already.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast_s3._backend import S3Backend
    from outlast_s3._driver import S3Driver

__version__ = "0.1.0"

_HOMES = {"S3Backend": "outlast_s3._backend", "S3Driver": "outlast_s3._driver"}


def __getattr__(name: str) -> object:
    # The entry point lies below this package: finding it must not import boto3.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["S3Backend", "S3Driver"]
