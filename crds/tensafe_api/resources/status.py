"""What has become of a job: the part of the resource that the operator, or a local run, writes.

In come the ledger, the workers' reports and the state of the pods; out goes what `kubectl get` and `tensafe run` show.
Nothing here is a function of private data but the privacy claim's own releases. Phases and reasons are the constants of
`tensafe_api.reasons`; their fields are plain strings in Python, so that an older reader does not stumble over a newer
word, while the API server refuses what is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, create_model

from tensafe_api.reasons import ConditionType, Phase
from tensafe_api.resources.base import StatusBlock, Unique
from tensafe_api.resources.values import (
    Address,
    Count,
    Delta,
    Flag,
    Fraction,
    NonNegativeDecimal,
    OneLine,
    Positive,
    PositiveDecimal,
    Text,
    Timestamp,
)
from tensafe_api.tasks import METRICS


def _words(kind: type[Phase] | type[ConditionType]) -> dict[str, list[str]]:
    return {"enum": [word.value for word in kind]}


class Condition(StatusBlock):
    """One aspect of the job, as Kubernetes writes conditions."""

    type: Annotated[str, Field(strict=True, json_schema_extra=lambda s: s.update(_words(ConditionType)))] = Field(
        description="Which aspect."
    )
    status: Annotated[str, Field(strict=True, pattern="^(True|False|Unknown)$")] = Field(
        description="True, False or Unknown."
    )
    reason: OneLine = Field(description="Why, in one CamelCase word.")
    message: Annotated[str, Field(strict=True, max_length=4096)] = Field("", description="Why, in one sentence.")
    last_transition_time: Timestamp = Field(description="When the status last changed.")
    observed_generation: Annotated[int, Field(strict=True)] | None = Field(
        None, description="Generation of the job that this is about."
    )


class WorkerCount(StatusBlock):
    """How many workers there are."""

    desired: Count = Field(description="How many there should be.")
    ready: Count = Field(description="How many are at work.")


class Resolved(StatusBlock):
    """What names that can change meant when the job was admitted."""

    model_commit: Text | None = Field(None, description="Commit of the model's revision.")
    image: Text | None = Field(None, description="Image with its digest.")
    ray_version: Text | None = Field(None, description="Version of Ray.")
    dataset_digest: Text | None = Field(
        None, description="Keyed digest of the records; without the job's key it tells nothing of them."
    )
    chat_template_digest: Text | None = Field(None, description="Digest of the chat template.")


class Attempt(StatusBlock):
    """One attempt: one RayJob, or one call of the local command."""

    number: Positive = Field(description="Number of the attempt, from 1.")
    ray_job_name: Text | None = Field(None, description="Name of its RayJob.")
    ray_cluster_name: Text | None = Field(None, description="Name of its RayCluster.")
    start_time: Timestamp | None = Field(None, description="When it began.")
    end_time: Timestamp | None = Field(None, description="When it ended; absent while it runs.")
    reason: OneLine | None = Field(None, description="Why it ended, in one CamelCase word.")
    exit_code: Annotated[int, Field(strict=True)] | None = Field(None, description="Exit code of what failed first.")
    node: Text | None = Field(None, description="Node of what failed first.")
    restarts: Count | None = Field(None, description="How often its workers were restarted.")
    message: Annotated[str, Field(strict=True, max_length=4096)] | None = Field(
        None, description="Why it ended, in one sentence."
    )


class PrivacyStatus(StatusBlock):
    """What was spent. Figures of the noise that stands when the colluding workers pool what they know."""

    epsilon_claimed: NonNegativeDecimal | None = Field(
        None,
        description="Epsilon of max(planned, charged) steps: the one to sign off, since stopping early may have "
        "depended on what was seen.",
    )
    epsilon_spent: NonNegativeDecimal | None = Field(None, description="Epsilon of the charged steps.")
    target_epsilon: PositiveDecimal | None = Field(None, description="Epsilon that must not be exceeded.")
    delta: Delta | None = Field(None, description="Delta of every epsilon here.")
    unit: Text | None = Field(None, description="Whose presence is hidden: Example or User.")
    adjacency: Text | None = Field(None, description="AddOrRemoveOne: data sets that differ by one unit.")
    noise_multiplier: PositiveDecimal | None = Field(
        None, description="Standard deviation of the noise in units of the clip norm."
    )
    sample_rate: Fraction | None = Field(None, description="Probability with which each unit joins a step.")
    steps_charged: Count | None = Field(None, description="Steps charged, those that were run again included.")
    steps_recharged: Count | None = Field(None, description="Steps charged a second time, after a crash.")
    steps_planned: Count | None = Field(None, description="Steps of the plan.")
    accountant: Text | None = Field(None, description="How steps add up to epsilon: RDP or PLD.")
    epsilon_against_outsider: NonNegativeDecimal | None = Field(
        None, description="Epsilon of the charged steps against who is no worker, and so faces all the noise."
    )


class Progress(StatusBlock):
    """How far the training is. Plain facts of the schedule, no function of the data."""

    step: Count | None = Field(None, description="Steps done.")
    total_steps: Count | None = Field(None, description="Steps of the plan.")
    percent: Annotated[int, Field(strict=True, ge=0, le=100)] | None = Field(None, description="Share that is done.")
    steps_per_second: NonNegativeDecimal | None = Field(None, description="Speed of late.")
    estimated_completion_time: Timestamp | None = Field(None, description="When it will be done at this speed.")
    last_update_time: Timestamp | None = Field(None, description="When this was written.")


class _EvaluationResult(StatusBlock):
    """One evaluation on a public set."""

    step: Count = Field(description="After how many steps.")
    loss: NonNegativeDecimal = Field(description="Mean loss.")

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
    """One checkpoint that is kept."""

    uri: Address = Field(description="Where it lies.")
    step: Count = Field(description="After how many steps.")
    epsilon: NonNegativeDecimal = Field(description="Epsilon of all steps charged until then.")
    digest: Text = Field(description="Digest of its files.")
    signed: Flag = Field(False, description="Whether it is signed.")
    time: Timestamp | None = Field(None, description="When it was sealed.")


class FinalModel(StatusBlock):
    """The result."""

    uri: Address = Field(description="Where the adapter lies.")
    digest: Text | None = Field(None, description="Digest of its files.")
    statement_uri: Address | None = Field(None, alias="statementURI", description="Where the privacy statement lies.")
    statement_digest: Text | None = Field(None, description="Digest of the privacy statement.")


class Status(StatusBlock):
    """What has become of the job."""

    observed_generation: Annotated[int, Field(strict=True, ge=-1)] = Field(
        -1, description="Generation of the job that this is about; -1: none yet."
    )
    phase: Annotated[str, Field(strict=True, json_schema_extra=lambda s: s.update(_words(Phase)))] | None = Field(
        None, description="Where the job is; Succeeded, BudgetExhausted and Failed are final."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), Unique(("type",))] = Field(
        (), description="Aspects of the job, one for each type."
    )
    workers: WorkerCount | None = Field(None, description="How many workers there are.")
    resolved: Resolved = Field(default_factory=Resolved, description="What names that can change meant.")
    attempts: Annotated[tuple[Attempt, ...], Field(max_length=64), Unique(("number",))] = Field(
        (), description="Attempts, the first one first."
    )
    privacy: PrivacyStatus = Field(default_factory=PrivacyStatus, description="What was spent.")
    progress: Progress = Field(default_factory=Progress, description="How far the training is.")
    evaluations: Annotated[tuple[EvaluationResult, ...], Field(max_length=1000), Unique(("step",))] = Field(
        (), description="Evaluations on a public set, one for each step, the newest 1,000."
    )
    checkpoints: Annotated[tuple[CheckpointRecord, ...], Field(max_length=128), Unique(("uri",))] = Field(
        (), description="Checkpoints that are kept, the newest last."
    )
    final_model: FinalModel | None = Field(None, description="The result, once there is one.")
    ledger_name: Text | None = Field(None, description="Name of the job's PrivacyLedger.")
    ledger_uid: Text | None = Field(
        None, alias="ledgerUID", description="UID of the job's PrivacyLedger; a ledger with another one is refused."
    )
