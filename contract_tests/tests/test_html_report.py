"""The page and the badge: what they show, and that nothing that is reported can do harm in them."""

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from broken_backends import MUTANTS
from broken_backends.kit import BrokenHarness

import outlast
from outlast_contract import Report, cli, subject
from outlast_contract.badge import badge, badge_text
from outlast_contract.clauses import CLAUSES, GROUPS, HEADLINES, OUT_OF_REACH
from outlast_contract.engine import Check, Result, run_check_sync, select_checks
from outlast_contract.harness import secrets_of
from outlast_contract.html_report import html_report
from outlast_contract.html_timeline import duration, timeline
from outlast_contract.latency import latency
from outlast_contract.mutations import api_of
from outlast_contract.recording import (
    Call,
    Injected,
    Recording,
    Sample,
    injecting,
    recorded,
    watched,
)
from outlast_contract.report_files import FORMATS
from outlast_contract.stores import MemoryHarness

EVIL = "<script>alert('x')</script> & \"quoted\" \x00\x1b[31m\ud800 ]]> --> </style>"


async def nothing(context: Any) -> None:
    """A check's body; it is never run here."""


def result(status: Any, *clauses: str, name: str = "check", **fields: Any) -> Result:
    return Result(Check(name, clauses, "faults", "A title", nothing), status, **fields)


BROKEN = result(
    "failed",
    "F2",
    name="writes_late",
    clause="F2",
    detail=EVIL,
    trace=EVIL,
    recording=Recording(
        calls=(
            Call(1, "claim_task(t) = epoch 1", 0.0, 0.001, "done"),
            Call(2, f"put({EVIL}) epoch 1", 0.002, 1.5, "unknown", f"OutcomeUnknownError: {EVIL}"),
            Call(1, "put(r) epoch 1", 1.6, 1.7, "refused", "FencedError: superseded: a newer one"),
        ),
        omitted=7,
        injected=(Injected("reply lost", 0.003, 0.004), Injected(EVIL, 9.0, 9.5)),
        strikes=2,
        samples=(Sample("", "done", 0.001), Sample("reply lost", "unknown", 1.498)),
        seconds=1.8,
    ),
)


class Page(HTMLParser):
    """Tags are closed in the order in which they were opened; what refers to something is kept."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.names: list[str] = []
        self.refers: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag not in self.VOID:
            self.stack.append(tag)
        for name, value in attributes:
            assert not name.startswith("on")
            if name in ("href", "src", "data", "action", "srcset"):
                self.refers.append(str(value))
            if name == "id":
                self.ids.append(str(value))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def page(*results: Result, **fields: Any) -> Page:
    return Page(html_report(Report(results, **fields).to_dict()))


def test_the_page_opens_with_the_three_lines() -> None:
    """Fencing, Atomicity and Cleanup, each with its verdict, before anything else."""
    shown = page(BROKEN, result("passed", "S1"), result("not run", "C3", detail="no raw"))
    places = [
        shown.text.index(f"{name} ({', '.join(groups)}) {mark}")
        for (name, groups), mark in zip(
            HEADLINES, ("\u2715 failed", "\u2713 passed", "\u2013 not run"), strict=True
        )
    ]
    assert places == sorted(places)
    assert places[-1] < shown.text.index("What failed") < shown.text.index("Clause by clause")


def test_the_page_stands_alone_and_runs_nothing() -> None:
    """No script, nothing from elsewhere; links lead to places of the page."""
    text = html_report(Report([BROKEN, result("passed", "F1")]).to_dict())
    shown = Page(text)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(shown.names)
    assert shown.refers
    assert all(one.startswith("#") and one[1:] in shown.ids for one in shown.refers)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    assert "default-src 'none'" in text


def test_whatever_was_found_is_shown_and_does_nothing() -> None:
    """Markup, control characters and half characters are text."""
    text = html_report(Report([BROKEN], subject=EVIL).to_dict())
    assert "<script" not in text
    assert text.encode("utf-8")
    assert all(one in "\n\t" or one.isprintable() for one in text)
    assert "<script>alert('x')</script> & \"quoted\" \\x00\\x1b[31m\\ud800" in Page(text).text


def test_a_failure_is_shown_with_its_timeline() -> None:
    """Calls, what came of them, and the faults among them; nothing that came after."""
    calls = [one._asdict() for one in BROKEN.recording.calls]
    faults = [one._asdict() for one in BROKEN.recording.injected]
    picture = timeline(calls, faults, broken="F2 is broken", omitted=7)
    svg, _, rest = picture.partition("</svg>")
    texts = [one.text for one in ET.fromstring(svg + "</svg>").iter("text")]
    assert "client 1  claim_task(t) = epoch 1" in texts
    assert "FencedError: superseded" in texts
    assert "\u26a1 reply lost" in texts
    assert texts[-1] == "F2 is broken"
    assert not any("9" in text and "\u26a1" in text for text in texts if text)
    assert "7 earlier calls" in rest
    assert timeline([], faults, broken="F2") == ""


def test_every_clause_that_something_was_done_for_has_a_line() -> None:
    """With its checks, and the reason if it was not run; the others are named."""
    shown = page(BROKEN, result("not run", "C3", name="sweeps", detail="needs Harness.raw()"))
    assert set(CLAUSES) <= set(shown.ids)
    assert "needs Harness.raw()" in shown.text
    assert OUT_OF_REACH["C9"] in shown.text
    assert shown.names.count("details") < len(CLAUSES)


def test_faults_and_times_are_shown() -> None:
    shown = page(BROKEN)
    assert "reply lost 0.003" in shown.text
    assert "1.5 s" in shown.text
    assert latency([BROKEN])[1] == {
        "fault": "reply lost",
        "calls": 1,
        "done": 0,
        "refused": 0,
        "unknown": 1,
        "median": 1.498,
        "p95": 1.498,
        "max": 1.498,
    }


@pytest.mark.parametrize("name", FORMATS)
def test_no_report_shows_a_secret(name: str) -> None:
    """Even if a backend does."""
    url = "redis://user:ge%24heim@host/0?password=streng"
    leak = "cannot connect to redis://user:ge$heim@host, ge%24heim or streng"
    calls = (Call(1, "put(streng)", 0.0, 1.0, "unknown", leak),)
    found = result("failed", "E4", clause="E4", detail=leak, trace=leak, notes=(("", leak),))
    kept = result("failed", "F1", clause="F1", recording=Recording(calls=calls))
    report = Report([found, kept], subject=outlast.url.redact(url), secrets=secrets_of(url))
    text = FORMATS[name](report)
    assert not [secret for secret in ("ge$heim", "ge%24heim", "streng") if secret in text]
    assert not [line for line, _ in report.lines() if "heim" in line]


def test_the_page_is_made_of_the_json() -> None:
    """One source: whoever has the JSON has the page."""
    report = Report([BROKEN, result("passed", "F1")], seed=4, versions={"redis server": "8.2"})
    assert html_report(json.loads(report.to_json())) == html_report(report.to_dict())
    assert "redis server8.2" in page(BROKEN, versions={"redis server": "8.2"}).text


def level(*missing: str) -> dict[str, Any]:
    results = [result("passed", clause) for clause in CLAUSES if clause[0] not in missing]
    reached = [one for one in results if one.check.clauses[0] not in OUT_OF_REACH]
    return Report(reached, suite=()).to_dict()


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("", "complete"),
        ("V", "fencing, atomicity, cleanup"),
        ("CV", "fencing, atomicity"),
        ("ASC", "fencing"),
        ("F", "partial"),
        ("".join(GROUPS), "not run"),
    ],
)
def test_the_badge_says_what_was_executed(missing: str, says: str) -> None:
    """The level needs every clause that has a check, of its groups."""
    report = level(*missing)
    if says != "not run":
        count = sum(name[0] not in missing for name in CLAUSES if name not in OUT_OF_REACH)
        says += f" ({count} of {len(CLAUSES)} clauses)"
    assert badge_text(report) == says
    root = ET.fromstring(badge(report))
    assert root.get("aria-label") == f"outlast contract: {says}"
    words = [one.text for one in root.iter() if one.tag.endswith("text")]
    assert words == ["outlast contract", says]


def test_a_badge_of_a_part_of_the_suite_says_so() -> None:
    """A level is of clauses of which no check was left out, however many of them passed."""
    results = [
        result("passed", clause, name=clause) for clause in CLAUSES if clause not in OUT_OF_REACH
    ]
    left = result("passed", "C3", "V5", name="left out").check
    report = Report(results, suite=[*(one.check for one in results), left]).to_dict()
    assert report["level"] == "fencing, atomicity"
    count = len(results)
    assert badge_text(report) == (
        f"fencing, atomicity ({count} of {len(CLAUSES)} clauses, {count} of {count + 1} checks)"
    )


def test_a_page_of_a_part_of_the_suite_says_so() -> None:
    """Before anything else, at each clause, and with the names."""
    passed, left = result("passed", "F2", name="one"), result("passed", "F2", name="other").check
    shown = page(passed, suite=[passed.check, left])
    text = "1 of 2 checks were run; left out: 1 of tier faults"
    assert shown.text.index("No clause failed in what was run") < shown.text.index(text)
    assert shown.text.index(text) < shown.text.index("Fencing (F)")
    assert "A stale owner cannot write1 passed, 1 left out" in shown.text
    assert "left out of this run 1 checkother" in shown.text
    whole = page(passed, suite=[passed.check])
    assert "1 of 1 checks were run" in whole.text
    assert "left out" not in whole.text
    assert "in what was run" not in whole.text


def test_a_failure_takes_every_level_away() -> None:
    results = [result("failed", clause, clause=clause) for clause in ("F1", "F2", "A1", "V2")]
    report = Report([*results, result("passed", "S1")]).to_dict()
    assert report["level"] == "failed"
    assert badge_text(report) == "failed: F1, F2, A1 and 1 more"


def test_the_calls_before_a_failure_are_recorded() -> None:
    """As the contract names them, with the epochs that claims got."""
    (check,) = [
        one for one in select_checks() if one.name == "a_superseded_claim_cannot_write[put]"
    ]
    found = run_check_sync(check, MUTANTS["PutNeverCompares"].harness)
    assert found.status == "failed"
    told = [call.what for call in found.recording.calls]
    assert told[0].startswith("claim(run-1) = epoch ")
    assert any(one.startswith("put(run-1) epoch ") for one in told)
    assert all(call.began <= call.ended for call in found.recording.calls)
    passed = run_check_sync(check, BrokenHarness)
    assert (passed.status, passed.recording.calls) == ("passed", ())


async def test_calls_that_meet_a_fault_are_told_from_others() -> None:
    """Of their own client's network only, or of the whole store."""
    mine, other = object(), object()
    with recorded() as recorder:
        async with await MemoryHarness().open("n") as backend:
            tasks = watched(backend, mine).persistence
            await tasks.load_task_state("t")
            for source in (mine, other, None):
                with injecting(f"fault {source is mine}{source is None}", source):
                    await tasks.append_api_message("t", api_of(str(id(source))))
            with pytest.raises(outlast.TaskNotFoundError):
                await tasks.update_task_state("t", {"config": {}})
    found = recorder.recording(with_calls=True)
    assert [sample.fault for sample in found.samples] == [
        "",
        "fault TrueFalse",
        "",
        "fault FalseTrue",
        "",
    ]
    assert [call.outcome for call in found.calls] == ["done"] * 4 + ["refused"]
    assert found.strikes == 3


class Closed:
    """Takes no attributes, and answers all the same."""

    __slots__ = ()

    async def ping(self) -> str:
        return "pong"


async def test_what_cannot_be_watched_works_all_the_same() -> None:
    backend: Any = Closed()
    with recorded() as recorder:
        assert watched(backend) is backend
        assert await backend.ping() == "pong"
    assert recorder.recording(with_calls=True).calls == ()


def test_the_command_writes_page_and_badge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subject, "harness_for", lambda url: MUTANTS["PutNeverCompares"].harness)
    shown, picture = tmp_path / "report.html", tmp_path / "badge.svg"
    arguments = ["memory://", "--clause", "F2", "--tier", "contract"]
    assert cli.main([*arguments, "--html", str(shown), "--badge", str(picture)]) == 1
    text = shown.read_text(encoding="utf-8")
    assert text.count('<svg class="timeline"') >= 1
    assert "put(run-1) epoch" in Page(text).text
    assert "failed: F2" in picture.read_text(encoding="utf-8")
    assert "Level: failed" in capsys.readouterr().out


def test_a_soak_writes_the_same_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the calls of the owner that shows it, and how to repeat the round."""
    files = {name: tmp_path / name for name in FORMATS}
    arguments = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    short = ["memory://", "--minutes", "0", "--calls", "30", "--owners", "2"]
    assert cli.main([*short, *arguments]) == 0
    whole = Page(files["html"].read_text()).text
    assert "outcomes unknown" in whole
    assert "1 of 1 checks were run" in whole
    monkeypatch.setattr(subject, "harness_for", lambda url: MUTANTS["PutNeverCompares"].harness)
    assert cli.main(["memory://", "--minutes", "0.1", *arguments]) == 1
    shown = Page(files["html"].read_text())
    assert "outlast-contract URL --minutes 0 --seed" in shown.text
    assert "client 1 put " in shown.text
    assert json.loads(files["json"].read_text())["level"] == "failed"
    capsys.readouterr()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 \u00b5s"), (0.0004, "400 \u00b5s"), (0.0123, "12.3 ms"), (0.5, "500 ms"), (4, "4.0 s")],
)
def test_times_are_written_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
