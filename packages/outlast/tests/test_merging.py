"""Merging a task's context: every rule of it, and that nothing is shared."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.runtime import deep_merge


@pytest.mark.parametrize(
    ("stored", "given_", "merged"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 3}}}, {"a": {"b": {"c": 3, "d": 2}}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
        ({"a": 2}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 1}, {"a": None}, {"a": 1}),
        ({"a": {"b": 1}}, {"a": {"b": None}}, {"a": {"b": 1}}),
        ({"a": {"b": 1}}, {"a": None}, {"a": {"b": 1}}),
        ({}, {"a": None}, {}),
        ({"a": None}, {"a": 0}, {"a": 0}),
        ({"a": 1}, {"a": False}, {"a": False}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 1}}),
        ({"a": [1]}, {"a": []}, {"a": []}),
    ],
    ids=str,
)
def test_the_rules_of_merging(stored: Any, given_: Any, merged: Any) -> None:
    assert deep_merge(stored, given_) == merged


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON)


def parts(value: Any) -> set[int]:
    """The identities of all lists and dicts in a value."""
    if isinstance(value, dict):
        return {id(value)}.union(*(parts(item) for item in value.values()))
    if isinstance(value, list):
        return {id(value)}.union(*(parts(item) for item in value))
    return set()


@given(OBJECTS, OBJECTS)
def test_neither_argument_changes_or_is_shared(stored: Any, given_: Any) -> None:
    """And merging the same again changes nothing."""
    before = copy.deepcopy((stored, given_))
    merged = deep_merge(stored, given_)
    assert (stored, given_) == before
    assert not parts(merged) & (parts(stored) | parts(given_))
    assert deep_merge(merged, given_) == merged


def test_depth_costs_no_stack() -> None:
    """As deep as the stores carry."""
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    merged = deep_merge(deep, deep)
    for _ in range(5000):
        merged = merged["a"]
    assert merged == {}
