"""The conditions that the operator reports for each state of a job."""

from __future__ import annotations

import pytest

from tensafe_api.reasons import ConditionType, Phase, Reason
from tensafe_api.resources.status import Condition, Status, WorkerCount
from tensafe_api.timestamps import format_time
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.conditions import RULES, Finding, JobState, set_conditions, stalled_status


def without_own_reason(status: Status, state: JobState) -> list[Condition]:
    """The conditions whose rules leave the reason to the job's state."""
    found = {kind: rule(state, status) for kind, rule in RULES.items()}
    kinds = {kind for kind, each in found.items() if not (isinstance(each, Finding) and each.reason is not None)}
    return [each for each in status.conditions if each.type in kinds]


def status_in(phase: Phase, *, ready: int = 0, **flags: bool) -> Status:
    status = Status(workers=WorkerCount(desired=2, ready=ready))
    set_conditions(status, JobState(phase, Reason.TRAINING, **flags), 0.0)
    return status


def true_in(phase: Phase, *, ready: int = 0, **flags: bool) -> set[str]:
    return {each.type for each in status_in(phase, ready=ready, **flags).conditions if each.status == "True"}


def test_every_condition_type_has_a_rule() -> None:
    assert set(RULES) == set(ConditionType)
    assert [each.type for each in status_in(Phase.RUNNING).conditions] == [kind.value for kind in RULES]


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.PENDING, {"Accepted", "Reconciling"}),
        (Phase.QUEUED, {"Accepted", "Reconciling", "Queued"}),
        (Phase.STARTING, {"Accepted", "Reconciling"}),
        (Phase.RUNNING, {"Accepted", "Reconciling", "Running"}),
        (Phase.SUSPENDED, {"Accepted"}),
        (Phase.SUCCEEDED, {"Accepted", "Ready", "Succeeded"}),
        (Phase.BUDGET_EXHAUSTED, {"Accepted", "Ready", "Succeeded"}),
        (Phase.FAILED, {"Accepted", "Stalled", "Failed"}),
    ],
)
def test_true_conditions_of_each_phase(phase: Phase, expected: set[str]) -> None:
    assert true_in(phase) == expected


def test_rejected_job_is_stalled_and_nothing_else() -> None:
    assert true_in(Phase.PENDING, accepted=False, stalled=True) == {"Stalled"}


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
def test_pods_of_a_job_are_ready_when_all_workers_are(phase: Phase) -> None:
    """A running job whose node is lost charges no step, and is ended after `stallSeconds`."""
    assert "PodsReady" not in true_in(phase, ready=1)
    assert "PodsReady" in true_in(phase, ready=2)


def test_transition_time_changes_only_with_the_status_of_a_condition() -> None:
    status = Status(observed_generation=1, workers=WorkerCount(desired=2, ready=2))
    set_conditions(status, JobState(Phase.RUNNING, Reason.TRAINING), 1e9)
    status.observed_generation = 2
    done = JobState(Phase.SUCCEEDED, Reason.COMPLETED, "Done.")
    set_conditions(status, done, 2e9)
    changed = {each.type for each in status.conditions if each.last_transition_time == format_time(2e9)}
    assert changed == {"Ready", "Reconciling", "PodsReady", "Running", "Succeeded"}
    assert {each.observed_generation for each in status.conditions} == {2}
    found = {(each.reason, each.message) for each in without_own_reason(status, done)}
    assert found == {("Completed", "Done.")}


def test_condition_without_a_message_shows_the_sentence_of_its_reason() -> None:
    conditions = without_own_reason(status_in(Phase.RUNNING), JobState(Phase.RUNNING, Reason.TRAINING))
    assert {each.message for each in conditions} == {Reason.TRAINING.sentence}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (
            JobState(Phase.RUNNING, Reason.TRAINING),
            "Accepted Training Training NotBlocked NotQueued PodsNotReady Training NotEnded NotFailed",
        ),
        (
            JobState(Phase.QUEUED, Reason.QUEUED),
            "Accepted Queued Queued NotBlocked Queued PodsNotReady NotRunning NotEnded NotFailed",
        ),
        (
            JobState(Phase.STARTING, Reason.SECRET_MISSING, stalled=True),
            "Accepted SecretMissing SecretMissing SecretMissing NotQueued PodsNotReady NotRunning NotEnded NotFailed",
        ),
        (
            JobState(Phase.PENDING, Reason.INVALID_MANIFEST, accepted=False, stalled=True),
            "InvalidManifest InvalidManifest InvalidManifest InvalidManifest NotQueued PodsNotReady NotRunning "
            "NotEnded NotFailed",
        ),
        (
            JobState(Phase.SUSPENDED, Reason.SUSPENDED),
            "Accepted Suspended Suspended NotBlocked NotQueued PodsNotReady NotRunning NotEnded NotFailed",
        ),
        (
            JobState(Phase.BUDGET_EXHAUSTED, Reason.BUDGET_EXHAUSTED),
            "Accepted BudgetExhausted Ended NotBlocked NotQueued PodsNotReady NotRunning BudgetExhausted NotFailed",
        ),
        (
            JobState(Phase.FAILED, Reason.NO_PROGRESS),
            "Accepted NoProgress Ended NoProgress NotQueued PodsNotReady NotRunning NoProgress NoProgress",
        ),
    ],
)
def test_each_condition_has_a_reason_for_what_it_says(state: JobState, expected: str) -> None:
    """A condition that is added later comes after these."""
    status = Status(workers=WorkerCount(desired=2, ready=1))
    set_conditions(status, state, 0.0)
    reasons = expected.split()
    assert [each.reason for each in status.conditions][: len(reasons)] == reasons
    pods = next(each for each in status.conditions if each.type == "PodsReady")
    assert pods.message == "1 of 2 workers are ready."


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize(
    ("reason", "message", "shown"),
    [
        (Reason.QUEUED, "The queue is full.", ("Queued", "The queue is full.")),
        (Reason.QUEUED, "", ("Queued", Reason.QUEUED.sentence)),
        (None, "", ("Training", "Step 3 runs.")),
    ],
)
def test_finding_has_its_own_reason_or_that_of_the_state(
    holds: bool, reason: Reason | None, message: str, shown: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, ConditionType.QUEUED, lambda state, status: Finding(holds, reason, message))
    status = Status()
    set_conditions(status, JobState(Phase.RUNNING, Reason.TRAINING, "Step 3 runs."), 0.0)
    queued = next(each for each in status.conditions if each.type == "Queued")
    assert (queued.status, (queued.reason, queued.message)) == (str(holds), shown)


FAILED = Blocker(Reason.INTERNAL_ERROR, "", "The operator failed with KeyError")


def test_failed_reconcile_changes_the_condition_stalled_alone() -> None:
    before = status_in(Phase.RUNNING)
    after = stalled_status(before.model_dump(by_alias=True, mode="json"), FAILED, 1e9)
    changed = [new for old, new in zip(before.conditions, after.conditions, strict=True) if old != new]
    assert [(each.type, each.status, each.reason) for each in changed] == [("Stalled", "True", "InternalError")]
    assert "KeyError" in changed[0].message


def test_failed_reconcile_of_a_job_that_has_ended_is_not_shown() -> None:
    ended = status_in(Phase.SUCCEEDED)
    assert stalled_status(ended.model_dump(by_alias=True, mode="json"), FAILED, 1e9) == ended
