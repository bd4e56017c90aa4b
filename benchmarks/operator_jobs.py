"""The jobs of the operator's benchmark, and the RayJobs that KubeRay itself is measured with: the very same."""

from __future__ import annotations

from benchmarks.apiserver import Object
from benchmarks.bed import MINIMAL, REFERENCE, changed
from tensafe_api.problems import parse_job
from tensafe_api.resolve import resolve_job
from tensafe_operator.children.rayjob import ray_job
from tensafe_operator.settings import Settings


def job(namespace: str, number: int) -> Object:
    """A job that needs everything that a job may need of the operator: seven objects."""
    return changed(
        MINIMAL,
        {
            "metadata.name": f"job-{number}",
            "metadata.namespace": namespace,
            "spec.cluster.serviceAccountName": None,
            "spec.training": {"steps": 1000, "expectedBatchSize": 250},
        },
    )


def reference(number: int) -> Object:
    """The RayJob that the operator makes for such a job, without its owner, who is not there."""
    manifest = changed(job(REFERENCE, number), {"metadata.uid": f"00000000-0000-0000-0000-{number:012}"})
    completed, _ = resolve_job(parse_job(manifest))
    document = ray_job(completed, 1, Settings(), job_digest="0" * 64, key_secret="key")
    del document["metadata"]["ownerReferences"]
    return document
