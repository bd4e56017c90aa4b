"""`TenSafeTrainingJob`: the whole resource, and the rules between fields of different blocks.

A manifest comes in, from a file, from the API server or from Python. The operator, the local run and the command line
read the object that it becomes; `tensafe_api.schema.crd` writes its schema.

After creation the spec cannot change, because the ledger froze its privacy values. `Spec.transitions` names the fields
that may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Literal, cast

from pydantic import Field

from tensafe_api import tasks
from tensafe_api.resources.base import Block, Rule, Transition
from tensafe_api.resources.cluster import Cluster, Observability, Retry
from tensafe_api.resources.data import Dataset, Evaluation
from tensafe_api.resources.model import Lora, Model
from tensafe_api.resources.numeric import DECIMAL, Count, Flag, Positive
from tensafe_api.resources.status import Status
from tensafe_api.resources.string_form import cel_matches
from tensafe_api.resources.strings import JobName, LabelMap, ObjectName, Text, Timestamp
from tensafe_api.resources.training import Aggregation, Checkpoint, Privacy, Storage, Training

GROUP = "tensafe.io"
VERSION = "v1alpha1"
API_VERSION: Literal["tensafe.io/v1alpha1"] = "tensafe.io/v1alpha1"
KIND: Literal["TenSafeTrainingJob"] = "TenSafeTrainingJob"


class Metadata(Block):
    """Metadata of the object, as in Kubernetes. A manifest may contain the fields that the API server adds."""

    name: JobName = Field(
        description="At most 40 lower-case letters, digits and -, with a letter first and no - at the end."
    )
    namespace: ObjectName | None = Field(None, description="Namespace of the job. Default: the client's.")
    labels: LabelMap = Field(default_factory=dict, description="Labels of the job.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the job.")
    uid: Text | None = Field(None, description="Unique id of the job, set by the API server or the local run.")
    generation: Count | None = Field(None, description="Number of changes of the spec, set by the API server.")
    resource_version: Text | None = Field(None, description="Version of the object, set by the API server.")
    creation_timestamp: Timestamp | None = Field(
        None, description="Time at which the job was created, set by the API server."
    )


_ACCOUNT = "(has({0}.cluster.serviceAccountName) ? {0}.cluster.serviceAccountName : '')"
"""The service account in CEL. `orValue` would be shorter, but the API server estimates its cost as unbounded."""


_GPUS = "(has({0}.cluster.worker) && has({0}.cluster.worker.gpus) ? {0}.cluster.worker.gpus : 0)"
"""The GPUs of a worker in CEL."""


def _immutable(name: str, *, optional: bool) -> Transition:
    cel = f"self.{name} == oldSelf.{name}"
    if optional:
        cel = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {cel})"
    return Transition(cel, f"spec.{name} cannot change after creation: create a new job with another name", f".{name}")


def _in_suspension(name: str) -> Transition:
    return Transition(
        f"oldSelf.suspend || self.{name} == oldSelf.{name}",
        f"spec.{name} can change only while the job is suspended: set spec.suspend to true first",
        f".{name}",
    )


def _within(inner: str, outer: str) -> bool:
    """Whether the URI `inner` is the directory `outer` or is inside it."""
    inner, outer = (uri.replace("file://", "", 1).removesuffix("/") + "/" for uri in (inner, outer))
    return inner.startswith(outer)


def _within_in_cel(inner: str, outer: str) -> str:
    def bare(uri: str) -> str:
        return f"{uri}.replace('file://', '', 1)"

    return f"({bare(inner)} + '/').startsWith({bare(outer)}.endsWith('/') ? {bare(outer)} : {bare(outer)} + '/')"


def _hides(path: str, uri: str) -> bool:
    """Whether a volume mounted at `path` would hide the files of a pvc:// URI. A PVC is mounted at /mnt/NAME."""
    return uri.startswith("pvc://") and f"{uri.replace('pvc:/', '/mnt')}/".startswith(f"{path}/")


class Spec(Block):
    """The desired training job. Most fields cannot change after creation."""

    model: Model = Field(description="The base model and the task it learns.")
    lora: Lora = Field(default_factory=Lora, description="The trainable low-rank (LoRA) factors.")
    dataset: Dataset = Field(description="The private training data and its unit of privacy.")
    evaluation: Evaluation | None = Field(
        None, description="Data to evaluate the model on during training. Default: no evaluation."
    )
    training: Training = Field(
        default_factory=Training, description="Length of the training, batch size and optimiser."
    )
    privacy: Privacy = Field(description="The privacy budget, the noise and the accounting.")
    aggregation: Aggregation = Field(
        default_factory=Aggregation, description="Secure aggregation of the workers' sums."
    )
    checkpoint: Checkpoint = Field(description="Where and how often checkpoints are written.")
    storage: Storage = Field(default_factory=Storage, description="Access to object storage.")
    cluster: Cluster = Field(description="The pods of the job: workers and Ray head.")
    retry: Retry = Field(default_factory=Retry, description="How often a failed job is retried.")
    observability: Observability = Field(
        default_factory=Observability, description="What is shown while the job trains."
    )
    active_deadline_seconds: Positive | None = Field(
        None,
        description="Time limit of all attempts together, in seconds. A queue and a suspension do not count. "
        "Default: no limit.",
    )
    start_deadline_seconds: Positive | None = Field(
        None,
        description="Time limit for starting the pods of an attempt, in seconds; then the job fails. A queue does "
        "not count. Default: no limit.",
    )
    children_ttl_seconds: Count = Field(
        3600,
        alias="childrenTTLSeconds",
        description="How long RayJobs are kept after the job has ended, in seconds.",
    )
    pods_ttl_seconds: Count | None = Field(
        None,
        alias="podsTTLSeconds",
        description="How long the pods of the last attempt are kept for their logs, in seconds, with their GPUs. "
        "Default: 0.",
    )
    ttl_seconds_after_finished: Count | None = Field(
        None,
        description="Seconds after its end until the job is deleted. Its ledger stays. Default: never.",
    )
    suspend: Flag = Field(
        False,
        description="Write a checkpoint, stop and wait until this is false again. A job that is created suspended "
        "shows its noise multiplier and epsilon before it starts.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.privacy.targetDelta) || !{cel_matches('self.privacy.targetDelta', DECIMAL)} || "
            "double(self.privacy.targetDelta) * double(self.dataset.unit.atLeast) < 1.0",
            "privacy.targetDelta must be below 1 / dataset.unit.atLeast: lower it, or remove it for the default of 1 "
            "/ (10 x unit.atLeast)",
            lambda spec: (
                spec.privacy.target_delta is None
                or Fraction(spec.privacy.target_delta) * spec.dataset.unit.at_least < 1
            ),
            ".privacy.targetDelta",
            id="DeltaBelowOneUnit",
        ),
        Rule(
            f"!has(self.lora) || !has(self.lora.layers) || self.lora.layers.size() > 0 || "
            f"self.model.task in [{', '.join(repr(name) for name in tasks.WITH_CLASSES)}]",
            "lora.layers must not be empty for a task without classes, because then only the classifier is trained: "
            "name layers, or remove it",
            lambda spec: spec.lora.layers is None or len(spec.lora.layers) > 0 or spec.model.task in tasks.WITH_CLASSES,
            ".lora.layers",
            id="HeadOnlyNeedsClasses",
        ),
        Rule(
            "!has(self.training.expectedBatchSize) || self.training.expectedBatchSize <= self.dataset.unit.atLeast",
            "training.expectedBatchSize must be at most dataset.unit.atLeast, because it counts units: lower it",
            lambda spec: (
                spec.training.expected_batch_size is None
                or cast(int, spec.training.expected_batch_size) <= spec.dataset.unit.at_least
            ),
            ".training.expectedBatchSize",
            id="BatchWithinUnits",
        ),
        Rule(
            tasks.task_columns_cel("self.model.task", "self.dataset.columns"),
            tasks.task_columns_message(),
            lambda spec: tasks.task_columns_hold(spec.model.task, tasks.given_in(spec.dataset.columns)),
            ".dataset.columns",
            id="ColumnsFitTask",
        ),
        Rule(
            "!has(self.model.chatTemplate) || has(self.dataset.columns.messages)",
            "model.chatTemplate is only valid for conversations: write dataset.columns.messages, or remove it",
            lambda spec: spec.model.chat_template is None or "messages" in tasks.given_in(spec.dataset.columns),
            ".model.chatTemplate",
            id="ChatTemplateOfConversations",
        ),
        Rule(
            f"!has(self.training.maxLength) || ({tasks.no_images_cel('self.dataset.columns')})",
            "training.maxLength is only valid for text, because images have no tokens: remove it",
            lambda spec: (
                spec.training.max_length is None
                or not tasks.given_in(spec.dataset.columns) & set(tasks.image_columns())
            ),
            ".training.maxLength",
            id="MaxLengthOfText",
        ),
        Rule(
            "!has(self.evaluation) || self.evaluation.visibility != 'Public' || "
            f"!{_within_in_cel('self.evaluation.uri', 'self.dataset.uri')} || "
            f"!{_within_in_cel('self.dataset.uri', 'self.evaluation.uri')}",
            "evaluation.visibility must not be Public when evaluation.uri is dataset.uri, because the status would "
            "show exact losses of the private data: write Private, or the URI of a public data set",
            lambda spec: (
                spec.evaluation is None
                or spec.evaluation.visibility != "Public"
                or not _within(spec.evaluation.uri, spec.dataset.uri)
                or not _within(spec.dataset.uri, spec.evaluation.uri)
            ),
            ".evaluation.visibility",
            id="PublicEvaluationOnOtherData",
        ),
        Rule(
            f"!{_within_in_cel('self.checkpoint.uri', 'self.dataset.uri')} && "
            f"(!has(self.evaluation) || !{_within_in_cel('self.checkpoint.uri', 'self.evaluation.uri')})",
            "checkpoint.uri must not be dataset.uri or evaluation.uri or a directory in one of them, because "
            "checkpoints would be read as data: write another directory",
            lambda spec: (
                not _within(spec.checkpoint.uri, spec.dataset.uri)
                and (spec.evaluation is None or not _within(spec.checkpoint.uri, spec.evaluation.uri))
            ),
            ".checkpoint.uri",
            id="CheckpointsOutsideData",
        ),
        Rule(
            "!has(self.cluster.volumes) || ![self.dataset.uri, self.checkpoint.uri, "
            "has(self.evaluation) ? self.evaluation.uri : '', "
            "has(self.lora) && has(self.lora.initFrom) ? self.lora.initFrom.uri : '']"
            ".exists(u, u.startsWith('pvc://') && self.cluster.volumes.exists(volume, "
            "(u.replace('pvc:/', '/mnt') + '/').startsWith(volume.mountPath + '/')))",
            "cluster.volumes must not cover /mnt/NAME, where the PersistentVolumeClaim of a pvc://NAME URI is mounted "
            "automatically: write another mountPath, or remove the volume",
            lambda spec: (
                not any(
                    _hides(volume.mount_path, part.uri)
                    for volume in spec.cluster.volumes
                    for part in (spec.dataset, spec.checkpoint, spec.evaluation, spec.lora.init_from)
                    if part is not None
                )
            ),
            ".cluster.volumes",
            id="VolumesOutsideClaims",
        ),
        Rule(
            "!has(self.model.tokenSecret) || !has(self.cluster.env) || "
            "!self.cluster.env.exists(variable, variable.name == 'HF_TOKEN')",
            "cluster.env must not have HF_TOKEN when model.tokenSecret is set, because that sets HF_TOKEN: remove one "
            "of them",
            lambda spec: (
                spec.model.token_secret is None or all(variable.name != "HF_TOKEN" for variable in spec.cluster.env)
            ),
            ".cluster.env",
            id="OneHubToken",
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
            "spec.cluster.workers cannot change, because each worker adds a share of the noise: create a new job",
            ".cluster.workers",
        ),
        Transition(
            f"{_GPUS.format('self')} == {_GPUS.format('oldSelf')} || "
            f"{_GPUS.format('self')} < 2 && {_GPUS.format('oldSelf')} < 2",
            "spec.cluster.worker.gpus cannot change, except between 0 and 1, because each GPU adds a share of the "
            "noise: create a new job",
            ".cluster.worker.gpus",
        ),
        Transition(
            f"{_ACCOUNT.format('self')} == {_ACCOUNT.format('oldSelf')}",
            "spec.cluster.serviceAccountName cannot change, because only it may charge the ledger: create a new job",
            ".cluster.serviceAccountName",
        ),
        _in_suspension("retry"),
    )

    @property
    def head_only(self) -> bool:
        """Whether only the classifier is trained: no layer gets factors."""
        return self.lora.layers == ()

    @property
    def ranks_per_base(self) -> int:
        """The number of ranks that hold one base model together."""
        mode = self.model.sharding or ("Worker" if self.cluster.worker.gpus > 1 else "Replicated")
        return {"Replicated": 1, "Worker": self.cluster.ranks_per_worker, "Workers": self.cluster.ranks}[mode]

    def uris(self) -> dict[str, str]:
        """The URIs that the job reads and writes, by the path of their block, such as dataset or lora.initFrom."""
        blocks = {
            "dataset": self.dataset,
            "checkpoint": self.checkpoint,
            "evaluation": self.evaluation,
            "lora.initFrom": self.lora.init_from,
        }
        return {name: block.uri for name, block in blocks.items() if block is not None}

    def with_uris(self, uris: Mapping[str, str]) -> Spec:
        """This spec with other URIs, by the paths of `uris`."""
        update: dict[str, Any] = {}
        for path, uri in uris.items():
            if path == "lora.initFrom":
                assert self.lora.init_from is not None
                moved = self.lora.init_from.model_copy(update={"uri": uri})
                update["lora"] = self.lora.model_copy(update={"init_from": moved})
            else:
                update[path] = getattr(self, path).model_copy(update={"uri": uri})
        return self.model_copy(update=update)

    def at_commit(self, commit: str | None) -> Spec:
        """This spec with `model.revision` at the commit that the job started with. None changes nothing."""
        if commit is None:
            return self
        return self.model_copy(update={"model": self.model.model_copy(update={"revision": commit})})


class TenSafeTrainingJob(Block):
    """Fine-tunes a model with LoRA under differential privacy and reports the epsilon that it spent."""

    api_version: Literal["tensafe.io/v1alpha1"] = Field(
        API_VERSION, description="API version of the object: tensafe.io/v1alpha1."
    )
    kind: Literal["TenSafeTrainingJob"] = Field(KIND, description="Kind of the object: TenSafeTrainingJob.")
    metadata: Metadata = Field(description="Metadata of the object.")
    spec: Spec = Field(description="The desired training job.")
    status: Status | None = Field(
        None, description="The observed state of the job, written by the operator or the local run."
    )
