"""The one place that imports boto3 and botocore, which come without types."""

from collections.abc import Mapping
from typing import Any, Final

import boto3.session  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
import botocore.exceptions  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
import botocore.session  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
from botocore.config import (  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
    Config,
)

from outlast_s3._lines import watch

_errors: Final[Any] = botocore.exceptions
_session: Final[Any] = boto3.session
_core: Final[Any] = botocore.session

_loaders: Final[dict[str | None, Any]] = {}
"""Of botocore, for each path of data; they remember what they read."""

_ASKS_FROM: Final = 2**20
"""Bytes; before a larger body botocore asks the store whether it wants it at all."""

Errors = tuple[type[Exception], ...]

ANSWERED: Final[Errors] = (_errors.ClientError,)
"""The store answered with an error."""

NOT_SENT: Final[Errors] = (
    _errors.EndpointConnectionError,
    _errors.ConnectTimeoutError,
    _errors.ProxyConnectionError,
)
"""There was no connection for this attempt."""

NO_TLS: Final[Errors] = (_errors.SSLError,)
"""There was no connection, since the two sides do not agree on TLS, or one is not trusted."""

UNANSWERED: Final[Errors] = (
    _errors.ConnectionError,
    _errors.HTTPClientError,
    _errors.IncompleteReadError,
)
"""Something happened to a connection, at whatever time."""

FAILED: Final[Errors] = (_errors.BotoCoreError,)
"""The rest: credentials, parameters, configuration; nothing was sent."""


class Settings:
    """How a client is made; see `make_client`.

    Args:
        endpoint_url: Of a compatible store; ``None``: what the environment says, or AWS.
        region: ``None``: what the environment says.
        profile: Of the AWS configuration files.
        addressing_style: ``path``, ``virtual`` or ``auto``.
        credentials: ``aws_access_key_id`` and so on; without them boto3 looks for itself.
        timeout: Seconds that one call may take.
        connections: How many there may be at once.
    """

    def __init__(
        self,
        *,
        endpoint_url: str | None,
        region: str | None,
        profile: str | None,
        addressing_style: str | None,
        credentials: Mapping[str, str],
        timeout: float,
        connections: int,
    ) -> None:
        """Keep them."""
        self._endpoint_url = endpoint_url
        self._region = region
        self._profile = profile
        self._credentials = dict(credentials)
        self._config = Config(
            # A repetition that the caller does not know of would look like a lost race.
            retries={"total_max_attempts": 1, "mode": "standard"},
            # Newer checksums than a compatible store may know are left out.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # With an endpoint of one's own, botocore takes that for "path".
            s3={"addressing_style": addressing_style or "auto"},
            connect_timeout=timeout / 4,
            read_timeout=timeout * 0.7,
            max_pool_connections=connections,
        )

    def make_client(self) -> Any:
        """A client of boto3; reads files and may take a while."""
        session = _session.Session(
            botocore_session=_session_with_known_models(),
            profile_name=self._profile,
            region_name=self._region,
            **self._credentials,
        )
        region = session.region_name
        if region is None and self._endpoint_url is not None:
            region = "us-east-1"  # Signatures need one; compatible stores take any.
        client = session.client(
            "s3", endpoint_url=self._endpoint_url, region_name=region, config=self._config
        )
        client.meta.events.register_last("before-call.s3", _send_at_once)
        watch(getattr(_http_session(client), "_pool_classes_by_scheme", {}))
        return client


def _session_with_known_models() -> Any:
    """A session that reads the description of S3's API only if no other one did before.

    That takes most of the time of making a client, and says nothing of credentials or settings.
    """
    session = _core.get_session()
    loader = _loaders.setdefault(
        session.get_config_variable("data_path"), session.get_component("data_loader")
    )
    # Each session of boto3 adds the same path to it.
    loader.search_paths[:] = dict.fromkeys(loader.search_paths)
    session.register_component("data_loader", loader)
    return session


def _send_at_once(params: dict[str, Any], **_: Any) -> None:
    """Let botocore send a small body without asking first, which would cost a round trip (P1)."""
    view = getattr(params.get("body"), "getbuffer", None)
    if view is not None and len(view()) <= _ASKS_FROM:
        params["headers"].pop("Expect", None)


def close(client: Any) -> None:
    """Close a client and its idle connections.

    Its own ``close`` forgets the pools of urllib3, whose connections then stay open until the
    garbage collector finds them.
    """
    session = _http_session(client)
    managers: list[Any] = [getattr(session, "_manager", None)]
    managers += getattr(session, "_proxy_managers", {}).values()
    pools = [
        manager.pools.get(key)
        for manager in managers
        if manager is not None
        for key in list(manager.pools.keys())
    ]
    client.close()
    for pool in pools:
        if pool is not None:
            pool.close()


def _http_session(client: Any) -> Any:
    return getattr(getattr(client, "_endpoint", None), "http_session", None)


def repeats(client: Any) -> bool:
    """Whether a client sends a request again by itself; as boto3 makes one, it does."""
    retries: Any = client.meta.config.retries or {}
    return bool(retries.get("total_max_attempts") != 1)


def connections_of(client: Any) -> int:
    """How many connections a client keeps."""
    return int(client.meta.config.max_pool_connections)


def endpoint_of(client: Any) -> str:
    """Where a client sends its requests."""
    return str(client.meta.endpoint_url)


def is_client(client: object) -> bool:
    """Whether it is a client of boto3 for S3."""
    meta = getattr(client, "meta", None)
    model = getattr(meta, "service_model", None)
    return getattr(model, "service_name", None) == "s3" and hasattr(client, "put_object")


__all__ = [
    "ANSWERED",
    "FAILED",
    "NOT_SENT",
    "NO_TLS",
    "UNANSWERED",
    "Settings",
    "close",
    "connections_of",
    "endpoint_of",
    "is_client",
    "repeats",
]
