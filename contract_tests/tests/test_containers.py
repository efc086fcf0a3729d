"""Servers in containers: the same handles, and the contract on them.

No image is pulled: those used here are made of the programs that wheels carry.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast_contract.engine import select_checks
from outlast_contract.runner import run_suite
from outlast_contract.servers import Server, start_server
from outlast_contract.servers._kinds import RECIPES
from outlast_contract.servers._locate import CONTAINERS
from outlast_contract.servers._programs import Search
from outlast_contract.stores import harness_for

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(240),
    # Of Docker's client, which leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KINDS = ("redis", "valkey", "mongodb", "s3")
CLAUSES = ("A1", "C3")
PATIENCE = 30.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """A client of the Docker engine that answers, or of one of our own."""
    docker = import_module("docker")
    found = answering(docker)
    if found is not None:
        with contextlib.closing(found):
            yield found
        return
    program = shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None or os.getuid() != 0:
        pytest.skip("NOT RUN: no Docker engine answers, and none can be started")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["DOCKER_HOST"] = f"unix://{folder}/socket"
        options = {
            "data-root": f"{folder}/data",
            "exec-root": f"{folder}/exec",
            "pidfile": f"{folder}/pid",
            "host": os.environ["DOCKER_HOST"],
            # The containers are on the host's network, and nothing of it is to be changed.
            "bridge": "none",
            "iptables": "false",
            "ip6tables": "false",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        log = Path(folder, "log")
        with log.open("wb") as output, subprocess.Popen([program, *words], stderr=output) as daemon:
            try:
                deadline = time.monotonic() + PATIENCE
                while (found := answering(docker)) is None:
                    if daemon.poll() is not None or time.monotonic() > deadline:
                        # Inside a container, or where the kernel lacks something.
                        pytest.skip(f"NOT RUN: dockerd does not come up: {log.read_text()[-500:]}")
                    time.sleep(0.1)
                with contextlib.closing(found):
                    yield found
            finally:
                del os.environ["DOCKER_HOST"]
                daemon.terminate()
                daemon.wait(PATIENCE)


def answering(docker: Any) -> Any:
    try:
        client = docker.from_env()
    except docker.errors.DockerException:
        return None
    with contextlib.suppress(docker.errors.DockerException):
        client.ping()
        return client
    client.close()
    return None


@pytest.fixture(params=KINDS)
def server(
    request: pytest.FixtureRequest, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """A server in a container of an image made of the program in its wheel."""
    recipe = RECIPES[request.param]()
    assert recipe.find(Search()), "the extra `servers` brings it"
    assert recipe.image is not None
    image = f"outlast-test-{request.param}"
    engine.api.import_image_from_data(packed(recipe.program, recipe.image[1]), repository=image)
    monkeypatch.setenv(CONTAINERS, "1")
    monkeypatch.setenv(f"{recipe.variable.removesuffix('_URL')}_IMAGE", image)
    # Its image would have to be pulled.
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
    with start_server(request.param) as started:
        (container,) = engine.containers.list()
        assert any(image in tag for tag in container.image.tags)
        container.reload()
        assert started.pid() == container.attrs["State"]["Pid"]
        yield started
    assert engine.containers.list(all=True) == []


def packed(program: Path, name: str) -> bytes:
    """A file system of one program and the libraries that it is linked with."""
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    libraries = re.findall(r"(/\S+) \(0x", linked)
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for place, source in [(f"usr/bin/{name}", program), *((path, path) for path in libraries)]:
            archive.add(Path(source).resolve(), str(place).lstrip("/"))
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(folder)
    return output.getvalue()


def test_a_backend_keeps_the_contract_on_a_server_in_a_container(server: Server) -> None:
    """A part of the suite, found and opened by nothing but the server's URL."""
    report = run_suite(
        harness_for(server.url, **server.options),
        checks=select_checks(tiers=["contract"], clauses=CLAUSES),
    )
    assert report.failed == ()
    assert [report.clauses[clause].status for clause in CLAUSES] == ["verified"] * len(CLAUSES)


async def test_a_container_is_stopped_killed_and_started_again_on_its_data(server: Server) -> None:
    """What was acknowledged before a kill is there after it; a stopped server answers nothing."""
    options = {**server.options, "timeout": 3.0}
    message = outlast.ApiMessage(id="m", role="user", content="kept")
    async with outlast.open_backend(server.url, **options) as backend:
        await backend.persistence.append_api_message("t", message)
        server.stop()
        with pytest.raises(outlast.UnavailableError):
            await backend.ping()
        server.cont()
        await backend.ping()
    before = server.pid()
    server.kill()
    assert server.pid() is None
    server.restart()
    assert server.pid() not in (None, before)
    async with outlast.open_backend(server.url, **server.options) as backend:
        assert await backend.persistence.load_api_messages("t") == [message]
