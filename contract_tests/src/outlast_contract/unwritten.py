"""Drivers that are still being written: what waits for which method.

The skeleton of ``outlast new-backend`` raises `outlast.driver.NotWrittenError` in each method.
Checks that meet it have failed; what a person wants to know of hundreds of them is what to write
next.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from outlast.driver import Driver
from outlast_contract.engine import Result

_TEXT: Final = re.compile(r"(?P<method>\w+)\(\) is not written yet: (?P<task>.+?)(?=['\"]\)|\n|$)")
"""In an error's text, or within the repr of an error."""

_ORDER: Final = [name for name in vars(Driver) if not name.startswith("_")]


class Missing(NamedTuple):
    """A method that is not written.

    Attributes:
        method: Its name.
        task: What it is to do.
        checks: How many failed for the lack of it.
    """

    method: str
    task: str
    checks: int


def missing_in(detail: str) -> str | None:
    """What is not written, if that is why a check failed."""
    found = _TEXT.search(detail)
    return None if found is None else found[0]


def missing_methods(results: Iterable[Result]) -> list[Missing]:
    """The methods that checks failed for, in the order in which to write them."""
    failed = [_TEXT.search(one.detail) for one in results if one.status == "failed"]
    found = [match for match in failed if match is not None]
    counts = Counter(match["method"] for match in found)
    tasks = {match["method"]: match["task"] for match in found}
    methods = sorted(counts, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    return [Missing(method, tasks[method], counts[method]) for method in methods]


def lines_of(results: Iterable[Result]) -> Iterator[str]:
    """What to write next, for people; nothing if no check failed for that."""
    missing = missing_methods(results)
    if not missing:
        return
    yield "Not written yet, in the order in which to write them:"
    for number, one in enumerate(missing):
        checks = "1 check waits" if one.checks == 1 else f"{one.checks} checks wait"
        yield f"{'->' if not number else '  '} {one.method:<8} {checks} for it"
        if not number:
            yield f"            {one.task}"


__all__ = ["Missing", "lines_of", "missing_in", "missing_methods"]
