"""Can this job be run as it is? From the object that the API server has to a completed job and its figures.

The API server has refused what a schema and CEL can say. What is left needs arithmetic (no noise reaches the target,
the grid overflows), or is nobody's fault but a client's, which let fields be dropped before they arrived.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensafe_api.problems import ManifestError, parse_job
from tensafe_api.reasons import Reason
from tensafe_api.resolve import Claim, Plan, resolve_job
from tensafe_api.resources.job import API_VERSION, KIND, Spec, TenSafeTrainingJob
from tensafe_api.resources.ledger import COUNTED_ANNOTATION, PrivacyLedgerSpec
from tensafe_operator.plan.observed import Object

_LONGEST_APPLIED = 64 * 1024
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True)
class Admitted:
    """A job that can be run: with every default filled in, the figures that it comes to, and what its ledger was opened
    with, once it was.
    """

    job: TenSafeTrainingJob
    plan: Plan
    opened: PrivacyLedgerSpec | None = None


@dataclass(frozen=True)
class Rejected:
    """Why a job cannot be run as it is."""

    reason: Reason
    message: str


def admit(job: Object, opened: PrivacyLedgerSpec | None = None) -> Admitted | Rejected:
    """The job completed, or why it is not accepted.

    Args:
        opened: what the ledger of a job that has begun was opened with. Its noise is not looked for again, and what was
            dropped from a later apply does not matter: whatever ε depends on cannot change any more, and what it spends
            must go on being counted.
    """
    if opened is None and (dropped := _dropped(job)):
        return Rejected(Reason.UNKNOWN_FIELD, dropped)
    plain = _plain(job)
    if opened is not None:
        privacy = {**plain["spec"]["privacy"], "noiseMultiplier": opened.mechanism.noise_multiplier}
        plain["spec"] = {**plain["spec"], "privacy": privacy}
    return _admitted(json.dumps(plain))


@functools.lru_cache(maxsize=64)
def _admitted(text: str) -> Admitted | Rejected:
    """The same of a job as JSON text: it is asked several times while a job begins, and the answer takes arithmetic."""
    try:
        completed, plan = resolve_job(parse_job(json.loads(text)))
    except ManifestError as error:
        return Rejected(Reason.INVALID_MANIFEST, "; ".join(map(str, error.problems)))
    if told := _local(completed):
        return Rejected(Reason.INVALID_MANIFEST, told)
    return Admitted(completed, plan)


def _local(job: TenSafeTrainingJob) -> str:
    """What only a run on one's own machine can have: places relative to the manifest. Paths on volumes are absolute."""
    spec = job.spec
    places = spec.uris().items()
    relative = [f"spec.{name}.uri: {uri}" for name, uri in places if "://" not in uri and not uri.startswith("/")]
    if relative:
        mend = "in a cluster write a URI such as s3://bucket/path/ or pvc://claim/path"
        return f"{'; '.join(relative)}: is relative to the manifest, which pods do not see; {mend}"
    if spec.model.name.startswith("."):
        mend = "in a cluster write a hub id, or an absolute path in the image or on one of spec.cluster.volumes"
        return f"spec.model.name: {spec.model.name}: is relative to the manifest, which pods do not see; {mend}"
    checkpoint = spec.checkpoint.uri
    if not checkpoint.removeprefix("file://").startswith("/") or _kept(checkpoint.removeprefix("file://"), spec):
        return ""
    mend = "write s3://bucket/path/ or pvc://claim/path, or mount a pvc there in spec.cluster.volumes, without readOnly"
    return f"spec.checkpoint.uri: {checkpoint}: would be lost with its pod; {mend}"


def _kept(path: str, spec: Spec) -> bool:
    """Whether what is written to a path in a pod stays when the pod goes."""
    above = [volume for volume in spec.cluster.volumes if f"{path}/".startswith(f"{volume.mount_path}/")]
    nearest = max(above, key=lambda volume: len(volume.mount_path), default=None)
    return nearest is not None and nearest.pvc is not None and not nearest.read_only


def with_ledger_values(admitted: Admitted, ledger: PrivacyLedgerSpec) -> Admitted:
    """The same with the values that the job's ledger was opened with: a newer release of the operator may have other
    defaults, and what a job was admitted with never changes.
    """
    spec = admitted.job.spec
    mechanism = ledger.mechanism
    training = {"steps": ledger.planned_steps, "epochs": None, "expected_batch_size": mechanism.expected_batch_size}
    privacy = {
        "target_delta": ledger.delta,
        "noise_multiplier": mechanism.noise_multiplier,
        "reserve_steps": ledger.reserve_steps,
    }
    changes = {
        "training": spec.training.model_copy(update=training),
        "privacy": spec.privacy.model_copy(update=privacy),
    }
    job = admitted.job.model_copy(update={"spec": spec.model_copy(update=changes)})
    plan = replace(admitted.plan, **vars(Claim.of(ledger)))
    return Admitted(job, plan, ledger)


def _plain(job: Object) -> dict[str, Any]:
    """The object without what the API server alone knows, and without its status."""
    kept = ("name", "namespace", "uid", "generation")
    metadata = {name: value for name, value in job["metadata"].items() if name in kept}
    annotations = job["metadata"].get("annotations") or {}
    if COUNTED_ANNOTATION in annotations:
        metadata["annotations"] = {COUNTED_ANNOTATION: annotations[COUNTED_ANNOTATION]}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": job["spec"]}


def _dropped(job: Object) -> str:
    """What a client-side apply sent and the schema dropped: Argo CD and Helm let that pass in silence."""
    text = (job["metadata"].get("annotations") or {}).get(_APPLIED)
    if not text:
        return ""
    if len(text) > _LONGEST_APPLIED:
        return ""
    try:
        applied = json.loads(text)
        spec = applied["spec"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    if not isinstance(spec, Mapping):
        return ""
    try:
        parse_job(_plain({**job, "spec": spec}))
    except ManifestError as error:
        return "; ".join(str(problem) for problem in error.problems if problem.message.startswith("unknown field"))
    except RecursionError:
        return ""  # nested too deep to be told of
    return ""
