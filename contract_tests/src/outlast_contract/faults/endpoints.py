"""Where the clients of a store connect to, read from its URL, and the URL with other addresses."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from outlast_contract.expect import NotRun
from outlast_contract.faults.wires import Address

_PLAIN: Final = {
    "redis": ("redis", 6379),
    "valkey": ("redis", 6379),
    "postgresql": ("postgresql", 5432),
    "mysql": ("mysql", 3306),
    "mariadb": ("mysql", 3306),
    "mongodb": ("mongodb", 27017),
}
"""Wire and default port of each scheme."""
_TRUE: Final = ("true", "True", "1")
_ENCRYPTED: Final = {"rediss", "valkeys", "https", "tls"}
_AUTHORITY = re.compile(
    r"(?P<before>[^:/]+://(?:[^@/?#]*@)?)(?P<hosts>[^/?#@]*)(?P<rest>.*)", re.DOTALL
)
_HOST = re.compile(r"(?P<host>\[[^\]]+\]|[^:]+)(?::(?P<port>\d+))?")
_ENDPOINT: Final = "endpoint_url"


@dataclass(frozen=True)
class Endpoints:
    """Addresses of a store, and the protocol that is spoken there.

    Attributes:
        addresses: Host and port of each; all that clients connect to.
        wire: One of ``outlast_contract.faults.wires.WIRES``; ``turns`` if it is another protocol.
    """

    addresses: tuple[Address, ...]
    wire: str = "turns"


def endpoints_of(url: str, options: Mapping[str, Any]) -> Endpoints:
    """The endpoints that a URL and its options name.

    Raises:
        NotRun: It names none that a proxy can stand before.
    """
    scheme, _, drivers = url.partition("://")[0].lower().partition("+")
    if scheme == "s3":
        return _of_s3(url, options)
    if "srv" in drivers:
        raise NotRun("the addresses are found through DNS, so nothing can stand in between")
    if scheme in _ENCRYPTED or _wants_encryption(url):
        raise NotRun("the connection is encrypted, so nothing can stand in between")
    if drivers == "cluster" or str(_query(url).get("cluster", options.get("cluster"))) in _TRUE:
        raise NotRun("the nodes of a cluster tell clients their addresses: Harness.endpoints()")
    wire, default = _PLAIN.get(scheme, ("turns", 0))
    match = _AUTHORITY.fullmatch(url)
    addresses = _addresses(match["hosts"], default) if match else ()
    if not addresses:
        raise NotRun("the URL names no host and port, so there is no network to disturb")
    if wire == "mongodb" and len(addresses) > 1:
        raise NotRun("the members of a replica set tell clients their own addresses")
    return Endpoints(addresses, wire)


def moved(
    url: str, options: Mapping[str, Any], addresses: Mapping[Address, Address]
) -> tuple[str, dict[str, Any]]:
    """URL and options with other addresses."""
    options = dict(options)
    scheme = url.partition("://")[0].lower().partition("+")[0]
    if scheme == "s3":
        endpoint = str(options.pop(_ENDPOINT, "") or _query(url).get(_ENDPOINT, ""))
        options[_ENDPOINT] = _moved(endpoint, 80, addresses)
        return _without(url, _ENDPOINT), options
    url = _moved(url, _PLAIN.get(scheme, ("", 0))[1], addresses)
    if scheme == "mongodb":
        # Otherwise it asks for the members of the replica set, and connects to those.
        url = _without(url, "replicaSet", directConnection="true")
    return url, options


def _of_s3(url: str, options: Mapping[str, Any]) -> Endpoints:
    endpoint = str(options.get(_ENDPOINT) or _query(url).get(_ENDPOINT, ""))
    if not endpoint.startswith("http://"):
        raise NotRun("needs an endpoint_url of http://: other connections are encrypted")
    match = _AUTHORITY.fullmatch(endpoint)
    assert match is not None
    return Endpoints(_addresses(match["hosts"], 80), "http")


def _wants_encryption(url: str) -> bool:
    query = {name.lower(): value.lower() for name, value in _query(url).items()}
    return any(
        query.get(name) in ("true", "1", "require", "verify-ca", "verify-full")
        for name in ("tls", "ssl", "sslmode")
    )


def _query(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def _addresses(hosts: str, default: int) -> tuple[Address, ...]:
    found: list[Address] = []
    for part in filter(None, hosts.split(",")):
        match = _HOST.fullmatch(part)
        if match is None or not (match["port"] or default):
            return ()
        found.append((unquote(match["host"]).strip("[]"), int(match["port"] or default)))
    return tuple(found)


def _moved(url: str, default: int, addresses: Mapping[Address, Address]) -> str:
    match = _AUTHORITY.fullmatch(url)
    assert match is not None
    places = [addresses[address] for address in _addresses(match["hosts"], default)]
    hosts = ",".join(f"{host}:{port}" for host, port in places)
    return f"{match['before']}{hosts}{match['rest']}"


def _without(url: str, name: str, **more: str) -> str:
    base, _, query = url.partition("?")
    pairs = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != name]
    pairs += [pair for pair in more.items() if pair[0] not in dict(pairs)]
    return f"{base}?{urlencode(pairs, quote_via=quote)}" if pairs else base


__all__ = ["Endpoints", "endpoints_of", "moved"]
