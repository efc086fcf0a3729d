"""Server processes in containers, through testcontainers, on any Docker engine that answers.

They get the command line of a process of this host: they share its network, and the server's folder
lies at the same place. So an image needs the program and its libraries, and nothing else.
"""

import contextlib
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from outlast_contract.servers._children import Node, StartError
from outlast_contract.servers._programs import Search
from outlast_contract.servers._recipe import Command

_POLL = 0.02
_LOG_LINES = 200


def answering_engine(search: Search) -> bool:
    """Whether there is a Docker engine to ask, and what to ask it with."""
    search.tried.append("a Docker engine, through testcontainers")
    with contextlib.suppress(Exception):  # Of any kind: there is none, then.
        client: Any = import_module("testcontainers.core.docker_client").DockerClient()
        return bool(client.client.ping())
    return False


class ContainerNode(Node):
    """A container, started again and again with its folder.

    It is removed when its keeper ends; if that is killed, by testcontainers' own cleaner.
    """

    def __init__(self, image: str, log: Path) -> None:
        self._image = image
        self._home = log.parent
        self._container: Any = None
        self._docker: Any = None

    @property
    def pid(self) -> int | None:
        state = self._state()
        return int(state["Pid"]) if state.get("Running") else None

    def launch(self, command: Command) -> None:
        if self._container is not None:
            if self.pid is None:
                self._docker.start()
            return
        program, *arguments = [str(argument) for argument in command.arguments]
        home = str(self._home)
        container: Any = import_module("testcontainers.core.container").DockerContainer(self._image)
        container.with_command(arguments)
        container.with_envs(**dict(command.environment or {"HOME": home}))
        container.with_volume_mapping(home, home, "rw")
        container.with_kwargs(
            entrypoint=[program], network_mode="host", user=f"{os.getuid()}:{os.getgid()}"
        )
        self._container = container
        try:
            container.start()
        except Exception as error:  # Of Docker's client, which has many kinds.
            raise StartError(f"no container of {self._image}: {error}") from error
        self._docker = container.get_wrapped_container()

    def ended(self) -> int | None:
        time.sleep(_POLL)
        state = self._state()
        return None if state.get("Running") else int(state.get("ExitCode", -1))

    def kill(self) -> None:
        state = self._state()
        if state.get("Running"):
            with contextlib.suppress(Exception):  # It may have ended by itself.
                self._docker.kill()
            if state.get("Paused"):
                with contextlib.suppress(Exception):
                    self._docker.unpause()
            self._docker.wait()

    def stop(self) -> None:
        self._running().pause()

    def cont(self) -> None:
        self._running().unpause()

    def log(self) -> str:
        if self._docker is None:
            return ""
        return str(self._docker.logs(tail=_LOG_LINES).decode(errors="replace"))

    def discard(self) -> None:
        self.kill()
        if self._container is not None:
            self._container.stop()
            self._container = self._docker = None

    def _state(self) -> dict[str, Any]:
        if self._docker is None:
            return {}
        self._docker.reload()
        state: dict[str, Any] = self._docker.attrs["State"]
        return state

    def _running(self) -> Any:
        if self.pid is None:
            raise StartError("it does not run")
        return self._docker


__all__ = ["ContainerNode", "answering_engine"]
