"""Admission: can this job be run? From the object of the API server to a job with its privacy figures.

The API server has already rejected what a schema and CEL rules can check. Two kinds of errors are left. Some need
arithmetic: no noise multiplier reaches the target, or the integer grid overflows. Others are unknown fields that a
client sent and the API server dropped without an error.
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

_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True)
class Admitted:
    """A job that can be run.

    Attributes:
        job: the job as its author wrote it, with the values of its ledger once that is opened.
        plan: its training plan and privacy figures.
        opened: the values that its ledger was opened with; None before it is opened.
    """

    job: TenSafeTrainingJob
    plan: Plan
    opened: PrivacyLedgerSpec | None = None


@dataclass(frozen=True)
class Rejected:
    """Why a job cannot be run."""

    reason: Reason
    message: str


def admit(job: Object, opened: PrivacyLedgerSpec | None = None) -> Admitted | Rejected:
    """Return the job, or why it is rejected.

    Args:
        opened: the values that the job's ledger was opened with; None before it is opened. With them the noise is not
            calibrated again, and fields that a later apply dropped are ignored: nothing that ε depends on can still
            change, and what the job spends must be counted.
    """
    manifest = _manifest(job)
    if opened is None and (dropped := _dropped_fields(job)):
        found = _admit_text(json.dumps(manifest))
        is_newer = isinstance(found, Rejected) and found.reason is Reason.NEWER_MANIFEST
        return found if is_newer else Rejected(Reason.UNKNOWN_FIELD, dropped)
    if opened is not None:
        values = {"noiseMultiplier": opened.mechanism.noise_multiplier, "accountant": opened.accountant}
        privacy = {**manifest["spec"]["privacy"], **values}
        manifest["spec"] = {**manifest["spec"], "privacy": privacy}
    return _admit_text(json.dumps(manifest))


@functools.lru_cache(maxsize=64)
def _admit_text(text: str) -> Admitted | Rejected:
    """Admit a job as JSON text. The result is needed several times while a job starts, and parsing takes a while."""
    try:
        asked = parse_job(json.loads(text))
        completed, plan = resolve_job(asked)
    except ManifestError as error:
        message = "; ".join(map(str, error.problems))
        if all(problem.is_unknown_field for problem in error.problems):
            # The API server has kept these fields, so its CRD has them.
            return Rejected(Reason.NEWER_MANIFEST, message)
        return Rejected(Reason.INVALID_MANIFEST, message)
    if problem := _find_shared_signing_key(completed.spec):
        return Rejected(Reason.INVALID_MANIFEST, problem)
    # A profile may add volumes, so these are checked when an attempt takes it.
    if problem := find_local_path(completed, with_volumes=completed.spec.cluster.profile_ref is None):
        return Rejected(Reason.INVALID_MANIFEST, problem)
    return Admitted(asked, plan)


def _find_shared_signing_key(spec: Spec) -> str:
    """Return what is wrong where the job itself gives its signing key to every worker; empty where it does not."""
    if spec.checkpoint.signing is None:
        return ""
    name, cluster = spec.checkpoint.signing.secret_name, spec.cluster
    encryption = spec.checkpoint.encryption
    given: dict[str, list[str | None]] = {
        "checkpoint.encryption.identitySecretName": [encryption.identity_secret_name] if encryption else [],
        "storage.secretName": [spec.storage.secret_name],
        "model.tokenSecret": [spec.model.token_secret.name] if spec.model.token_secret else [],
        "cluster.volumes": [volume.secret for volume in cluster.volumes],
        "cluster.envFrom": [source.secret_ref.name for source in cluster.env_from if source.secret_ref],
        "cluster.env": [
            variable.value_from.secret_key_ref.name
            for variable in cluster.env
            if variable.value_from and variable.value_from.secret_key_ref
        ],
    }
    found = [f"spec.{field}" for field, names in given.items() if name in names]
    if not found:
        return ""
    return (
        f"{', '.join(found)}: names the Secret {name} of spec.checkpoint.signing, which only one worker may have: "
        "keep the signing key in a Secret of its own"
    )


def find_local_path(job: TenSafeTrainingJob, *, with_volumes: bool = True) -> str:
    """Return what is wrong with a path that only a local run can use; empty where all paths suit pods.

    Relative paths are relative to the manifest, which pods cannot read. Paths on volumes are absolute.

    Args:
        with_volumes: whether the job has all of its volumes, so that a path that is on none of them is wrong.
    """
    spec = job.spec
    uris = spec.uris().items()
    relative = [f"spec.{name}.uri: {uri}" for name, uri in uris if "://" not in uri and not uri.startswith("/")]
    if relative:
        fix = "in a cluster write a URI such as s3://bucket/path/ or pvc://NAME/path"
        return f"{'; '.join(relative)}: is relative to the manifest, which pods cannot read: {fix}"
    if spec.model.name.startswith("."):
        fix = "in a cluster write a hub id, or an absolute path in the image or on one of spec.cluster.volumes"
        return f"spec.model.name: {spec.model.name}: is relative to the manifest, which pods cannot read: {fix}"
    checkpoint = spec.checkpoint.uri
    path = checkpoint.removeprefix("file://")
    if not with_volumes or not path.startswith("/") or _is_on_pvc(path, spec):
        return ""
    fix = "write s3://bucket/path/ or pvc://NAME/path, or mount a pvc there in spec.cluster.volumes, without readOnly"
    return f"spec.checkpoint.uri: {checkpoint}: would be lost with its pod: {fix}"


def _is_on_pvc(path: str, spec: Spec) -> bool:
    """Return whether a path in a pod is on a writable PVC, so that its files outlive the pod."""
    mounts = [volume for volume in spec.cluster.volumes if f"{path}/".startswith(f"{volume.mount_path}/")]
    nearest = max(mounts, key=lambda volume: len(volume.mount_path), default=None)
    return nearest is not None and nearest.pvc is not None and not nearest.read_only


def with_ledger_values(admitted: Admitted, ledger: PrivacyLedgerSpec) -> Admitted:
    """Return the job with the values that its ledger was opened with. A newer release of the operator may have other
    defaults; the values that a job was admitted with never change.
    """
    spec = admitted.job.spec
    mechanism = ledger.mechanism
    training = {"steps": ledger.planned_steps, "epochs": None, "expected_batch_size": mechanism.expected_batch_size}
    privacy = {
        "target_delta": ledger.delta,
        "noise_multiplier": mechanism.noise_multiplier,
        "accountant": ledger.accountant,
        "reserve_steps": ledger.reserve_steps,
    }
    changes = {
        "training": spec.training.model_copy(update=training),
        "privacy": spec.privacy.model_copy(update=privacy),
    }
    # Annotations may change while a job exists; that of a counted number of units decides the adjacency.
    counted = {COUNTED_ANNOTATION: str(ledger.unit_at_least)} if mechanism.adjacency == "ZeroOut" else {}
    metadata = admitted.job.metadata.model_copy(update={"annotations": counted})
    job = admitted.job.model_copy(update={"metadata": metadata, "spec": spec.model_copy(update=changes)})
    plan = replace(admitted.plan, **vars(Claim.of(ledger)))
    return Admitted(job, plan, ledger)


def _manifest(job: Object) -> dict[str, Any]:
    """Return the object without its status and without the metadata that only the API server uses."""
    kept = ("name", "namespace", "uid", "generation")
    metadata = {name: value for name, value in job["metadata"].items() if name in kept}
    annotations = job["metadata"].get("annotations") or {}
    if COUNTED_ANNOTATION in annotations:
        metadata["annotations"] = {COUNTED_ANNOTATION: annotations[COUNTED_ANNOTATION]}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": job["spec"]}


def _dropped_fields(job: Object) -> str:
    """Return the unknown fields that a client-side apply sent and the API server dropped; empty where none are known.

    Argo CD and Helm do not report them. The annotation of the client-side apply still holds them.
    """
    text = (job["metadata"].get("annotations") or {}).get(_APPLIED_ANNOTATION)
    if not text:
        return ""
    try:
        applied = json.loads(text)
        spec = applied["spec"]
    except (ValueError, KeyError, TypeError):
        return ""
    if not isinstance(spec, Mapping):
        return ""
    try:
        parse_job(_manifest({**job, "spec": spec}))
    except ManifestError as error:
        return "; ".join(str(problem) for problem in error.problems if problem.is_unknown_field)
    return ""
