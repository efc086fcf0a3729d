"""The command `outlast`; see ``outlast --help``. Needs the extra ``cli``."""

import sys

_INSTALL = 'pip install "outlast[cli]"'


def main() -> None:
    """Run the command, or say what to install for it (exit code 2)."""
    try:
        from outlast.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in {"rich", "typer"}:
            raise
        print(
            f"The command outlast needs {error.name}, which is not installed:\n\n    {_INSTALL}\n",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # What the terminal's encoding lacks is no reason to die.
        reconfigure(errors="replace")
    app()


__all__ = ["main"]
