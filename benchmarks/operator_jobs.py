"""The jobs of the operator's benchmark, and the RayJobs that KubeRay's operator is measured with.

The operator creates the same RayJobs for the jobs, so both operators are measured with the same objects.
"""

from __future__ import annotations

from benchmarks.testbed import REFERENCE
from tensafe_api.manifest.validation import parse_job
from tensafe_api.resolve import resolve_job
from tensafe_operator.children.configuration import config_map
from tensafe_operator.children.rayjob import ray_job
from tensafe_operator.settings import Settings
from tests.support.manifests import MINIMAL, changed
from tests.support.programs.api_server import Object


def job(namespace: str, number: int) -> Object:
    """A job for which the operator creates every kind of object that it may create: seven objects."""
    return changed(
        MINIMAL,
        {
            "metadata.name": f"job-{number}",
            "metadata.namespace": namespace,
            "spec.cluster.serviceAccountName": None,
            "spec.training": {"steps": 1000, "expectedBatchSize": 250},
        },
    )


def reference_ray_job(number: int) -> Object:
    """The RayJob that the operator creates for such a job, without an owner, because there is no job here."""
    manifest = changed(job(REFERENCE, number), {"metadata.uid": f"00000000-0000-0000-0000-{number:012}"})
    completed, _ = resolve_job(parse_job(manifest))
    parameters = config_map(completed, 1, "ledger", "ledger-uid", "key-digest")
    document = ray_job(completed, 1, Settings(), parameters=parameters, key_secret="key", account="account")
    del document["metadata"]["ownerReferences"]
    return document
