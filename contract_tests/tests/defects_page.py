"""The page "Which clause catches which defect", made of the broken backends of these tests.

``python contract_tests/tests/defects_page.py`` writes it anew.
"""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import test_broken_layers as layers
import test_broken_networking as networking
import test_broken_openings as openings
import test_broken_processes as processes
import test_broken_sharing as sharing
from broken_backends import MUTANTS, files, onefile

from outlast.contracts import DriverBackend
from outlast_contract.clauses import CLAUSES, clause_key
from outlast_contract.engine import all_checks

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/defects.md"

HEAD = """\
# Which clause catches which defect

The suite is itself tested, by {count} backends that are wrong. Each is one change away from a
correct one and must fail by the clause that it breaks, while the correct ones pass. A defect may
show in other clauses, too, but in no more than those that are named: nothing else may be called
broken. Where a defect shows at random moments, one of several clauses must find it, and all of them
are named.

This page is made of the broken backends in `contract_tests/tests`, and a test sees to it that it is
up to date.

"""


class Row(NamedTuple):
    """One defect.

    Attributes:
        clauses: Those of which one must find it broken.
        others: Those that may be found broken with them.
        store: What it is a defect of.
    """

    clauses: tuple[str, ...]
    defect: str
    store: str
    others: tuple[str, ...] = ()


def rows() -> list[Row]:
    """All defects, in the order of the contract."""
    found = [
        Row(
            (one.breaks,),
            one.defect,
            "file" if one.harness.__module__ == files.__name__ else "memory",
            tuple(sorted(one.may_fail - {one.breaks}, key=clause_key)),
        )
        for one in MUTANTS.values()
    ]
    found += [Row((clause,), _doc(part), "any driver") for part, clause in layers.LAYERS.items()]
    found += [Row((clause,), text, "any driver") for text, (_, clause) in layers.ATTEMPTS.items()]
    found += [Row(("E4",), _doc(part), "any driver") for part in layers.TALKATIVE]
    found += [
        Row((clause,), _doc(part), "Redis") for part, (_, clause) in networking.BROKEN.items()
    ]
    found += [
        Row(
            (clause,),
            _doc(part),
            "any driver" if issubclass(part, DriverBackend) else "Redis",
        )
        for part, (_, clause) in openings.BROKEN.items()
    ]
    found.append(Row(("E2",), _doc(networking.KeepsQuiet), "Redis"))
    found.append(Row(("X2",), "The client library is redis-py 4.5.1.", "Redis"))
    for scheme, clauses in sharing.DEFECTS.items():
        ids = tuple(sorted(clauses, key=clause_key))
        found.append(Row(ids, _doc(onefile.DRIVERS[scheme]), "one file"))
    checks = {check.name: check for check in all_checks()}
    for name, check in processes.BROKEN.items():
        found.append(Row((checks[check].clauses[0],), _module(name), "file"))
    return sorted(found, key=lambda row: clause_key(row.clauses[0]))


def page() -> str:
    """The whole page."""
    found = rows()
    parts = [HEAD.format(count=len(found))]
    parts.append("| clause | defect | of | may show in, too |\n|---|---|---|---|\n")
    for row in found:
        clauses = " or ".join(_link(clause) for clause in row.clauses)
        others = ", ".join(_link(clause) for clause in row.others)
        parts.append(f"| {clauses} | {_cell(row.defect)} | {row.store} | {others} |\n")
    return "".join(parts)


def _link(clause: str) -> str:
    assert clause in CLAUSES
    return f"[{clause}](contract.md#{clause.lower()})"


def _cell(text: str) -> str:
    text = " ".join(text.split())
    if len(text.split()[0]) > 1 and "_" not in text.split()[0]:
        text = text[0].upper() + text[1:]
    for special in "\\|*_<[$`{":
        text = text.replace(special, f"\\{special}")
    return text if text.endswith(".") else f"{text}."


def _doc(part: type) -> str:
    return str(part.__doc__)


def _module(name: str) -> str:
    path = Path(processes.__file__).parent / "broken_processes" / name / "sitecustomize.py"
    text = str(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
    return text.partition("\n\n")[0]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
