"""What a test of the suite tells the report files of its run, if there are to be some."""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from outlast_contract._interrupts import run_in_own_loop
from outlast_contract.engine import Result, Settings
from outlast_contract.harness import Harness
from outlast_contract.recording import NOTHING, Recording
from outlast_contract.versions import versions_of

VARIABLE: Final = "OUTLAST_CONTRACT_REPORTS"


class More(msgspec.Struct, frozen=True):
    """What a result has beside what every run records; it may come from another process.

    Attributes:
        trace: Of the result.
        recording: Of the result.
        seed: Of the run.
        versions: Of the store and what leads to it.
    """

    trace: str = ""
    recording: Recording = NOTHING
    seed: int = 0
    versions: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


def reports_folder() -> Path | None:
    """Where report files are to be written, by the environment."""
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


def more_of(result: Result, make_harness: Callable[[], Harness], settings: Settings) -> str:
    """It as text."""
    versions = _versions(make_harness, settings.run)
    more = More(result.trace, result.recording, settings.seed, versions)
    return msgspec.json.encode(more).decode()


def more_in(text: str | None) -> More:
    """What `more_of` made."""
    return msgspec.json.decode(text, type=More) if text else More()


@functools.lru_cache
def _versions(make_harness: Callable[[], Harness], run: str) -> Mapping[str, str]:
    """Of the store, which is asked once."""
    try:
        return run_in_own_loop(lambda: versions_of(make_harness(), run))
    except Exception:  # noqa: BLE001 - a report without them is still a report
        return {}


__all__ = ["VARIABLE", "More", "more_in", "more_of", "reports_folder"]
