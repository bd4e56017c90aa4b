"""Phases, conditions and reasons: they are CamelCase, explained, and valid in the fields of a status."""

from __future__ import annotations

import re

import pytest
from pydantic import TypeAdapter

from tensafe_api.driver_exit_codes import driver_exit_code, reason_for_exit_code
from tensafe_api.fixes import Fix
from tensafe_api.reasons import ConditionType, EventReason, Phase, Reason
from tensafe_api.resources.job import Spec
from tensafe_api.resources.strings import OneLine
from tensafe_kubectl.hints import HINTS

NOTHING_TO_FIX = (
    Reason.COMPLETED,
    Reason.ACCEPTED,
    Reason.STARTING,
    Reason.TRAINING,
    Reason.QUEUED,
    Reason.SUSPENDING,
    Reason.RETRYING,
    Reason.NOT_BLOCKED,
    Reason.NOT_QUEUED,
    Reason.NOT_RUNNING,
    Reason.NOT_ENDED,
    Reason.NOT_FAILED,
    Reason.ENDED,
    Reason.PODS_READY,
    Reason.PODS_NOT_READY,
)


@pytest.mark.parametrize("reason", Reason)
def test_reasons_are_explained(reason: Reason) -> None:
    assert re.fullmatch(r"([A-Z][A-Za-z]+)+", reason)
    assert reason.sentence.endswith(".")
    assert reason.fix.endswith(".") or reason in NOTHING_TO_FIX
    assert TypeAdapter(OneLine).validate_python(str(reason)) == reason.value


def test_every_reason_has_its_own_sentence() -> None:
    assert len({reason.sentence for reason in Reason}) == len(Reason)


def test_fix_covers_local_runs_and_clusters() -> None:
    """Only local runs have --resume, so a fix that names it also states what to do in a cluster."""
    for reason in Reason:
        assert not re.search(r"\b[Rr]esumes?\b", reason.fix.replace("--resume", "")), reason
        assert ("--resume" in reason.fix) == ("in a cluster" in reason.fix), reason


FIXES = [*(reason.fix for reason in Reason if reason.fix), *(fix.text for fix in Fix), *(hint for _, _, hint in HINTS)]


@pytest.mark.parametrize("fix", FIXES)
def test_fix_changes_the_pods_of_a_job_only_while_it_is_suspended(fix: str) -> None:
    if re.search(r"spec\.cluster|\bcluster\.[a-z]", fix):
        assert "uspend the job" in fix and "set spec.suspend to false" in fix
    assert "cluster.workers" not in fix, "no job ever changes it"


@pytest.mark.parametrize("fix", FIXES)
def test_fix_changes_no_field_that_a_job_keeps(fix: str) -> None:
    """Only a new job has another value of such a field."""
    kept = [change.path[1:] for change in Spec.transitions if change.message.endswith("with another name")]
    assert {"dataset", "training", "privacy"} <= {*kept} and not {"cluster", "retry"} & {*kept}
    if re.search(rf"\b({'|'.join(kept)})\.[a-z]", fix):
        assert re.search("new job|next job", fix)


def test_final_phases() -> None:
    assert [phase.value for phase in Phase if phase.final] == ["Succeeded", "BudgetExhausted", "Failed"]


def test_no_name_is_a_boolean_in_yaml() -> None:
    words = {word.value.lower() for kind in (Phase, ConditionType, Reason, EventReason) for word in kind}
    assert not words & {"on", "off", "yes", "no", "true", "false", "null"}


def test_exit_codes_are_unique_and_stable() -> None:
    with_code = [reason for reason in Reason if driver_exit_code(reason) != 1]
    assert all(reason_for_exit_code(driver_exit_code(reason)) is reason for reason in with_code)
    assert len({driver_exit_code(reason) for reason in with_code}) == len(with_code)
    assert (driver_exit_code(Reason.WORKER_LOST), driver_exit_code(Reason.LEDGER_CORRUPT)) == (64, 76)
    assert reason_for_exit_code(1) is reason_for_exit_code(0) is reason_for_exit_code(137) is None
