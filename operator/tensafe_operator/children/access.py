"""Who a job's workers are to the API server, and the key by which its pods know each other.

The service account may read its own ledger and job and write its ledger's status, by the ClusterRole that the chart
installs; the head pod gets neither this account's token nor the key.
"""

from __future__ import annotations

import base64
import secrets

from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator import names
from tensafe_operator.children import Manifest, metadata, service_account

JOB_KEY = "job.key"


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


def key_name(job: TenSafeTrainingJob) -> str:
    """Name of the Secret with the job key: its own for each job UID, since nobody here can read whose it is."""
    return f"{names.ledger_name(job.metadata.name, job.metadata.uid or '')}-key"


def job_key(job: TenSafeTrainingJob) -> Manifest:
    """A fresh random key: made once, never read back by the operator, mounted into workers alone."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, key_name(job)),
        "type": "Opaque",
        "immutable": True,
        "data": {JOB_KEY: base64.b64encode(secrets.token_bytes(32)).decode()},
    }
