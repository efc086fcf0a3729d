"""Whether the user may do what is needed, asked on opening: what fails later stays half done.

Redis does not undo what a script wrote before a command that its user may not run.
"""

from typing import Any, Final

from outlast.errors import ConfigurationError
from outlast_redis import _scripts
from outlast_redis._keys import Keys
from outlast_redis._links import Link
from outlast_redis._scripts import run

_RULES: Final = "+@read +@write +eval +evalsha +time"
_CLUSTER: Final = " +asking +cluster|slots"


async def open_namespace(link: Link, keys: Keys, create: str) -> Any:
    """The format of the namespace, which is ``create`` if it had none, and that is not empty.

    Who may read everything and write nothing is let in, unless the namespace is to be created:
    each of its mutations fails at the first write.

    Raises:
        ConfigurationError: This user may not run a command, or touch keys; it says which.
    """
    try:
        found, refused, unknown, is_key, is_reader = await run(
            link,
            _scripts.SETUP,
            [keys.format, keys.none],
            [create, keys.head(0, b""), "1" if link.is_cluster else ""],
        )
    except ConfigurationError as error:
        if "NOPERM" in error.message:
            needed = f"{keys.patterns} {_RULES}{_CLUSTER if link.is_cluster else ''}"
            # A cluster's node names itself alone.
            place = "" if link.place in error.message else f"{link.place}: "
            raise ConfigurationError(f"{place}{error.message}; {_grant(needed)}") from error
        raise
    if unknown:
        raise ConfigurationError(
            f"{link.place} does not know {_words(unknown)}, which this backend needs; it is too "
            "old, or they were renamed or switched off"
        )
    if not (refused or is_key) or (is_reader and not create):
        return found
    rules = [f"+{name.decode().lower()}" for name in refused]
    what = [f"run {_words(refused)}"] if refused else []
    if is_key:
        what.append("read and write all keys of the namespace")
        rules.insert(0, keys.patterns)
    raise ConfigurationError(
        f"{link.place}: this user may not {' or '.join(what)}; {_grant(' '.join(rules))}"
    )


def _grant(rules: str) -> str:
    return f"let an administrator grant it: ACL SETUSER <user> {rules}"


def _words(names: list[bytes]) -> str:
    return ", ".join(name.decode() for name in names)


__all__ = ["open_namespace"]
