"""TLS of an attempt: which container gets which secret, and what cert-manager is asked for."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator.children import Manifest, access, tls
from tensafe_operator.job_tls import IssuerRef, JobTls, TlsMode
from tensafe_operator.settings import Settings
from tensorguard.runners.pod import gate
from tests.support import job_objects
from tests.support.programs.controlplane import ControlPlane

PER_ATTEMPT = Settings(image="registry.example/tensafe-trainer:0.1")
DISABLED = replace(PER_ATTEMPT, job_tls=JobTls(mode=TlsMode.DISABLED))
CERT_MANAGER = replace(PER_ATTEMPT, job_tls=JobTls(mode=TlsMode.CERT_MANAGER, issuer_ref=IssuerRef(name="clinic")))


def admitted(namespace: str = "clinic", uid: str = "11111111-2222") -> TenSafeTrainingJob:
    return job_objects.admitted(job_objects.FEW_FIELDS, namespace, uid)


def ray_job(settings: Settings, attempt: int = 1) -> Manifest:
    return job_objects.ray_job_of(admitted(), settings, attempt)


def pods(settings: Settings) -> tuple[Manifest, Manifest]:
    """The specs of the head's pod and of a worker's."""
    head, worker = job_objects.pods(admitted(), settings)
    return head["spec"], worker["spec"]


def secrets_of(container: Manifest) -> dict[str, tuple[str, str]]:
    """The variables of a container that come from Secrets: the name and the key of each."""
    found = {each["name"]: each["valueFrom"].get("secretKeyRef") for each in container["env"] if "valueFrom" in each}
    return {name: (reference["name"], reference["key"]) for name, reference in found.items() if reference}


def content(secret: Manifest | None) -> dict[str, str]:
    assert secret is not None
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}


def test_only_the_container_that_issues_certificates_gets_the_key_of_the_authority() -> None:
    secret = tls.secret_name(admitted(), 1)
    for pod in pods(PER_ATTEMPT):
        containers = [*pod["initContainers"], *pod["containers"]]
        holders = [each["name"] for each in containers if (secret, "authority.key") in secrets_of(each).values()]
        assert holders == ["certificate"]
        assert secret not in json.dumps(pod["volumes"])


def test_kuberay_needs_no_token_and_reaches_only_the_gate() -> None:
    """On real pods a RayJob was never deleted whose token KubeRay could not read any more."""
    secret = tls.secret_name(admitted(), 1)
    head, worker = pods(PER_ATTEMPT)
    for pod in (head, worker):
        assert secrets_of(pod["containers"][0]) == {"RAY_AUTH_TOKEN": (secret, "ray.token")}
        assert {"name": "RAY_AUTH_MODE", "value": "token"} in pod["containers"][0]["env"]
    sidecar = head["initContainers"][-1]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("gate", "Always")
    assert secrets_of(sidecar) == {"TENSAFE_RAY_TOKEN": (secret, "ray.token")}
    spec = ray_job(PER_ATTEMPT)["spec"]["rayClusterSpec"]
    assert spec["authOptions"] == {"mode": "disabled"}
    parameters = spec["headGroupSpec"]["rayStartParams"]
    assert (parameters["dashboard-host"], parameters["dashboard-port"]) == ("127.0.0.1", "8264")
    assert {"name": "TENSAFE_RAY_PORT", "value": "8264"} in sidecar["env"]


def test_gate_passes_on_the_entrypoint_of_the_ray_job() -> None:
    assert ray_job(PER_ATTEMPT)["spec"]["entrypoint"] == gate.ENTRYPOINT


@pytest.mark.parametrize("attempt", [1, 2])
def test_gate_accepts_the_id_under_which_kuberay_submits(attempt: int) -> None:
    spec = ray_job(PER_ATTEMPT, attempt)["spec"]
    sidecar = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["initContainers"][-1]
    assert spec["jobId"] == f"claims-triage-a{attempt}-11111111"
    assert {"name": "TENSAFE_SUBMISSION_ID", "value": spec["jobId"]} in sidecar["env"]
    assert ray_job(DISABLED, attempt)["spec"]["jobId"] == spec["jobId"]


def test_kuberays_init_container_can_read_the_certificate() -> None:
    """KubeRay copies the environment and the mounts of the container that runs Ray."""
    for pod in pods(PER_ATTEMPT):
        (ray,) = pod["containers"]
        variables = {each["name"]: each.get("value", "") for each in ray["env"]}
        assert variables["RAY_USE_TLS"] == "1"
        files = [variables[f"RAY_TLS_{name}"] for name in ("SERVER_CERT", "SERVER_KEY", "CA_CERT")]
        assert files == [f"/var/run/tensafe/tls/{name}" for name in ("tls.crt", "tls.key", "ca.crt")]
        mount = {"name": "run", "mountPath": "/var/run/tensafe", "readOnly": False}
        issue = next(each for each in pod["initContainers"] if each["name"] == "certificate")
        assert mount in ray["volumeMounts"] and issue["volumeMounts"] == [mount]


def test_only_the_certificate_of_the_head_names_its_service() -> None:
    for pod, expected in zip(pods(PER_ATTEMPT), ([{"name": "TENSAFE_HEAD", "value": "1"}], []), strict=True):
        containers = [*pod["initContainers"], *pod["containers"]]
        assert [each for one in containers for each in one["env"] if each["name"] == "TENSAFE_HEAD"] == expected


def test_pods_compare_the_key_of_the_authority_with_its_digest() -> None:
    key = content(tls.attempt_secret(admitted(), 1, PER_ATTEMPT))["authority.key"]
    for pod in pods(PER_ATTEMPT):
        issue = next(each for each in pod["initContainers"] if each["name"] == "certificate")
        values = {each["name"]: each.get("value") for each in issue["env"]}
        assert values["TENSAFE_AUTHORITY_DIGEST"] == hashlib.sha256(key.encode()).hexdigest()


def test_keys_and_names_differ_by_attempt_by_job_and_by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [tls.attempt_secret(admitted(), 1, PER_ATTEMPT), tls.attempt_secret(admitted(), 2, PER_ATTEMPT)]
    made.append(tls.attempt_secret(admitted(uid="11111111-3333"), 1, PER_ATTEMPT))
    assert made[0] == tls.attempt_secret(admitted(), 1, PER_ATTEMPT), "a retry builds the same Secret"
    monkeypatch.setattr(access, "_SEED", bytes(32))
    made.append(tls.attempt_secret(admitted(), 1, PER_ATTEMPT))
    values = [value for each in made for value in content(each).values()]
    assert len(values) == len(set(values)) == 4 * 2
    assert len({each["metadata"]["name"] for each in made if each}) == 4


def test_without_tls_kuberay_creates_one_token_for_all() -> None:
    assert tls.attempt_secret(admitted(), 1, DISABLED) is None
    made = ray_job(DISABLED)
    assert "annotations" not in made["metadata"]
    assert made["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert made["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "0.0.0.0"
    head, worker = pods(DISABLED)
    assert "initContainers" not in head
    assert [each["name"] for each in worker["initContainers"]] == ["first-look"]
    assert "RAY_USE_TLS" not in json.dumps(made)


def test_cert_manager_issues_an_authority_for_each_attempt() -> None:
    job = admitted()
    assert tls.certificate(job, 1, PER_ATTEMPT) is None
    made = tls.certificate(job, 1, CERT_MANAGER)
    assert made is not None
    name = tls.secret_name(job, 1) + "-ca"
    labels = {
        "tensafe.io/job": "claims-triage",
        "tensafe.io/job-uid": "11111111-2222",
        "app.kubernetes.io/managed-by": "tensafe-operator",
        "tensafe.io/attempt": "1",
    }
    assert made["metadata"]["name"] == name
    assert made["metadata"]["labels"] == labels
    assert made["metadata"]["ownerReferences"][0]["uid"] == "11111111-2222"
    assert made["spec"] == {
        "commonName": "claims-triage-a1",
        "isCA": True,
        "duration": "8760h",
        "usages": ["cert sign", "digital signature"],
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Never"},
        "issuerRef": {"name": "clinic", "kind": "ClusterIssuer", "group": "cert-manager.io"},
        "secretName": name,
        "secretTemplate": {"labels": labels},
    }
    assert "authority.key" not in content(tls.attempt_secret(job, 1, CERT_MANAGER))
    for pod in pods(CERT_MANAGER):
        issue = next(each for each in pod["initContainers"] if each["name"] == "certificate")
        assert secrets_of(issue) == {
            "TENSAFE_AUTHORITY_KEY": (name, "tls.key"),
            "TENSAFE_AUTHORITY_CERTIFICATE": (name, "tls.crt"),
        }


@pytest.mark.cluster
@pytest.mark.parametrize("settings", [PER_ATTEMPT, CERT_MANAGER, DISABLED], ids=lambda each: each.job_tls.mode.value)
def test_real_api_server_admits_the_pods_as_restricted(
    settings: Settings, control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    for spec in pods(settings):
        plain: dict[str, Any] = {name: value for name, value in spec.items() if name != "serviceAccountName"}
        metadata = {"generateName": "p-", "namespace": namespace}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": plain}
        control_plane.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", text=json.dumps(pod))
