"""The Lua scripts: one step on the server each, sent by their hash (R8)."""

import hashlib
import re
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
        body = "".join((folder / f"{name}.lua").read_text("utf-8") for name in names)
        self._text = _guard(body) + body
        self._hash = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    def by_hash(self, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]) -> Command:
        """The command that a server understands that has seen the script."""
        return ("EVALSHA", self._hash, len(keys), *keys, *arguments)

    def by_text(self, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]) -> Command:
        """The command for a server that has not, or no more: it was restarted, or flushed."""
        return ("EVAL", self._text, len(keys), *keys, *arguments)


def commands_of(text: str) -> set[str]:
    """The commands that a script may run."""
    return set(re.findall(r"redis\.call\('([A-Z]+)'", text))


def _guard(text: str) -> str:
    """What stops a script at its beginning, if its user may not run it to its end.

    Rules may change after the opening. Before Redis 7 a script cannot know them.
    """
    if "acl_check_cmd" in text:
        return ""
    listed = ", ".join(f"'{name}'" for name in sorted(commands_of(text)))
    return (
        f"for _, name in ipairs(redis.acl_check_cmd and {{{listed}}} or {{}}) do\n"
        "  if not redis.acl_check_cmd(name, KEYS[1], KEYS[1]) then\n"
        "    return redis.error_reply('NOPERM no permission to run ' .. name)\n"
        "  end\n"
        "end\n"
    )


SETUP: Final = Script("setup")
READ: Final = Script("common", "read")
CLAIM: Final = Script("common", "record", "claim")
WRITE: Final = Script("common", "record", "write")
APPEND: Final = Script("common", "push", "record", "append")
REPLACE: Final = Script("common", "push", "record", "replace")
STAGE: Final = Script("common", "push", "stage")
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
    "commands_of",
    "run",
    "run_all",
]
