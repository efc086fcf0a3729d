"""The page of defects says what the tests do."""

import pytest

pytest.importorskip("outlast_redis")

import defects_page
from broken_backends import MUTANTS

from outlast_contract.clauses import CLAUSES, OUT_OF_REACH


def test_the_page_is_up_to_date() -> None:
    """Else: ``python contract_tests/tests/defects_page.py``."""
    assert defects_page.PAGE.read_text(encoding="utf-8") == defects_page.page()


def test_the_page_has_every_broken_backend_with_its_clauses() -> None:
    """One line each, with a text of its own; and at least eighty."""
    rows = defects_page.rows()
    assert len(rows) >= len(MUTANTS) + 20 >= 80
    assert len({row.defect for row in rows}) == len(rows)
    text = defects_page.page()
    for mutant in MUTANTS.values():
        assert f"[{mutant.breaks}](contract.md#{mutant.breaks.lower()})" in text


def test_every_clause_that_can_be_checked_is_broken_by_a_defect() -> None:
    """The page has no gap but those that are out of reach."""
    broken = {clause for row in defects_page.rows() for clause in row.clauses}
    assert set(CLAUSES) - broken <= {*OUT_OF_REACH}, set(CLAUSES) - broken
