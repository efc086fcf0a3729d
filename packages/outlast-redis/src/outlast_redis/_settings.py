"""What a server's settings mean for what is stored on it (D1, D2)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from outlast.driver import Capabilities, Survives
from outlast.errors import ConfigurationError, OutlastError
from outlast_redis._links import Link

MAX_MESSAGE_BYTES: Final = 32 * 2**20

LEAST: Final = Capabilities(
    data_survives=frozenset({"process"}),
    fences_survive=frozenset({"process"}),
    reach="network",
    max_message_bytes=MAX_MESSAGE_BYTES,
)
"""What holds whatever the server's settings are."""

Info = Mapping[str, str]


async def infos(link: Link) -> Sequence[Info]:
    """What each server says of itself; nothing of those that this user may not ask."""
    try:
        answers = await link.ask_all(("INFO",))
    except ConfigurationError as error:
        if _is_forbidden(error):
            return ()
        raise
    return [_fields_of(answer) for answer in answers]


def check(servers: Sequence[Info], place: str, *, is_cluster: bool) -> None:
    """Refuse servers that must not be written to, or not in this way.

    Raises:
        ConfigurationError: A replica, or a cluster's node taken for a single server.
    """
    for info in servers:
        if info.get("role") == "slave":
            raise ConfigurationError(
                f"{place} is a replica: reads from it are old and writes refused; give the primary"
            )
        if info.get("cluster_enabled") == "1" and not is_cluster:
            raise ConfigurationError(
                f"{place} is a node of a cluster; open it with redis+cluster://, or cluster=true"
            )


def declared(servers: Sequence[Info]) -> Capabilities:
    """What the servers' settings allow to declare.

    With an append-only file, a done write survives the death of the server process. How much
    of its last second the death of the host takes depends on ``appendfsync``. A failover may
    promote a replica that lacks the newest writes, so nothing is declared for it (R11).
    """
    if not servers or any(info.get("aof_enabled") != "1" for info in servers):
        return LEAST
    survives: frozenset[Survives] = frozenset({"process", "server"})
    return Capabilities(
        data_survives=survives,
        fences_survive=survives,
        reach=LEAST.reach,
        max_message_bytes=MAX_MESSAGE_BYTES,
    )


async def hazards(link: Link) -> Sequence[str]:
    """Settings under which accepted writes would be lost silently, in words."""
    found: list[str] = []
    for info in await infos(link):
        policy = info.get("maxmemory_policy", "")
        if policy.startswith("allkeys"):
            limit = info.get("maxmemory_human", "?") if info.get("maxmemory") != "0" else "not set"
            found.append(
                f"maxmemory-policy is {policy}: at the memory limit ({limit}) the server removes "
                "tasks and fences without a word; set it to noeviction"
            )
        if info.get("aof_enabled") == "0":
            found.append(await _without_log(link))
    return list(dict.fromkeys(found))


async def _without_log(link: Link) -> str:
    advice = "set appendonly to yes"
    try:
        answers = await link.ask_all(("CONFIG", "GET", "save"))
    except OutlastError:
        # Forbidden to this user, or renamed by the provider: advice is all that is lost.
        return f"appendonly is off: a restart loses what came after the last snapshot; {advice}"
    if all(_saves_nothing(answer) for answer in answers):
        return f"the server stores nothing on disk: a restart loses everything; {advice}"
    return f"appendonly is off: a restart loses what came after the last snapshot; {advice}"


def _saves_nothing(answer: Any) -> bool:
    # Pairs, as a dict (RESP3) or one behind the other.
    values: list[Any] = list(answer.values() if isinstance(answer, dict) else answer)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return not values or values[-1] == b""


def _is_forbidden(error: OutlastError) -> bool:
    cause = error.__cause__
    return isinstance(cause, ResponseError) and any(
        word in f"{type(cause).__name__} {cause}" for word in ("NoPermission", "unknown command")
    )


def _fields_of(answer: Any) -> Info:
    text = answer.decode(errors="replace")
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value for name, colon, value in lines if colon}


__all__ = ["LEAST", "Info", "check", "declared", "hazards", "infos"]
