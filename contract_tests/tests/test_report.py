"""What results say of a clause, and how that is written."""

import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from outlast_contract import Report
from outlast_contract.clauses import CLAUSES, GROUPS, HEADLINES, clause_key
from outlast_contract.engine import Check, Result, all_checks, select_checks
from outlast_contract.printing import printable


async def nothing(context: Any) -> None:
    """A check's body; it is never run here."""


def result(status: Any, *clauses: str, name: str = "check", **fields: Any) -> Result:
    return Result(Check(name, clauses, "contract", "A title", nothing), status, **fields)


def status_of(clause: str, *results: Result) -> str:
    return Report(results).clauses[clause].status


def test_a_clause_is_verified_by_a_pass() -> None:
    """One check that passed is enough, if none failed."""
    passed = result("passed", "F2", "F13")
    missing = result("not run", "F2", detail="needs raw")
    assert status_of("F2", passed, missing) == "verified"
    assert Report([passed, missing]).clauses["F2"].reasons == ("needs raw",)


def test_a_failure_counts_against_one_clause() -> None:
    """The others of its check were not carried to their end: they are not run, and not verified."""
    failed = result("failed", "F2", "F13", name="one", clause="F13", detail="wrong")
    report = Report([failed])
    assert report.failed == ("F13",)
    assert report.clauses["F2"].status == "not run"
    assert report.clauses["F2"].reasons == ("one ended early: F13 is broken",)
    assert report.clauses["F13"].reasons == ("one: wrong",)


def test_a_failure_may_be_of_a_clause_that_the_check_does_not_name() -> None:
    """Any call may let a foreign error out."""
    failed = result("failed", "F2", clause="E3", detail="KeyError left")
    assert Report([failed]).failed == ("E3",)


def test_nothing_executed_is_not_run() -> None:
    """And never a success."""
    report = Report([result("not run", "F2", detail="needs a server")])
    assert report.clauses["F2"].status == "not run"
    assert report.executed == 0
    assert not report.is_success
    assert not Report([]).is_success
    assert Report([result("passed", "F2")]).is_success


def test_notes_belong_to_their_clause() -> None:
    """What was not run in part is said where it matters."""
    passed = result("passed", "P1", "A9", notes=(("P1", "no proxy"), ("", "too slow")))
    clauses = Report([passed]).clauses
    assert clauses["P1"].reasons == ("no proxy", "too slow")
    assert clauses["A9"].reasons == ("too slow",)


def test_a_clause_without_a_check_says_why() -> None:
    """Every clause of the contract has a line, and a reason if nothing was done for it."""
    clauses = Report([]).clauses
    assert list(clauses) == list(CLAUSES)
    assert all(clause.reasons for clause in clauses.values())
    assert clauses["C9"].reasons == ("there is no maintenance operation to run yet",)
    assert clauses["F1"].reasons == ("no check of it was chosen",)


def test_headlines_sum_up_groups() -> None:
    """Failed beats passed; nothing executed is not run."""
    report = Report(
        [
            result("passed", "F2"),
            result("failed", "S1", clause="S1", detail="lost update"),
            result("not run", "C3", detail="needs raw"),
        ]
    )
    assert [report.headline(groups)[0] for _, groups in HEADLINES] == [
        "passed",
        "failed",
        "not run",
    ]
    assert "S1" in report.headline("AS")[1]


def test_the_text_opens_with_the_three_headlines() -> None:
    """Then comes a line for each clause that something was done for, and one for all others."""
    report = Report([result("failed", "F2", clause="F2", detail="accepted\nin two lines")])
    lines = [text for text, _ in report.lines()]
    last = lines[-1].split()
    assert [line.split(" (")[0] for line in lines[:3]] == ["Fencing", "Atomicity", "Cleanup"]
    for clause in CLAUSES:
        assert sum(line.split()[:1] == [clause] for line in lines) == (clause in ("F2", "C9"))
        assert (clause in last or f"{clause}," in last) == (clause not in ("F2", "C9"))
    assert any("accepted in two lines" in line for line in lines)


def test_what_was_left_out_is_said() -> None:
    """In all and at each clause; what could not be carried out is told from it."""
    results = [
        result("passed", "F2", name="one"),
        result("failed", "F2", "S1", name="two", clause="F2", detail="accepted"),
        result("not run", "S1", name="three", detail="needs raw"),
    ]
    rest = [result("passed", "F2", "A1", name=name).check for name in ("four", "five")]
    report = Report(results, suite=[*(one.check for one in results), *rest])
    text = "2 of 5 checks were run; not run: 1; left out: 2 of tier contract"
    found = report.to_dict()
    assert found["coverage"] == {
        "text": text,
        "checks": 5,
        "run": 2,
        "not run": 1,
        "left out": ["four", "five"],
    }
    counts = {clause["id"]: clause["checks"]["left out"] for clause in found["clauses"]}
    assert {name: count for name, count in counts.items() if count} == {"F2": 2, "A1": 2}
    lines = [line for line, _ in report.lines()]
    assert lines[3] == text
    assert any(
        line.startswith("F2 ") and "1 passed, 1 failed, 2 left out" in line for line in lines
    )


def test_a_whole_run_leaves_nothing_out() -> None:
    """It is measured by all checks that there are."""
    results = [Result(check, "passed") for check in all_checks()]
    count = len(results)
    whole, part = Report(results), Report(results[1:])
    assert (whole.level, whole.coverage.text) == ("complete", f"{count} of {count} checks were run")
    assert part.level != "complete"
    assert part.coverage.left_out == (results[0].check,)


def test_json_has_everything() -> None:
    """Clauses, checks, versions, seed and subject."""
    report = Report(
        [result("failed", "F2", clause="F2", detail="x\x00\ud800")], subject="memory://", seed=7
    )
    found = json.loads(report.to_json())
    assert (found["subject"], found["seed"], found["success"]) == ("memory://", 7, False)
    assert [clause["id"] for clause in found["clauses"]] == list(CLAUSES)
    assert found["checks"][0]["broken"] == "F2"
    assert found["versions"]["outlast"]


def test_junit_is_well_formed_whatever_was_found() -> None:
    """Characters that XML cannot carry are escaped."""
    odd = "\x00\x1b[31m\ud800 <&>\uffff"
    report = Report(
        [
            result("passed", "F1", name="one"),
            result("failed", "F2", name="two", clause="F2", detail=odd, trace=odd),
            result("not run", "F3", name="three", detail=odd),
        ]
    )
    suite = ET.fromstring(report.to_junit())
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
    }
    assert [case.get("classname") for case in suite] == [
        "contract.F1",
        "contract.F2",
        "contract.F3",
    ]


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand a tab", "é 😀"])
def test_printable_text_stays(text: str) -> None:
    """Only what terminals and XML cannot show is replaced."""
    assert printable(text) == text


def test_unprintable_text_is_escaped() -> None:
    """Escape sequences of a terminal, too."""
    assert printable("a\x1b[0m\x00\ud800") == "a\\x1b[0m\\x00\\ud800"


def test_clauses_are_complete_and_sorted() -> None:
    """Ids are sorted as in the contract; each belongs to a group; checks name no others."""
    assert sorted(CLAUSES, key=clause_key) == sorted(
        CLAUSES, key=lambda clause: (list(GROUPS).index(clause[0]), int(clause[1:]))
    )
    assert {clause[0] for clause in CLAUSES} == set(GROUPS)
    assert {clause for check in select_checks() for clause in check.clauses} <= set(CLAUSES)
