"""Builds the ConfigMap that all pods of an attempt mount: the job, and where its ledger is.

Parameters are passed as files. A RayJob's entrypoint is run by a shell, so it is a constant.
"""

from __future__ import annotations

import hashlib
import json

from tensafe_api.manifest.text import dump_manifest
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator.children import Manifest, metadata
from tensafe_operator.names import ray_job_name

MANIFEST = "job.json"
PLACE = "place.json"
_NAME_DIGITS = 12
"""How many digits of the digest are in the name."""


def config_map(job: TenSafeTrainingJob, attempt: int, ledger: str, ledger_uid: str, key_digest: str) -> Manifest:
    """The ConfigMap of one attempt of an admitted job.

    A ConfigMap cannot change once it exists, but the manifest may until the RayJob is created. So the name has a part
    of the digest of the content, and what does not matter to the workers (status and generation) is left out. So is
    every default: an image of an older release lacks some of the fields.
    """
    place = {
        "namespace": job.metadata.namespace,
        "job": job.metadata.name,
        "ledger": ledger,
        "ledger_uid": ledger_uid,
        "attempt": attempt,
        "key_digest": key_digest,
    }
    unnumbered = job.metadata.model_copy(update={"generation": None})
    plain = job.model_copy(update={"status": None, "metadata": unnumbered})
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "immutable": True,
        "data": {MANIFEST: dump_manifest(plain, "json", defaults=False), PLACE: json.dumps(place, sort_keys=True)},
    }
    name = f"{ray_job_name(job.metadata.name, attempt)}-{digest(made)[:_NAME_DIGITS]}"
    return {**made, "metadata": metadata(job, name, attempt)}


def digest(config: Manifest) -> str:
    """SHA-256 of the content of such a ConfigMap, in hex. The RayJob passes it to the pods, which run no other job."""
    return hashlib.sha256("".join(config["data"][name] for name in (MANIFEST, PLACE)).encode()).hexdigest()
