"""The entry point: what this distribution offers, without importing a driver."""

import outlast


@outlast.hookimpl
def outlast_backends() -> list[outlast.BackendInfo]:
    """The backends of this distribution."""
    return [
        outlast.BackendInfo(
            name="s3",
            schemes=("s3",),
            factory="outlast_s3:S3Driver.from_url",
            summary="S3 and compatible object stores with conditional writes",
        )
    ]
