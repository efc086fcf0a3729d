"""What the results of checks say about each clause, and how that is shown."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from outlast_contract.clauses import CLAUSES, GROUPS, HEADLINES, LEVELS, OUT_OF_REACH
from outlast_contract.coverage import Coverage
from outlast_contract.engine import Check, Result, all_checks
from outlast_contract.latency import latency
from outlast_contract.printing import printable
from outlast_contract.unwritten import missing_in
from outlast_contract.versions import versions as own_versions

ClauseStatus = Literal["verified", "failed", "not run"]

NOT_CHOSEN: Final = "no check of it was chosen"


@dataclass(frozen=True)
class Clause:
    """One clause and what the checks found.

    Attributes:
        passed: Checks of it that passed.
        failed: Those that found it broken.
        not_run: Those that could not be carried out, or at whose start another clause was broken.
        left_out: Those of the suite that have no result.
        reasons: Why it failed, or else what was not run and why; without repetitions.
    """

    id: str
    title: str
    passed: int
    failed: int
    not_run: int
    left_out: int
    reasons: tuple[str, ...]

    @property
    def status(self) -> ClauseStatus:
        """``verified`` if a check of it passed and none failed; nothing executed is ``not run``."""
        if self.failed:
            return "failed"
        return "verified" if self.passed else "not run"


class Report:
    """The results of one run of the suite.

    Attributes:
        results: Of each check, in the order in which they were run.
        coverage: How much of the suite they are.
        subject: What was tested, such as a store URL without its secrets.
        seed: Of the run.
        versions: Of what took part, by name.
        began: When the run did.
    """

    def __init__(
        self,
        results: Iterable[Result],
        *,
        subject: str = "",
        seed: int = 0,
        versions: Mapping[str, str] | None = None,
        began: datetime | None = None,
        secrets: Iterable[str] = (),
        suite: Iterable[Check] | None = None,
    ) -> None:
        """Sum up results.

        Args:
            results: Of each check.
            subject: What was tested; shown as it is.
            seed: Of the run.
            versions: Beside those of Python and the suite, which are added.
            began: When the run did; aware.
            secrets: Texts that no report may show, wherever a backend has put them.
            suite: The checks that might have been run; by default all of the contract.
        """
        hidden = set(secrets)
        self.results: tuple[Result, ...] = tuple(one.without(hidden) for one in results)
        whole = all_checks() if suite is None else suite
        self.coverage: Coverage = Coverage.of(self.results, whole)
        self.subject = subject
        self.seed = seed
        self.versions: Mapping[str, str] = {**own_versions(), **(versions or {})}
        self.began = began

    @property
    def level(self) -> str:
        """What the executed clauses make of the backend: one of `LEVELS`, or ``partial``,
        ``failed`` or ``not run``.
        """
        if self.failed:
            return "failed"
        if not self.executed:
            return "not run"
        open_groups = {
            name[0]
            for name, clause in self.clauses.items()
            if (clause.status == "not run" or clause.left_out) and name not in OUT_OF_REACH
        }
        for name, groups in LEVELS:
            if open_groups.isdisjoint(groups):
                return name
        return "partial"

    @property
    def verified(self) -> int:
        """How many clauses were."""
        return sum(clause.status == "verified" for clause in self.clauses.values())

    @property
    def clauses(self) -> Mapping[str, Clause]:
        """Every clause of the contract, by id, in the contract's order."""
        return {clause: self._clause(clause) for clause in CLAUSES}

    @property
    def failed(self) -> tuple[str, ...]:
        """The ids of the clauses that failed."""
        return tuple(name for name, clause in self.clauses.items() if clause.status == "failed")

    @property
    def executed(self) -> int:
        """How many checks were carried out."""
        return sum(result.status != "not run" for result in self.results)

    @property
    def is_success(self) -> bool:
        """Whether something was executed and no clause failed."""
        return self.executed > 0 and not self.failed

    def headline(self, groups: str) -> tuple[str, str]:
        """Status and counts of the clauses of some groups: ``passed``, ``failed`` or ``not
        run``.
        """
        clauses = [clause for clause in self.clauses.values() if clause.id[0] in groups]
        counts = {
            status: [clause.id for clause in clauses if clause.status == status]
            for status in ("verified", "failed", "not run")
        }
        parts = [f"{len(counts['verified'])} of {len(clauses)} clauses verified"]
        parts += [
            f"{status}: {', '.join(counts[status])}"
            for status in ("failed", "not run")
            if counts[status]
        ]
        verdict = "failed" if counts["failed"] else "passed" if counts["verified"] else "not run"
        return verdict, "; ".join(parts)

    def _clause(self, clause: str) -> Clause:
        passed = failed = not_run = 0
        failures: list[str] = []
        gaps: list[str] = []
        for result in self.results:
            if result.status == "failed" and result.clause == clause:
                failed += 1
                failures.append(
                    missing_in(result.detail) or f"{result.check.name}: {result.detail}"
                )
            elif clause not in result.check.clauses:
                continue
            elif result.status == "passed":
                passed += 1
                gaps += [text for name, text in result.notes if name in ("", clause)]
            else:
                not_run += 1
                gaps.append(
                    result.detail
                    if result.status == "not run"
                    else f"{result.check.name} ended early: {result.clause} is broken"
                )
        if not (passed or failed or not_run):
            known = any(clause in check.clauses for check in all_checks())
            gaps.append(
                NOT_CHOSEN
                if known
                else OUT_OF_REACH.get(clause, "no check of this release covers it")
            )
        reasons = tuple(dict.fromkeys(failures or gaps))
        left_out = self.coverage.by_clause.get(clause, 0)
        return Clause(clause, CLAUSES[clause], passed, failed, not_run, left_out, reasons)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "subject": self.subject,
            "seed": self.seed,
            "began": None if self.began is None else self.began.isoformat(timespec="seconds"),
            "success": self.is_success,
            "level": self.level,
            "coverage": {
                "text": self.coverage.text,
                "checks": self.coverage.checks,
                "run": self.coverage.run,
                "not run": self.coverage.not_run,
                "left out": [check.name for check in self.coverage.left_out],
            },
            "versions": dict(self.versions),
            "headlines": {name: self.headline(groups)[0] for name, groups in HEADLINES},
            "summary": {
                name: dict(zip(("verdict", "text"), self.headline(groups), strict=True))
                for name, groups in HEADLINES
            },
            "latency": latency(self.results),
            "clauses": [
                {
                    "id": clause.id,
                    "title": clause.title,
                    "status": clause.status,
                    "checks": {
                        "passed": clause.passed,
                        "failed": clause.failed,
                        "not run": clause.not_run,
                        "left out": clause.left_out,
                    },
                    "reasons": list(clause.reasons),
                }
                for clause in self.clauses.values()
            ],
            "checks": [
                {
                    "name": result.check.name,
                    "title": result.check.title,
                    "clauses": list(result.check.clauses),
                    "tier": result.check.tier,
                    "status": result.status,
                    "broken": result.clause,
                    "detail": result.detail,
                    "notes": [text for _, text in result.notes],
                    "seconds": round(result.seconds, 4),
                    "trace": result.trace,
                    "injected": {
                        "strikes": result.recording.strikes,
                        "first": [
                            {
                                "what": one.what,
                                "began": round(one.began, 6),
                                "ended": round(one.ended, 6),
                            }
                            for one in result.recording.injected
                        ],
                    },
                    "calls": {
                        "omitted": result.recording.omitted,
                        "last": [
                            {
                                **one._asdict(),
                                "began": round(one.began, 6),
                                "ended": round(one.ended, 6),
                            }
                            for one in result.recording.calls
                        ],
                    },
                }
                for result in self.results
            ],
        }

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True) + "\n"

    def to_junit(self) -> str:
        """The report as JUnit XML: one test suite, one test case per check."""
        counts = [result.status for result in self.results]
        suite = ET.Element(
            "testsuite",
            name="outlast-contract",
            tests=str(len(counts)),
            failures=str(counts.count("failed")),
            errors="0",
            skipped=str(counts.count("not run")),
            time=f"{sum(result.seconds for result in self.results):.3f}",
        )
        for result in self.results:
            case = ET.SubElement(
                suite,
                "testcase",
                classname=f"contract.{result.check.clauses[0]}",
                name=result.check.name,
                time=f"{result.seconds:.3f}",
            )
            if result.status == "failed":
                message = f"{result.clause}: {result.detail}"
                failure = ET.SubElement(case, "failure", message=printable(message))
                failure.text = printable(f"{message}\n{result.trace}")
            elif result.status == "not run":
                ET.SubElement(case, "skipped", message=printable(f"NOT RUN: {result.detail}"))
        ET.indent(suite)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, "unicode") + "\n"

    def lines(self, *, verbose: bool = False, width: int = 100) -> list[tuple[str, str]]:
        """The report for people, as lines with a style: ``verified``, ``failed``, ``not run``,
        ``head`` or none.
        """
        found: list[tuple[str, str]] = []
        for name, groups in HEADLINES:
            verdict, counts = self.headline(groups)
            label = f"{name} ({', '.join(groups)})"
            style = "verified" if verdict == "passed" else verdict
            found.append((f"{label:<18} {verdict:<8} {counts}", style))
        found.append((self.coverage.text, "not run" if self.coverage.left_out else ""))
        group = ""
        not_chosen = [one.id for one in self.clauses.values() if one.reasons == (NOT_CHOSEN,)]
        for clause in self.clauses.values():
            if clause.id in not_chosen:
                continue
            if clause.id[0] != group:
                group = clause.id[0]
                found += [("", ""), (f"{group}  {GROUPS[group]}", "head")]
            told = {
                "passed": clause.passed,
                "failed": clause.failed,
                "left out": clause.left_out,
            }
            checks = ", ".join(f"{count} {name}" for name, count in told.items() if count)
            found.append(
                (f"{clause.id:<4} {clause.status:<9} {clause.title:<46} {checks}", clause.status)
            )
            shown = clause.reasons if verbose or clause.failed else clause.reasons[:2]
            for reason in shown:
                prefix = "" if clause.status != "verified" else "not run in part: "
                text = " ".join(f"{prefix}{printable(reason)}".split())
                limit = len(text) if verbose or clause.failed else width - 15
                found.append((f"{'':14} {text[:limit]}", ""))
            if len(shown) < len(clause.reasons):
                found.append((f"{'':14} and {len(clause.reasons) - len(shown)} more (-v)", ""))
        if not_chosen:
            found += [
                ("", ""),
                (f"not run, since no check was chosen: {', '.join(not_chosen)}", ""),
            ]
        return found


def summary(results: Sequence[Result]) -> str:
    """The counts of a run in one line."""
    counts = {
        status: sum(result.status == status for result in results)
        for status in ("passed", "failed", "not run")
    }
    seconds = sum(result.seconds for result in results)
    parts = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"checks: {parts} in {seconds:.1f} s"


__all__ = ["Clause", "ClauseStatus", "Report", "summary"]
