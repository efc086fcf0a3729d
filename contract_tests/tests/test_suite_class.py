"""What ``contract_suite`` makes: plain tests that cannot be changed unseen."""

import inspect
from typing import Any

import pytest

import outlast
from outlast_contract import Harness, Settings, contract_suite
from outlast_contract.engine import NO_SERVER, select_checks
from outlast_contract.stores import MemoryHarness
from outlast_contract.suite import GUARD, changed_tests

NAME = "test_s5_what_is_missing_reads_as_missing"


@pytest.fixture(autouse=True)
def all_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this run itself takes of each check."""
    monkeypatch.delenv("OUTLAST_CONTRACT_CASES", raising=False)


def guard(suite: type) -> None:
    getattr(suite(), GUARD)()


def names_of(suite: type) -> list[str]:
    return [name for name in dir(suite) if name.startswith("test_") and name != GUARD]


def test_each_check_is_a_plain_test() -> None:
    """There is one test for each check, none of them a coroutine, and all names differ."""
    suite = contract_suite(MemoryHarness)
    assert sorted(names_of(suite)) == sorted(check.test_name for check in select_checks())
    assert not any(inspect.iscoroutinefunction(getattr(suite, name)) for name in names_of(suite))


def test_tiers_can_be_chosen() -> None:
    """A suite of one tier has the tests of that tier."""
    suite = contract_suite(MemoryHarness, tiers=["race"])
    assert sorted(names_of(suite)) == sorted(
        check.test_name for check in select_checks(tiers=["race"])
    )


@pytest.mark.parametrize("turn", [0, 5, 2**32 - 1])
@pytest.mark.parametrize("cases", [1, 2, 6])
def test_some_cases_of_each_check_can_be_chosen(cases: int, turn: int) -> None:
    """No check is without a case, and none has fewer than were asked for."""
    chosen, every = select_checks(cases=cases, turn=turn), select_checks()
    families = {check.family for check in every}
    assert {check.family for check in chosen} == families
    for family in families:
        taken = [check for check in chosen if check.family == family]
        there = [check for check in every if check.family == family]
        assert len(taken) == len(set(taken)) == min(cases, len(there))
        assert taken == [check for check in there if check in taken]


def test_selections_of_different_turns_cover_all_cases() -> None:
    """One case each is enough, if there are as many selections as cases."""
    every = select_checks()
    chosen = {check for turn in range(20) for check in select_checks(cases=1, turn=turn)}
    assert chosen == set(every)


@pytest.mark.parametrize("cases", [1, 2, 6])
def test_classes_of_different_harnesses_take_different_cases(
    cases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many each, and the same ones in each run, by argument or by environment."""

    class OtherHarness(MemoryHarness):
        pass

    suites = [contract_suite(harness, cases=cases) for harness in (MemoryHarness, OtherHarness)]
    names = [sorted(names_of(suite)) for suite in suites]
    assert [len(one) for one in names] == [len(select_checks(cases=cases))] * 2
    assert names[0] != names[1]
    monkeypatch.setenv("OUTLAST_CONTRACT_CASES", str(cases))
    assert sorted(names_of(contract_suite(MemoryHarness))) == names[0]


def test_no_case_at_all_is_refused() -> None:
    """A suite without checks would pass."""
    with pytest.raises(ValueError, match="at least 1"):
        contract_suite(MemoryHarness, cases=0)


def test_what_a_store_lacks_is_left_out() -> None:
    """Tests that could only be skipped are not there, heavy ones that are excluded among them."""
    suite = contract_suite(MemoryHarness, lacks=NO_SERVER, settings=Settings(heavy=False))
    wanted = [
        check for check in select_checks() if not check.heavy and check.needs.isdisjoint(NO_SERVER)
    ]
    assert sorted(names_of(suite)) == sorted(check.test_name for check in wanted)
    assert 0 < len(wanted) < len(select_checks())


def test_a_second_store_can_be_limited_to_what_the_first_one_lacks() -> None:
    """Every test that needs a password, and no other."""
    suite = contract_suite(MemoryHarness, only=["host", "secret"])
    wanted = [check.test_name for check in select_checks() if check.needs & {"host", "secret"}]
    assert sorted(names_of(suite)) == sorted(wanted)
    assert len(wanted) > 1


def test_an_unchanged_subclass_passes_the_guard() -> None:
    """Fixtures and tests of its own are a subclass's own affair."""

    class Suite(contract_suite(MemoryHarness)):
        def test_of_mine(self) -> None:
            """A test that the suite does not know."""

    guard(Suite)


def test_an_override_is_reported() -> None:
    """A subclass that replaces a test fails the guard, which names the test."""

    class Suite(contract_suite(MemoryHarness)):
        def test_s5_what_is_missing_reads_as_missing(self) -> None:
            """It always passes."""

    with pytest.raises(AssertionError, match=f"{NAME} was overridden"):
        guard(Suite)


@pytest.mark.parametrize("value", [None, "no test"])
def test_a_test_that_was_taken_out_is_reported(value: Any) -> None:
    """So does one that sets a test to something that is no test."""

    class Suite(contract_suite(MemoryHarness)):
        pass

    setattr(Suite, NAME, value)
    with pytest.raises(AssertionError, match=NAME):
        guard(Suite)


def test_a_deleted_test_is_reported() -> None:
    """And a deletion from the suite itself."""
    suite = contract_suite(MemoryHarness)
    delattr(suite, NAME)
    assert changed_tests(suite) == [f"{NAME} was deleted"]
    with pytest.raises(AssertionError, match=f"{NAME} was deleted"):
        guard(suite)


@pytest.mark.parametrize(
    ("mark", "is_fine"),
    [
        (pytest.mark.xfail(strict=True, reason="known"), True),
        (pytest.mark.xfail(reason="known"), False),
        (pytest.mark.xfail(strict=True), False),
        (pytest.mark.skip(reason="not today"), False),
    ],
    ids=["strict with a reason", "not strict", "no reason", "skip"],
)
def test_only_a_strict_xfail_with_a_reason_may_override(
    mark: pytest.MarkDecorator, is_fine: bool
) -> None:
    """What cannot pass yet is marked so that it is seen, and seen again when it passes."""

    class Suite(contract_suite(MemoryHarness)):
        @mark
        def test_s5_what_is_missing_reads_as_missing(self) -> None:
            """What the mark says."""

    assert (changed_tests(Suite) == []) is is_fine


def test_the_guard_itself_stays() -> None:
    """It can be neither overridden, nor replaced, nor deleted."""

    class Suite(contract_suite(MemoryHarness)):
        def test_s5_what_is_missing_reads_as_missing(self) -> None:
            """It always passes."""

        def test_no_test_of_the_suite_was_changed(self) -> None:
            """It always passes."""

    with pytest.raises(AssertionError, match="was overridden"):
        guard(Suite)
    with pytest.raises(AttributeError):
        setattr(Suite, GUARD, lambda self: None)
    suite = contract_suite(MemoryHarness)
    with pytest.raises(AttributeError):
        delattr(suite, GUARD)


def test_xfail_names_tests() -> None:
    """Known failures are given by name; a name that no test has is an error."""
    suite = contract_suite(MemoryHarness, xfail={NAME: "known"})
    assert changed_tests(suite) == []
    marks = getattr(suite, NAME).pytestmark
    assert [(mark.name, mark.kwargs["strict"]) for mark in marks] == [("xfail", True)]
    with pytest.raises(ValueError, match="test_of_nothing"):
        contract_suite(MemoryHarness, xfail={"test_of_nothing": "known"})
    # A shorter suite takes the same ones.
    contract_suite(MemoryHarness, tiers=["race"], xfail={NAME: "known"})


def test_a_harness_that_opens_nothing_is_refused() -> None:
    """Without open() and url there is nothing to test, which is said at once."""

    class Empty(Harness):
        pass

    with pytest.raises(TypeError, match="Empty defines neither"):
        contract_suite(Empty)

    class Opens(Harness):
        async def open(self, namespace: str) -> outlast.Backend:
            return outlast.open_backend("memory://", namespace=namespace)

    class Named(Harness):
        url = "memory://named"

    assert contract_suite(Opens)
    assert contract_suite(Named)
