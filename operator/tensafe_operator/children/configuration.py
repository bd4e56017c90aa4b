"""Builds the ConfigMap that all pods of an attempt mount: the completed job, and where its ledger is.

Parameters are passed as files. A RayJob's entrypoint is run by a shell, so it is a constant.
"""

from __future__ import annotations

import hashlib
import json

from tensafe_api.manifest import dump_manifest
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator.children import Manifest, metadata
from tensafe_operator.names import ray_job_name

MANIFEST = "job.json"
PLACE = "place.json"


def config_map(job: TenSafeTrainingJob, attempt: int, ledger: str, ledger_uid: str, key_digest: str) -> Manifest:
    """The ConfigMap of one attempt of a completed job."""
    place = {
        "namespace": job.metadata.namespace,
        "job": job.metadata.name,
        "ledger": ledger,
        "ledger_uid": ledger_uid,
        "attempt": attempt,
        "key_digest": key_digest,
    }
    plain = job.model_copy(update={"status": None})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, ray_job_name(job.metadata.name, attempt), attempt),
        "immutable": True,
        "data": {MANIFEST: dump_manifest(plain, "json"), PLACE: json.dumps(place, sort_keys=True)},
    }


def digest(config: Manifest) -> str:
    """SHA-256 of the content of such a ConfigMap, in hex. The RayJob passes it to the pods, which run no other job."""
    return hashlib.sha256("".join(config["data"][name] for name in (MANIFEST, PLACE)).encode()).hexdigest()
