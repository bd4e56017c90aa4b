"""Issues the certificate with which the Ray processes of one pod encrypt their messages, and prove that they belong to
the attempt. `python -m tensorguard.runners.pod.certificate` is the command of an init container.

    the authority's key, the pod's addresses ─► ca.crt, tls.crt, tls.key in /var/run/tensafe/tls

All pods of an attempt derive the same authority from the same key, so each accepts the certificates of the others. Ray
compares the address that it dials with the names in a certificate, and it dials pods by address. These addresses are
known only when the pod exists. The head's certificate also names its service. The pod's own key is created here, and
never leaves the pod.

The module imports no other of this package, so that a pod starts fast.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FOLDER = Path("/var/run/tensafe/tls")
LIFETIME = datetime.timedelta(days=365)
"""An attempt must be shorter. The authority's key is deleted when the attempt has ended, whatever is left of this."""
_CLOCK_SKEW = datetime.timedelta(hours=1)
_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order of the group of the curve P-256 (NIST SP 800-186)."""
_EXTRA_BYTES = 8
"""Bytes beyond those of the order, so that a number modulo the order is as good as uniform (FIPS 186-5, A.2.1)."""


class CertificateError(Exception):
    """The pod has no usable authority. `str()` is a sentence with the fix."""


def main(environment: Mapping[str, str] = os.environ, folder: Path = FOLDER) -> int:
    """Issue the certificate of this pod; return the exit code."""
    try:
        authority = Authority.from_environment(environment)
        addresses = [each.strip() for each in environment.get("TENSAFE_POD_IPS", "").split(",") if each.strip()]
        if not addresses:
            raise CertificateError("TENSAFE_POD_IPS is empty: the operator sets it to the addresses of the pod")
        # KubeRay sets FQ_RAY_IP, the name of the head's service, in all pods. Only the head may answer for it.
        of_head = environment.get("FQ_RAY_IP", "") if environment.get("TENSAFE_HEAD") == "1" else ""
        names = [name for name in ("localhost", of_head) if name]
        authority.write_certificate(folder, ["127.0.0.1", *addresses], names)
    except (CertificateError, OSError) as error:
        print(f"no certificate: {error}", file=sys.stderr)
        return 1
    return 0


class Authority:
    """The authority of an attempt: a private key, and the certificate that each pod of the attempt trusts."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate | None = None) -> None:
        self._key = key
        self.certificate = certificate or self._self_signed()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Authority:
        """The authority in the variables that the operator sets.

        TENSAFE_AUTHORITY_KEY is the operator's secret, or with TENSAFE_AUTHORITY_CERTIFICATE the key of cert-manager.

        Raises:
            CertificateError: there is none, or not that of the operator.
        """
        secret, pem = environment.get("TENSAFE_AUTHORITY_KEY", ""), environment.get("TENSAFE_AUTHORITY_CERTIFICATE")
        if pem is not None:
            return cls._from_pem(secret, pem)
        expected = environment.get("TENSAFE_AUTHORITY_DIGEST")
        if len(secret) < 64 or hashlib.sha256(secret.encode()).hexdigest() != expected:
            raise CertificateError(
                "the key of the attempt's authority is not the one that the operator created: its Secret was changed, "
                "and the next attempt gets a new one"
            )
        return cls.derive(secret)

    @classmethod
    def derive(cls, secret: str) -> Authority:
        """The authority of a secret: the same key in every pod."""
        hkdf = HKDF(hashes.SHA256(), 32 + _EXTRA_BYTES, salt=None, info=b"tensafe authority of an attempt")
        number = int.from_bytes(hkdf.derive(secret.encode()), "big") % (_ORDER - 1) + 1
        return cls(ec.derive_private_key(number, _CURVE))

    @classmethod
    def _from_pem(cls, key: str, certificate: str) -> Authority:
        try:
            loaded = serialization.load_pem_private_key(key.encode(), None)
            own = x509.load_pem_x509_certificates(certificate.encode())[0]
        except ValueError as error:
            raise CertificateError(f"the Secret of cert-manager holds no key and certificate ({error})") from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise CertificateError("the Secret of cert-manager holds a key that is not of ECDSA")
        if loaded.public_key() != own.public_key():
            raise CertificateError("the Secret of cert-manager holds a key and a certificate that do not match")
        _check_authority(own)
        return cls(loaded, own)

    def write_certificate(self, folder: Path, addresses: list[str], names: list[str]) -> None:
        """Create a key, issue a certificate for it, and write both and the authority's certificate to `folder`.

        Only the user of this process can read the key.
        """
        key = ec.generate_private_key(_CURVE)
        own = self.issue(key.public_key(), addresses, names)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        for name, content in (("ca.crt", _pem(self.certificate)), ("tls.crt", _pem(own)), ("tls.key", private)):
            path = folder / name
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)

    def issue(self, key: ec.EllipticCurvePublicKey, addresses: list[str], names: list[str]) -> x509.Certificate:
        """A certificate for a server and client with these addresses and DNS names."""
        alternatives: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
        alternatives += [x509.DNSName(each) for each in names]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return (
            _valid_from_now()
            .subject_name(_name("tensafe ray node"))
            .issuer_name(self.certificate.subject)
            .public_key(key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(self._identifier(), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _identifier(self) -> x509.AuthorityKeyIdentifier:
        """The identifier of the authority's key, as in the authority's own certificate: there are several ways to
        compute it, and TLS compares the two.
        """
        try:
            own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        except x509.ExtensionNotFound:
            return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)

    def _self_signed(self) -> x509.Certificate:
        """The authority's certificate. Those of two pods differ, but have the same name and key, which suffices."""
        name, public = _name("tensafe attempt"), self._key.public_key()
        return (
            _valid_from_now()
            .subject_name(name)
            .issuer_name(name)
            .public_key(public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(key_cert_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _check_authority(certificate: x509.Certificate) -> None:
    """Refuse an authority with which no two pods could connect."""
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise CertificateError("cert-manager issued a certificate that may not issue others (isCA)")
    now = datetime.datetime.now(datetime.UTC)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= now < end:
        raise CertificateError(f"cert-manager issued an authority that is valid from {start} to {end}, and not now")
    if end - now < LIFETIME / 2:
        note = "pods of this attempt cannot connect any more from then on, and the next attempt gets a new one"
        print(f"the authority that cert-manager issued is valid until {end}: {note}", file=sys.stderr)


def _valid_from_now() -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _CLOCK_SKEW).not_valid_after(now + LIFETIME)


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


if __name__ == "__main__":
    sys.exit(main())
