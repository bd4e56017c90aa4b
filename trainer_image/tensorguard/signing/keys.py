"""Makes signing keys and age identities, and reads signing keys.

A signing key is an elliptic-curve key (NIST P-256, P-384 or P-521) as PEM. The file may also hold the certificate of
the key and those of its issuers. `tensafe keygen` makes a P-256 key without a certificate. In place of a private key,
the file may hold the URI of one in a PKCS #11 token, and in place of the file's path, that URI may be given
(`tensorguard.signing.pkcs11`). Or an identity signs, each time with a new key (`tensorguard.signing.sigstore`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorguard.signing.base import (
    CURVES,
    PKCS11_SCHEME,
    SIGSTORE_SCHEME,
    FixedKey,
    KeyUnusable,
    OpenKey,
    SigningKey,
    fingerprint_of,
    pem_of,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from model_signing.signing import Config
    from securesystemslib.signer import Signer

SIGNING_KEY = "signing-key.pem"
SIGNING_KEY_VARIABLE = "TENSAFE_SIGNING_KEY"
"""Environment variable with the path or URI of the signing key of a local run, where no other one is given."""
PUBLIC_KEY = "signing-key.pub.pem"
IDENTITY = "age-identity.txt"
IDENTITY_VARIABLE = "TENSAFE_IDENTITY"
"""Environment variable with the path of an age identity: for `tensafe`, and on each node of a Ray cluster."""


@dataclass(frozen=True)
class FileKey(FixedKey):
    """A private key in a PEM file."""

    path: Path
    private: EllipticCurvePrivateKey

    @property
    def public(self) -> EllipticCurvePublicKey:
        return self.private.public_key()

    @contextmanager
    def opened(self) -> Iterator[OpenKey]:
        yield self

    @property
    def statement_signer(self) -> Signer:
        from securesystemslib.signer import CryptoSigner

        return CryptoSigner(self.private)

    def use_in(self, config: Config) -> None:
        config.use_elliptic_key_signer(private_key=self.path)


def key_location(text: str) -> str:
    """Where a signing key is, as other processes may read it.

    Args:
        text: as a user writes it: a path, a PKCS #11 URI, or sigstore: and a path.

    Returns:
        The same with an absolute path, or without a PIN.

    Raises:
        KeyUnusable: a PIN is in the URI.
    """
    if text.startswith(SIGSTORE_SCHEME):
        return f"{SIGSTORE_SCHEME}{Path(text.removeprefix(SIGSTORE_SCHEME)).absolute()}"
    if not text.startswith(PKCS11_SCHEME):
        return str(Path(text).absolute())
    from tensorguard.signing.pkcs11 import refuse_pin

    refuse_pin(text)
    return text


def read_signing_key(location: str | Path) -> SigningKey:
    """The signing key at a location (`key_location`), with the certificates in the same file.

    Raises:
        KeyUnusable: there is no such key, or it cannot sign.
    """
    from cryptography import x509

    if isinstance(location, str) and location.startswith(PKCS11_SCHEME):
        from tensorguard.signing.pkcs11 import read_token_key

        return read_token_key(location)
    if isinstance(location, str) and location.startswith(SIGSTORE_SCHEME):
        from tensorguard.signing.sigstore import read_sigstore_key

        return read_sigstore_key(Path(location.removeprefix(SIGSTORE_SCHEME)))
    path = Path(location)
    content = _read(path)
    try:
        certificates = tuple(x509.load_pem_x509_certificates(content)) if b"BEGIN CERTIFICATE" in content else ()
    except ValueError:
        raise KeyUnusable(f"{path}: a certificate in it cannot be read: write the chain again, as PEM") from None
    key: FixedKey
    if content.lstrip().startswith(PKCS11_SCHEME.encode()):
        from tensorguard.signing.pkcs11 import read_token_key

        key = read_token_key(content.split()[0].decode(errors="replace"), certificates)
    else:
        key = FileKey(certificates, path, _private_key_in(content, path))
    if certificates and certificates[0].public_key() != key.public:
        raise KeyUnusable(f"{path}: the first certificate is that of another key: put the certificate of the key first")
    return key


def _private_key_in(content: bytes, path: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(content, password=None)
    except TypeError:
        raise KeyUnusable(f"{path}: the key has a passphrase: pass a file with the key in clear") from None
    except ValueError:
        raise KeyUnusable(f"{path} has no private key in PEM: pass the {SIGNING_KEY} of `tensafe keygen`") from None
    if not isinstance(private, EllipticCurvePrivateKey) or private.curve.name not in CURVES:
        raise KeyUnusable(f"{path}: only elliptic-curve keys on P-256, P-384 or P-521 can sign: use `tensafe keygen`")
    return private


def read_public_key(path: Path) -> EllipticCurvePublicKey:
    """The public key in a PEM file. Raises KeyUnusable."""
    content = _read(path)
    if b"PRIVATE KEY" in content:
        raise KeyUnusable(f"{path} has a private key: pass the {PUBLIC_KEY} beside it, and keep the private key secret")
    return parse_public_key(content, str(path))


def read_certificates(path: Path) -> None:
    """Check that a PEM file has certificates. Raises KeyUnusable."""
    from cryptography import x509

    try:
        x509.load_pem_x509_certificates(_read(path))
    except ValueError:
        raise KeyUnusable(f"{path} has no certificates in PEM: pass those of the authority that you trust") from None


def parse_public_key(content: bytes, name: str) -> EllipticCurvePublicKey:
    """The public key in `content`, which messages call `name`. Raises KeyUnusable."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise KeyUnusable(f"{name} has no public key in PEM: pass the {PUBLIC_KEY} of the signer") from None
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise KeyUnusable(f"{name}: only elliptic-curve keys on P-256, P-384 or P-521 sign: pass the signer's key")
    return key


def new_signing_key() -> tuple[bytes, str, str]:
    """A new P-256 key: the private key and the public one as PEM, and its fingerprint."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = ec.generate_private_key(ec.SECP256R1())
    content = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return content, pem_of(private.public_key()), fingerprint_of(private.public_key())


def identity_in_environment() -> Path | None:
    """The file of the age identity that the environment names; None where it names none."""
    path = os.environ.get(IDENTITY_VARIABLE)
    return Path(path).expanduser() if path else None


def new_identity() -> tuple[bytes, str]:
    """A new age identity: the content of its file, in the format of age-keygen, and its recipient."""
    import pyrage

    identity = pyrage.x25519.Identity.generate()
    recipient = str(identity.to_public())
    return f"# public key: {recipient}\n{identity}\n".encode(), recipient


def write_new(directory: Path, files: dict[str, tuple[bytes, int]]) -> None:
    """Write files with their modes, all of them or none. An existing file is never replaced.

    Args:
        directory: created, for its owner only, if it does not exist.
        files: by name, their content and mode.

    Raises:
        KeyUnusable: one of them exists, or the folder is not writable.
    """
    written: list[Path] = []
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, (content, mode) in files.items():
            path = directory / name
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(path)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError) and error.filename:
            raise KeyUnusable(
                f"{error.filename} exists, and keys are never overwritten: what they signed or encrypted would be "
                "lost; choose another folder"
            ) from error
        raise KeyUnusable(f"{directory} is not writable ({error.strerror}): choose another folder") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeyUnusable(f"{path} cannot be read ({error.strerror}): pass the file of a key") from error
