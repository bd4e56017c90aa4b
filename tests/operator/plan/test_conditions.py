"""The conditions that the operator reports for each state of a job."""

from __future__ import annotations

import pytest

from tensafe_api.reasons import ConditionType, Phase, Reason
from tensafe_api.resources.status import Status, WorkerCount
from tensafe_api.timestamps import format_time
from tensafe_operator.plan.conditions import RULES, JobState, set_conditions, status_of_failed_reconcile


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
        (Phase.RUNNING, {"Accepted", "Reconciling", "PodsReady", "Running"}),
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


def test_pods_of_a_starting_job_are_ready_when_all_workers_are() -> None:
    assert "PodsReady" not in true_in(Phase.STARTING, ready=1)
    assert "PodsReady" in true_in(Phase.STARTING, ready=2)


def test_transition_time_changes_only_with_the_status_of_a_condition() -> None:
    status = Status(observed_generation=1)
    set_conditions(status, JobState(Phase.RUNNING, Reason.TRAINING), 1e9)
    status.observed_generation = 2
    set_conditions(status, JobState(Phase.SUCCEEDED, Reason.COMPLETED, "Done."), 2e9)
    changed = {each.type for each in status.conditions if each.last_transition_time == format_time(2e9)}
    assert changed == {"Ready", "Reconciling", "PodsReady", "Running", "Succeeded"}
    found = {(each.reason, each.message, each.observed_generation) for each in status.conditions}
    assert found == {("Completed", "Done.", 2)}


def test_condition_without_a_message_shows_the_sentence_of_its_reason() -> None:
    assert {each.message for each in status_in(Phase.RUNNING).conditions} == {Reason.TRAINING.sentence}


def test_failed_reconcile_changes_the_condition_stalled_alone() -> None:
    before = status_in(Phase.RUNNING)
    after = status_of_failed_reconcile(before.model_dump(by_alias=True, mode="json"), "KeyError", 1e9)
    assert after is not None
    changed = [new for old, new in zip(before.conditions, after.conditions, strict=True) if old != new]
    assert [(each.type, each.status, each.reason) for each in changed] == [("Stalled", "True", "InternalError")]
    assert "KeyError" in changed[0].message


def test_failed_reconcile_of_a_job_that_has_ended_is_not_shown() -> None:
    ended = status_in(Phase.SUCCEEDED).model_dump(by_alias=True, mode="json")
    assert status_of_failed_reconcile(ended, "KeyError", 1e9) is None
