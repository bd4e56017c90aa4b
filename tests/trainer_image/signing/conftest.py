"""Keys, and certificates of a small authority."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tensorguard.signing import keys

MakeKey = Callable[..., Path]


@pytest.fixture(scope="session")
def make_key(tmp_path_factory: pytest.TempPathFactory) -> MakeKey:
    """Makes a signing key of a given name, once, and returns the folder with its files."""

    def make(name: str = "ours") -> Path:
        folder = tmp_path_factory.getbasetemp() / f"keys-{name}"
        if not folder.exists():
            private, public, _ = keys.new_signing_key()
            keys.write_new(folder, {keys.SIGNING_KEY: (private, 0o600), keys.PUBLIC_KEY: (public.encode(), 0o644)})
        return folder

    return make


class Authority:
    """A certificate authority that issues certificates for signing, directly or through an intermediate one."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.root_key, self.issuer_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        root = _certificate(f"{name} root", self.root_key.public_key(), f"{name} root", self.root_key, authority=True)
        self.issuer = _certificate(
            f"{name} issuer", self.issuer_key.public_key(), f"{name} root", self.root_key, authority=True
        )
        self.root_file = folder / f"{name}-root.pem"
        self.root_file.write_bytes(root.public_bytes(Encoding.PEM))

    def issue(self, who: str, *, by_root: bool = False) -> Path:
        """A PEM file with a new key and its certificate, followed by that of the issuer unless the root issued it."""
        key = ec.generate_private_key(ec.SECP256R1())
        path = self.folder / f"{who}.pem"
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + self.certify(who, key.public_key(), by_root=by_root)
        )
        return path

    def certify(self, who: str, key: ec.EllipticCurvePublicKey, *, by_root: bool = False) -> bytes:
        """The certificate of a key as PEM, followed by that of the issuer unless the root issued it."""
        name, issuer_key = ("root", self.root_key) if by_root else ("issuer", self.issuer_key)
        leaf = _certificate(who, key, f"{self.name} {name}", issuer_key, authority=False)
        return leaf.public_bytes(Encoding.PEM) + (b"" if by_root else self.issuer.public_bytes(Encoding.PEM))


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "clinic")


@pytest.fixture(scope="session")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "stranger")


def _certificate(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **usage),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
