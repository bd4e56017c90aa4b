"""Computes a job's status from what its ledger and its run have recorded.

The operator and the local runner store different records. The operator reads a PrivacyLedger; the local runner reads a
ledger file and the log of the run. Each translates its records into `JobRecords`; this module computes the status from
them, so that a figure in a status means the same in both places:

- `status_from_records`: privacy figures, progress, evaluations, checkpoints and the final model;
- `conditions_of`: the conditions that follow from the phase alone;
- `progress_at` and `evaluation_result`: one progress or evaluation entry, as the trainer writes it into the ledger.

Every function is pure: values in, values out, no clock and no input or output. Every ε follows from charged steps, and
none is copied from a record. `Figures` has them: the local runner computes each one here, and the operator passes those
that its accountant has computed already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tensafe_api.accounting import composition
from tensafe_api.reasons import ConditionType, Phase
from tensafe_api.resolve import Claim
from tensafe_api.resources.model import commit_of
from tensafe_api.resources.status import (
    CheckpointRecord,
    Condition,
    EvaluationResult,
    FinalModel,
    PrivacyStatus,
    Progress,
    Status,
)
from tensafe_api.statement.contents import STATEMENT_FILE
from tensafe_api.timestamps import format_time


@dataclass(frozen=True)
class Spent:
    """What a job has spent. Every ε is an upper bound at the job's δ.

    Attributes:
        claimed_steps: steps to sign off.
        epsilon_claimed: ε of these.
        epsilon_spent: ε of the charged steps.
    """

    claimed_steps: int
    epsilon_claimed: float
    epsilon_spent: float


class Figures(Protocol):
    """Where a status gets its figures from. None: the figure is not known yet."""

    @property
    def exact(self) -> bool:
        """Whether ε spent is that of exactly the charged steps, and not a bound above it."""

    def spent(self, claim: Claim, charged: int) -> Spent | None:
        """What a job has spent after `charged` steps."""
        ...

    def epsilon(self, claim: Claim, steps: int) -> float | None:
        """ε of a checkpoint that was written after `steps` charged steps."""
        ...


class ComputedFigures:
    """Computes each figure when it is asked for."""

    exact = True

    def spent(self, claim: Claim, charged: int) -> Spent:
        claimed = claim.claimed_steps(charged)
        return Spent(claimed, claim.epsilon(claimed), claim.epsilon(charged))

    def epsilon(self, claim: Claim, steps: int) -> float:
        return claim.epsilon(steps)


COMPUTED = ComputedFigures()
MIN_SPEED = 1e-3
"""Steps per second. A lower speed is not shown: four digits of it would say little."""


def _has_adapter(phase: Phase) -> bool:
    return phase in (Phase.SUCCEEDED, Phase.BUDGET_EXHAUSTED)


PHASE_CONDITIONS: Mapping[ConditionType, Callable[[Phase], bool]] = {
    ConditionType.READY: _has_adapter,
    ConditionType.SUCCEEDED: _has_adapter,
    ConditionType.FAILED: lambda phase: phase is Phase.FAILED,
}
"""The conditions that follow from the phase alone, and in which phases each is True."""


class RecordedCheckpoint(Protocol):
    """A checkpoint as either backend of the ledger records it."""

    @property
    def uri(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def statement_digest(self) -> str: ...
    @property
    def final(self) -> bool: ...
    @property
    def signer(self) -> str | None: ...


@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint that the status lists.

    Attributes:
        steps_charged: steps charged over all attempts when it was written; its ε is computed from them.
        time: seconds since the epoch at which it was written; None where the record has no time.
        signer: fingerprint of the key that signed it, as the ledger records it; None: it is not signed.
    """

    uri: str
    step: int
    digest: str
    steps_charged: int
    time: float | None = None
    signer: str | None = None


@dataclass(frozen=True)
class JobRecords:
    """What the ledger and the run of one job have recorded.

    Attributes:
        steps_charged: steps charged over all attempts; None where the ledger is lost, so that the number is unknown.
        steps_recharged: of these, steps that were charged a second time after a crash.
        progress: how far the training is; its number of planned steps is replaced by the claim's.
        evaluations: evaluations on a public set, by step.
        checkpoints: the checkpoints to list, oldest first.
        published: every checkpoint that the ledger records, oldest first; the last final one is the result.
        dataset_digest: keyed digest of the records, once it is known.
        model_weights: the base model, once it is known: `commit:` and its commit, or `sha256:` and a digest.
        chat_template_digest: digest of the chat template, once it is known.
    """

    steps_charged: int | None
    steps_recharged: int
    progress: Progress
    evaluations: tuple[EvaluationResult, ...] = ()
    checkpoints: Sequence[KeptCheckpoint] = ()
    published: Sequence[RecordedCheckpoint] = ()
    dataset_digest: str | None = None
    model_weights: str | None = None
    chat_template_digest: str | None = None


def status_from_records(
    before: Status, claim: Claim, records: JobRecords | None, figures: Figures = COMPUTED
) -> Status:
    """The status `before`, updated with `records`.

    A ledger that is read from a cache may be older than the status. ε never falls for that reason: the larger number of
    charged steps counts, and records with fewer charged steps than the status change nothing else.

    Args:
        before: the status so far; a new `Status` where there is none.
        claim: what the privacy claim rests on.
        records: None where nothing was recorded yet.
        figures: while what the job has spent is not known, the whole status stays as it is. A checkpoint whose ε is
            not known is not listed yet. What a job that has ended has spent is kept until another step is charged.

    Returns:
        A new status; `before` is not changed.
    """
    if records is not None and records.steps_charged is None:
        privacy = privacy_without_charges(claim)
    else:
        charged, recharged = (records.steps_charged or 0, records.steps_recharged) if records is not None else (0, 0)
        privacy = before.privacy
        if not _is_counted(before, charged):
            after = privacy_after(before.privacy, claim, charged=charged, recharged=recharged, figures=figures)
            if after is None:
                return before
            privacy = after
        if records is None or charged < (before.privacy.steps_charged or 0):
            progress = before.progress if before.progress.total_steps else Progress(step=0, total_steps=claim.steps)
            return before.model_copy(update={"privacy": privacy, "progress": progress})
    return before.model_copy(
        update={
            "privacy": privacy,
            "progress": records.progress.model_copy(update={"total_steps": claim.steps}),
            "evaluations": records.evaluations,
            "checkpoints": tuple(_checkpoints(before, claim, records.checkpoints, figures)),
            "resolved": before.resolved.model_copy(update=_resolved(records)),
            "final_model": _final_model(records.published) or before.final_model,
        }
    )


def _is_counted(before: Status, charged: int) -> bool:
    """Whether a job has ended, and its status has the figures of all charged steps."""
    has_ended = before.phase is not None and Phase(before.phase).final
    return has_ended and before.privacy.steps_charged is not None and charged <= before.privacy.steps_charged


def privacy_after(
    before: PrivacyStatus, claim: Claim, *, charged: int, recharged: int, figures: Figures
) -> PrivacyStatus | None:
    """`privacy_status` of the larger numbers of steps, these or those in `before`; None where its figures are not known
    yet. ε spent does not fall, unless it is exact and the one before was a bound.
    """
    charged, recharged = max(before.steps_charged or 0, charged), max(before.steps_recharged or 0, recharged)
    spent = figures.spent(claim, charged)
    if spent is None:
        return None
    after = privacy_status(claim, spent, charged=charged, recharged=recharged)
    if figures.exact:
        return after
    largest = max(filter(None, (before.epsilon_spent, after.epsilon_spent)), key=float)
    return after.model_copy(update={"epsilon_spent": largest})


def privacy_status(claim: Claim, spent: Spent, *, charged: int, recharged: int) -> PrivacyStatus:
    """Every privacy figure of a status after `charged` steps, of which `recharged` were charged a second time."""
    mechanism = claim.mechanism
    return PrivacyStatus(
        epsilon_claimed=composition.format_epsilon(spent.epsilon_claimed),
        epsilon_spent=composition.format_epsilon(spent.epsilon_spent),
        target_epsilon=composition.format_epsilon(claim.target_epsilon),
        delta=claim.delta,
        unit=mechanism.unit,
        adjacency=mechanism.adjacency,
        noise_multiplier=mechanism.noise_multiplier,
        sample_rate=mechanism.sample_rate,
        steps_claimed=spent.claimed_steps,
        steps_charged=charged,
        steps_recharged=recharged,
        steps_planned=claim.steps,
        accountant=claim.accountant,
    )


def privacy_without_charges(claim: Claim) -> PrivacyStatus:
    """The figures of a job whose ledger is lost. What was spent is not known, so it is absent, never zero."""
    unknown = ("epsilon_claimed", "epsilon_spent", "steps_claimed", "steps_charged", "steps_recharged")
    nothing = privacy_status(claim, COMPUTED.spent(claim, 0), charged=0, recharged=0)
    return nothing.model_copy(update=dict.fromkeys(unknown))


def progress_at(step: int, total_steps: int, time: float, steps_per_second: float | None = None) -> Progress:
    """The progress after `step` of `total_steps` steps, at `time` (seconds since the epoch)."""
    shown = steps_per_second is not None and steps_per_second >= MIN_SPEED
    return Progress(
        step=step,
        total_steps=total_steps,
        percent=100 * step // total_steps,
        steps_per_second=f"{steps_per_second:.4g}" if shown else None,
        last_update_time=format_time(time),
    )


def evaluation_result(step: int, loss: float, metrics: Mapping[str, float | None]) -> EvaluationResult:
    """One evaluation after `step` steps, every figure with four decimals.

    Args:
        loss: mean loss; finite.
        metrics: the other figures by name (`tensafe_api.tasks.METRICS`), from 0 to 1; None where one was not measured.
    """
    measured = {name: f"{value:.4f}" for name, value in metrics.items() if value is not None}
    return EvaluationResult.model_validate({"step": step, "loss": f"{loss:.4f}", **measured})


def conditions_of(phase: Phase, reason: str, message: str, time: float) -> tuple[Condition, ...]:
    """The conditions that follow from the phase alone, all with the same reason and message.

    The local runner reports these. The operator reports more (`tensafe_operator.decision.conditions.RULES`).

    Args:
        time: seconds since the epoch; the transition time of each condition.
    """
    return tuple(condition_of(kind, holds(phase), reason, message, time) for kind, holds in PHASE_CONDITIONS.items())


def condition_of(
    kind: ConditionType,
    holds: bool,
    reason: str,
    message: str,
    time: float,
    *,
    before: Condition | None = None,
    generation: int | None = None,
) -> Condition:
    """One condition. Its transition time is the one of `before` while its status stays the same, else `time`."""
    unchanged = before is not None and before.status == str(holds)
    return Condition(
        type=kind.value,
        status=str(holds),
        reason=reason,
        message=message,
        last_transition_time=before.last_transition_time if before is not None and unchanged else format_time(time),
        observed_generation=generation,
    )


def _resolved(records: JobRecords) -> dict[str, str | None]:
    """The names that the workers resolved. A model that is not from a hub has no commit."""
    return {
        "dataset_digest": records.dataset_digest,
        "model_commit": commit_of(records.model_weights),
        "chat_template_digest": records.chat_template_digest,
    }


def _checkpoints(
    before: Status, claim: Claim, kept: Sequence[KeptCheckpoint], figures: Figures
) -> Iterator[CheckpointRecord]:
    """The checkpoints with their ε, which is computed when a checkpoint is first listed, and never again."""
    listed = {(each.uri, each.steps_charged): each.epsilon for each in before.checkpoints}
    for each in kept:
        text = listed.get((each.uri, each.steps_charged))
        if text is None and (found := figures.epsilon(claim, each.steps_charged)) is not None:
            text = composition.format_epsilon(found)
        if text is not None:
            yield CheckpointRecord(
                uri=each.uri,
                step=each.step,
                epsilon=text,
                steps_charged=each.steps_charged,
                digest=each.digest,
                signed=each.signer is not None,
                signer=each.signer,
                time=None if each.time is None else format_time(each.time),
            )


def _final_model(published: Sequence[RecordedCheckpoint]) -> FinalModel | None:
    final = next((each for each in reversed(published) if each.final), None)
    if final is None:
        return None
    return FinalModel(
        uri=final.uri,
        digest=final.digest,
        statement_uri=f"{final.uri}/{STATEMENT_FILE}",
        statement_digest=final.statement_digest,
    )
