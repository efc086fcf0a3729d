"""The report as one page: self-contained, for a browser, in light and dark."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from outlast_contract.badge import badge_text
from outlast_contract.clauses import GROUPS, HEADLINES
from outlast_contract.html_timeline import duration, timeline
from outlast_contract.printing import printable
from outlast_contract.report import NOT_CHOSEN

_MARK: Final = {
    "verified": "\u2713",
    "passed": "\u2713",
    "failed": "\u2715",
    "not run": "\u2013",
}
_LEGEND: Final = (
    '<p class="legend">'
    + "".join(
        f'<span class="{kind}">{kind}</span>' for kind in ("done", "refused", "unknown", "fault")
    )
    + "</p>\n"
)
_COLUMNS: Final = ("calls", "done / refused / unknown", "median", "95 %", "longest")
_LEFT_OUT: Final = "left out of this run"
_BETWEEN: Final = " \u00b7 "
_CONTRACT: Final = "what the contract promises, and what was found of it"


def html_report(report: dict[str, Any]) -> str:
    """The page.

    Args:
        report: As `Report.to_dict` gives it; all that is in it is escaped.
    """
    style = files("outlast_contract").joinpath("report.css").read_text("utf-8")
    verdict = _verdict(report)
    body = [
        _header(report, verdict),
        _failures(report),
        _clauses(report),
        _faults(report),
        _latency(report),
        _not_run(report),
        _versions(report),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        # Nothing is loaded, and nothing that a store says can run.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{_text(verdict)} - outlast contract - {_text(report['subject'])}</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _verdict(report: dict[str, Any]) -> str:
    failed = [clause["id"] for clause in report["clauses"] if clause["status"] == "failed"]
    if failed:
        return f"{_many(len(failed), 'clause')} failed: {', '.join(failed)}"
    if not report["success"]:
        return "Nothing was executed"
    return f"No clause failed{' in what was run' if report['coverage']['left out'] else ''}"


def _header(report: dict[str, Any], verdict: str) -> str:
    counts = Counter(check["status"] for check in report["checks"])
    coverage = report["coverage"]
    extent = "partly" if coverage["left out"] else "quiet"
    took = duration(sum(check["seconds"] for check in report["checks"]))
    facts = [
        ", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "not run")),
        took,
        f"seed {report['seed']}",
    ]
    if report["began"]:
        facts.append(report["began"].replace("T", " ").replace("+00:00", " UTC"))
    lines = "\n".join(_headline(report, name, groups) for name, groups in HEADLINES)
    status = "verified" if report["success"] else "failed"
    return (
        f'<header class="{status}">\n<p class="eyebrow">outlast contract</p>\n'
        f'<h1><span aria-hidden="true">{_MARK[status]}</span> {_text(verdict)}</h1>\n'
        f'<p class="subject"><code>{_text(report["subject"] or "a backend")}</code> '
        f'<span class="level">level: {_text(badge_text(report))}</span></p>\n'
        f'<p class="{extent}">{_text(coverage["text"])}</p>\n'
        f'<p class="quiet">{_text(_BETWEEN.join(facts))}</p>\n'
        f'<div class="headlines">\n{lines}\n</div>\n</header>'
    )


def _headline(report: dict[str, Any], name: str, groups: str) -> str:
    found = report["summary"][name]
    status = "verified" if found["verdict"] == "passed" else found["verdict"]
    squares = "".join(
        f'<a class="square {_class(clause["status"])}" href="#{clause["id"]}" '
        f'title="{_text(clause["id"])} {_text(clause["title"])}: {clause["status"]}">'
        f"{clause['id']}</a>"
        for clause in report["clauses"]
        if clause["id"][0] in groups
    )
    return (
        f'<section class="headline {_class(status)}"><h2>{name} ({", ".join(groups)}) '
        f"{_chip(status, found['verdict'])}</h2><p>{_text(found['text'])}</p>"
        f'<p class="squares">{squares}</p></section>'
    )


def _failures(report: dict[str, Any]) -> str:
    failed = [check for check in report["checks"] if check["status"] == "failed"]
    if not failed:
        return ""
    titles = {clause["id"]: clause["title"] for clause in report["clauses"]}
    order = {clause["id"]: place for place, clause in enumerate(report["clauses"])}
    failed.sort(key=lambda check: order[check["broken"]])
    found = [
        (clause, list(checks))
        for clause, checks in itertools.groupby(failed, key=lambda check: str(check["broken"]))
    ]
    return _section(
        "What failed",
        "Each with the calls before it, in the order of time, as their callers saw them.",
        _LEGEND + "\n".join(_broken(clause, titles[clause], checks) for clause, checks in found),
    )


def _broken(clause: str, title: str, checks: Sequence[dict[str, Any]]) -> str:
    """The failures of one clause: the first to be seen, the others on demand."""
    first, *others = [_failure(check, title) for check in checks]
    if not others:
        return first
    noun = "check finds" if len(others) == 1 else "checks find"
    return (
        f"{first}\n<details><summary>{len(others)} more {noun} {clause} broken</summary>\n"
        + "\n".join(others)
        + "</details>"
    )


def _failure(check: dict[str, Any], title: str) -> str:
    what, _, more = check["detail"].partition("\n")
    picture = timeline(
        check["calls"]["last"],
        check["injected"]["first"],
        broken=f"{check['broken']} is broken",
        omitted=check["calls"]["omitted"],
    )
    parts = [
        f'<article class="failure"><h3>{_chip("failed", check["broken"])} {_text(title)}</h3>',
        f'<p class="found{" long" if len(what) > 160 else ""}">{_text(what)}</p>',
        f"<pre>{_text(more)}</pre>" if more else "",
        (
            f'<p class="quiet">Found by <code>{_text(check["name"])}</code> after '
            f"{duration(check['seconds'])}: {_text(check['title'])}</p>"
        ),
        picture,
        f"<details><summary>Traceback</summary><pre>{_text(check['trace'])}</pre></details>"
        if check["trace"]
        else "",
        "</article>",
    ]
    return "\n".join(part for part in parts if part)


def _clauses(report: dict[str, Any]) -> str:
    checks: dict[str, list[dict[str, Any]]] = {}
    for check in report["checks"]:
        broken = [check["broken"]] if check["broken"] else []
        for clause in dict.fromkeys([*check["clauses"], *broken]):
            checks.setdefault(clause, []).append(check)
    groups: list[str] = []
    for group, name in GROUPS.items():
        ours = [clause for clause in report["clauses"] if clause["id"][0] == group]
        rows = "\n".join(
            _clause(clause, checks.get(clause["id"], []))
            for clause in ours
            if clause["reasons"] != [NOT_CHOSEN]
        )
        rest = " ".join(
            f'<span id="{clause["id"]}" title="{_text(clause["title"])}">{clause["id"]}</span>'
            for clause in ours
            if clause["reasons"] == [NOT_CHOSEN]
        )
        rows += f'<p class="rest quiet">{NOT_CHOSEN}: {rest}</p>' if rest else ""
        groups.append(f'<div class="group"><h3>{group} <span>{name}</span></h3>\n{rows}\n</div>')
    return _section(
        "Clause by clause", f"Open a line for its checks: {_CONTRACT}.", "\n".join(groups)
    )


def _clause(clause: dict[str, Any], checks: Sequence[dict[str, Any]]) -> str:
    counts = clause["checks"]
    told = ", ".join(f"{counts[name]} {name}" for name in counts if counts[name]) or "no check"
    reasons = "".join(f"<li>{_text(reason)}</li>" for reason in clause["reasons"])
    label = {"verified": "Not run in part", "failed": "Why"}.get(clause["status"], "Why not")
    body = f"<p>{label}:</p><ul>{reasons}</ul>" if reasons else ""
    if checks:
        rows = "".join(_check(check, clause["id"]) for check in checks)
        body += f"<table><tbody>{rows}</tbody></table>"
    return (
        f'<details class="clause" id="{clause["id"]}"><summary>'
        f"{_chip(clause['status'], clause['status'])}<b>{clause['id']}</b>"
        f'<span class="title">{_text(clause["title"])}</span>'
        f'<span class="quiet">{_text(told)}</span></summary>'
        f'<div class="inside">{body}</div></details>'
    )


def _check(check: dict[str, Any], clause: str) -> str:
    status = check["status"]
    ending = status
    if status == "failed" and check["broken"] != clause:
        status, ending = "not run", f"ended early: {check['broken']} is broken"
    notes = [check["detail"].partition("\n")[0], *check["notes"]]
    more = "".join(f'<br><span class="quiet">{_text(note)}</span>' for note in notes if note)
    struck = check["injected"]["strikes"]
    faults = _many(struck, "fault") if struck else ""
    return (
        f"<tr><td>{_chip(status, ending)}</td><td><code>{_text(check['name'])}</code>"
        f"<br>{_text(check['title'])}{more}</td><td>{check['tier']}</td><td>{faults}</td>"
        f'<td class="number">{duration(check["seconds"])}</td></tr>'
    )


def _faults(report: dict[str, Any]) -> str:
    struck = [check for check in report["checks"] if check["injected"]["strikes"]]
    if not struck:
        return _section("What was let go wrong, and when", "Nothing: no check with faults ran.", "")
    kinds: Counter[str] = Counter()
    for check in struck:
        kinds.update(one["what"] for one in check["injected"]["first"])
    total = sum(check["injected"]["strikes"] for check in struck)
    most = max(kinds.values())
    rows = "".join(
        f'<tr><td>{_text(kind)}</td><td class="number">{count}</td>'
        f'<td class="wide">{_bar(count / most)}</td></tr>'
        for kind, count in kinds.most_common()
    )
    lists = "".join(_struck(check) for check in struck)
    return _section(
        "What was let go wrong, and when",
        f"{_many(total, 'fault')} in {_many(len(struck), 'check')}; of very many in one check the "
        "first are listed.",
        '<table><thead><tr><th>fault</th><th class="number">times</th><th></th></tr></thead>'
        f"<tbody>{rows}</tbody></table>\n"
        f"<details><summary>In each check, in seconds since it began</summary>\n{lists}</details>",
    )


def _struck(check: dict[str, Any]) -> str:
    first = check["injected"]["first"]
    times: dict[str, list[str]] = {}
    for one in first:
        short = one["ended"] - one["began"] < 0.001
        span = f"{one['began']:.3f}" if short else f"{one['began']:.3f}-{one['ended']:.3f}"
        times.setdefault(one["what"], []).append(span)
    more = check["injected"]["strikes"] - len(first)
    told = "; ".join(
        f"<b>{_text(what)}</b> {', '.join(spans[:24])}{' ...' if len(spans) > 24 else ''}"
        for what, spans in times.items()
    )
    rest = f"; and {more} more" if more > 0 else ""
    return f"<p><code>{_text(check['name'])}</code>: {told}{rest}</p>\n"


def _latency(report: dict[str, Any]) -> str:
    rows = report["latency"]
    if not rows:
        return ""
    longest = max(row["max"] for row in rows)
    body = "".join(
        f"<tr><td>{_text(row['fault'] or 'none')}</td>"
        f'<td class="number">{row["calls"]}</td>'
        f'<td class="number">{row["done"]} / {row["refused"]} / {row["unknown"]}</td>'
        f'<td class="number">{duration(row["median"])}</td>'
        f'<td class="number">{duration(row["p95"])}</td>'
        f'<td class="number">{duration(row["max"])}</td>'
        f'<td class="wide">{_range(row, longest)}</td></tr>'
        for row in rows
    )
    return _section(
        "Latency under fault",
        "How long calls took that were under way while something went wrong, and beside them those "
        "of the same checks that met nothing. The bar goes from the median to the longest, with a "
        "mark at 95 %; each step of the scale is ten times the one before.",
        "<table><thead><tr><th>fault</th>"
        + "".join(f'<th class="number">{name}</th>' for name in _COLUMNS)
        + f"<th></th></tr></thead><tbody>{body}</tbody></table>",
    )


def _range(row: dict[str, Any], longest: float) -> str:
    """The times of a row on a scale of tens, from ten microseconds on."""

    def place(seconds: float) -> float:
        decades = math.log10(max(longest, 1e-4) / 1e-5)
        return 200 * max(0.0, math.log10(max(seconds, 1e-5) / 1e-5)) / decades

    low, high, mark = place(row["median"]), place(row["max"]), place(row["p95"])
    style = "faulty" if row["fault"] else "plain"
    return (
        f'<svg class="range" viewBox="0 0 204 14" aria-hidden="true"><path d="M0 7H204"/>'
        f'<rect class="{style}" x="{low:.1f}" y="3" width="{max(2.0, high - low):.1f}" height="8" '
        f'rx="2"/><rect class="mark" x="{mark:.1f}" y="1" width="2" height="12"/></svg>'
    )


def _bar(share: float) -> str:
    width = max(2.0, 200 * share)
    return (
        '<svg class="range" viewBox="0 0 204 14" aria-hidden="true">'
        f'<rect class="faulty" x="0" y="3" width="{width:.1f}" height="8" rx="2"/></svg>'
    )


def _not_run(report: dict[str, Any]) -> str:
    reasons: dict[str, list[str]] = {}
    if report["coverage"]["left out"]:
        reasons[_LEFT_OUT] = report["coverage"]["left out"]
    for check in report["checks"]:
        if check["status"] == "not run":
            reasons.setdefault(check["detail"], []).append(check["name"])
        for note in check["notes"]:
            reasons.setdefault(note, []).append(f"{check['name']} (in part)")
    if not reasons:
        return ""
    items = "".join(
        f'<details><summary>{_text(reason)} <span class="quiet">'
        f"{_many(len(names), 'check')}</span></summary>"
        f"<p>{_codes(names)}</p></details>"
        for reason, names in sorted(reasons.items(), key=lambda one: -len(one[1]))
    )
    return _section("What was not run, and why", "None of it counts as passed.", items)


def _versions(report: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
        for name, value in report["versions"].items()
    )
    return _section("Versions", "", f"<table><tbody>{rows}</tbody></table>")


def _section(title: str, text: str, body: str) -> str:
    intro = f'<p class="quiet">{_text(text)}</p>\n' if text else ""
    return f"<section>\n<h2>{_text(title)}</h2>\n{intro}{body}\n</section>"


def _chip(status: str, text: str) -> str:
    return f'<span class="chip {_class(status)}">{_MARK[status]} {_text(text)}</span>'


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"<code>{_text(name)}</code>" for name in names)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _class(status: str) -> str:
    return status.replace(" ", "-")


def _text(text: str) -> str:
    return escape(printable(text))


__all__ = ["html_report"]
