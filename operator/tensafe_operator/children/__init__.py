"""Builds the Kubernetes objects that the operator creates for a job.

The builders are pure: an admitted job comes in, a manifest goes out. The NetworkPolicy is brought back while an attempt
runs: a user who deletes or edits it would take the job's isolation away. The jobs of a namespace share the service
account and the RoleBinding, which are applied before each attempt. The other objects are created once and never changed
afterwards, so that changes by others remain (Kueue suspends a RayJob). The job owns them except the ledger. Garbage
collection deletes them with the job, and no finalizer is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def shared_metadata(job: TenSafeTrainingJob, name: str) -> Manifest:
    """Name, namespace and label of an object that the jobs of a namespace share. No job owns it."""
    return {"name": name, "namespace": job.metadata.namespace, "labels": {names.MANAGED_BY: names.OPERATOR}}


def matches(found: Mapping[str, Any], manifest: Manifest) -> bool:
    """Whether an object of a corrected kind is as `manifest` says. Its metadata may hold more, the rest may not: one
    more field of a port could open others.
    """
    compared = {*found, *manifest} - {"apiVersion", "kind", "metadata", "status"}
    has_labels = manifest["metadata"]["labels"].items() <= (found["metadata"].get("labels") or {}).items()
    return has_labels and all(found.get(name) == manifest.get(name) for name in compared)
