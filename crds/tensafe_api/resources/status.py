"""The status of a job: the part of the resource that the operator or a local run writes.

`tensafe_api.job_status` computes it from the ledger and from what the workers report; `kubectl get` and `tensafe run`
show it. Only values that the privacy claim covers depend on private data. Phases and reasons are the constants of
`tensafe_api.reasons`. In Python their fields are plain strings, so that an older version can read a status with a newer
reason; the API server refuses unknown phases and condition types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, create_model

from tensafe_api.reasons import ConditionType, Phase
from tensafe_api.resources.base import StatusBlock, Unique
from tensafe_api.resources.numeric import Count, Delta, Flag, Fraction, NonNegativeDecimal, Positive, PositiveDecimal
from tensafe_api.resources.strings import Address, OneLine, Text, Timestamp
from tensafe_api.tasks import METRICS


def _words(kind: type[Phase] | type[ConditionType]) -> dict[str, list[str]]:
    return {"enum": [word.value for word in kind]}


class Condition(StatusBlock):
    """One condition of the job, in the form of Kubernetes conditions."""

    type: Annotated[str, Field(strict=True, json_schema_extra=lambda s: s.update(_words(ConditionType)))] = Field(
        description="Type of the condition."
    )
    status: Annotated[str, Field(strict=True, pattern="^(True|False|Unknown)$")] = Field(
        description="Status of the condition: True, False or Unknown."
    )
    reason: OneLine = Field(description="Reason for the status, as one CamelCase word.")
    message: Annotated[str, Field(strict=True, max_length=4096)] = Field(
        "", description="Explanation of the status for users."
    )
    last_transition_time: Timestamp = Field(description="Time at which the status last changed.")
    observed_generation: Annotated[int, Field(strict=True)] | None = Field(
        None, description="Generation of the job that the condition describes."
    )


class WorkerCount(StatusBlock):
    """Number of workers."""

    desired: Count = Field(description="Number of workers in the spec.")
    ready: Count = Field(description="Number of workers whose pods are ready.")


class Resolved(StatusBlock):
    """What mutable names, such as a branch or an image tag, referred to when the job was admitted."""

    model_commit: Text | None = Field(None, description="Commit of model.revision.")
    image: Text | None = Field(None, description="Image with its digest.")
    ray_version: Text | None = Field(None, description="Version of Ray in the image.")
    dataset_digest: Text | None = Field(
        None, description="Keyed digest of the records. Without the key of the job it reveals nothing about them."
    )
    chat_template_digest: Text | None = Field(None, description="Digest of the chat template.")


class FailedPod(StatusBlock):
    """How a pod of an attempt has failed, in the words of the kubelet, the container runtime or the control plane."""

    pod: Text = Field(description="Name of the pod.")
    container: Text | None = Field(None, description="Container that failed. Absent if the pod as a whole was ended.")
    reason: OneLine = Field(description="Reason that its status gives, such as OOMKilled or Evicted.")
    exit_code: Annotated[int, Field(strict=True)] | None = Field(None, description="Exit code of the container.")
    message: Annotated[str, Field(strict=True, max_length=4096)] | None = Field(
        None,
        description="What the kubelet, the container runtime or the control plane reports. Never what a "
        "container writes.",
    )

    @property
    def cause(self) -> tuple[str, int | None]:
        """What two failures have in common that are one for a user."""
        return self.reason, self.exit_code

    @property
    def sentence(self) -> str:
        """How it failed, as a part of a sentence."""
        why = f": {self.message}" if self.message else ""
        if self.container is None:
            return f"{self.reason}{why}"
        return f"container {self.container} ended with exit code {self.exit_code} ({self.reason}){why}"


class BlockerStatus(StatusBlock):
    """What keeps a job from running, or why it failed."""

    reason: OneLine = Field(description="Reason, as in the condition Stalled or Ready.")
    object: Text | None = Field(None, description="Kind and name of the object that is blocked.")
    message: Annotated[str, Field(strict=True, max_length=4096)] = Field(
        description="What happened, in the words of the component that reports it."
    )
    fix: OneLine | None = Field(
        None, description="Identifier of the fix, where it is another one than that of the reason."
    )


class Attempt(StatusBlock):
    """One attempt: one RayJob, or one call of the local command."""

    number: Positive = Field(description="Number of the attempt, from 1.")
    ray_job_name: Text | None = Field(None, description="Name of the RayJob of the attempt.")
    ray_cluster_name: Text | None = Field(None, description="Name of the RayCluster of the attempt.")
    start_time: Timestamp | None = Field(None, description="Time at which the attempt started.")
    end_time: Timestamp | None = Field(None, description="Time at which the attempt ended. Absent while it runs.")
    queued_since: Timestamp | None = Field(None, description="Time since which it waits in its queue.")
    queued_seconds: Count | None = Field(
        None,
        description="Seconds that it waited in its queue before queuedSince.",
    )
    reason: OneLine | None = Field(None, description="Reason why the attempt ended, as one CamelCase word.")
    exit_code: Annotated[int, Field(strict=True)] | None = Field(
        None, description="Exit code of the process that failed first."
    )
    node: Text | None = Field(None, description="Node of the pod that failed first.")
    restarts: Count | None = Field(None, description="How often the workers of the attempt were restarted.")
    message: Annotated[str, Field(strict=True, max_length=4096)] | None = Field(
        None, description="Why it ended, and how pods failed before."
    )
    failed_pods: Annotated[tuple[FailedPod, ...], Field(max_length=3)] | None = Field(
        None, description="How pods of the attempt have failed: the first cause, and the newest two."
    )


class PrivacyStatus(StatusBlock):
    """The privacy budget spent."""

    epsilon_claimed: NonNegativeDecimal | None = Field(
        None,
        description="The epsilon to sign off: of stepsClaimed steps, because stopping early may have depended on "
        "results.",
    )
    epsilon_spent: NonNegativeDecimal | None = Field(
        None,
        description="Epsilon of stepsCharged steps. While a job trains in a cluster, that of a later step of its "
        "plan, mostly of the next 64th, which is not less. Exact once it is suspended or has ended.",
    )
    target_epsilon: PositiveDecimal | None = Field(None, description="Epsilon that must not be exceeded.")
    delta: Delta | None = Field(None, description="Delta of every epsilon in this status.")
    unit: Text | None = Field(None, description="The unit that epsilon protects: Example or User.")
    adjacency: Text | None = Field(
        None,
        description="Which data sets are neighbours. AddOrRemoveOne: one has a unit more. ZeroOut: one has "
        "nothing in place of a unit; the number of units is public.",
    )
    noise_multiplier: PositiveDecimal | None = Field(
        None, description="Standard deviation of the noise divided by the clip norm."
    )
    sample_rate: Fraction | None = Field(None, description="Probability with which each unit joins a step.")
    steps_claimed: Count | None = Field(
        None,
        description="Number of steps to sign off: the planned ones that targetEpsilon allows, or stepsCharged if that "
        "is more.",
    )
    steps_charged: Count | None = Field(
        None, description="Number of steps charged, including steps that were run again."
    )
    steps_recharged: Count | None = Field(
        None, description="Number of steps that were charged a second time after a crash."
    )
    steps_planned: Count | None = Field(None, description="Number of steps in the training plan.")
    accountant: Text | None = Field(None, description="Accountant that computes epsilon from the steps: RDP or PLD.")


class Progress(StatusBlock):
    """Progress of the training. It follows from the schedule and not from the data."""

    step: Count | None = Field(None, description="Number of steps done.")
    total_steps: Count | None = Field(None, description="Number of steps in the training plan.")
    percent: Annotated[int, Field(strict=True, ge=0, le=100)] | None = Field(
        None, description="Percentage of the steps that are done."
    )
    steps_per_second: NonNegativeDecimal | None = Field(None, description="Current speed, in steps per second.")
    estimated_completion_time: Timestamp | None = Field(None, description="Expected end at the current speed.")
    last_update_time: Timestamp | None = Field(None, description="Time of the last step.")


class _EvaluationResult(StatusBlock):
    """One evaluation on a public data set."""

    step: Count = Field(description="Number of steps done at the evaluation.")
    loss: NonNegativeDecimal = Field(description="Mean loss of the evaluation data.")

    def metrics(self) -> dict[str, str]:
        """The measured metrics by name, the most telling one first."""
        return {name: value for name in METRICS if (value := getattr(self, name)) is not None}


if TYPE_CHECKING:
    EvaluationResult = _EvaluationResult
else:
    EvaluationResult = create_model(
        "EvaluationResult",
        __base__=_EvaluationResult,
        __doc__=_EvaluationResult.__doc__,
        __module__=__name__,
        **{name: (Fraction | None, Field(None, description=each.description)) for name, each in METRICS.items()},
    )
    """The metrics are those of `tensafe_api.tasks`."""


class CheckpointRecord(StatusBlock):
    """One stored checkpoint."""

    uri: Address = Field(description="Directory of the checkpoint, as a URI or path.")
    step: Count = Field(description="Number of steps done when it was written.")
    epsilon: NonNegativeDecimal = Field(description="Epsilon of stepsCharged steps.")
    steps_charged: Count | None = Field(None, description="Number of steps charged when it was written.")
    digest: Text = Field(description="SHA-256 digest of the list of its files.")
    signed: Flag = Field(False, description="Whether it is signed.")
    signer: Text | None = Field(None, description="Fingerprint of its signer.")
    time: Timestamp | None = Field(None, description="Time at which it was written.")


class FinalModel(StatusBlock):
    """The result of the job."""

    uri: Address = Field(description="Directory of the adapter, as a URI or path.")
    digest: Text | None = Field(None, description="SHA-256 digest of the list of its files.")
    statement_uri: Address | None = Field(None, alias="statementURI", description="Location of the privacy statement.")
    statement_digest: Text | None = Field(None, description="SHA-256 digest of the privacy statement.")


class Status(StatusBlock):
    """The observed state of the job."""

    observed_generation: Annotated[int, Field(strict=True, ge=-1)] = Field(
        -1, description="Generation of the job that this status describes. -1: none yet."
    )
    phase: Annotated[str, Field(strict=True, json_schema_extra=lambda s: s.update(_words(Phase)))] | None = Field(
        None, description="Phase of the job. Succeeded, BudgetExhausted and Failed are final."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), Unique(("type",))] = Field(
        (), description="Conditions of the job, one for each type."
    )
    blocker: BlockerStatus | None = Field(
        None, description="What keeps the job from running, or why it failed. Absent otherwise."
    )
    completion_time: Timestamp | None = Field(None, description="Time at which the job ended. Absent before.")
    suspend_requested_time: Timestamp | None = Field(
        None, description="Time since which the workers are asked to stop. Absent while they are not."
    )
    workers: WorkerCount | None = Field(None, description="Number of workers.")
    resolved: Resolved = Field(
        default_factory=Resolved, description="What mutable names, such as a branch or an image tag, refer to."
    )
    attempts: Annotated[tuple[Attempt, ...], Field(max_length=64), Unique(("number",))] = Field(
        (), description="The attempts, in the order of their numbers."
    )
    privacy: PrivacyStatus = Field(default_factory=PrivacyStatus, description="The privacy budget spent.")
    progress: Progress = Field(default_factory=Progress, description="Progress of the training.")
    evaluations: Annotated[tuple[EvaluationResult, ...], Field(max_length=1000), Unique(("step",))] = Field(
        (), description="The newest 1,000 evaluations on a public data set, at most one for each step."
    )
    checkpoints: Annotated[tuple[CheckpointRecord, ...], Field(max_length=128), Unique(("uri",))] = Field(
        (), description="Stored checkpoints, the newest one last."
    )
    final_model: FinalModel | None = Field(None, description="The result of the job. Absent until it exists.")
    ledger_name: Text | None = Field(None, description="Name of the PrivacyLedger of the job.")
    ledger_uid: Text | None = Field(
        None,
        alias="ledgerUID",
        description="UID of the PrivacyLedger of the job. A ledger with another UID is refused.",
    )
    key_deleted: Flag | None = Field(
        None,
        description="Whether the Secret with the key of the job was deleted, after its end. Absent before that, "
        "and in local runs.",
    )
