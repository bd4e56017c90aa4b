"""A private Sigstore instance on loopback: Fulcio, a certificate log, Rekor and a time stamp authority.

The first three are built once from their Go modules, in three minutes on two cores. OpenSSL makes the time stamps:
Sigstore's own server always listens on one port, so a machine could have only one. The instance issues certificates to
the identities of its own OpenID provider. Tests that need it are skipped where Go is unavailable.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import http.server
import json
import shutil
import socket
import subprocess
import threading
import time
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.programs.gotools import program
from tests.support.programs.processes import TIMEOUT_SECONDS

IDENTITY = "release@clinic.example"
_CT_ORIGIN = "ct.clinic.example/ct"
_PASSWORD = "password-of-the-authority"
_TIME_STAMPS = """\
[tsa]
default_tsa = clinic
[clinic]
serial = FOLDER/serial
signer_cert = FOLDER/stamps.pem
signer_key = FOLDER/stamps.key
signer_digest = sha256
default_policy = 1.3.6.1.4.1.57264.2
digests = sha256
ess_cert_id_alg = sha256
"""
"""Configuration of `openssl ts`."""


def programs() -> dict[str, Path]:
    """The programs, built if the cache lacks them. Raises SkipTest where they cannot be built, or without OpenSSL."""
    if shutil.which("openssl") is None:
        raise unittest.SkipTest("OpenSSL is not installed, which makes time stamps: apt-get install openssl")
    return {
        "fulcio": program("sigstore", "github.com/sigstore/fulcio"),
        "tesseract": program("sigstore", "github.com/transparency-dev/tesseract/cmd/tesseract/posix", name="tesseract"),
        "rekor": program("sigstore", "github.com/sigstore/rekor-tiles/v2/cmd/rekor-server/posix", name="rekor"),
    }


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers from a table: by path, what a GET or a POST returns."""

    def __init__(self, answers: Mapping[str, Callable[[bytes], bytes]], *arguments: Any) -> None:
        self._answers = answers
        super().__init__(*arguments)

    def do_GET(self) -> None:
        content = self._answers[self.path](self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


class _Server:
    """A server on loopback."""

    def __init__(self, answers: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, answers))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Provider(_Server):
    """An OpenID provider, which issues tokens through Python, and in the way of GitHub Actions."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        keys = {"keys": [{**public, "kid": "1", "alg": "ES256", "use": "sig"}]}
        super().__init__(
            {
                "/.well-known/openid-configuration": lambda _: json.dumps(self._description).encode(),
                "/keys": lambda _: json.dumps(keys).encode(),
                "/github?a=b&audience=sigstore": lambda _: json.dumps({"value": self.token()}).encode(),
            }
        )

    @property
    def _description(self) -> dict[str, Any]:
        places = {"jwks_uri": "keys", "authorization_endpoint": "authorize", "token_endpoint": "token"}
        return {
            "issuer": self.url,
            **{name: f"{self.url}/{path}" for name, path in places.items()},
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }

    def token(self, identity: str = IDENTITY, *, seconds: int = 600, audience: str = "sigstore") -> str:
        """A token for `identity` that is valid for so long."""
        now = int(time.time())
        claims = {"iss": self.url, "sub": identity, "aud": audience, "email": identity, "email_verified": True}
        times = {"iat": min(now, now + seconds), "exp": now + seconds}
        return jwt.encode({**claims, **times}, self._key, algorithm="ES256", headers={"kid": "1"})


class _TimeStamps(_Server):
    """A time stamp authority.

    Attributes:
        chain: the certificates of its key and of its root.
    """

    def __init__(self, folder: Path) -> None:
        key, root_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        root = _certificate("root of time stamps", root_key.public_key(), None, root_key)
        self.chain = [_certificate("time stamps", key.public_key(), root, root_key), root]
        (folder / "stamps.pem").write_bytes(self.chain[0].public_bytes(Encoding.PEM))
        (folder / "stamps.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        (folder / "stamps.conf").write_text(_TIME_STAMPS.replace("FOLDER", str(folder)))
        self._folder, self._lock = folder, threading.Lock()
        super().__init__({"/": self._stamp})

    def _stamp(self, query: bytes) -> bytes:
        with self._lock:
            (self._folder / "query").write_bytes(query)
            command = ["openssl", "ts", "-reply", "-config", "stamps.conf", "-queryfile", "query", "-out", "reply"]
            subprocess.run(command, cwd=self._folder, check=True, capture_output=True)
            return (self._folder / "reply").read_bytes()


class Sigstore:
    """The instance.

    Attributes:
        provider: issues the tokens.
        trust_config: the file that clients need (ClientTrustConfig).
    """

    def __init__(self, folder: Path) -> None:
        self._programs = programs()
        self._folder, self._processes = folder, dict[str, subprocess.Popen[bytes]]()
        self.provider, self._stamps = Provider(), _TimeStamps(folder)
        self.trust_config = folder / "trust-config.json"
        self._ports = {name: _free_port() for name in self._programs}

    def _url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._ports[name]}"

    def start(self) -> None:
        """Start all services, and write the trust configuration."""
        folder, authority = self._folder, ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate("fulcio", authority.public_key(), None, authority)
        logs = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("tesseract", "rekor")}
        for name, key in logs.items():
            form = PrivateFormat.TraditionalOpenSSL if name == "tesseract" else PrivateFormat.PKCS8
            (folder / f"{name}.key").write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
        (folder / "tesseract.pub").write_bytes(
            logs["tesseract"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        (folder / "root.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        encrypted = BestAvailableEncryption(_PASSWORD.encode())
        (folder / "root.key").write_bytes(authority.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encrypted))
        issuer = {"IssuerURL": self.provider.url, "ClientID": "sigstore", "Type": "email"}
        (folder / "fulcio.json").write_text(json.dumps({"OIDCIssuers": {self.provider.url: issuer}}))
        self._start_services(folder)
        for name, port in self._ports.items():
            self._wait_until_it_listens(name, port)
        self.trust_config.write_text(json.dumps(self._configuration(certificate, logs), indent=1))

    def _start_services(self, folder: Path) -> None:
        ports = self._ports
        self._run(
            "tesseract",
            f"--http_endpoint=127.0.0.1:{ports['tesseract']}",
            f"--origin={_CT_ORIGIN}",
            "--path_prefix=ct",
            f"--roots_pem_file={folder / 'root.pem'}",
            f"--private_key={folder / 'tesseract.key'}",
            f"--storage_dir={folder / 'certificate-log'}",
            "--batch_max_age=20ms",
            "--checkpoint_interval=100ms",
        )
        self._run(
            "rekor",
            "serve",
            f"--http-port={ports['rekor']}",
            f"--grpc-port={_free_port()}",
            f"--http-metrics-port={_free_port()}",
            "--hostname=rekor.clinic.example",
            f"--storage-dir={folder / 'log'}",
            f"--signer-filepath={folder / 'rekor.key'}",
            "--batch-max-age=20ms",
            "--checkpoint-interval=100ms",
        )
        self._run(
            "fulcio",
            "serve",
            "--host=127.0.0.1",
            f"--port={ports['fulcio']}",
            "--grpc-host=127.0.0.1",
            f"--grpc-port={_free_port()}",
            f"--metrics-port={_free_port()}",
            f"--legacy-unix-domain-socket={folder / 'fulcio.sock'}",
            "--ca=fileca",
            "--fileca-watch=false",
            f"--fileca-cert={folder / 'root.pem'}",
            f"--fileca-key={folder / 'root.key'}",
            f"--fileca-key-passwd={_PASSWORD}",
            f"--ct-log-url={self._url('tesseract')}/ct",
            f"--ct-log-origin={_CT_ORIGIN}",
            f"--ct-log-public-key-path={folder / 'tesseract.pub'}",
            f"--config-path={folder / 'fulcio.json'}",
        )

    def _run(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [str(self._programs[name]), *arguments]
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def _wait_until_it_listens(self, name: str, port: int) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if self._processes[name].poll() is not None or time.monotonic() > end:
                    log = (self._folder / f"{name}.log").read_text()
                    raise AssertionError(f"{name} does not listen:\n{log[-2000:]}") from None
                time.sleep(0.05)

    def _configuration(
        self, authority: x509.Certificate, logs: dict[str, ec.EllipticCurvePrivateKey]
    ) -> dict[str, Any]:
        times = {"start": f"{datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"}

        def log(name: str) -> dict[str, Any]:
            public = logs[name].public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            key = {"rawBytes": _text(public), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": times}
            number = {"keyId": _text(hashlib.sha256(public).digest())}
            return {"baseUrl": self._url(name), "hashAlgorithm": "SHA2_256", "publicKey": key, "logId": number}

        def issuer(name: str, url: str, chain: list[x509.Certificate]) -> dict[str, Any]:
            subject = {"organization": "clinic", "commonName": name}
            certificates = [{"rawBytes": _text(each.public_bytes(Encoding.DER))} for each in chain]
            return {
                "subject": subject,
                "uri": url,
                "certChain": {"certificates": certificates},
                "validFor": times,
            }

        def service(url: str, version: int = 1) -> list[dict[str, Any]]:
            return [{"url": url, "majorApiVersion": version, "validFor": times, "operator": "clinic.example"}]

        return {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [log("rekor")],
                "ctlogs": [log("tesseract")],
                "certificateAuthorities": [issuer("fulcio", self._url("fulcio"), [authority])],
                "timestampAuthorities": [issuer("time stamps", self._stamps.url, self._stamps.chain)],
            },
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": service(self._url("fulcio")),
                "oidcUrls": service(self.provider.url),
                "rekorTlogUrls": service(self._url("rekor"), 2),
                "rekorTlogConfig": {"selector": "ANY"},
                "tsaUrls": service(f"{self._stamps.url}/"),
                "tsaConfig": {"selector": "ANY"},
            },
        }

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self.provider.close()
        self._stamps.close()


@contextmanager
def instance(folder: Path) -> Iterator[Sigstore]:
    """Run an instance whose files are in `folder`."""
    found = Sigstore(folder)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def _certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """The certificate of a key: of a time stamp authority, or of a root, which has no issuer."""
    now, root = datetime.datetime.now(datetime.UTC), issuer is None
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "clinic")]
    )
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer is not None else subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=root, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not root, key_cert_sign=root, crl_sign=root, decipher_only=False, **usage),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not root:
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), critical=True)
    return builder.sign(issuer_key, hashes.SHA256())


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
