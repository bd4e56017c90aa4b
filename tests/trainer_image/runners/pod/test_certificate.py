"""The certificates of an attempt: its pods accept each other, and no other client or server, over real TLS."""

from __future__ import annotations

import datetime
import hashlib
import secrets
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tensorguard.runners.pod import certificate
from tensorguard.runners.pod.certificate import Authority, main
from tests.support.tls_handshake import handshake

SECRET = secrets.token_hex(32)
HEAD = "triage-a1-x-head-svc.clinic.svc.cluster.local"
OF_HEAD = {"FQ_RAY_IP": HEAD, "TENSAFE_HEAD": "1"}


def issued(folder: Path, secret: str = SECRET, **more: str) -> Path:
    """The folder of a pod's certificate."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    variables = {"TENSAFE_AUTHORITY_KEY": secret, "TENSAFE_AUTHORITY_DIGEST": digest, "TENSAFE_POD_IPS": "127.0.0.1"}
    assert main({**variables, **more}, folder) == 0
    return folder


def certificate_in(folder: Path, name: str = "tls.crt") -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / name).read_bytes())


def test_pods_of_an_attempt_accept_each_other(tmp_path: Path) -> None:
    head, worker = issued(tmp_path / "head", **OF_HEAD), issued(tmp_path / "worker", FQ_RAY_IP=HEAD)
    assert handshake(head, worker) == ""
    assert handshake(head, worker, HEAD) == ""
    assert handshake(worker, head, "localhost") == ""
    assert (head / "ca.crt").read_bytes() != (worker / "ca.crt").read_bytes(), "each pod signs its own"


def test_pod_of_another_attempt_is_refused_as_client_and_as_server(tmp_path: Path) -> None:
    ours, other = issued(tmp_path / "ours"), issued(tmp_path / "other", secrets.token_hex(32))
    assert "server: " in handshake(ours, other, trusted=ours)
    assert "client: " in handshake(other, ours)


def test_client_without_a_certificate_is_refused(tmp_path: Path) -> None:
    assert "server: " in handshake(issued(tmp_path / "ours"), None)


def test_pod_cannot_answer_for_the_address_or_the_name_of_another(tmp_path: Path) -> None:
    """KubeRay sets FQ_RAY_IP in the init containers of workers, too."""
    elsewhere = issued(tmp_path / "a", TENSAFE_POD_IPS="10.85.0.7", FQ_RAY_IP=HEAD)
    worker = issued(tmp_path / "b", FQ_RAY_IP=HEAD)
    assert "client: " in handshake(worker, elsewhere, HEAD)
    names = certificate_in(elsewhere).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "10.85.0.7"]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]


def test_certificate_names_all_addresses_of_a_pod(tmp_path: Path) -> None:
    both = issued(tmp_path / "pod", TENSAFE_POD_IPS="10.85.0.7,fd00::7", **OF_HEAD)
    names = certificate_in(both).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "10.85.0.7", "fd00::7"]
    assert names.get_values_for_type(x509.DNSName) == ["localhost", HEAD]


def test_certificates_are_for_servers_and_clients_and_issue_no_others(tmp_path: Path) -> None:
    folder = issued(tmp_path / "pod")
    own, authority = certificate_in(folder), certificate_in(folder, "ca.crt")
    usage = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    keys = own.extensions.get_extension_for_class(x509.KeyUsage).value
    assert keys.digital_signature and not keys.key_cert_sign
    of_authority = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (of_authority.ca, of_authority.path_length) == (True, 0)
    assert authority.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    for each in (own, authority):
        assert isinstance(each.public_key(), ec.EllipticCurvePublicKey)
        lifetime = each.not_valid_after_utc - each.not_valid_before_utc
        assert lifetime == datetime.timedelta(days=365, hours=1)
        assert each.not_valid_before_utc < datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=59)


def test_key_is_new_in_each_pod_and_only_its_user_reads_it(tmp_path: Path) -> None:
    one, two = issued(tmp_path / "one"), issued(tmp_path / "two")
    assert (one / "tls.key").read_bytes() != (two / "tls.key").read_bytes()
    assert SECRET not in (one / "tls.key").read_text()
    assert stat.S_IMODE((one / "tls.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(one.stat().st_mode) == 0o700
    assert issued(one).joinpath("tls.key").exists(), "an init container that runs again replaces it"


def test_authority_is_the_same_in_each_pod_and_its_order_is_that_of_the_curve() -> None:
    assert Authority.derive(SECRET).certificate.public_key() == Authority.derive(SECRET).certificate.public_key()
    other = Authority.derive(secrets.token_hex(32))
    assert other.certificate.public_key() != Authority.derive(SECRET).certificate.public_key()
    with pytest.raises(ValueError):
        ec.derive_private_key(certificate._ORDER, ec.SECP256R1())  # the first number that is no key
    ec.derive_private_key(certificate._ORDER - 1, ec.SECP256R1())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"TENSAFE_AUTHORITY_KEY": secrets.token_hex(32)}, "is not the one that the operator created"),
        ({"TENSAFE_AUTHORITY_KEY": ""}, "is not the one that the operator created"),
        ({"TENSAFE_POD_IPS": ""}, "TENSAFE_POD_IPS is empty"),
        ({"TENSAFE_AUTHORITY_CERTIFICATE": "x"}, "the Secret of cert-manager"),
    ],
)
def test_pod_without_the_right_authority_does_not_start(
    change: dict[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    right = {"TENSAFE_AUTHORITY_KEY": SECRET, "TENSAFE_AUTHORITY_DIGEST": digest, "TENSAFE_POD_IPS": "10.85.0.7"}
    assert main({**right, **change}, tmp_path / "tls") == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "tls").exists()


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()


def test_authority_of_cert_manager_issues_certificates(tmp_path: Path) -> None:
    """In its Secret, `tls.crt` begins with the certificate of the authority; those of its issuers follow."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = Authority(key).certificate
    chain = own.public_bytes(serialization.Encoding.PEM) * 2
    variables = {"TENSAFE_AUTHORITY_KEY": pem(key), "TENSAFE_AUTHORITY_CERTIFICATE": chain.decode()}
    pods = [tmp_path / "head", tmp_path / "worker"]
    for pod in pods:
        assert main({**variables, "TENSAFE_POD_IPS": "127.0.0.1"}, pod) == 0
        assert certificate_in(pod, "ca.crt") == own
    assert handshake(*pods) == ""


def authority(
    is_ca: bool | None = True, begins: int = -1, ends: int = 8760, identifier: bytes | None = None
) -> dict[str, str]:
    """The variables for an authority of cert-manager that is valid from `begins` to `ends`, in hours from now.

    Args:
        identifier: of its key, in its certificate.
    """
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "triage-a1")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now + datetime.timedelta(hours=begins))
    builder = builder.not_valid_after(now + datetime.timedelta(hours=ends))
    if is_ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(is_ca, None), critical=True)
    if identifier is not None:
        builder = builder.add_extension(x509.SubjectKeyIdentifier(identifier), critical=False)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    address = {"TENSAFE_POD_IPS": "127.0.0.1"}
    return {"TENSAFE_AUTHORITY_KEY": pem(key), "TENSAFE_AUTHORITY_CERTIFICATE": certificate, **address}


@pytest.mark.parametrize("identifier", [None, b"first 20 of a SHA-256"])
def test_pods_connect_however_the_issuer_names_the_key_of_the_authority(
    identifier: bytes | None, tmp_path: Path
) -> None:
    """Since Go 1.25, cert-manager names it by SHA-256. OpenSSL takes an authority of another name for another one."""
    variables = authority(identifier=identifier)
    pods = [tmp_path / "head", tmp_path / "worker"]
    for pod in pods:
        assert main(variables, pod) == 0
    assert handshake(*pods) == ""


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (authority(is_ca=False), "no certificate: cert-manager issued a certificate that may not issue others (isCA)"),
        (authority(is_ca=None), "no certificate: cert-manager issued a certificate that may not issue others (isCA)"),
        (authority(begins=-2, ends=-1), "no certificate: cert-manager issued an authority that is valid from "),
        (authority(begins=1), "no certificate: cert-manager issued an authority that is valid from "),
    ],
)
def test_authority_with_which_no_pods_could_connect_is_refused(
    variables: dict[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(variables, tmp_path / "tls") == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "tls").exists()


def test_authority_that_is_valid_for_less_than_it_was_asked_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(authority(), tmp_path) == 0
    assert capsys.readouterr().err == ""
    assert main(authority(ends=72), tmp_path) == 0
    assert "the authority that cert-manager issued is valid until " in capsys.readouterr().err


def test_key_of_another_algorithm_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = rsa.generate_private_key(65537, 2048)
    assert main({**authority(), "TENSAFE_AUTHORITY_KEY": pem(key)}, tmp_path) == 1
    assert "not of ECDSA" in capsys.readouterr().err


def test_key_that_is_not_that_of_the_certificate_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = Authority(ec.generate_private_key(ec.SECP256R1())).certificate
    variables = {
        "TENSAFE_AUTHORITY_KEY": pem(ec.generate_private_key(ec.SECP256R1())),
        "TENSAFE_AUTHORITY_CERTIFICATE": own.public_bytes(serialization.Encoding.PEM).decode(),
        "TENSAFE_POD_IPS": "127.0.0.1",
    }
    assert main(variables, tmp_path) == 1
    assert "do not match" in capsys.readouterr().err
