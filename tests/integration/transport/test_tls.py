"""TLS: the version is agreed on by ALPN, and certificates are replaced without a restart."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.integration.transport.support import Raw, get, serving
from topics.api.options import TlsOptions
from topics.cli.main import run
from topics.model.errors import InvalidConfig


def make_certificate(folder: Path, name: str) -> TlsOptions:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip(reason="openssl is not installed, so there is no certificate to test with")
    cert, key = folder / "cert.pem", folder / "key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run([openssl, "req", "-x509", *curve, *files], check=True, capture_output=True)
    return TlsOptions(str(cert), str(key))


def client_context(*protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    return context


async def certificate_of(port: int) -> bytes:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context("http/1.1"))
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return shown


async def test_http1_over_tls_is_marked_secure(tmp_path: Path) -> None:
    async with serving(tls=make_certificate(tmp_path, "one")) as (app, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=client_context("http/1.1"))
        client = Raw(reader, writer)
        client.send(get("/a") + get("/count") + get("/b", "connection: close"))
        assert (await client.reply()).status == 200
        assert (await client.reply()).body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
        assert (await client.reply()).headers["connection"] == "close"
        assert app.seen[0].head.secure
        writer.close()
        await writer.wait_closed()


async def test_http2_is_agreed_on_by_alpn(tmp_path: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip(reason="curl is not installed")
    async with serving(tls=make_certificate(tmp_path, "one")) as (app, listener):
        process = await asyncio.create_subprocess_exec(
            *(curl, "-sSk", "-m", "5", "--http2", "-d", "abc", f"https://127.0.0.1:{listener.port}/curl"),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert output == b'{"path":"/curl","bytes":3}'
        assert app.seen[0].head.version == "2"


async def test_reload_shows_the_new_certificate_to_new_connections(tmp_path: Path) -> None:
    tls = make_certificate(tmp_path, "one")
    async with serving(tls=tls) as (_, listener):
        first = await certificate_of(listener.port)
        make_certificate(tmp_path, "two")
        assert await certificate_of(listener.port) == first
        listener.reload_tls()
        assert await certificate_of(listener.port) != first


async def test_reload_of_a_broken_pair_keeps_the_old_one(tmp_path: Path) -> None:
    tls = make_certificate(tmp_path, "one")
    async with serving(tls=tls) as (_, listener):
        first = await certificate_of(listener.port)
        Path(tls.key).write_text("not a key")
        with pytest.raises(InvalidConfig):
            listener.reload_tls()
        assert await certificate_of(listener.port) == first


async def test_a_command_that_does_not_trust_a_server_says_how_it_could(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(tls=make_certificate(tmp_path, "one")) as (_, listener):
        url = f"https://127.0.0.1:{listener.port}"
        assert await asyncio.to_thread(run, ("topics", "--url", url, "--timeout", "1")) == 3
    assert "SSL_CERT_FILE" in capsys.readouterr().err


async def test_plain_text_on_a_tls_port_is_dropped(tmp_path: Path) -> None:
    async with serving(tls=make_certificate(tmp_path, "one")) as (app, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(get("/"))
        try:
            assert b"200 OK" not in await reader.read()
        except ConnectionError:
            pass
        writer.close()
        assert not app.seen
