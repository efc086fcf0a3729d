"""What a server's settings mean for what is stored on it (D1, D2)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from outlast.driver import Capabilities, Survives
from outlast.errors import ConfigurationError
from outlast_redis._errors import is_forbidden
from outlast_redis._links import Command, Link

MAX_MESSAGE_BYTES: Final = 32 * 2**20
_PAUSES: Final = "no-appendfsync-on-rewrite"

LEAST: Final = Capabilities(
    data_survives=frozenset({"process"}),
    fences_survive=frozenset({"process"}),
    reach="network",
    max_message_bytes=MAX_MESSAGE_BYTES,
)
"""What holds whatever the server's settings are."""

Settings = Mapping[str, str]
"""Fields of INFO, and of the configuration ``save`` and what has to do with ``appendfsync``; what
this user may not ask for is missing."""


async def settings_of(link: Link) -> Sequence[Settings]:
    """The settings of each server that holds data."""
    infos = [_fields(answer) for answer in await _ask(link, ("INFO",))]
    # The first one also finds no-appendfsync-on-rewrite.
    for pattern in ("*appendfsync*", "save"):
        for info, answer in zip(infos, await _ask(link, ("CONFIG", "GET", pattern)), strict=False):
            info.update(_pairs(answer))
    return infos


async def _ask(link: Link, command: Command) -> list[Any]:
    try:
        return await link.ask_all(command)
    except ConfigurationError as error:
        if is_forbidden(error):
            return []
        raise


def check(servers: Sequence[Settings], link: Link) -> None:
    """Refuse servers that must not be written to, or not in this way.

    Raises:
        ConfigurationError: A replica, or a cluster's node taken for a single server.
    """
    for server in servers:
        if server.get("role") == "slave":
            raise ConfigurationError(
                f"{link.place} is a replica: reads from it are old and writes refused; "
                "give the primary"
            )
        if server.get("cluster_enabled") == "1" and not link.is_cluster:
            raise ConfigurationError(
                f"{link.place} is a node of a cluster; open it with {link.scheme}+cluster://, "
                "or cluster=true"
            )


def declared(servers: Sequence[Settings]) -> Capabilities:
    """What the servers' settings allow to declare.

    Only with ``appendfsync always`` is a write in the append-only file before it is answered:
    ``everysec`` holds it back for up to two seconds while the disk is busy, and so does
    ``no-appendfsync-on-rewrite`` while the file is rewritten. A failover may promote a replica that
    lacks the newest writes, so nothing is declared for it (R11).
    """
    if not servers or not all(_logs_first(server) for server in servers):
        return LEAST
    survives: frozenset[Survives] = frozenset({"process", "server"})
    return Capabilities(
        data_survives=survives,
        fences_survive=survives,
        reach=LEAST.reach,
        max_message_bytes=MAX_MESSAGE_BYTES,
    )


def _logs_first(server: Settings) -> bool:
    return (
        server.get("aof_enabled") == "1"
        and server.get("appendfsync") == "always"
        and server.get(_PAUSES) == "no"
    )


def hazards(servers: Sequence[Settings]) -> Sequence[str]:
    """Settings under which accepted writes would be lost silently, in words."""
    found: list[str] = []
    for server in servers:
        policy = server.get("maxmemory_policy", "")
        if policy.startswith("allkeys"):
            limit = server["maxmemory_human"] if server.get("maxmemory") != "0" else "not set"
            found.append(
                f"maxmemory-policy is {policy}: at the memory limit ({limit}) the server removes "
                "tasks and fences without a word; set it to noeviction"
            )
        if server.get("aof_enabled") == "0":
            lost = "everything" if server.get("save") == "" else "what came after the last snapshot"
            found.append(
                f"appendonly is off: a crash of the server loses {lost}; set appendonly to yes and "
                "appendfsync to always"
            )
        elif server.get("appendfsync") in ("everysec", "no"):
            found.append(
                f"appendfsync is {server['appendfsync']}: a crash of the server may lose the "
                "newest writes and fences, although they were acknowledged; set it to always"
            )
        if server.get("aof_enabled") == "1" and server.get(_PAUSES) == "yes":
            found.append(
                f"{_PAUSES} is yes: while the append-only file is rewritten, nothing is synced, "
                "and a crash may lose acknowledged writes and fences; set it to no"
            )
    return list(dict.fromkeys(found))


def _pairs(answer: Any) -> dict[str, str]:
    # A dict (RESP3), or names and values by turns.
    pairs = (
        answer.items() if hasattr(answer, "items") else zip(answer[::2], answer[1::2], strict=True)
    )
    return {name.decode(): value.decode() for name, value in pairs}


def _fields(answer: Any) -> dict[str, str]:
    lines = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


__all__ = ["LEAST", "MAX_MESSAGE_BYTES", "Settings", "check", "declared", "hazards", "settings_of"]
