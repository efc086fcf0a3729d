"""Files that boto3 reads, and certificates: what does not fit is said as such (E3)."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from s3_support import HOST, KEYS

import outlast
from outlast.errors import ConfigurationError, UnavailableError

pytestmark = [pytest.mark.s3, pytest.mark.server]


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[tuple[int, Path]]:
    """The port of what speaks TLS and nothing else, and the file of its certificate."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    signed = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    named = ["-addext", f"subjectAltName=IP:{HOST}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(  # noqa: ASYNC221 - of a test
        ["openssl", "req", *signed, *named], check=True, capture_output=True
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda _, writer: writer.close(), HOST, 0, ssl=context)
    yield server.sockets[0].getsockname()[1], certificate
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("bundle", ["none", "missing", "garbage", "directory", "fits"])
async def test_certificates_that_do_not_fit_are_a_matter_of_configuration(
    tls: tuple[int, Path], tmp_path: Path, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrusted server, and a file of trusted ones that cannot be read, which shows late."""
    port, certificate = tls
    (tmp_path / "garbage").write_text("no certificate", encoding="utf-8")
    if bundle != "none":
        path = {"directory": tmp_path, "fits": certificate}.get(bundle, tmp_path / bundle)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
    url = f"s3://bucket/x?endpoint_url=https://{HOST}:{port}"
    backend = outlast.open_backend(url, timeout=3.0, **KEYS)
    kind = UnavailableError if bundle == "fits" else ConfigurationError
    with pytest.raises(kind, match=f"{HOST}:{port}") as caught:
        await backend.open()
    assert ("AWS_CA_BUNDLE" in str(caught.value)) is (bundle != "fits")
    assert ("not trusted" in str(caught.value)) is (bundle == "none")


@pytest.mark.parametrize("variable", ["AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"])
async def test_a_file_of_settings_that_cannot_be_read_is_a_matter_of_configuration(
    url: str, tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "garbage"
    path.write_text("[a\n=b", encoding="utf-8")
    monkeypatch.setenv(variable, str(path))
    with pytest.raises(ConfigurationError, match=str(path)):
        await outlast.open_backend(url).open()
