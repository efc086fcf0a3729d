"""Where server programs are found: in wheels of this environment, beside its Python, on PATH."""

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path


class Search:
    """Looks for one server's programs and remembers where it looked, for people."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    def in_wheel(self, distribution: str, package: str, folder: str) -> Path | None:
        """The folder of programs that a wheel brings, without importing the wheel.

        Args:
            distribution: As ``pip install`` names it.
            package: Its top-level package.
            folder: Below that package.
        """
        self.tried.append(f"wheel {distribution}")
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            return None
        for location in (spec and spec.submodule_search_locations) or ():
            found = Path(location) / folder
            if found.is_dir():
                return found
        return None

    def on_path(self, name: str) -> Path | None:
        """A program in this environment's own folder of scripts, on PATH, or in /usr/sbin."""
        self.tried.append(f"{name} on PATH")
        scripts = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
        for path in (None, *scripts, "/usr/sbin", "/usr/local/sbin"):
            found = shutil.which(name, path=path)
            if found is not None:
                return Path(found)
        return None


__all__ = ["Search"]
