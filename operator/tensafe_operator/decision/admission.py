"""Admission: can this job be run? From the object of the API server to a job with its privacy figures.

The API server has already rejected what a schema and CEL rules can check. Two kinds of errors are left. Some need
arithmetic: no noise multiplier reaches the target, or the integer grid overflows. Others are unknown fields that a
client sent and the API server dropped without an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensafe_api.manifest.validation import ManifestError, parse_job
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resolve import Claim, resolve_job
from tensafe_api.resources.job import API_VERSION, KIND, Spec, TenSafeTrainingJob
from tensafe_api.resources.ledger import COUNTED_ANNOTATION, PrivacyLedgerSpec
from tensafe_api.timestamps import parse_time
from tensafe_operator.decision.conditions import JobState
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.figures import Ask
from tensafe_operator.decision.observation import Object

CALIBRATION_SECONDS = 2.0
_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True)
class Admitted:
    """A job that can be run.

    Attributes:
        job: the job as its author wrote it, with the values of its ledger once that is opened.
        claim: what its privacy claim rests on.
        opened: the values that its ledger was opened with; None before it is opened.
    """

    job: TenSafeTrainingJob
    claim: Claim
    opened: PrivacyLedgerSpec | None = None


@dataclass(frozen=True)
class Rejected:
    """Why a job cannot be run."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Admission:
    """The figure of a new job: its manifest, as JSON text, with the noise that is calibrated for it."""

    manifest: str

    def compute(self) -> Admitted | Rejected:
        job = parse_job(json.loads(self.manifest))
        try:
            _, plan = resolve_job(job)
        except ManifestError as error:
            return _rejected(error)
        return Admitted(job, plan.claim)


def admit(job: Object, opened: PrivacyLedgerSpec | None, ask: Ask) -> Admitted | Rejected | None:
    """Return the job, or why it is rejected; None while the accountant calibrates its noise.

    Args:
        opened: the values that the job's ledger was opened with; None before it is opened. With them the noise is not
            calibrated again, and fields that a later apply dropped are ignored: nothing that ε depends on can still
            change, and what the job spends must be counted.
    """
    manifest = _manifest(job)
    try:
        parsed = parse_job(manifest)
    except ManifestError as error:
        return _rejected(error)
    spec = parsed.spec
    # A profile may add volumes, so these are checked when an attempt takes it.
    local = find_local_path(parsed, with_volumes=spec.cluster.profile_ref is None)
    if problem := _find_shared_signing_key(spec) or local:
        return Rejected(Reason.INVALID_MANIFEST, problem)
    if opened is not None:
        return Admitted(parsed, Claim.of(opened))
    if dropped := _dropped_fields(job):
        return Rejected(Reason.UNKNOWN_FIELD, dropped)
    return ask(Admission(json.dumps(manifest)))


def report_calibration(draft: Draft) -> None:
    """Show that the noise of a new job is being calibrated, unless the job is so new that a status with its ledger
    follows in a moment.
    """
    due = (parse_time(draft.observed.job["metadata"].get("creationTimestamp")) or 0.0) + CALIBRATION_SECONDS
    draft.wake_at(due)
    if draft.now >= due:
        text = "The noise of the job is being calibrated."
        draft.set_state(JobState(Phase.PENDING, Reason.STARTING, text, accepted=False))


def _rejected(error: ManifestError) -> Rejected:
    message = "; ".join(map(str, error.problems))
    # The API server has kept unknown fields, so its CRD has them.
    is_newer = all(problem.is_unknown_field for problem in error.problems)
    return Rejected(Reason.NEWER_MANIFEST if is_newer else Reason.INVALID_MANIFEST, message)


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
    return Admitted(job, Claim.of(ledger), ledger)


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
