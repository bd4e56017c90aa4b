"""`TenSafeTrainingJob`: the whole resource, and the rules that reach over several of its blocks.

In comes one manifest, from a file, from the API server or from Python; out goes the object that everything else reads:
the operator plans with it, the local run trains with it, and `tensafe_api.crd` writes its schema.

The spec cannot change once it is there, since the ledger's privacy values were frozen with it; what may change is named
in `Spec.transitions`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar, Literal, cast

from pydantic import Field

from tensafe_api import tasks
from tensafe_api.resources.base import Block, Rule, Transition
from tensafe_api.resources.cluster import Cluster, Observability, Retry
from tensafe_api.resources.data import Dataset, Evaluation
from tensafe_api.resources.model import Lora, Model
from tensafe_api.resources.status import Status
from tensafe_api.resources.training import Aggregation, Checkpoint, Privacy, Storage, Training
from tensafe_api.resources.values import (
    DECIMAL,
    Count,
    Flag,
    JobName,
    LabelMap,
    ObjectName,
    Positive,
    Text,
    Timestamp,
    cel_matches,
)

GROUP = "tensafe.io"
VERSION = "v1alpha1"
API_VERSION: Literal["tensafe.io/v1alpha1"] = "tensafe.io/v1alpha1"
KIND: Literal["TenSafeTrainingJob"] = "TenSafeTrainingJob"


class Metadata(Block):
    """Name and labels, as Kubernetes writes them. What the API server adds may stay in a manifest."""

    name: JobName = Field(
        description="Name of the job: at most 40 lower-case letters, digits and -, a letter first, no - at the end."
    )
    namespace: ObjectName | None = Field(None, description="Namespace; default: the client's.")
    labels: LabelMap = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations.")
    uid: Text | None = Field(None, description="Identity of this very job, given by the API server or the local run.")
    generation: Count | None = Field(None, description="Number of the spec's last change, given by the API server.")
    resource_version: Text | None = Field(None, description="Version of the object, given by the API server.")
    creation_timestamp: Timestamp | None = Field(None, description="When the job was made.")


_ACCOUNT = "(has({0}.cluster.serviceAccountName) ? {0}.cluster.serviceAccountName : '')"
"""In CEL. `orValue` would be shorter, but the API server's estimate of its cost knows no bounds."""


def _immutable(name: str, *, optional: bool) -> Transition:
    cel = f"self.{name} == oldSelf.{name}"
    if optional:
        cel = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {cel})"
    return Transition(cel, f"spec.{name} cannot change: make a new job with another name", f".{name}")


def _in_suspension(name: str) -> Transition:
    return Transition(
        f"oldSelf.suspend || self.{name} == oldSelf.{name}",
        f"spec.{name} changes only while the job is suspended: set spec.suspend to true first",
        f".{name}",
    )


def _within(inner: str, outer: str) -> bool:
    """Whether one URI names the place of another, or one in it."""
    inner, outer = (uri.removeprefix("file://").removesuffix("/") + "/" for uri in (inner, outer))
    return inner.startswith(outer)


def _within_in_cel(inner: str, outer: str) -> str:
    def bare(uri: str) -> str:
        return f"({uri}.startsWith('file://') ? {uri}.substring(7) : {uri})"

    return f"({bare(inner)} + '/').startsWith({bare(outer)}.endsWith('/') ? {bare(outer)} : {bare(outer)} + '/')"


def _hides(path: str, uri: str) -> bool:
    """Whether a volume mounted at `path` would hide what is at a pvc:// URI: a claim is mounted at /mnt/claim."""
    return uri.startswith("pvc://") and f"{uri.replace('pvc:/', '/mnt')}/".startswith(f"{path}/")


def _hides_in_cel(path: str, uri: str) -> str:
    return f"{uri}.startsWith('pvc://') && ({uri}.replace('pvc:/', '/mnt') + '/').startsWith({path} + '/')"


class Spec(Block):
    """What is asked for."""

    model: Model = Field(description="The base model.")
    lora: Lora = Field(default_factory=Lora, description="The trainable low-rank factors.")
    dataset: Dataset = Field(description="The private data.")
    evaluation: Evaluation | None = Field(
        None, description="Data to measure the model on while it is trained; default: none."
    )
    training: Training = Field(default_factory=Training, description="The optimiser's work.")
    privacy: Privacy = Field(description="What the training may tell of one unit, and how that is counted.")
    aggregation: Aggregation = Field(default_factory=Aggregation, description="How the workers' sums are added.")
    checkpoint: Checkpoint = Field(description="Where the adapter goes.")
    storage: Storage = Field(default_factory=Storage, description="How object storage is reached.")
    cluster: Cluster = Field(description="The workers and the head.")
    retry: Retry = Field(default_factory=Retry, description="How often it is tried again.")
    observability: Observability = Field(default_factory=Observability, description="What is shown of the training.")
    active_deadline_seconds: Positive | None = Field(
        None,
        description="Longest time of all attempts together, in seconds, without the time queued or suspended; default: "
        "no limit.",
    )
    children_ttl_seconds: Count = Field(
        3600,
        alias="childrenTTLSeconds",
        description="How long RayJobs stay after the end, in seconds; their pods go at once, and the logs with them. "
        "The job itself is never removed.",
    )
    suspend: Flag = Field(
        False, description="Stop at a checkpoint and wait. A job made suspended shows its noise and epsilon at once."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.privacy.targetDelta) || !{cel_matches('self.privacy.targetDelta', DECIMAL)} || "
            "double(self.privacy.targetDelta) * double(self.dataset.unit.atLeast) < 1.0",
            "privacy.targetDelta must be below 1 / dataset.unit.atLeast: lower it, or leave it out for "
            "1 / (10 x unit.atLeast)",
            lambda spec: (
                spec.privacy.target_delta is None
                or Fraction(spec.privacy.target_delta) * spec.dataset.unit.at_least < 1
            ),
            ".privacy.targetDelta",
        ),
        Rule(
            "!has(self.training.expectedBatchSize) || self.training.expectedBatchSize <= self.dataset.unit.atLeast",
            "training.expectedBatchSize must not be above dataset.unit.atLeast, since it counts units: lower it",
            lambda spec: (
                spec.training.expected_batch_size is None
                or cast(int, spec.training.expected_batch_size) <= spec.dataset.unit.at_least
            ),
            ".training.expectedBatchSize",
        ),
        Rule(
            "self.aggregation.colludingWorkers < self.cluster.workers",
            "aggregation.colludingWorkers must be below cluster.workers: lower it, or raise cluster.workers",
            lambda spec: spec.aggregation.colluding_workers < spec.cluster.workers,
            ".aggregation.colludingWorkers",
        ),
        Rule(
            tasks.task_columns_cel("self.model.task", "self.dataset.columns"),
            tasks.task_columns_message(),
            lambda spec: tasks.task_columns_hold(spec.model.task, tasks.given_in(spec.dataset.columns)),
            ".dataset.columns",
        ),
        Rule(
            "!has(self.model.chatTemplate) || has(self.dataset.columns.messages)",
            "model.chatTemplate belongs to conversations: write dataset.columns.messages, or leave it out",
            lambda spec: spec.model.chat_template is None or "messages" in tasks.given_in(spec.dataset.columns),
            ".model.chatTemplate",
        ),
        Rule(
            "!has(self.evaluation) || self.evaluation.visibility != 'Public' || "
            f"!{_within_in_cel('self.evaluation.uri', 'self.dataset.uri')} || "
            f"!{_within_in_cel('self.dataset.uri', 'self.evaluation.uri')}",
            "evaluation.visibility must not be Public where evaluation.uri is dataset.uri, since the status would show "
            "exact losses of the private data: write Private, or the uri of a public set",
            lambda spec: (
                spec.evaluation is None
                or spec.evaluation.visibility != "Public"
                or not _within(spec.evaluation.uri, spec.dataset.uri)
                or not _within(spec.dataset.uri, spec.evaluation.uri)
            ),
            ".evaluation.visibility",
        ),
        Rule(
            f"!{_within_in_cel('self.checkpoint.uri', 'self.dataset.uri')} && "
            f"(!has(self.evaluation) || !{_within_in_cel('self.checkpoint.uri', 'self.evaluation.uri')})",
            "checkpoint.uri must not be or lie in dataset.uri or evaluation.uri, since checkpoints would be read as "
            "data: write a place of their own",
            lambda spec: (
                not _within(spec.checkpoint.uri, spec.dataset.uri)
                and (spec.evaluation is None or not _within(spec.checkpoint.uri, spec.evaluation.uri))
            ),
            ".checkpoint.uri",
        ),
        Rule(
            "!has(self.cluster.volumes) || !self.cluster.volumes.exists(volume, "
            f"{_hides_in_cel('volume.mountPath', 'self.dataset.uri')} || "
            f"{_hides_in_cel('volume.mountPath', 'self.checkpoint.uri')} || "
            f"has(self.evaluation) && {_hides_in_cel('volume.mountPath', 'self.evaluation.uri')})",
            "cluster.volumes must not hide /mnt/claim, where the claim of a pvc:// URI is mounted by itself: choose "
            "another mountPath, or leave the volume out",
            lambda spec: (
                not any(
                    _hides(volume.mount_path, part.uri)
                    for volume in spec.cluster.volumes
                    for part in (spec.dataset, spec.checkpoint, spec.evaluation)
                    if part is not None
                )
            ),
            ".cluster.volumes",
        ),
        Rule(
            "!has(self.model.tokenSecret) || !has(self.cluster.env) || "
            "!self.cluster.env.exists(variable, variable.name == 'HF_TOKEN')",
            "cluster.env must not have HF_TOKEN beside model.tokenSecret, which sets it: leave one of them out",
            lambda spec: (
                spec.model.token_secret is None or all(variable.name != "HF_TOKEN" for variable in spec.cluster.env)
            ),
            ".cluster.env",
        ),
    )
    transitions: ClassVar[tuple[Transition, ...]] = (
        *(
            _immutable(name, optional=name == "evaluation")
            for name in (
                "model",
                "lora",
                "dataset",
                "evaluation",
                "training",
                "privacy",
                "aggregation",
                "checkpoint",
                "storage",
                "observability",
            )
        ),
        _in_suspension("cluster"),
        Transition(
            "self.cluster.workers == oldSelf.cluster.workers",
            "spec.cluster.workers cannot change, since the noise is shared out over them: make a new job",
            ".cluster.workers",
        ),
        Transition(
            f"{_ACCOUNT.format('self')} == {_ACCOUNT.format('oldSelf')}",
            "spec.cluster.serviceAccountName cannot change, since the ledger lets it alone charge: make a new job",
            ".cluster.serviceAccountName",
        ),
        _in_suspension("retry"),
    )

    def uris(self) -> dict[str, str]:
        """The URIs that the job reads and writes, by the name of their block."""
        blocks = {"dataset": self.dataset, "checkpoint": self.checkpoint, "evaluation": self.evaluation}
        return {name: block.uri for name, block in blocks.items() if block is not None}


class TenSafeTrainingJob(Block):
    """Fine-tunes a language model with LoRA under differential privacy, and says what that cost."""

    api_version: Literal["tensafe.io/v1alpha1"] = Field(API_VERSION, description="tensafe.io/v1alpha1")
    kind: Literal["TenSafeTrainingJob"] = Field(KIND, description="TenSafeTrainingJob")
    metadata: Metadata = Field(description="Name and labels.")
    spec: Spec = Field(description="What is asked for.")
    status: Status | None = Field(None, description="What has become of it; written by the operator or the local run.")
