"""A real Ray cluster of two nodes with the certificates of an attempt: it works, and refuses everyone else."""

from __future__ import annotations

import hashlib
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.util import get_node_ip_address

from tensorguard.runners.pod.certificate import main
from tests.support.trainer.ray_nodes import RayNodes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SECRET = secrets.token_hex(32)
SOON = {"RAY_gcs_rpc_server_connect_timeout_s": "1", "RAY_py_gcs_connect_timeout_s": "5"}
"""How long a client tries, in seconds. By default it tries for 50."""
WORK = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="ERROR")
large = ray.put(b"x" * 2_000_000)
print(ray.get(ray.remote(num_cpus=1)(lambda content: len(content)).remote(large)))
"""


def certificate(folder: Path, secret: str = SECRET) -> dict[str, str]:
    """Issue a certificate for this machine; return the variables with which Ray uses it."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    pod = {"TENSAFE_POD_IPS": get_node_ip_address()}
    assert main({"TENSAFE_AUTHORITY_KEY": secret, "TENSAFE_AUTHORITY_DIGEST": digest, **pod}, folder) == 0
    files = {"RAY_TLS_SERVER_CERT": "tls.crt", "RAY_TLS_SERVER_KEY": "tls.key", "RAY_TLS_CA_CERT": "ca.crt"}
    return {"RAY_USE_TLS": "1", **{name: str(folder / file) for name, file in files.items()}}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    folder = tmp_path_factory.mktemp("nodes")
    started = RayNodes()
    try:
        started.start_head(folder / "head", cpus=0, **certificate(folder / "of-head"))
        started.start_node(folder / "node", cpus=1, **certificate(folder / "of-node"))
        yield started
    finally:
        started.stop()


def health(nodes: RayNodes, **variables: str) -> subprocess.CompletedProcess[str]:
    """Ask the head for its health, as KubeRay's init container does."""
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "health-check", "--address", nodes.address]
    return subprocess.run(command, env={**nodes.environment, **SOON, **variables}, capture_output=True, text=True)


def test_nodes_with_certificates_of_the_attempt_work_together(nodes: RayNodes, tmp_path: Path) -> None:
    own = certificate(tmp_path / "client")
    assert health(nodes, **own).returncode == 0
    environment = {**nodes.environment, **own}
    done = subprocess.run([sys.executable, "-c", WORK, nodes.address], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "2000000", done.stderr


def test_client_with_the_token_and_without_a_certificate_is_refused(nodes: RayNodes) -> None:
    assert health(nodes).returncode != 0


def test_client_with_a_certificate_of_another_attempt_is_refused(nodes: RayNodes, tmp_path: Path) -> None:
    other = certificate(tmp_path / "other", secrets.token_hex(32))
    trusting = {**other, "RAY_TLS_CA_CERT": certificate(tmp_path / "own")["RAY_TLS_CA_CERT"]}
    assert health(nodes, **trusting).returncode != 0


def test_client_with_a_certificate_and_without_the_token_is_refused(nodes: RayNodes, tmp_path: Path) -> None:
    answer = health(nodes, **certificate(tmp_path / "client"), RAY_AUTH_TOKEN="wrong" * 8)
    assert answer.returncode != 0
    assert "uthenticat" in answer.stdout + answer.stderr
