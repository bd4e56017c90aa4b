"""A real Kubernetes control plane on loopback: etcd, kube-apiserver and kube-controller-manager, with RBAC on.

There is no kubelet here (`cluster` adds one), so pods are objects that tests create and change. Everything else works
as in a cluster: schemas, CEL rules, admission policies, service accounts with bound tokens, garbage collection. It
starts within a few seconds.

Servers are stopped with SIGKILL, because on SIGTERM the API server drains for a minute.
"""

from __future__ import annotations

import base64
import datetime
import functools
import ipaddress
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.programs import versions
from tests.support.programs.gotools import is_built, program
from tests.support.programs.processes import TIMEOUT_SECONDS, Processes

if TYPE_CHECKING:
    from tests.support.programs.api_requests import ApiRequests

AUDITED = ("tensafe-system", "tensafe-other")
"""Namespaces whose service accounts' requests are in the audit log."""
_SERVERS = ("controller-manager", "apiserver", "etcd")
_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "resourcequota-controller",
    "validatingadmissionpolicy-status-controller",
)


class ControlPlane:
    """The servers, in one folder. Tests of faults stop and start single servers.

    Args:
        folder: for keys, kubeconfigs, data and logs.
        ports: ports of etcd, its peers, the API server and the controller-manager; free ports by default.
    """

    address = "127.0.0.1"
    """Address on which the API server listens, also in kubeconfigs."""
    controllers: Sequence[str] = _CONTROLLERS

    def __init__(self, folder: Path, *, ports: Sequence[int] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._ports = dict(zip(("etcd", "peer", "api", "manager"), ports or free_ports(4)))
        self.url = f"https://{self.address}:{self._ports['api']}"
        self.admin = folder / "admin.kubeconfig"
        """Kubeconfig of a cluster administrator."""

    @functools.cached_property
    def processes(self) -> Processes:
        return Processes(self.folder)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def start(self) -> None:
        """Start all servers, and return once the API server is ready."""
        self.issue()
        self._start_all()

    def save(self) -> None:
        """Stop all servers, and save what the API server has stored."""
        self.stop()
        shutil.copytree(self.folder / "etcd", self.folder / "saved")

    def restore(self) -> None:
        """Start all servers with what `save` has saved, which takes a third of the time of a new control plane."""
        self.stop()
        shutil.rmtree(self.folder / "etcd")
        shutil.copytree(self.folder / "saved", self.folder / "etcd")
        (self.folder / "audit.jsonl").unlink()
        self._start_all()

    def _start_all(self) -> None:
        self.start_etcd()
        self.start_api_server()
        self.start_controller_manager()

    def issue(self) -> None:
        """Create the certificates and kubeconfigs."""
        self._authority.issue("apiserver", "kube-apiserver", server=self._server_names())
        self._authority.issue("service-accounts", "service-accounts")
        self.kubeconfig("admin", "admin", ["system:masters"])
        self.kubeconfig("controller-manager", "system:kube-controller-manager", [])

    def _server_names(self) -> list[str]:
        """Names and addresses in the API server's certificate."""
        return [self.address, "127.0.0.1", "localhost"]

    def start_etcd(self) -> None:
        self._start(
            "etcd",
            program("kubernetes", "go.etcd.io/etcd/server/v3", name="etcd"),
            {
                "data-dir": self.folder / "etcd",
                "listen-client-urls": self._etcd,
                "advertise-client-urls": self._etcd,
                "listen-peer-urls": f"http://127.0.0.1:{self._ports['peer']}",
                "initial-advertise-peer-urls": f"http://127.0.0.1:{self._ports['peer']}",
                "initial-cluster": f"default=http://127.0.0.1:{self._ports['peer']}",
                "unsafe-no-fsync": "true",
            },
        )

    def start_api_server(self) -> None:
        self._start("apiserver", built("kube-apiserver"), self._api_flags())
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.kubectl("get", "--raw", "/readyz", check=False).returncode:
            assert self.processes.running("apiserver"), self.log("apiserver")
            assert time.monotonic() < deadline, self.log("apiserver")
            time.sleep(0.1)  # no event reports that a server is ready

    def _api_flags(self) -> dict[str, object]:
        return {
            "etcd-servers": self._etcd,
            "bind-address": self.address,
            "advertise-address": self.address,
            "secure-port": str(self._ports["api"]),
            "tls-cert-file": self.folder / "apiserver.crt",
            "tls-private-key-file": self.folder / "apiserver.key",
            "client-ca-file": self.ca,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": self.folder / "service-accounts.key",
            "service-account-signing-key-file": self.folder / "service-accounts.key",
            "service-cluster-ip-range": "10.96.0.0/16",
            "authorization-mode": "RBAC",
            "audit-policy-file": self._audit_policy(),
            "audit-log-path": self.folder / "audit.jsonl",
        }

    def start_controller_manager(self) -> None:
        flags = {
            "kubeconfig": self.folder / "controller-manager.kubeconfig",
            "service-account-private-key-file": self.folder / "service-accounts.key",
            "root-ca-file": self.ca,
            "controllers": ",".join(self.controllers),
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "secure-port": str(self._ports["manager"]),
            "bind-address": "127.0.0.1",
        }
        self._start("controller-manager", built("kube-controller-manager"), flags)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one server. SIGKILL waits until it has exited; SIGSTOP pauses it until SIGCONT."""
        self.processes.kill(name, number)

    def stop(self) -> None:
        for name in _SERVERS:
            self.processes.kill(name)

    def kubeconfig(self, name: str, user: str, groups: list[str]) -> Path:
        """Write a kubeconfig for a user with a client certificate."""
        certificate, key = self._authority.issue(name, user, groups=groups)
        return self._write_kubeconfig(
            name,
            {
                "client-certificate-data": base64.b64encode(certificate.read_bytes()).decode(),
                "client-key-data": base64.b64encode(key.read_bytes()).decode(),
            },
        )

    def kubeconfig_of_token(self, name: str, token: str) -> Path:
        """Write a kubeconfig with a token, such as a service account's."""
        return self._write_kubeconfig(name, {"token": token})

    def kubectl(
        self, *arguments: str, text: str | None = None, kubeconfig: Path | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as a cluster administrator, or with another kubeconfig; `text` is its standard input."""
        return kubectl(kubeconfig or self.admin, *arguments, text=text, check=check)

    @functools.cached_property
    def api(self) -> ApiRequests:
        """Requests of a cluster administrator."""
        return self.api_as(self.admin)

    @staticmethod
    def api_as(kubeconfig: Path) -> ApiRequests:
        """Requests with another kubeconfig."""
        from tests.support.programs.api_requests import ApiRequests  # most tests that import this module send none

        return ApiRequests(kubeconfig)

    def wait_for_crds(self) -> None:
        """Wait until every CRD that was applied is served."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        wait = ("wait", "--for=condition=Established", "crd", "--all", f"--timeout={TIMEOUT_SECONDS}s")
        while (
            done := self.kubectl(*wait, check=False)
        ).returncode:  # kubectl fails on a CRD that has no conditions yet
            assert time.monotonic() < deadline, done.stderr

    def requests(self, account: str) -> list[dict[str, Any]]:
        """A service account's requests and their answers, as audit events (audit.k8s.io/v1 Event).

        Args:
            account: `namespace:name`, in a namespace of `AUDITED`.
        """
        lines = (self.folder / "audit.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [each for each in events if each["user"]["username"] == f"system:serviceaccount:{account}"]

    def log(self, name: str) -> str:
        """The last lines of a server's log."""
        return self.processes.log(name)

    def _audit_policy(self) -> Path:
        path = self.folder / "audit.yaml"
        groups = [f"system:serviceaccounts:{namespace}" for namespace in AUDITED]
        rules = [{"level": "Metadata", "userGroups": groups}, {"level": "None"}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        path.write_text(yaml.safe_dump(policy))
        return path

    @property
    def _etcd(self) -> str:
        return f"http://127.0.0.1:{self._ports['etcd']}"

    @functools.cached_property
    def _authority(self) -> CertificateAuthority:
        return CertificateAuthority(self.folder)

    def _start(self, name: str, command: Path, flags: Mapping[str, object]) -> None:
        arguments = [f"--{flag}={value}" for flag, value in flags.items()]
        # GOGC: memory is cheaper here than collecting garbage, which is a third of the API server's time by default.
        self.processes.start(name, [str(command), *arguments], {"GOMAXPROCS": "2", "GOGC": "400"})

    def _write_kubeconfig(self, name: str, credentials: Mapping[str, str]) -> Path:
        cluster = {
            "server": self.url,
            "certificate-authority-data": base64.b64encode(self.ca.read_bytes()).decode(),
        }
        path = self.folder / f"{name}.kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": dict(credentials)}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(document))
        path.chmod(0o600)
        return path


def kubectl(
    kubeconfig: Path, *arguments: str, text: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run kubectl; `text` is its standard input.

    Raises:
        AssertionError: with `check`, where kubectl fails.
    """
    command = [str(built("kubectl")), "--kubeconfig", str(kubeconfig), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert not (check and done.returncode), f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done


def is_available() -> bool:
    """Whether all programs of a control plane, and Helm for the chart's roles, are in the cache."""
    kubernetes = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
    return all(is_built("kubernetes", name) for name in kubernetes) and is_built("helm", "helm")


def built(name: str) -> Path:
    """A program of Kubernetes, such as kubectl."""
    return program("kubernetes", f"k8s.io/kubernetes/cmd/{name}", linker_flags=versions.KUBERNETES_FLAGS)


class CertificateAuthority:
    """A new certificate authority. Its folder has the files NAME.crt and NAME.key of each certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tensafe-test-ca", [])
        self.certificate = folder / "ca.crt"
        certificate = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.certificate.write_bytes(
            certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def issue(
        self, name: str, user: str, *, groups: list[str] | None = None, server: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """Issue a certificate; return its file and that of its key.

        Args:
            user: common name: the user's or the server's.
            groups: the user's groups.
            server: names and addresses of a server.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(user, groups or []), key)
        if server:
            names = [_alternative(each) for each in server]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        paths = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
        paths[1].chmod(0o600)
        return paths

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=2))
        )


def _name(user: str, groups: list[str]) -> x509.Name:
    groups_of = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*groups_of, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def free_ports(count: int) -> list[int]:
    """Ports of loopback on which no process listens now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
