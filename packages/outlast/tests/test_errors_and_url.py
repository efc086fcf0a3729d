"""What errors say, and what URLs never show."""

import copy
import pickle
import re

import pytest

from outlast import errors, open_backend
from outlast.errors import ConfigurationError, FencedError, OutcomeUnknownError, OutlastError
from outlast.url import parse_url, redact, scheme_of


def test_every_error_is_an_outlast_error_with_its_outcome() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    assert all(issubclass(kind, OutlastError) for kind in kinds)
    unknown = {
        kind
        for kind in kinds
        if kind.__init__ is OutlastError.__init__ and kind("x").applied is None
    }
    assert unknown == {OutcomeUnknownError}


def test_bad_input_is_a_value_error_too() -> None:
    assert issubclass(errors.InvalidDataError, ValueError)
    assert issubclass(errors.InvalidIdError, ValueError)


def test_a_stale_write_is_a_fence() -> None:
    error = errors.StaleWriteError(stored_epoch=3)
    assert isinstance(error, FencedError)
    assert (error.reason, error.stored_epoch, error.applied) == ("stale", 3, False)


@pytest.mark.parametrize("reason", ["superseded", "lost", "no_record", "claimed", "stale"])
def test_a_fence_says_why_and_what_to_do(reason: errors.FenceReason) -> None:
    text = str(FencedError(reason, 4, backend="memory", operation="put", key="r"))
    assert text.startswith(f"put('r') on memory: {reason}: ")
    assert "stored epoch 4" in text
    assert "claim" in text


def test_an_error_keeps_its_attributes_through_pickle_and_copy() -> None:
    error = FencedError("superseded", 9, operation="put", applied=None)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is FencedError
        assert (other.reason, other.stored_epoch, other.applied) == ("superseded", 9, None)
        assert str(other) == str(error)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:1/0", "redis://user:***@host:1/0"),
        ("redis://:secret@host", "redis://:***@host"),
        ("pg://u:se/cr@et@host/db", "pg://u:***@host/db"),
        ("pg://u:se/cr?e=t@host/db?a=b", "pg://u:***@host/db?a=b"),
        ("pg://u:se?cr/et@host/db", "pg://u:***@host/db"),
        ("pg://h:1,[::1]:2/db?owner=a@b", "pg://h:1,[::1]:2/db?owner=a@b"),
        ("pg://u:a@b@host/db?sslmode=on", "pg://u:***@host/db?sslmode=on"),
        ("s3://b?aws_secret_access_key=abc&region=x", "s3://b?aws_secret_access_key=***&region=x"),
        ("mongodb://u:p%40ss@h1,h2/db?authSource=x", "mongodb://u:***@h1,h2/db?authSource=x"),
        (
            "x://h?authMechanism=A&authMechanismProperties=T:p",
            "x://h?authMechanism=A&authMechanismProperties=***",
        ),
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("redis://host?password=p", "redis://host?password=***"),
        ("pg:/u:secret@host/db", "pg:***@host/db"),
        ("pg:u:sec@ret@host/db", "pg:***@host/db"),
        ("redis::secret@host", "redis:***@host"),
        ("pg:u:sec://ret@host/db?token=x", "pg:***@host/db?token=***"),
        ("a_user:secret@host", "***@host"),
        ("//u:secret@host", "***@host"),
        ("a_b://u:secret@host", "***@host"),
        ("pg:u:secret@h pg://u:secret@h/db", "pg:***@h pg://u:***@h/db"),
        ('no answer of "http://u:secret@host/"', 'no answer of "http://u:***@host/"'),
        ("no: x://u:secret@h/0 y://:secret@h z://h", "no: x://u:***@h/0 y://:***@h z://h"),
        ("x://:a secret y://secret@h", "x://:***@h"),
        ("no: x://h y://:secret@h", "no: x://h y:***@h"),
        ("", ""),
    ],
)
def test_no_secret_of_a_url_is_shown(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_a_url_is_taken_apart_and_decoded() -> None:
    parts = parse_url("x+y://u:p%2Fw@h:5/a%20b?o=1", options=("o",))
    assert parts[1:] == ("x+y", "u", "p/w", "h", 5, "/a b", {"o": "1"})


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("x://h?nope=1", "unknown option 'nope'.*known: a, b"),
        ("x://h?a=1&a=2", "'a' is given twice"),
        ("x://h:port", "not a store URL"),
        ("x://h?a", "not a store URL"),
        ("x://h/#f", "fragment"),
        ("x://h/a\nb", "control character"),
        ("x:///a\tb", "control character"),
        ("x://\0", "control character"),
        ("x:///\ud800", "lone surrogate"),
    ],
)
def test_what_does_not_belong_in_a_url_is_refused(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        parse_url(url, options=("b", "a"))


@pytest.mark.parametrize(
    "password", ["/cret", "1/cret", "x/cret", "x?cret", "x#cret", "1?cret=", "℀cret", "[cret]"]
)
def test_a_password_that_takes_the_url_apart_is_not_shown(password: str) -> None:
    """E4: what is special in it makes another part of the URL of its rest."""
    with pytest.raises(ConfigurationError, match="%2F") as caught:
        parse_url(f"x://user:{password}@host:1/place?a=1", options=("a",))
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "postgresql+psycopg", "a.third-party"])
@pytest.mark.parametrize("rest", ["/u:secret@h/db", "u:secret@h", ":secret@h", "secret", "", "/h"])
def test_a_url_without_slashes_is_refused_with_what_to_write(scheme: str, rest: str) -> None:
    """E4: all of it would be a path, and a database of the host that is the default."""
    for refuse in (scheme_of, parse_url, open_backend):
        with pytest.raises(ConfigurationError, match=re.escape(f"write {scheme}://")) as caught:
            refuse(f"{scheme}:{rest}")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["file:/a", "memory:", "sqlite:", "sqlite+aiosqlite:", "FILE:/a"])
def test_what_has_no_host_needs_no_slashes(url: str) -> None:
    assert scheme_of(url) == url.partition(":")[0].lower()


@pytest.mark.parametrize("url", ["", "nothing", "/path/x", 5, None, "1x://y"])
def test_what_has_no_scheme_is_no_url(url: object) -> None:
    with pytest.raises(ConfigurationError):
        scheme_of(url)
