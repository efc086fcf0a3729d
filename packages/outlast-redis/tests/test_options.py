"""URLs and clients: what is taken, what is refused, and that no secret shows."""

import asyncio
import warnings
from typing import Any

import pytest
import redis.cluster
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.sentinel import Sentinel

from outlast.errors import ConfigurationError, InvalidIdError, UnavailableError
from outlast_redis import RedisBackend, RedisDriver
from outlast_redis._options import link_of_url


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://localhost",
        "redis://user:secret@localhost:1/3?max_connections=7",
        "rediss://localhost?ssl_ca_certs=/etc/ca.pem",
        "valkey://localhost/0",
        "valkeys://localhost",
        "redis+cluster://localhost:7000",
        "rediss+cluster://localhost:7000?ssl_ca_certs=/etc/ca.pem",
        "redis://localhost?cluster=true",
    ],
)
def test_a_url_is_taken_without_io(url: str) -> None:
    RedisDriver.from_url(url, namespace="n")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://:secret@h/0?max_conections=7", "unknown option 'max_conections'"),
        ("redis://:secret@h/zero", "number of a database"),
        ("redis://:secret@h/-1", "number of a database"),
        ("redis://:secret@h/?max_connections=0", "positive number"),
        ("redis://:secret@h/?max_connections=many", "positive number"),
        ("redis://:secret@h/?cluster=perhaps", "true or false"),
        ("redis://:secret@h/?ssl_ca_certs=ca.pem", "rediss://"),
        ("redis+cluster://:secret@h/3", "database 0"),
        ("redis+sentinel://:secret@h", "scheme"),
        ("redis://:secret@h:port", "not a store URL"),
    ],
)
def test_a_bad_url_is_refused_without_its_password(url: str, complaint: str) -> None:
    """The complaint names the part that is wrong."""
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        RedisDriver.from_url(url, namespace="n")
    assert "secret" not in str(caught.value)


def test_keywords_win_over_the_query() -> None:
    """They are checked like the query."""
    RedisDriver.from_url("redis://h?max_connections=0", namespace="n", max_connections=3)
    with pytest.raises(ConfigurationError, match="max_connections"):
        RedisDriver.from_url("redis://h", namespace="n", max_connections=-1)


def test_a_backend_takes_either_a_client_or_a_url() -> None:
    """Neither and both are refused, and what is no client of redis-py's asyncio part."""
    client = Redis()
    RedisBackend(client=client)
    RedisBackend(url="redis://localhost")
    with pytest.raises(ConfigurationError, match="either"):
        RedisBackend()
    with pytest.raises(ConfigurationError, match="either"):
        RedisBackend(client=client, url="redis://localhost")
    with pytest.raises(ConfigurationError, match=r"redis\.asyncio"):
        RedisBackend(client=object())  # type: ignore[arg-type]
    with pytest.raises(InvalidIdError):
        RedisBackend(client=client, namespace="")


def test_clients_that_read_from_replicas_are_refused() -> None:
    """F4: their reads may go back."""
    with warnings.catch_warnings():
        # Newer versions of redis-py prefer another argument; all know this one.
        warnings.simplefilter("ignore", DeprecationWarning)
        balanced = RedisCluster(host="127.0.0.1", port=1, read_from_replicas=True)
    with pytest.raises(ConfigurationError, match="replicas"):
        RedisBackend(client=balanced)
    strategies = getattr(redis.cluster, "LoadBalancingStrategy", ())  # Since redis-py 6.
    for strategy in strategies:
        balanced = RedisCluster(host="127.0.0.1", port=1, load_balancing_strategy=strategy)
        with pytest.raises(ConfigurationError, match="replicas"):
            RedisBackend(client=balanced)
    sentinel = Sentinel([("127.0.0.1", 1)])
    with pytest.raises(ConfigurationError, match="replicas"):
        RedisBackend(client=sentinel.slave_for("main"))
    RedisBackend(client=sentinel.master_for("main"))


async def test_only_the_time_of_a_call_ends_an_attempt_to_connect() -> None:
    """E5, E6: whatever redis-py thinks is long."""
    for url in ("redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1"):
        connect = link_of_url(
            url, timeout=60.0, cluster=None, max_connections=None, ssl_ca_certs=None
        )
        link: Any = connect()
        if link.is_cluster:
            connection = ClusterNode("127.0.0.1", 1, **link._settings).acquire_connection()
        else:
            connection = link._lender._make()
        assert connection.socket_connect_timeout is None
        assert connection.socket_timeout is None
        await link.aclose()


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_a_refused_connection_is_not_tried_again_by_the_client(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5: its own attempts would use up the time of the call, and hide why it fails."""
    attempts: list[object] = []
    connect = asyncio.open_connection

    async def counted(**where: Any) -> Any:
        attempts.append(where)
        return await connect(**where)

    monkeypatch.setattr(asyncio, "open_connection", counted)
    driver = RedisDriver.from_url(f"{scheme}://127.0.0.1:1", namespace="n", timeout=5.0)
    with pytest.raises(UnavailableError, match=r"connecting to 127\.0\.0\.1:1"):
        await driver.setup(create=True)
    assert len(attempts) == 1
    await driver.aclose()
