"""`PrivacyLedger`: the record of the privacy budget that one job has spent. It outlives the job.

The operator creates one ledger for each job. Its spec freezes everything that the privacy claim rests on. Only the
trainer writes its status, in three kinds of entries:

- an acquisition, when a group of workers starts;
- a charge, before the sums of the steps that it pays for are revealed;
- a published checkpoint, after others can read it.

The API server enforces, by the rules in this module, that a charge never falls and that a published checkpoint never
changes. `tensafe_api.schema.admission_policy` enforces that only the trainer writes the status and that ledgers are not
deleted. `tensorguard.ledger` reads and writes the ledger; the operator computes the job's status from it.

The rules of a CRD do not run on deletion, and nested transition rules do not run on the first status write. So each
rule is declared at the highest level that can express it, and the admission policy covers the rest.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tensafe_api.resources.base import Block, Rule, StatusBlock, StrictStatusBlock, Transition, Unique
from tensafe_api.resources.mechanism import Mechanism
from tensafe_api.resources.numeric import Count, Delta, Flag, Positive, PositiveDecimal, UnitCount
from tensafe_api.resources.status import EvaluationResult, Progress
from tensafe_api.resources.string_form import StringForm
from tensafe_api.resources.strings import JobName, LabelMap, ObjectName, OneLine, Text

COUNTED_ANNOTATION = "tensafe.io/unit-at-least"
"""Annotation of a job whose `unit.atLeast` is the true number of units. Its value is that number, which is public."""
LEDGER_KIND: Literal["PrivacyLedger"] = "PrivacyLedger"
MAX_ATTEMPTS = 64
MAX_PUBLISHED_CHECKPOINTS = 200
"""The last entry is reserved for the final checkpoint."""
MAX_EVALUATIONS = 100
MAX_STARTS = 16
"""For how many incarnations of the last attempt the ledger keeps the step at which they started."""
AttemptNumber = Annotated[int, Field(strict=True, ge=1, le=MAX_ATTEMPTS)]
"""The number of an attempt. It is bounded because a far higher number would fence all real attempts forever."""

CheckpointAddress = Annotated[str, Field(strict=True, min_length=1, max_length=8000)]
"""Directory of a published checkpoint: an `Address`, shorter by room for the name of a file in it."""
MAX_CHARGED_STEPS = 2**31 - 1
"""Maximum number of charged steps: what `status.privacy.stepsCharged` of a job can hold."""
_CHARGED = "self.charges.map(c, c.steps).sum()"

WriterNumber = Annotated[str, StringForm(r"[0-9a-f]{32}", "32 hexadecimal digits", max_length=32)]
"""Random number of one process that writes a ledger."""

Outcome = Literal["Completed", "BudgetExhausted", "Suspended"]
FINAL_OUTCOMES: tuple[Outcome, ...] = ("Completed", "BudgetExhausted")
"""The outcomes after which no step follows: the job cannot be resumed."""


class LedgerSpec(Block):
    """Everything that the privacy claim rests on, frozen when the job is admitted."""

    job_name: JobName = Field(description="Name of the job.")
    job_uid: OneLine = Field(
        alias="jobUID", description="UID of the job. A later job with the same name has another ledger."
    )
    lineage: OneLine | None = Field(
        None,
        description="Name that the author gave to the group of people in the data (spec.dataset.lineage of the job).",
    )
    mechanism: Mechanism = Field(description="The mechanism of one DP-SGD step.")
    unit_at_least: UnitCount = Field(
        description="Public lower bound of the number of units. With adjacency ZeroOut: the number itself, which is "
        "public."
    )
    planned_steps: Positive = Field(description="Number of steps in the training plan.")
    reserve_steps: Count = Field(
        description="Number of steps beyond the planned ones for which the noise leaves budget."
    )
    target_epsilon: PositiveDecimal = Field(description="Epsilon that must not be exceeded.")
    delta: Delta = Field(description="Delta of every epsilon of this job.")
    accountant: Literal["RDP", "PLD"] = Field(
        description="Accountant that computes epsilon from the steps: RDP or PLD."
    )
    verify: Literal["Disabled", "Standard", "Strict"] = Field(
        "Standard", description="Check of each sum against transmission errors, of all attempts."
    )
    private_metrics: Literal["Hidden", "Internal"] = Field(
        "Hidden",
        description="Hidden: exact functions of private data, such as the training loss, are kept nowhere. Internal: "
        "each worker keeps them in a file for trusted readers.",
    )
    evaluation: Literal["Nothing", "Public", "Private"] = Field(
        "Nothing",
        description="The data set that the model is evaluated on during training: none (Nothing), a public or a "
        "private one.",
    )


class PrivacyLedgerSpec(LedgerSpec):
    """The privacy claim of the ledger, the only writer of its status, and the key that authenticates the workers."""

    service_account_name: ObjectName = Field(
        description="Service account of the workers. Only it may write the status, from the pod that acquired the "
        "ledger."
    )
    key_secret_name: ObjectName = Field(description="Secret with the key of the job. Only the workers mount it.")
    key_digest: OneLine = Field(
        description="SHA-256 of the key of the job, as 64 hex digits. Workers refuse any other key."
    )


class ChargeRecord(StrictStatusBlock):
    """The steps that one attempt was charged, over all its incarnations."""

    attempt: AttemptNumber = Field(description="Number of the attempt, from 1.")
    steps: Count = Field(description="Number of steps charged. It never falls.")
    incarnation: Positive = Field(description="Number of times that the worker group of the attempt was started.")
    pod_uid: OneLine = Field(
        alias="podUID", description="UID of the pod that acquired the ledger for this incarnation."
    )
    writer: WriterNumber | None = Field(
        None,
        description="Random number of the process that acquired the ledger for this incarnation, as 32 hex digits. It "
        "distinguishes the processes of one pod.",
    )

    transitions: ClassVar[tuple[Transition, ...]] = (
        Transition(
            "self.steps >= oldSelf.steps",
            "a charge never falls, because spent budget stays spent: keep at least the present number of steps",
            ".steps",
        ),
        Transition(
            "self.incarnation == oldSelf.incarnation "
            "? self.podUID == oldSelf.podUID && has(self.writer) == has(oldSelf.writer) "
            "&& (!has(self.writer) || self.writer == oldSelf.writer) "
            ": self.incarnation > oldSelf.incarnation",
            "only the process that acquired the ledger for an incarnation writes under it: acquire the next "
            "incarnation",
            ".incarnation",
        ),
    )


class PublishedCheckpointRecord(StrictStatusBlock):
    """A published checkpoint: others can read it."""

    uri: CheckpointAddress = Field(description="Directory of the checkpoint, as a URI or path.")
    step: Count = Field(description="Number of training steps done when it was written.")
    attempt: AttemptNumber = Field(description="Number of the attempt that wrote it.")
    digest: Text = Field(description="SHA-256 digest of the list of its files.")
    statement_digest: Text = Field(description="SHA-256 digest of its privacy statement.")
    final: Flag = Field(False, description="Whether this checkpoint is the result of the job.")
    steps_charged: Count = Field(description="Number of steps charged, over all attempts, when it was written.")
    signer: Text | None = Field(
        None, description="Fingerprint of the key that signed it: SHA-256 of the public key as DER. Absent: unsigned."
    )

    transitions: ClassVar[tuple[Transition, ...]] = (
        Transition("self == oldSelf", "a published checkpoint never changes: record a new one"),
    )


def _set_once(name: str, what: str) -> Transition:
    return Transition(
        f"!has(oldSelf.{name}) || has(self.{name}) && self.{name} == oldSelf.{name}",
        f"{name} is set once: create a new job for other {what}",
        f".{name}",
    )


class LedgerStatus(StatusBlock):
    """What the job has spent, and the checkpoints that it published."""

    attempt: AttemptNumber = Field(
        description="Highest attempt that acquired the ledger. Lower attempts are fenced: they can no longer write."
    )
    charges: Annotated[tuple[ChargeRecord, ...], Field(min_length=1, max_length=MAX_ATTEMPTS), Unique(("attempt",))] = (
        Field(description="The charged steps of each attempt.")
    )
    charged_through: Count = Field(description="The step up to which the present incarnation has been charged.")
    starts: Annotated[tuple[Count, ...], Field(max_length=MAX_STARTS)] = Field(
        (),
        description="The steps at which incarnations of this attempt started, since the last one that ended "
        "gracefully.",
    )
    steps_recharged: Count = Field(0, description="Number of steps that were charged a second time after a crash.")
    releases: Annotated[
        tuple[PublishedCheckpointRecord, ...], Field(max_length=MAX_PUBLISHED_CHECKPOINTS), Unique(("uri",))
    ] = Field((), description="Published checkpoints, in the order in which they were recorded.")
    dataset_digest: Text | None = Field(None, description="Keyed digest of the records. It is set once.")
    model_weights: Text | None = Field(
        None,
        description="The base model: commit: and its commit on the hub, or sha256: and the digest of its files. It is "
        "set once.",
    )
    chat_template_digest: Text | None = Field(None, description="Digest of the chat template. It is set once.")
    outcome: Outcome | None = Field(None, description="How the last attempt ended, if it ended gracefully.")
    progress: Progress = Field(default_factory=Progress, description="Progress of the training.")
    evaluations: Annotated[tuple[EvaluationResult, ...], Field(max_length=MAX_EVALUATIONS), Unique(("step",))] = Field(
        (), description="The newest evaluations on a public data set."
    )
    length: Positive = Field(
        description="Number of entries so far: acquisitions, charges, published checkpoints and outcomes."
    )
    head: OneLine = Field(description="Hash of the last entry and of all entries before it, as 64 hex digits.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"{_CHARGED} <= {MAX_CHARGED_STEPS}",
            f"all attempts together can be charged at most {MAX_CHARGED_STEPS} steps: charge fewer",
            lambda status: sum(charge.steps for charge in status.charges) <= MAX_CHARGED_STEPS,
            ".charges",
        ),
        Rule(
            "self.charges.exists(c, c.attempt == self.attempt)",
            "the attempt that acquired the ledger last has a charge, of 0 or more steps: add it",
            lambda status: any(charge.attempt == status.attempt for charge in status.charges),
            ".charges",
        ),
    )
    transitions: ClassVar[tuple[Transition, ...]] = (
        Transition(
            "oldSelf.hasValue() || !has(self.releases) || self.releases.size() == 0",
            "the first entry of a ledger must be an acquisition: record checkpoints after it",
            ".releases",
            also_first=True,
        ),
        Transition(
            "self.attempt >= oldSelf.attempt",
            "an attempt below the one that acquired the ledger last is fenced: start a new attempt",
            ".attempt",
        ),
        Transition(
            "oldSelf.charges.all(o, self.charges.exists(c, c.attempt == o.attempt))",
            "a charge never disappears, because spent budget stays spent: keep it",
            ".charges",
        ),
        Transition(
            "oldSelf.charges.all(o, o.attempt >= self.attempt || self.charges.exists(c, c == o))",
            "only the attempt that acquired the ledger last can be charged: leave other charges unchanged",
            ".charges",
        ),
        Transition(
            "self.charges.all(c, c.attempt >= oldSelf.attempt || oldSelf.charges.exists(o, o.attempt == c.attempt))",
            "an attempt below the one that acquired the ledger last is not added afterwards: start a new attempt",
            ".charges",
        ),
        Transition(
            "!has(oldSelf.releases) || has(self.releases) && "
            "oldSelf.releases.all(i, o, i < self.releases.size() && self.releases[i].uri == o.uri)",
            "a published checkpoint never disappears, and a new one comes last: keep the present ones in their order",
            ".releases",
        ),
        Transition(
            "!has(self.releases) || self.releases.all(i, r, "
            f"has(oldSelf.releases) && i < oldSelf.releases.size() || r.stepsCharged == {_CHARGED})",
            "stepsCharged of a new checkpoint must be the sum of all charges: write that sum",
            ".releases",
        ),
        _set_once("datasetDigest", "data"),
        _set_once("modelWeights", "weights"),
        _set_once("chatTemplateDigest", "templates"),
        Transition("self.length >= oldSelf.length", "length never falls, because entries are only added", ".length"),
        Transition(
            "self.stepsRecharged >= oldSelf.stepsRecharged",
            "stepsRecharged never falls, because entries are only added",
            ".stepsRecharged",
        ),
    )


class LedgerMetadata(Block):
    """Metadata of the object, as in Kubernetes."""

    name: ObjectName = Field(description="Name of the ledger.")
    namespace: ObjectName | None = Field(None, description="Namespace of the ledger.")
    labels: LabelMap = Field(default_factory=dict, description="Labels of the ledger.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the ledger.")
    uid: Text | None = Field(None, description="Unique id of the ledger, set by the API server.")
    resource_version: Text | None = Field(None, description="Version of the object, set by the API server.")


class PrivacyLedger(Block):
    """The privacy budget that one job has spent. The operator creates it, the trainer writes it, neither deletes it."""

    api_version: Literal["tensafe.io/v1alpha1"] = Field(
        "tensafe.io/v1alpha1", description="API version of the object: tensafe.io/v1alpha1."
    )
    kind: Literal["PrivacyLedger"] = Field(LEDGER_KIND, description="Kind of the object: PrivacyLedger.")
    metadata: LedgerMetadata = Field(description="Metadata of the object.")
    spec: PrivacyLedgerSpec = Field(description="Everything that the privacy claim rests on. It never changes.")
    status: LedgerStatus | None = Field(
        None, description="What the job has spent. Absent until a worker group first acquires the ledger."
    )

    transitions: ClassVar[tuple[Transition, ...]] = (
        Transition(
            "self.spec == oldSelf.spec",
            "a ledger's spec never changes, because the privacy claim rests on it: create a new job",
            ".spec",
        ),
        Transition(
            "!has(oldSelf.status) || has(self.status)",
            "a ledger's status is never removed, because spent budget stays spent: keep it",
            ".status",
        ),
    )
