"""The entry point: what this distribution offers, without importing a driver."""

import outlast


@outlast.hookimpl
def outlast_backends() -> list[outlast.BackendInfo]:
    """The backends of this distribution."""
    return [
        outlast.BackendInfo(
            name="nats",
            schemes=("nats",),
            factory="outlast_nats.driver:NatsDriver.from_url",
            summary="NATS JetStream, a key-value bucket",
        )
    ]
