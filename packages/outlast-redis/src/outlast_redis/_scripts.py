"""The Lua scripts: one step on the server each, sent by their hash (R8)."""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from outlast_redis._links import Command, Link, is_noscript

Call = tuple["Script", Sequence[bytes], Sequence[bytes | str | int]]
"""A script, its keys, which are all on one slot, and its arguments."""


class Script:
    """One script; its text is that of the named files, one behind the other."""

    def __init__(self, *names: str) -> None:
        """Read the text."""
        folder = files("outlast_redis") / "lua"
        self._text = "".join((folder / f"{name}.lua").read_text("utf-8") for name in names)
        self._hash = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    def by_hash(self, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]) -> Command:
        """The command that a server understands that has seen the script."""
        return ("EVALSHA", self._hash, len(keys), *keys, *arguments)

    def by_text(self, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]) -> Command:
        """The command for a server that has not, or no more: it was restarted, or flushed."""
        return ("EVAL", self._text, len(keys), *keys, *arguments)


SETUP: Final = Script("setup")
READ: Final = Script("common", "read")
CLAIM: Final = Script("common", "record", "claim")
WRITE: Final = Script("common", "record", "write")
APPEND: Final = Script("common", "record", "append")
REPLACE: Final = Script("common", "record", "replace")
STAGE: Final = Script("common", "stage")
FLIP: Final = Script("common", "record", "flip")
REMOVE: Final = Script("common", "record", "remove")
MATCH: Final = Script("common", "match")
EXPIRED: Final = Script("common", "expired")
SWEEP: Final = Script("common", "sweep")


async def run(
    link: Link,
    script: Script,
    keys: Sequence[bytes],
    arguments: Sequence[bytes | str | int] = (),
) -> Any:
    """What a script returned."""
    answer = await link.send(keys[0], script.by_hash(keys, arguments))
    if is_noscript(answer):
        answer = await link.send(keys[0], script.by_text(keys, arguments))
    return answer


async def run_all(link: Link, calls: Sequence[Call]) -> list[Any]:
    """What several scripts returned, sent together."""
    answers = await link.send_all(
        [(keys[0], script.by_hash(keys, arguments)) for script, keys, arguments in calls]
    )
    for place, (script, keys, arguments) in enumerate(calls):
        if is_noscript(answers[place]):
            answers[place] = await run(link, script, keys, arguments)
    return answers


__all__ = [
    "APPEND",
    "CLAIM",
    "EXPIRED",
    "FLIP",
    "MATCH",
    "READ",
    "REMOVE",
    "REPLACE",
    "SETUP",
    "STAGE",
    "SWEEP",
    "WRITE",
    "Call",
    "Script",
    "run",
    "run_all",
]
