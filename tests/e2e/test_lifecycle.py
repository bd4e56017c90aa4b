"""What an author does to a job: suspend, resume and delete it, apply it again, and give it too small a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from e2e.platform.fixtures.manifests import changed
from e2e.platform.fixtures.team_namespace import BUCKET, JOB, TeamNamespace
from e2e.platform.trainer.adapters import accuracy, download_final_model
from tensafe_api.problems import parse_job
from tensafe_api.resolve import resolve_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800, func_only=True)]


def budget_of(steps: int) -> dict[str, Any]:
    """Changes to the job under which so many steps can be paid for, and not the next one."""
    given = {"spec.privacy.noiseMultiplier": "1"}
    plan = resolve_job(parse_job(changed(JOB, given)))[1]
    return {**given, "spec.privacy.targetEpsilon": f"{(plan.epsilon(steps) + plan.epsilon(steps + 1)) / 2:.6f}"}


@pytest.mark.gate
def test_suspended_resumed_deleted_and_applied_again_with_too_small_a_budget(
    team: TeamNamespace, data: Path, tmp_path: Path
) -> None:
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.submit()
    team.wait_for_step(6)

    # Suspended: a checkpoint is sealed, and no pod is left.
    team.kubectl("patch", "tsj", "triage", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    sealed = team.wait_for_status(lambda status: status["phase"] == "Suspended", 180)
    team.wait_for_status(lambda _: not team.pod_names(), 180)
    assert sealed["attempts"][0]["reason"] == "Interrupted"
    assert sealed["checkpoints"][-1]["step"] == sealed["progress"]["step"] >= 6

    # Resumed: the next attempt goes on from there, and ε with it.
    team.kubectl("patch", "tsj", "triage", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    resumed = team.wait_for_step(sealed["progress"]["step"] + 1)
    assert [attempt["number"] for attempt in resumed["attempts"]] == [1, 2]
    assert resumed["privacy"]["stepsRecharged"] == 0
    assert float(resumed["privacy"]["epsilonSpent"]) > float(sealed["privacy"]["epsilonSpent"])

    # Deleted while it runs: the pods go, and what was spent stays.
    team.kubectl("delete", "tsj", "triage", "--timeout=300s")
    team.wait_until_none(lambda: team.pod_names(), 180)
    assert team.steps_charged(resumed["ledgerName"]) >= resumed["privacy"]["stepsCharged"]

    # The same name again is another job, with a ledger of its own, which may not write over the first one's
    # checkpoints. This one runs out of budget.
    own = {**budget_of(12), "spec.checkpoint.uri": f"s3://{BUCKET}/models/again/"}
    team.submit(**{path.replace(".", "__"): value for path, value in own.items()})
    over = team.wait_until_finished(600)
    assert over["phase"] == "BudgetExhausted", json.dumps(over, indent=1)
    assert over["ledgerName"] != resumed["ledgerName"]
    assert over["privacy"]["stepsCharged"] == over["progress"]["step"] == 12
    assert float(over["privacy"]["epsilonSpent"]) <= float(over["privacy"]["targetEpsilon"])
    # Its last adapter can be used, after so few steps for little: it is not the one that training began with.
    download_final_model(team, over["finalModel"], tmp_path)
    weights = load_file(tmp_path / "adapter_model.safetensors")
    assert all(weight.isfinite().all() for weight in weights.values())
    assert all(weight.any() for name, weight in weights.items() if "lora_B" in name)
    accuracy(tmp_path, data / "eval.jsonl")
    assert team.steps_charged(resumed["ledgerName"]) >= resumed["privacy"]["stepsCharged"], (
        "the first one's ledger stays"
    )
