"""The certificate of a server is loaded again when its files change, and a broken one is not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tensafe_operator.runtime import serving_certificate
from tensafe_operator.runtime.errors import ConfigurationError
from tensafe_operator.runtime.serving_certificate import ServingCertificate
from tests.support.programs.controlplane import CertificateAuthority


class Secret:
    """The folder of a mounted Secret, whose files are replaced together with one rename, as the kubelet does it."""

    def __init__(self, folder: Path) -> None:
        self.authority = CertificateAuthority(folder)
        self.folder = folder / "mounted"
        self._folder, self._numbers = folder, iter(range(100))

    def issue(self) -> int:
        """Mount a new certificate; return its serial number."""
        certificate, key = self.authority.issue("server", "server", server=["127.0.0.1"])
        self.mount(certificate.read_bytes(), key.read_bytes())
        return x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number

    def mount(self, certificate: bytes, key: bytes) -> None:
        version = self._folder / f"version-{next(self._numbers)}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate)
        (version / "tls.key").write_bytes(key)
        link = self._folder / "new"
        link.symlink_to(version)
        link.rename(self.folder)


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Secret:
    monkeypatch.setattr(serving_certificate, "POLL_SECONDS", 0.01)
    return Secret(tmp_path)


@contextlib.asynccontextmanager
async def served(certificate: ServingCertificate) -> AsyncIterator[int]:
    """The port of a server with the certificate, which is reloaded meanwhile."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context)
    reloading = asyncio.create_task(certificate.reload_when_changed())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        reloading.cancel()
        server.close()


async def serial_number(port: int, authority: CertificateAuthority) -> int:
    """The serial number of the certificate that a client receives and verifies."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(found).serial_number


def test_new_certificate_is_served_without_a_restart(secret: Secret) -> None:
    async def run() -> None:
        first = secret.issue()
        async with served(ServingCertificate(secret.folder)) as port:
            assert await serial_number(port, secret.authority) == first
            second = secret.issue()
            while await serial_number(port, secret.authority) != second:
                await asyncio.sleep(0.01)  # no event reports that a file was read

    asyncio.run(asyncio.wait_for(run(), 60))


def test_broken_certificate_is_reported_once_and_the_old_one_stays(
    secret: Secret, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        first = secret.issue()
        async with served(ServingCertificate(secret.folder)) as port:
            other_key = secret.authority.issue("other", "other")[1].read_bytes()
            secret.mount((secret.folder / "tls.crt").read_bytes(), other_key)
            while not caplog.records:
                await asyncio.sleep(0.01)
            assert await serial_number(port, secret.authority) == first
            second = secret.issue()
            while await serial_number(port, secret.authority) != second:
                await asyncio.sleep(0.01)

    caplog.set_level(logging.WARNING)
    asyncio.run(asyncio.wait_for(run(), 60))
    (record,) = caplog.records
    assert "the certificate of the metrics stays the old one" in record.getMessage()
    assert "PRIVATE" not in record.getMessage()


def test_old_versions_of_tls_are_refused(secret: Secret) -> None:
    secret.issue()
    assert ServingCertificate(secret.folder).context.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("broken", ["missing", "empty", "encrypted"])
def test_folder_without_a_usable_certificate_is_refused_at_start(broken: str, secret: Secret) -> None:
    if broken != "missing":
        secret.issue()
        key = b""
        if broken == "encrypted":  # a server would ask a terminal for the password
            private = serialization.load_pem_private_key((secret.folder / "tls.key").read_bytes(), None)
            form, password = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"sesame")
            key = private.private_bytes(serialization.Encoding.PEM, form, password)
        secret.mount((secret.folder / "tls.crt").read_bytes(), key)
    with pytest.raises(ConfigurationError, match="no certificate with its key"):
        ServingCertificate(secret.folder)
