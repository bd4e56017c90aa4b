"""Loads a job from the command line and resolves its plan, with all faults reported at once.

`validate` prints the result; `run` passes it to the local runner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensafe_api.manifest.text import ManifestError, load_manifest
from tensafe_api.resolve import Plan, resolve_job
from tensafe_api.resources.base import Block, alias_of
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.cli.exit_codes import CommandError

WEAK_EPSILON = 30
_LOCAL_CLUSTER_FIELDS = frozenset({"workers", "worker"})


@dataclass(frozen=True)
class LoadedJob:
    """A valid manifest.

    Attributes:
        job: as in the file, with the changes of the command line.
        completed: the same with all defaults.
        plan: the training plan that it resolves to.
    """

    job: TenSafeTrainingJob
    completed: TenSafeTrainingJob
    plan: Plan


def load_job(path: str, overrides: Sequence[str]) -> LoadedJob:
    """Read the manifest at `path` and resolve it. Raises CommandError with one line for each fault."""
    try:
        job = load_manifest(Path(path), overrides)
        completed, plan = resolve_job(job)
        _check_recipients(job)
    except ManifestError as error:
        raise CommandError(str(error)) from error
    job, completed = (
        each.model_copy(update={"status": None}) for each in (job, completed)
    )  # only the runner writes it
    return LoadedJob(job, completed, plan)


def _check_recipients(job: TenSafeTrainingJob) -> None:
    """Refuse recipients for which age cannot encrypt: a mistyped one has the right form."""
    encryption = job.spec.checkpoint.encryption
    if encryption is None or encryption.recipients_config_map is not None:
        return
    from tensorguard.checkpoint.encryption import RecipientInvalid, recipients_of

    try:
        recipients_of(job)
    except RecipientInvalid as error:
        raise CommandError(str(error)) from error


def local_warnings(loaded: LoadedJob) -> Iterator[str]:
    """What the author of a valid manifest should know before it runs on this machine."""
    plan = loaded.plan
    if plan.target_epsilon > WEAK_EPSILON:
        yield (
            f"spec.privacy.targetEpsilon: ε = {plan.target_epsilon:g} protects little (a result may be "
            f"e^{plan.target_epsilon:g} times as likely with a record as without it): 1 to 10 is usual"
        )
    if loaded.job.spec.privacy.noise_multiplier is not None:
        within = plan.affordable_steps(0, plan.steps)
        if within < plan.steps:
            sigma, target = plan.mechanism.noise_multiplier, f"{plan.target_epsilon:g}"
            yield (
                f"spec.privacy.noiseMultiplier: with σ = {sigma} the budget of ε = {target} ends after {within:,} of "
                f"the {plan.steps:,} planned steps: leave it out to calibrate it, or raise spec.privacy.targetEpsilon"
            )
    if loaded.job.spec.model.sharding == "Worker" and loaded.job.spec.ranks_per_base == 1:
        yield (
            "spec.model.sharding: Worker has no effect, since no worker has more than one GPU: write "
            "spec.cluster.worker.gpus above 1, or Workers, or remove it"
        )
    unused = list(_unused_locally(loaded.job))
    if unused:
        yield f"{', '.join(unused)}: no effect in a local run"


def cluster_warnings(loaded: LoadedJob) -> Iterator[str]:
    """What the author of a valid manifest should know before it runs in a cluster."""
    encryption = loaded.job.spec.checkpoint.encryption
    if encryption is not None and encryption.identity_secret_name is None:
        yield (
            "spec.checkpoint.encryption: without identitySecretName, no attempt in a cluster can resume from a "
            "checkpoint: name a Secret with an identity of one of the recipients"
        )


def resource_warnings(loaded: LoadedJob) -> Iterator[str]:
    """Why `tensafe run` would refuse the manifest on this machine, if it would. A cluster may have the resources."""
    from tensorguard.runners.preflight import RunRefused, check_local_resources

    try:
        check_local_resources(loaded.completed)
    except RunRefused as refusal:
        yield f"`tensafe run` would refuse it on this machine: {refusal}"


def _unused_locally(job: TenSafeTrainingJob) -> Iterator[str]:
    """The paths of fields that were set and that have an effect in a cluster only."""
    spec = job.spec
    yield from _set_fields(spec.model, "spec.model", {"token_secret"})
    uris = [spec.dataset.uri, spec.checkpoint.uri, spec.evaluation.uri if spec.evaluation else ""]
    of_s3 = {"endpoint", "region"} if not any(uri.startswith("s3://") for uri in uris) else set()
    yield from _set_fields(spec.storage, "spec.storage", {"secret_name"} | of_s3)
    if spec.checkpoint.encryption is not None:
        yield from _set_fields(spec.checkpoint.encryption, "spec.checkpoint.encryption", {"identity_secret_name"})
    yield from _set_fields(spec.cluster, "spec.cluster", type(spec.cluster).model_fields.keys() - _LOCAL_CLUSTER_FIELDS)
    yield from _set_fields(spec.cluster.worker, "spec.cluster.worker", {"gpu_resource", "memory"})
    yield from _set_fields(spec.retry, "spec.retry", {"max_attempts"})
    yield from _set_fields(
        spec,
        "spec",
        {
            "active_deadline_seconds",
            "start_deadline_seconds",
            "children_ttl_seconds",
            "pods_ttl_seconds",
            "ttl_seconds_after_finished",
            "suspend",
        },
    )


def _set_fields(block: Block, path: str, names: set[str]) -> Iterator[str]:
    for name, field in type(block).model_fields.items():
        if name in names and getattr(block, name) != field.get_default(call_default_factory=True):
            yield f"{path}.{alias_of(field)}"
