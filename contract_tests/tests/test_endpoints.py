"""Where a proxy can stand before a store, told by its URL, and the URL with the proxy in it."""

from typing import Any

import pytest

from outlast_contract.expect import NotRun
from outlast_contract.faults.endpoints import endpoints_of, moved

PROXY = ("127.0.0.1", 50001)

MOVED: dict[str, tuple[dict[str, str], tuple[str, int], str, str, dict[str, str]]] = {
    "redis://:p%40ss@store:7000/2": (
        {},
        ("store", 7000),
        "redis",
        "redis://:p%40ss@127.0.0.1:50001/2",
        {},
    ),
    "valkey://store": ({}, ("store", 6379), "redis", "valkey://127.0.0.1:50001", {}),
    "redis://[::1]:7000": ({}, ("::1", 7000), "redis", "redis://127.0.0.1:50001", {}),
    "postgresql+asyncpg://me:pw@db/name?application_name=x": (
        {},
        ("db", 5432),
        "postgresql",
        "postgresql+asyncpg://me:pw@127.0.0.1:50001/name?application_name=x",
        {},
    ),
    "mariadb://me@db:3307/name": (
        {},
        ("db", 3307),
        "mysql",
        "mariadb://me@127.0.0.1:50001/name",
        {},
    ),
    "mongodb://me:pw@db:27018/name?replicaSet=rs0&w=majority": (
        {"driver": "motor"},
        ("db", 27018),
        "mongodb",
        "mongodb://me:pw@127.0.0.1:50001/name?w=majority&directConnection=true",
        {"driver": "motor"},
    ),
    "s3://bucket/prefix?endpoint_url=http://store:9000&region=r": (
        {},
        ("store", 9000),
        "http",
        "s3://bucket/prefix?region=r",
        {"endpoint_url": "http://127.0.0.1:50001"},
    ),
    "s3://bucket": (
        {"endpoint_url": "http://store", "region": "r"},
        ("store", 80),
        "http",
        "s3://bucket",
        {"endpoint_url": "http://127.0.0.1:50001", "region": "r"},
    ),
    "nats://store:4222/bucket": (
        {},
        ("store", 4222),
        "turns",
        "nats://127.0.0.1:50001/bucket",
        {},
    ),
}


@pytest.mark.parametrize("url", MOVED)
def test_a_url_is_rewritten_and_nothing_else_of_it(url: str) -> None:
    """Credentials, paths, and options stay as they are."""
    options, address, wire, wanted, given = MOVED[url]
    endpoints = endpoints_of(url, options)
    assert endpoints.addresses == (address,)
    assert endpoints.wire == wire
    found: tuple[str, dict[str, Any]] = moved(url, options, {address: PROXY})
    assert found == (wanted, given)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://name", "no host"),
        ("file:///folder", "no host"),
        ("sqlite:////folder/x.db", "no host"),
        ("sqlite:///x.db", "no host"),
        ("nats://store", "no host"),
        ("rediss://store:6379", "encrypted"),
        ("postgresql://db/x?sslmode=require", "encrypted"),
        ("mongodb://db/?tls=true", "encrypted"),
        ("mongodb+srv://db/x", "DNS"),
        ("redis+cluster://store:7000", "nodes of a cluster"),
        ("redis://store:7000?cluster=true", "nodes of a cluster"),
        ("mongodb://a:1,b:2/x", "replica set"),
        ("s3://bucket", "endpoint_url"),
        ("s3://bucket?endpoint_url=https://store", "endpoint_url"),
    ],
)
def test_where_nothing_can_stand_in_between_the_reason_is_said(url: str, reason: str) -> None:
    with pytest.raises(NotRun, match=reason):
        endpoints_of(url, {})
