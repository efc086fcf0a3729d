"""What the settings of a database promise: refused, declared, or reported as a hazard."""

from typing import Any, Final

from pymongo import WriteConcern
from pymongo.read_concern import ReadConcern

from outlast.driver import Capabilities, Survives
from outlast.errors import ConfigurationError
from outlast_mongo._errors import explained
from outlast_mongo._store import Database

MAX_MESSAGE_BYTES: Final = 15 * 2**20
"""A document of 16 MiB holds it with its id and its envelope."""


class Durability:
    """The write concern and the read concern for a database, and what follows from them.

    Majority and journal, unless another one was chosen for the client or the database. Reads return
    what a majority has, unless writes do not wait for that. Then what was read need not be there to
    stay, and whatever rests on it is confirmed by a write.

    Raises:
        ConfigurationError: It reads from secondaries, whose answers may go back (F4), or does not
            acknowledge writes.
    """

    def __init__(self, settings: Database, described: str) -> None:
        """Look at the settings of a database.

        Args:
            settings: Its read preference and write concern count.
            described: Which database, for people.
        """
        preference, chosen = settings.read_preference, settings.write_concern
        if preference.mode:
            raise ConfigurationError(
                f"{described} is set to read from secondaries ({preference.mongos_mode}), which "
                "may be behind; use the read preference 'primary'"
            )
        if not chosen.acknowledged:
            raise ConfigurationError(f"{described} does not acknowledge writes; leave w=0 out")
        document: dict[str, Any] = {"w": "majority", "j": True, **chosen.document}
        with explained(described, changes=False):
            self.write_concern = WriteConcern(**document)
        self._described = described
        self._acknowledging = document["w"]
        self._is_majority = self._acknowledging == "majority"
        self._is_journaled = bool(document["j"])
        # What is acknowledged earlier would be read later than it was done (F4).
        self._is_final = self._is_majority and self._is_journaled
        self.read_concern = ReadConcern("majority" if self._is_final else "local")

    @property
    def capabilities(self) -> Capabilities:
        """What survives a done write, whatever the number of members."""
        survives: set[Survives] = {"process"}
        if self._is_journaled:
            survives.add("server")
        if self._is_final:  # Else a failover may take back what was read (F4).
            survives.add("failover")
        return Capabilities(
            data_survives=frozenset(survives),
            fences_survive=frozenset(survives),
            reach="network",
            max_message_bytes=MAX_MESSAGE_BYTES,
        )

    def hazards(self, *, has_failovers: bool) -> list[str]:
        """What would be lost silently (D2); ``has_failovers``: another member may take over."""
        found: list[str] = []
        if has_failovers and not self._is_majority:
            found.append(
                f"{self._described} acknowledges writes with w={self._acknowledging}: a failover "
                "loses accepted writes and fences, or takes back what was read; use w=majority, or "
                "leave w out"
            )
        elif has_failovers and not self._is_final:
            found.append(
                f"{self._described} acknowledges and shows writes before they are in the journal: "
                "a failover may take back what was read; leave journal=false out"
            )
        if not self._is_journaled:
            found.append(
                f"{self._described} acknowledges writes before they are in the journal: a crash of "
                "the server loses accepted writes and fences; leave journal=false out"
            )
        return found


__all__ = ["MAX_MESSAGE_BYTES", "Durability"]
