"""Who a job's workers are to the API server, and the key by which its pods know each other.

The service account may read its own ledger and job and write its ledger's status, by the ClusterRole that the chart
installs; the head pod gets neither this account's token nor the key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator import names
from tensafe_operator.children import Manifest, metadata, service_account

JOB_KEY = "job.key"
_SEED = secrets.token_bytes(32)
"""Of this process: keys and names follow from it, so that trying again makes the same."""


def account(job: TenSafeTrainingJob) -> Manifest | None:
    """The job's own service account, or None where the job names one that exists."""
    if job.spec.cluster.service_account_name:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(job, job.metadata.name),
        "automountServiceAccountToken": False,
    }


def role_binding(job: TenSafeTrainingJob) -> Manifest:
    """Lets the workers' account do what `tensafe-trainer` may, in this namespace."""
    subject = {"kind": "ServiceAccount", "name": service_account(job), "namespace": job.metadata.namespace}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(job, f"{job.metadata.name}-trainer"),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": names.TRAINER_ROLE},
        "subjects": [subject],
    }


def job_key(job: TenSafeTrainingJob) -> Manifest:
    """The Secret with the job's key: made before the ledger, whose spec names it and holds its digest, never read back
    by the operator, mounted into workers alone. Nobody can have put one there before, since its name cannot be guessed
    either. One whose ledger was not made any more, since the operator died, is nobody's, and goes with the job.
    """
    uid = job.metadata.uid or ""
    name = f"{names.ledger_name(job.metadata.name, uid)}-key-{_derived('name', uid).hex()[:8]}"
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, name),
        "type": "Opaque",
        "immutable": True,
        "data": {JOB_KEY: base64.b64encode(_derived("key", uid)).decode()},
    }


def key_digest(key: Manifest) -> str:
    """SHA-256 of the key in such a Secret, in hex."""
    return hashlib.sha256(base64.b64decode(key["data"][JOB_KEY])).hexdigest()


def _derived(purpose: str, uid: str) -> bytes:
    return hmac.digest(_SEED, f"{purpose} of {uid}".encode(), "sha256")
