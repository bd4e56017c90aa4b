"""The status that follows from records, on which the operator and the local runner rely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tensafe_api.accounting.composition import format_epsilon
from tensafe_api.job_status import (
    JobRecords,
    KeptCheckpoint,
    condition_of,
    conditions_of,
    evaluation_result,
    privacy_without_charges,
    progress_at,
    status_from_records,
)
from tensafe_api.manifest.validation import parse_job
from tensafe_api.reasons import ConditionType, Phase
from tensafe_api.resolve import Plan, resolve_job
from tensafe_api.resources.status import Condition, Progress, Resolved, Status
from tensafe_api.timestamps import format_time, parse_time

ManifestWith = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Recorded:
    uri: str
    digest: str = "sha256:a"
    statement_digest: str = "sha256:b"
    final: bool = False


RECORDS = JobRecords(
    steps_charged=40,
    steps_recharged=3,
    progress=Progress(step=37, total_steps=1, percent=61),
    evaluations=(evaluation_result(30, 0.5, {}),),
    checkpoints=(KeptCheckpoint("s3://m/30", 30, "sha256:a", 30), KeptCheckpoint("s3://m/37", 37, "sha256:c", 40, 1e9)),
    published=(Recorded("s3://m/30"), Recorded("s3://m/37")),
    dataset_digest="keyed",
)


@pytest.fixture
def plan(manifest_with: ManifestWith) -> Plan:
    return resolve_job(parse_job(manifest_with({"spec.privacy.noiseMultiplier": "1"})))[1]


def test_every_figure_is_computed_from_charged_steps(plan: Plan) -> None:
    privacy = status_from_records(Status(), plan, RECORDS).privacy
    assert (privacy.steps_charged, privacy.steps_recharged, privacy.steps_planned) == (40, 3, plan.steps)
    assert privacy.epsilon_spent == format_epsilon(plan.epsilon(40))
    assert privacy.epsilon_claimed == format_epsilon(plan.epsilon(plan.steps))
    assert privacy.target_epsilon == "8"


@pytest.mark.parametrize("charged", [0, 40, 10_000])
def test_every_epsilon_of_a_status_is_shown_with_its_steps(plan: Plan, charged: int) -> None:
    privacy = status_from_records(Status(), plan, replace(RECORDS, steps_charged=charged)).privacy
    assert privacy.steps_charged == charged
    assert privacy.epsilon_spent == format_epsilon(plan.epsilon(charged))
    assert privacy.epsilon_claimed == format_epsilon(plan.epsilon(privacy.steps_claimed))


def test_a_checkpoint_shows_the_epsilon_of_its_own_charged_steps(plan: Plan) -> None:
    first, second = status_from_records(Status(), plan, RECORDS).checkpoints
    assert (first.epsilon, second.epsilon) == (format_epsilon(plan.epsilon(30)), format_epsilon(plan.epsilon(40)))
    assert (first.steps_charged, second.steps_charged) == (30, 40)
    assert (first.time, second.time) == (None, "2001-09-09T01:46:40Z")


def test_progress_counts_against_the_steps_of_the_claim(plan: Plan) -> None:
    assert status_from_records(Status(), plan, RECORDS).progress == Progress(
        step=37, total_steps=plan.steps, percent=61
    )


def test_a_job_without_records_has_spent_nothing(plan: Plan) -> None:
    status = status_from_records(Status(), plan, None)
    assert (status.privacy.epsilon_spent, status.privacy.steps_charged) == ("0", 0)
    assert status.progress == Progress(step=0, total_steps=plan.steps)


@pytest.mark.parametrize("late", [None, replace(RECORDS, steps_charged=39, checkpoints=(), evaluations=())])
def test_records_that_are_older_than_the_status_change_nothing(plan: Plan, late: JobRecords | None) -> None:
    status = status_from_records(Status(), plan, RECORDS)
    assert status_from_records(status, plan, late) == status


def test_recharged_steps_never_fall(plan: Plan) -> None:
    status = status_from_records(Status(), plan, RECORDS)
    later = status_from_records(status, plan, replace(RECORDS, steps_charged=41, steps_recharged=2))
    assert (later.privacy.steps_charged, later.privacy.steps_recharged) == (41, 3)


def test_charges_of_a_lost_ledger_are_absent_and_not_zero(plan: Plan) -> None:
    status = status_from_records(Status(), plan, replace(RECORDS, steps_charged=None))
    assert status.privacy == privacy_without_charges(plan)
    spent = status.privacy.model_dump(by_alias=True, exclude_none=True)
    assert not spent.keys() & {"epsilonSpent", "epsilonClaimed", "stepsClaimed", "stepsCharged", "stepsRecharged"}
    assert spent["targetEpsilon"] == "8"
    assert status.progress.step == 37


def test_the_last_final_checkpoint_is_the_model(plan: Plan) -> None:
    assert status_from_records(Status(), plan, RECORDS).final_model is None
    published = (Recorded("s3://m/a", final=True), Recorded("s3://m/b", final=True), Recorded("s3://m/c"))
    model = status_from_records(Status(), plan, replace(RECORDS, published=published)).final_model
    assert model is not None
    assert (model.uri, model.statement_uri) == ("s3://m/b", "s3://m/b/statement.json")
    assert (model.digest, model.statement_digest) == ("sha256:a", "sha256:b")


def test_a_known_model_stays_when_records_show_none(plan: Plan) -> None:
    status = status_from_records(Status(), plan, replace(RECORDS, published=(Recorded("s3://m/a", final=True),)))
    assert status_from_records(status, plan, RECORDS).final_model == status.final_model


def test_computation_is_pure_and_keeps_the_rest(plan: Plan) -> None:
    before = Status(phase="Running", ledger_uid="uid", resolved=Resolved(image="an image"))
    copy = before.model_copy(deep=True)
    after = status_from_records(before, plan, RECORDS)
    assert before == copy
    assert (after.phase, after.ledger_uid) == ("Running", "uid")
    assert after.resolved == Resolved(image="an image", dataset_digest="keyed")


def test_progress_shows_percent_and_speed() -> None:
    progress = progress_at(1, 3, 1e9, 0.123456)
    assert progress == Progress(
        step=1, total_steps=3, percent=33, steps_per_second="0.1235", last_update_time="2001-09-09T01:46:40Z"
    )
    assert progress_at(1, 3, 1e9, 0.0009).steps_per_second is None
    assert progress_at(1, 3, 1e9).steps_per_second is None


def test_an_evaluation_shows_what_was_measured() -> None:
    assert evaluation_result(2, 0.12345, {"accuracy": 0.98765}).model_dump(by_alias=True, exclude_none=True) == {
        "step": 2,
        "loss": "0.1235",
        "accuracy": "0.9877",
    }
    assert evaluation_result(2, 0.5, {"accuracy": None}).model_dump(exclude_none=True) == {"step": 2, "loss": "0.5000"}


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.RUNNING, []),
        (Phase.SUSPENDED, []),
        (Phase.SUCCEEDED, ["Ready", "Succeeded"]),
        (Phase.BUDGET_EXHAUSTED, ["Ready", "Succeeded"]),
        (Phase.FAILED, ["Failed"]),
    ],
)
def test_conditions_that_follow_from_the_phase_alone(phase: Phase, expected: list[str]) -> None:
    conditions = conditions_of(phase, "AReason", "", 0.0)
    assert [each.type for each in conditions] == ["Ready", "Succeeded", "Failed"]
    assert [each.type for each in conditions if each.status == "True"] == expected


def test_one_condition_by_itself() -> None:
    assert condition_of(ConditionType.STALLED, True, "InternalError", "why", 1e9) == Condition(
        type="Stalled",
        status="True",
        reason="InternalError",
        message="why",
        last_transition_time="2001-09-09T01:46:40Z",
    )


def test_times_are_written_and_read_as_kubernetes_does() -> None:
    assert format_time(1e9 + 0.9) == "2001-09-09T01:46:40Z"
    assert parse_time("2001-09-09T01:46:40Z") == parse_time("2001-09-09T03:46:40+02:00") == 1e9
    assert parse_time(None) is parse_time("") is parse_time("yesterday") is None


def test_time_that_can_be_read_can_be_written() -> None:
    """The API server accepts such times, and a writer of the ledger could keep its charges from being counted."""
    last = parse_time("9999-12-31T23:59:59Z")
    assert last is not None and format_time(last) == "9999-12-31T23:59:59Z"
    first = parse_time("0001-01-01T00:00:00Z")
    assert first is not None and format_time(first) == "0001-01-01T00:00:00Z"
    assert parse_time("9999-12-31T23:59:59-23:59") is parse_time("0001-01-01T00:00:00+23:59") is None


def test_condition_keeps_its_transition_time_while_its_status_stays() -> None:
    before = condition_of(ConditionType.READY, False, "Training", "", 1e9)
    unchanged = condition_of(ConditionType.READY, False, "Retrying", "why", 2e9, before=before, generation=2)
    assert unchanged.last_transition_time == before.last_transition_time
    assert (unchanged.reason, unchanged.message, unchanged.observed_generation) == ("Retrying", "why", 2)
    changed = condition_of(ConditionType.READY, True, "Completed", "", 2e9, before=before)
    assert changed.last_transition_time == format_time(2e9)
