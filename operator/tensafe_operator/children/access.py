"""Builds the service account of workers, its rights, and the key that the workers of a job share.

The service account may read ledgers and jobs of its namespace and write the status of ledgers that name it, by the
ClusterRole that the chart installs. The jobs of a namespace share one, unless a job names its own. The head pod gets
neither a token of this account nor the key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator import names
from tensafe_operator.children import Manifest, metadata, shared_metadata
from tensafe_operator.settings import Settings

JOB_KEY = "job.key"
_SEED = secrets.token_bytes(32)
"""Secret of this process. Keys and names are derived from it, so that a retry builds the same Secret."""


def account_name(job: TenSafeTrainingJob) -> str:
    """Name of the workers' service account: the one in the job, else the one that the jobs of a namespace share. The
    ledger records it, and all attempts use the name in the ledger.
    """
    return job.spec.cluster.service_account_name or names.TRAINER_ACCOUNT


def account(job: TenSafeTrainingJob, settings: Settings) -> Manifest | None:
    """The service account that the jobs of a namespace share; None if the job names another one, which is left as it
    is.

    Kubernetes copies its pull secrets into the pods of the account that name none: the workers.
    """
    if account_name(job) != names.TRAINER_ACCOUNT:
        return None
    pull = [{"name": name} for name in settings.pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": shared_metadata(job, names.TRAINER_ACCOUNT),
        "automountServiceAccountToken": False,
        **({"imagePullSecrets": pull} if pull else {}),
    }


def role_binding(job: TenSafeTrainingJob, account: str) -> Manifest:
    """Grants a workers' account the rights of the ClusterRole `tensafe-trainer` in this namespace."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": job.metadata.namespace}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": shared_metadata(job, names.role_binding_name(account)),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": names.TRAINER_ROLE},
        "subjects": [subject],
    }


def job_key(job: TenSafeTrainingJob) -> Manifest:
    """The Secret with the job's key, which only the workers mount.

    It is created before the ledger, whose spec names it and holds its digest. The operator never reads it. Its name
    cannot be guessed, so no user can have created a Secret of this name before. It is deleted when the job has ended
    (`plan.cleanup`). If the operator dies before the ledger is created, the Secret stays unused and is deleted with the
    job.
    """
    uid = job.metadata.uid or ""
    name = names.key_prefix(job.metadata.name, uid) + derived("name", uid).hex()[:8]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, name),
        "type": "Opaque",
        "immutable": True,
        "data": {JOB_KEY: base64.b64encode(derived("key", uid)).decode()},
    }


def key_digest(key: Manifest) -> str:
    """SHA-256 of the key in a Secret built by `job_key`, in hex."""
    return hashlib.sha256(base64.b64decode(key["data"][JOB_KEY])).hexdigest()


def derived(purpose: str, uid: str) -> bytes:
    """32 bytes for one purpose of one job, the same at each call. Only this process can derive them."""
    return hmac.digest(_SEED, f"{purpose} of {uid}".encode(), "sha256")
