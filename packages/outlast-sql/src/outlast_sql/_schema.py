"""The tables, the same in every dialect.

Ids, fences and payloads are bytes in binary columns, so that no collation folds them and no JSON
type rewrites them (H-Q5, H-Q15). Lengths keep every index below MySQL's limit of 3,072 bytes. The
other tables know a scope by its number alone: an id of 512 bytes is not repeated in each of its
entries, and a swept scope leaves no copy of its id behind.

There are no foreign keys: every mutation starts at the scope's row, in one transaction.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    UniqueConstraint,
)
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.types import TypeEngine

from outlast.driver import REGISTERS, ScopeKind

SCHEMA_VERSION: Final = 1
"""Raised by every change of the tables; a store of a newer version is refused (V8)."""

KIND_CODES: Final[Mapping[ScopeKind, int]] = {"task": 0, "run": 1}
REGISTER_CODES: Final[Mapping[str, int]] = {"state": 0, "input": 1, "checkpoint": 2}
REGISTERS_OF_KIND: Final[Mapping[int, tuple[int, ...]]] = {
    code: tuple(REGISTER_CODES[name] for name in REGISTERS[kind])
    for kind, code in KIND_CODES.items()
}
LOG_CODES: Final[Mapping[str, int]] = {"api": 0, "user": 1}

_ID_BYTES = 512


def _bytes(length: int) -> TypeEngine[bytes]:
    return LargeBinary(length).with_variant(VARBINARY(length), "mysql", "mariadb")


def _payload() -> TypeEngine[bytes]:
    return LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")


metadata: Final = MetaData()
_ENGINE: Final[dict[str, Any]] = {"mysql_engine": "InnoDB"}
"""Another one of MySQL's may know no transactions, and be the default of a server."""

schema: Final = Table(
    "outlast_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    **_ENGINE,
)

floors: Final = Table(
    "outlast_floor",
    metadata,
    Column("namespace", _bytes(_ID_BYTES), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    comment="Per namespace, what no swept scope was above (C5); no row means 0",
    **_ENGINE,
)

scopes: Final = Table(
    "outlast_scope",
    metadata,
    # SQLite numbers the rows of an INTEGER key by itself, of a BIGINT key not.
    Column("sid", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("namespace", _bytes(_ID_BYTES), nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("id", _bytes(_ID_BYTES), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("claim_id", _bytes(64), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("op", _bytes(64), nullable=False),
    Column(
        "tail",
        BigInteger,
        nullable=False,
        comment="Raised by every mutation; no entry of any log has a higher position",
    ),
    Column("parent", _bytes(_ID_BYTES)),
    Column("status", _bytes(64)),
    Column("updated_at", BigInteger, nullable=False, comment="Microseconds, the writer's clock"),
    Column("empty_since", BigInteger, comment="Last change of a record without data; else NULL"),
    UniqueConstraint("namespace", "kind", "id", name="outlast_scope_id"),
    **_ENGINE,
)

registers: Final = Table(
    "outlast_register",
    metadata,
    Column("sid", BigInteger, primary_key=True, autoincrement=False),
    Column("register", SmallInteger, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False, comment="Microseconds, the store's clock"),
    Column("data", _payload()),
    **_ENGINE,
)

entries: Final = Table(
    "outlast_entry",
    metadata,
    Column("sid", BigInteger, primary_key=True, autoincrement=False),
    Column("log", SmallInteger, primary_key=True, autoincrement=False),
    Column("pos", BigInteger, primary_key=True, autoincrement=False),
    Column("entry_id", _bytes(_ID_BYTES), nullable=False),
    Column("data", _payload(), nullable=False),
    UniqueConstraint("sid", "log", "entry_id", name="outlast_entry_id"),
    **_ENGINE,
)


def _scope_index(name: str, column: str, *behind: str) -> None:
    present = scopes.c[column].is_not(None)
    Index(
        name,
        *(scopes.c[part] for part in ("namespace", *behind[:1], column, *behind[1:])),
        sqlite_where=present,
        postgresql_where=present,
    )


# Partial where the dialect can: a scope without the attribute costs the index nothing.
_scope_index("outlast_scope_status", "status", "kind", "id")
_scope_index("outlast_scope_parent", "parent", "kind", "id")
_scope_index("outlast_scope_empty", "empty_since")


def create_statements(dialect: Dialect) -> Iterator[str]:
    """The statements that create what is missing of the tables and indexes in ``dialect``."""
    for table in metadata.sorted_tables:
        yield str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect))
