"""Each broken backend is found by the clause that it breaks, and by none that it does not name.

``OUTLAST_TEST_SEEDS`` tries so many seeds with each broken backend, and ten times as many with the
correct one.
"""

import dataclasses
import os

import pytest
from broken_backends import MUTANTS, Mutant

from outlast_contract import Report, Settings
from outlast_contract.engine import Result, all_checks, run_check_sync, select_checks
from outlast_contract.runner import run_suite

SETTINGS = Settings(rounds=3, listed=1100)
SEEDS = range(int(os.environ.get("OUTLAST_TEST_SEEDS", "1")))
CORRECT_SEEDS = range(1, 1 + (10 * len(SEEDS) if len(SEEDS) > 1 else 1))


def _broken(result: Result, clause: str) -> bool:
    return result.status == "failed" and result.clause == clause


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_named_clause_fails(name: str) -> None:
    """Some check of the clause that a broken backend names says that it is broken."""
    mutant: Mutant = MUTANTS[name]
    missed = {}
    for seed in SEEDS:
        results = []
        for check in select_checks(clauses=[mutant.breaks]):
            settings = dataclasses.replace(SETTINGS, seed=seed)
            results.append(run_check_sync(check, mutant.harness, settings))
            if _broken(results[-1], mutant.breaks):
                break
        else:
            missed[seed] = sorted({result.clause for result in results} - {None})
    assert not missed, f"{mutant.defect} {mutant.breaks} was not found broken, only {missed}"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTANTS)
def test_no_clause_outside_the_named_set_fails(name: str) -> None:
    """Nothing but what a defect can reach is called broken."""
    mutant: Mutant = MUTANTS[name]
    checks = [one for one in all_checks() if not one.heavy or mutant.breaks in one.clauses]
    report: Report = run_suite(mutant.harness, checks=checks, settings=SETTINGS)
    assert mutant.breaks in report.failed
    others = set(report.failed) - mutant.may_fail
    assert not others, {clause: report.clauses[clause].reasons[:2] for clause in sorted(others)}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", CORRECT_SEEDS)
def test_the_correct_backend_passes(seed: int) -> None:
    """The memory backend passes, whatever the random choices."""
    from broken_backends.kit import BrokenHarness

    # The tests of the memory backend run all of it, with another seed.
    cases = 1 if len(SEEDS) == 1 else None
    settings = Settings(seed=seed, heavy=cases is None)
    checks = select_checks(cases=cases, turn=seed)
    report = run_suite(BrokenHarness, checks=checks, settings=settings)
    assert report.is_success, {name: report.clauses[name].reasons for name in report.failed}


def test_every_clause_that_can_be_checked_here_is_broken_by_a_backend() -> None:
    """No clause with a check goes without a defect to catch, those aside that need more."""
    elsewhere = {"C9", "D1", "E4", "E5", "E6", "P1"}
    broken = {mutant.breaks for mutant in MUTANTS.values()}
    checked = {clause for check in select_checks() for clause in check.clauses}
    assert checked - elsewhere <= broken, checked - elsewhere - broken
