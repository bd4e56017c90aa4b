"""What the operator makes for a job: pure builders, from a completed job to Kubernetes objects.

All are created, never applied: what others change afterwards (Kueue suspends a RayJob, a person edits a policy) stays
theirs. Each has the job as its owner, so that garbage collection removes it with the job, and no finalizer is needed.
"""

from __future__ import annotations

from tensafe_api.resources.job import API_VERSION, KIND, TenSafeTrainingJob
from tensafe_operator import names
from tensafe_operator.runtime.objects import Manifest as Manifest


def metadata(job: TenSafeTrainingJob, name: str, attempt: int | None = None) -> Manifest:
    """Name, namespace, labels and owner of a child of `job`."""
    uid = job.metadata.uid or ""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": names.labels(job.metadata.name, uid, attempt),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": job.metadata.name,
                "uid": uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def service_account(job: TenSafeTrainingJob) -> str:
    """The workers' service account: the one that the job names, else its own."""
    return job.spec.cluster.service_account_name or job.metadata.name
