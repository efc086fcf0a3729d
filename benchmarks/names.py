"""The stores as people call them, in the order of tables and charts."""

from typing import Final

NAMES: Final = {
    "redis": "Redis",
    "mongodb": "MongoDB",
    "s3": "S3",
    "file": "file",
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "mariadb": "MariaDB",
}


__all__ = ["NAMES"]
