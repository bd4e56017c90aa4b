"""Builds what the pods of an attempt need to encrypt the messages of Ray: TLS with certificates on both sides.

Ray dials the addresses of pods, and compares them with the names in a certificate. The address of a pod is not known
before the pod exists. So the operator creates only an *authority* for the attempt. An init container of each pod uses
it to issue a certificate for the pod's own address (`tensorguard.runners.pod.certificate`). Only that container gets
the authority's key. The processes of Ray start later, and have no access to it.

Requests of KubeRay to the head cannot be encrypted, because KubeRay speaks plain HTTP. So they carry no token, and end
at the *gate* in the head's pod: a container that passes on nothing but what KubeRay needs
(`tensorguard.runners.pod.gate`). Ray's own port listens on the loopback address only.
"""

from __future__ import annotations

import base64
import hashlib

from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator import names
from tensafe_operator.children import Manifest, metadata
from tensafe_operator.children.access import derived
from tensafe_operator.job_tls import TlsMode
from tensafe_operator.settings import Settings

AUTHORITY_KEY = "authority.key"
RAY_TOKEN = "ray.token"
CERTIFICATE_CONTAINER = "certificate"
FOLDER = "/var/run/tensafe/tls"
"""Where a pod's certificate is: on the volume of the run, which belongs to the pod and ends with it."""
RAY_DASHBOARD_PORT = 8264
_LIFETIME = "8760h"
_SMALL = {"cpu": "50m", "memory": "128Mi"}
"""The size of the containers of this module."""


def attempt_secret(job: TenSafeTrainingJob, attempt: int, settings: Settings) -> Manifest | None:
    """The Secret of one attempt, or None without TLS.

    It is created before the RayJob, which names it, and is deleted when the attempt has ended (`plan.draft`). As for
    the job's key, its name cannot be guessed. A process that starts after a crash builds another Secret; the first one
    stays unused, and is deleted with the job.
    """
    if not settings.job_tls.enabled:
        return None
    content = {RAY_TOKEN: _text(job, attempt, "token")}
    if settings.job_tls.mode is TlsMode.PER_ATTEMPT:
        content[AUTHORITY_KEY] = _text(job, attempt, "authority")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, secret_name(job, attempt), attempt),
        "type": "Opaque",
        "immutable": True,
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in content.items()},
    }


def certificate(job: TenSafeTrainingJob, attempt: int, settings: Settings) -> Manifest | None:
    """The Certificate for which cert-manager issues the attempt's authority; None where the operator creates it."""
    if settings.job_tls.mode is not TlsMode.CERT_MANAGER:
        return None
    name = names.authority_name(secret_name(job, attempt))
    head = metadata(job, name, attempt)
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": head,
        "spec": {
            "commonName": names.ray_job_name(job.metadata.name, attempt),
            "isCA": True,
            "duration": _LIFETIME,
            "usages": ["cert sign", "digital signature"],
            # With another key after a renewal, pods that start later would not accept those that run.
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Never"},
            "issuerRef": settings.job_tls.issuer_ref.model_dump(),
            "secretName": name,
            "secretTemplate": {"labels": head["labels"]},
        },
    }


def secret_name(job: TenSafeTrainingJob, attempt: int) -> str:
    """Name of an attempt's Secret."""
    return names.tls_prefix(names.ray_job_name(job.metadata.name, attempt)) + _text(job, attempt, "name")[:8]


def auth_options(settings: Settings) -> Manifest:
    """Whether KubeRay handles Ray's token. Without TLS it creates one, and sends it with each request.

    With TLS it must know none. It would also need the token to remove its finalizer from a RayJob, and a job that is
    deleted takes its Secrets with it at once.
    """
    return {"mode": "disabled" if settings.job_tls.enabled else "token"}


def dashboard(settings: Settings) -> Manifest:
    """The arguments of `ray start` for the head's HTTP port."""
    if settings.job_tls.enabled:
        return {"dashboard-host": "127.0.0.1", "dashboard-port": str(RAY_DASHBOARD_PORT)}
    return {"dashboard-host": "0.0.0.0"}


def environment(job: TenSafeTrainingJob, attempt: int, settings: Settings) -> list[Manifest]:
    """The environment of a container that runs Ray. KubeRay copies it into its own init container."""
    if not settings.job_tls.enabled:
        return []
    files = {"RAY_TLS_SERVER_CERT": "tls.crt", "RAY_TLS_SERVER_KEY": "tls.key", "RAY_TLS_CA_CERT": "ca.crt"}
    return [
        {"name": "RAY_USE_TLS", "value": "1"},
        *({"name": name, "value": f"{FOLDER}/{file}"} for name, file in files.items()),
        {"name": "RAY_AUTH_MODE", "value": "token"},
        _secret_variable("RAY_AUTH_TOKEN", secret_name(job, attempt), RAY_TOKEN),
    ]


def init_containers(
    job: TenSafeTrainingJob, attempt: int, settings: Settings, container: Manifest, *, head: bool
) -> list[Manifest]:
    """The init containers of a pod: one that issues the pod's certificate, and in the head's pod the gate.

    Args:
        container: the container of the pod that runs Ray.
    """
    if not settings.job_tls.enabled:
        return []
    issue = {
        **_small_container(CERTIFICATE_CONTAINER, "tensorguard.runners.pod.certificate", container),
        # KubeRay deletes a pod that fails, and its logs. Its status has the line that says why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [
            {"name": "TENSAFE_POD_IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}},
            *([{"name": "TENSAFE_HEAD", "value": "1"}] if head else []),
            *_authority_variables(job, attempt, settings),
        ],
        "volumeMounts": [each for each in container["volumeMounts"] if each["name"] == "run"],
    }
    submission = names.submission_id(job.metadata.name, job.metadata.uid or "", attempt)
    gate = {
        **_small_container("gate", "tensorguard.runners.pod.gate", container),
        "restartPolicy": "Always",  # a sidecar: it ends after the container that runs Ray
        "env": [
            {"name": "TENSAFE_RAY_PORT", "value": str(RAY_DASHBOARD_PORT)},
            {"name": "TENSAFE_SUBMISSION_ID", "value": submission},
            _secret_variable("TENSAFE_RAY_TOKEN", secret_name(job, attempt), RAY_TOKEN),
        ],
    }
    return [issue, gate] if head else [issue]


def _small_container(name: str, module: str, container: Manifest) -> Manifest:
    """A container that runs a module of the trainer's image, and needs little."""
    return {
        "name": name,
        "image": container["image"],
        "imagePullPolicy": container["imagePullPolicy"],
        "command": ["python", "-m", module],
        "resources": {"requests": _SMALL, "limits": {"memory": _SMALL["memory"]}},
        "securityContext": {**container["securityContext"], "readOnlyRootFilesystem": True},
    }


def _authority_variables(job: TenSafeTrainingJob, attempt: int, settings: Settings) -> list[Manifest]:
    """The key of the attempt's authority, and what it is compared with."""
    variable, secret = "TENSAFE_AUTHORITY_KEY", secret_name(job, attempt)
    if settings.job_tls.mode is TlsMode.CERT_MANAGER:
        issued = names.authority_name(secret)
        parts = ((variable, "tls.key"), ("TENSAFE_AUTHORITY_CERTIFICATE", "tls.crt"))
        return [_secret_variable(name, issued, key) for name, key in parts]
    digest = hashlib.sha256(_text(job, attempt, "authority").encode()).hexdigest()
    return [_secret_variable(variable, secret, AUTHORITY_KEY), {"name": "TENSAFE_AUTHORITY_DIGEST", "value": digest}]


def _secret_variable(name: str, secret: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _text(job: TenSafeTrainingJob, attempt: int, purpose: str) -> str:
    """64 hexadecimal digits that only this process can derive."""
    return derived(f"{purpose} of attempt {attempt}", job.metadata.uid or "").hex()
