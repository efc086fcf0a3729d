"""Check the core where only its wheel is installed: dependencies, imports, the bare command."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

ALLOWED = {"msgspec", "outlast", "pip", "pluggy", "setuptools"}
HEAVY = ("openai", "anthropic", "sqlalchemy", "typer", "rich")

installed = {found.metadata["Name"].lower() for found in metadata.distributions()}
if installed - ALLOWED:
    sys.exit(f"the core brought more than msgspec and pluggy: {sorted(installed - ALLOWED)}")

import outlast  # noqa: E402 - what follows looks at what this import brought

loaded = [name for name in HEAVY if name in sys.modules]
if loaded:
    sys.exit(f"importing outlast imported {loaded}")
if not (Path(outlast.__file__).parent / "py.typed").is_file():
    sys.exit("the wheel has no py.typed")

command = Path(sys.executable).parent / "outlast"
answer = subprocess.run([command, "demo"], capture_output=True, text=True, check=False, timeout=60)
if answer.returncode != 2 or "pip install" not in answer.stdout + answer.stderr:
    sys.exit(
        "without the extra `cli` the command must print the install line and exit with 2; it exited"
        f" with {answer.returncode}: {answer.stdout}{answer.stderr}"
    )
sys.stdout.write("the core alone: ok\n")
