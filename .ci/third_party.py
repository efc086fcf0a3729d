"""Hold the example of a third party's backend, and the skeleton of one, to the contract.

Run by the Python of an environment that has nothing but wheels: ``third_party.py [all]``. It
works on a copy of the example's tests, and on a project that it makes as "Start a backend" says.
"""

import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/outlast-nats"
SHORT = "c3_ or d1_ or e4_ or p1_ or x3_ or closed_while_idle or slow_network or stopped_server"
"""What the command cannot verify on a server of somebody else, and a few faults of the network."""

FEW = ("--rounds", "2", "--kills", "2")


def run(*command: str, folder: Path) -> None:
    """Run a program of the environment, and end with it if it fails."""
    print("+", *command, flush=True)
    search_path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": search_path,
        "OUTLAST_CONTRACT_HEAVY": "0",
        "OUTLAST_CONTRACT_REPORTS": "reports",
    }
    done = subprocess.run(command, cwd=folder, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def check_origin() -> None:
    """Nothing of the family comes from the tree."""
    for name in ("outlast", "outlast-contract", "outlast-nats"):
        module = importlib.import_module(name.replace("-", "_"))
        place = Path(str(module.__file__))
        if "site-packages" not in place.parts:
            raise SystemExit(f"{name} is not installed from its wheel, but used from {place}")
        print(f"{name} {importlib.metadata.version(name)}", flush=True)


def verify_nats(folder: Path, *, everything: bool) -> None:
    """The example: the command on a server, then its own tests."""
    tests = folder / "tests"
    shutil.copytree(EXAMPLE / "tests", tests, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXAMPLE / "pyproject.toml", folder)
    sys.path.insert(0, str(tests))
    from nats_server import NatsServer  # type: ignore[import-not-found]

    server = NatsServer()
    try:
        chosen = () if everything else ("--tier", "contract", *FEW)
        clauses = () if everything else ("--clause", "F2", "--clause", "A8", "--clause", "S5")
        run("outlast-contract", server.url, *chosen, *clauses, folder=folder)
    finally:
        server.close()
    harness = ("--harness", "test_contract:NatsHarness")
    run("outlast-contract", *harness, "--clause", "C3", *FEW, folder=tests)
    selection = () if everything else ("-k", f"bucket or {SHORT}")
    run(sys.executable, "-m", "pytest", "-q", "-n3", *selection, folder=folder)
    pages = [path.name for path in (folder / "reports").glob("*.html")]
    if pages != ["tests-test_contract.TestContract.html"]:
        raise SystemExit(f"the pages that pytest wrote are {pages}")


def verify_skeleton(folder: Path, *, everything: bool) -> None:
    """The page's project: it fails by itself, and passes with the page's blocks filled in."""
    sys.path.insert(0, str(ROOT / "tests"))
    import skeleton  # type: ignore[import-not-found]

    project = skeleton.write(folder)
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "-q", "--no-deps", "-w", "dist", ".", folder=project)
    (wheel,) = project.glob("dist/*.whl")
    run(*pip, "install", "-q", "--no-deps", str(wheel), folder=project)
    shutil.rmtree(project / "src")
    run("outlast", "backends", folder=project)
    chosen = () if everything else ("--tier", "contract", *FEW, "--clause", "F2", "--clause", "S5")
    run("outlast-contract", "dict://localhost", *chosen, folder=project)
    selection = () if everything else ("-k", "f10_ or c5_ or l1_ or a8_ or x4_")
    run(sys.executable, "-m", "pytest", "-q", "-n2", *selection, folder=project)


def main() -> None:
    """Both, in a folder that is removed."""
    everything = "all" in sys.argv[1:]
    check_origin()
    with tempfile.TemporaryDirectory(prefix="outlast-third-party-") as name:
        verify_nats(Path(name), everything=everything)
        verify_skeleton(Path(name), everything=everything)


if __name__ == "__main__":
    main()
