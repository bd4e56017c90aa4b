"""`PrivacyLedger`: the record of what one job has spent, which outlives the job.

The operator makes one for each job, with everything that the claim rests on frozen in its spec. Only the trainer writes
its status: a claim when a group of workers begins, charges before the steps that they pay for are revealed, releases
after checkpoints. The API server itself sees to it that a charge never falls and a release never changes (the rules
here), and that nobody else writes and nobody deletes (`tensafe_api.admission_policy`). `tensorguard.ledger` reads and
writes it; the operator folds it into the job's status.

CRD rules do not run on deletion, and nested transition rules not on the first status write: so each rule stands at the
highest level at which it can be said, and what is left is the guard's.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tensafe_api.privacy_events import Mechanism
from tensafe_api.resources.base import Block, Rule, StatusBlock, Transition, Unique
from tensafe_api.resources.status import EvaluationResult, Progress
from tensafe_api.resources.values import (
    Count,
    Delta,
    Flag,
    JobName,
    LabelMap,
    ObjectName,
    OneLine,
    Positive,
    PositiveDecimal,
    Text,
    UnitCount,
)

COUNTED_ANNOTATION = "tensafe.io/unit-at-least"
"""Annotation of a job whose `unit.atLeast` is the true number of records, which is its value."""
LEDGER_KIND: Literal["PrivacyLedger"] = "PrivacyLedger"
MAX_ATTEMPTS = 64
MAX_PUBLISHED_CHECKPOINTS = 200
"""The last place is kept for the final release."""
MAX_EVALUATIONS = 100
MAX_STARTS = 16
"""Of how many incarnations of the last attempt the ledger remembers where they began."""
AttemptNumber = Annotated[int, Field(strict=True, ge=1, le=MAX_ATTEMPTS)]
"""The number of an attempt: a claim far beyond what the operator makes would fence every real one for good."""

CheckpointAddress = Annotated[str, Field(strict=True, min_length=1, max_length=8000)]
"""Where a release lies: an `Address`, and room for the name of a file in it."""
MAX_CHARGED_STEPS = 2**31 - 1
"""As many steps as `status.privacy.stepsCharged` of a job can hold."""
_CHARGED = "self.charges.map(c, c.steps).sum()"

Outcome = Literal["Completed", "BudgetExhausted", "Suspended"]


class LedgerSpec(Block):
    """Everything the claim rests on, frozen when the job is admitted."""

    job_name: JobName = Field(description="Name of the job.")
    job_uid: OneLine = Field(
        alias="jobUID", description="UID of the job: another job of the same name has another ledger."
    )
    lineage: OneLine | None = Field(None, description="A declared name for the same people.")
    mechanism: Mechanism = Field(description="One step of DP-SGD.")
    unit_at_least: UnitCount = Field(description="The public lower bound of the number of units.")
    planned_steps: Positive = Field(description="Steps of the plan.")
    reserve_steps: Count = Field(description="Steps that the noise allows for beyond the planned ones.")
    target_epsilon: PositiveDecimal = Field(description="Epsilon that must not be exceeded.")
    delta: Delta = Field(description="Delta of every epsilon of the job.")
    accountant: Literal["RDP", "PLD"] = Field(description="How steps add up to epsilon.")
    private_metrics: Literal["Hidden", "Internal"] = Field(
        "Hidden", description="Whether exact functions of private data are shown to trusted eyes."
    )
    evaluation: Literal["Nothing", "Public", "Private"] = Field(
        "Nothing", description="Whether the model is measured while it is trained, and on what."
    )
    counted: Flag = Field(
        False, description="Whether unitAtLeast is the true number of records, which is thereby public."
    )


class PrivacyLedgerSpec(LedgerSpec):
    """What the ledger was opened with, who may write to it, and by which key the workers know each other."""

    service_account_name: ObjectName = Field(
        description="Service account that alone may write the status, from the pod that claimed."
    )
    key_secret_name: ObjectName = Field(description="Secret with the job's key, which workers alone mount.")
    key_digest: OneLine = Field(
        description="SHA-256 of the job's key, in hex: workers refuse another key, whoever has put it there."
    )


class ChargeRecord(StatusBlock):
    """What one attempt was charged, over its incarnations."""

    attempt: AttemptNumber = Field(description="Number of the attempt, from 1.")
    steps: Count = Field(description="Steps charged; never fewer than before.")
    incarnation: Positive = Field(description="How often the workers of the attempt were started.")
    pod_uid: OneLine = Field(alias="podUID", description="UID of the pod that claimed the incarnation.")

    transitions: ClassVar[tuple[Transition, ...]] = (
        Transition("self.steps >= oldSelf.steps", "a charge never falls: what was spent stays spent", ".steps"),
        Transition(
            "self.incarnation == oldSelf.incarnation ? self.podUID == oldSelf.podUID "
            ": self.incarnation > oldSelf.incarnation",
            "only the pod that claimed an incarnation writes under it: claim the next incarnation",
            ".incarnation",
        ),
    )


class PublishedCheckpointRecord(StatusBlock):
    """A checkpoint that others can read."""

    uri: CheckpointAddress = Field(description="Where it lies.")
    step: Count = Field(description="After how many steps.")
    attempt: AttemptNumber = Field(description="Number of the attempt that wrote it.")
    digest: Text = Field(description="Digest of its files.")
    statement_digest: Text = Field(description="Digest of its privacy statement.")
    final: Flag = Field(False, description="Whether it is the result of the job.")
    steps_charged: Count = Field(description="Steps charged over all attempts when it was written.")

    transitions: ClassVar[tuple[Transition, ...]] = (
        Transition("self == oldSelf", "a release never changes: record a new one"),
    )


class LedgerStatus(StatusBlock):
    """What was spent, and what for."""

    attempt: AttemptNumber = Field(description="The highest attempt that claimed the ledger; lower ones are fenced.")
    charges: Annotated[tuple[ChargeRecord, ...], Field(min_length=1, max_length=MAX_ATTEMPTS), Unique(("attempt",))] = (
        Field(description="What each attempt was charged.")
    )
    charged_through: Count = Field(description="The step through which the present incarnation has been charged.")
    starts: Annotated[tuple[Count, ...], Field(max_length=MAX_STARTS)] = Field(
        (), description="The steps at which this attempt's incarnations began, since one last ended in good order."
    )
    steps_recharged: Count = Field(0, description="Steps charged a second time, after a crash.")
    releases: Annotated[
        tuple[PublishedCheckpointRecord, ...], Field(max_length=MAX_PUBLISHED_CHECKPOINTS), Unique(("uri",))
    ] = Field((), description="Checkpoints that others can read, in the order in which they were written.")
    dataset_digest: Text | None = Field(None, description="Keyed digest of the records; set once.")
    outcome: Outcome | None = Field(None, description="How the last attempt ended, where it ended in good order.")
    progress: Progress = Field(default_factory=Progress, description="How far the training is.")
    evaluations: Annotated[tuple[EvaluationResult, ...], Field(max_length=MAX_EVALUATIONS), Unique(("step",))] = Field(
        (), description="Evaluations on a public set, the newest ones."
    )
    length: Positive = Field(description="Number of entries: claims, charges, releases and outcomes so far.")
    head: OneLine = Field(description="Hash of the last entry over all before it, in 64 hex digits.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"{_CHARGED} <= {MAX_CHARGED_STEPS}",
            f"all attempts together are charged at most {MAX_CHARGED_STEPS} steps",
            lambda status: sum(charge.steps for charge in status.charges) <= MAX_CHARGED_STEPS,
            ".charges",
        ),
    )
    transitions: ClassVar[tuple[Transition, ...]] = (
        Transition(
            "oldSelf.hasValue() || !has(self.releases) || self.releases.size() == 0",
            "the first entry of a ledger is a claim: record releases after it",
            ".releases",
            also_first=True,
        ),
        Transition(
            "self.attempt >= oldSelf.attempt", "a lower attempt than the one that claimed is fenced", ".attempt"
        ),
        Transition(
            "oldSelf.charges.all(o, self.charges.exists(c, c.attempt == o.attempt))",
            "a charge never disappears: what was spent stays spent",
            ".charges",
        ),
        Transition(
            "oldSelf.charges.all(o, o.attempt >= self.attempt || self.charges.exists(c, c == o))",
            "only the attempt that claimed last is charged",
            ".charges",
        ),
        Transition(
            "self.charges.all(c, c.attempt >= oldSelf.attempt || oldSelf.charges.exists(o, o.attempt == c.attempt))",
            "an attempt below the one that claimed last is not added afterwards",
            ".charges",
        ),
        Transition(
            "!has(oldSelf.releases) || has(self.releases) && "
            "oldSelf.releases.all(i, o, i < self.releases.size() && self.releases[i].uri == o.uri)",
            "a release never disappears, and a new one comes last",
            ".releases",
        ),
        Transition(
            "!has(self.releases) || self.releases.all(i, r, "
            f"has(oldSelf.releases) && i < oldSelf.releases.size() || r.stepsCharged == {_CHARGED})",
            "a new release was charged what all attempts together were charged when it is recorded",
            ".releases",
        ),
        Transition(
            "!has(oldSelf.datasetDigest) || has(self.datasetDigest) && self.datasetDigest == oldSelf.datasetDigest",
            "the data set's digest is set once: make a new job for other data",
            ".datasetDigest",
        ),
        Transition("self.length >= oldSelf.length", "entries are only added", ".length"),
        Transition("self.stepsRecharged >= oldSelf.stepsRecharged", "entries are only added", ".stepsRecharged"),
    )


class LedgerMetadata(Block):
    """What the API server keeps of a ledger."""

    name: ObjectName = Field(description="Name of the ledger.")
    namespace: ObjectName | None = Field(None, description="Namespace.")
    labels: LabelMap = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations.")
    uid: Text | None = Field(None, description="Identity of this very ledger.")
    resource_version: Text | None = Field(None, description="Version of the object.")


class PrivacyLedger(Block):
    """What one job has spent. Made by the operator, written by the trainer, never deleted by either."""

    api_version: Literal["tensafe.io/v1alpha1"] = Field("tensafe.io/v1alpha1", description="tensafe.io/v1alpha1")
    kind: Literal["PrivacyLedger"] = Field(LEDGER_KIND, description="PrivacyLedger")
    metadata: LedgerMetadata = Field(description="Name and labels.")
    spec: PrivacyLedgerSpec = Field(description="What the claim rests on.")
    status: LedgerStatus | None = Field(None, description="What was spent; absent until the first claim.")

    transitions: ClassVar[tuple[Transition, ...]] = (
        Transition("self.spec == oldSelf.spec", "a ledger's spec never changes: the claim rests on it", ".spec"),
        Transition("!has(oldSelf.status) || has(self.status)", "what was spent stays spent", ".status"),
    )
