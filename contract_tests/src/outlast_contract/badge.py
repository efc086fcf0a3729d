"""A badge for a README: what the executed clauses say, as a small picture."""

from html import escape
from typing import Any, Final

_LABEL: Final = "outlast contract"
_COLOURS: Final = {
    "complete": "#2a7d4f",
    "fencing, atomicity, cleanup": "#4c8526",
    "fencing, atomicity": "#6b7a1c",
    "fencing": "#87701a",
    "partial": "#8a6a16",
    "failed": "#b3322b",
    "not run": "#5c6370",
}
_WIDE: Final = "mwMW%@"
_NARROW: Final = "fijlrtI.,:;|!'()[] "


def badge(report: dict[str, Any]) -> str:
    """An SVG file.

    Args:
        report: As `Report.to_dict` gives it.
    """
    text, colour = badge_text(report), _COLOURS[report["level"]]
    left, right = _width(_LABEL), _width(text)
    whole = left + right
    label, message = escape(_LABEL), escape(text)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="20" role="img" '
        f'aria-label="{label}: {message}">\n'
        f"<title>{label}: {message}</title>\n"
        f'<clipPath id="r"><rect width="{whole}" height="20" rx="4"/></clipPath>\n'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#3b4049"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>\n'
        '<g fill="#fff" text-anchor="middle" font-size="11" '
        'font-family="Verdana,DejaVu Sans,Geneva,sans-serif">\n'
        f'<text x="{left / 2:g}" y="14" textLength="{left - 12}">{label}</text>'
        f'<text x="{left + right / 2:g}" y="14" textLength="{right - 12}">{message}</text>\n'
        "</g>\n</svg>\n"
    )


def badge_text(report: dict[str, Any]) -> str:
    """What the badge says."""
    statuses = [clause["status"] for clause in report["clauses"]]
    level: str = report["level"]
    if level == "failed":
        broken = [clause["id"] for clause in report["clauses"] if clause["status"] == "failed"]
        more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        return f"failed: {', '.join(broken[:3])}{more}"
    if level == "not run":
        return level
    found = f"{statuses.count('verified')} of {len(statuses)} clauses"
    coverage = report["coverage"]
    if coverage["left out"]:
        found += f", {coverage['run']} of {coverage['checks']} checks"
    return f"{level} ({found})"


def _width(text: str) -> int:
    """Pixels that a text of eleven points takes, with a margin."""
    units = sum(10 if one in _WIDE else 4.2 if one in _NARROW else 7 for one in text)
    return round(units) + 12


__all__ = ["badge", "badge_text"]
