"""A job's lifecycle: it is suspended, resumed, deleted, and applied again with too small a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tensafe_api.manifest.validation import parse_job
from tensafe_api.resolve import resolve_job
from tests.support.manifests import changed
from tests.support.team_namespace import BUCKET, JOB, TeamNamespace
from tests.support.trainer.adapters import accuracy, download_final_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800, func_only=True)]


def budget_of(steps: int) -> dict[str, Any]:
    """Changes to the job that leave budget for exactly so many steps, by the accountant that the changed job gets."""
    changes = {"spec.privacy.noiseMultiplier": "1", "spec.privacy.accountant": "PLD", "spec.privacy.targetEpsilon": "8"}
    plan = resolve_job(parse_job(changed(JOB, changes)))[1]
    return {**changes, "spec.privacy.targetEpsilon": f"{(plan.epsilon(steps) + plan.epsilon(steps + 1)) / 2:.6f}"}


@pytest.mark.gate
def test_job_is_suspended_resumed_deleted_and_applied_again_with_too_small_a_budget(
    team: TeamNamespace, data: Path, tmp_path: Path
) -> None:
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.submit()
    team.wait_for_step(2)

    # Its isolation is deleted while it trains: the operator brings it back, and the job continues.
    isolation = team.get("networkpolicy", "triage")
    assert isolation is not None
    team.kubectl("delete", "networkpolicy", "triage")
    restored = team.wait_for(lambda: team.get("networkpolicy", "triage"), 60)
    assert restored["spec"] == isolation["spec"] and restored["metadata"]["uid"] != isolation["metadata"]["uid"]
    team.wait_for_step(6)

    # Suspended: a checkpoint is saved, and no pod is left.
    team.kubectl("patch", "tsj", "triage", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    suspended = team.wait_for_status(lambda status: status["phase"] == "Suspended", 180)
    team.wait_for_status(lambda _: not team.pod_names(), 180)
    assert suspended["attempts"][0]["reason"] == "Interrupted"
    assert suspended["checkpoints"][-1]["step"] == suspended["progress"]["step"] >= 6

    # Resumed: the next attempt starts from that checkpoint, and ε continues to grow.
    team.kubectl("patch", "tsj", "triage", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    resumed = team.wait_for_step(suspended["progress"]["step"] + 1)
    assert [attempt["number"] for attempt in resumed["attempts"]] == [1, 2]
    assert resumed["privacy"]["stepsRecharged"] == 0
    assert float(resumed["privacy"]["epsilonSpent"]) > float(suspended["privacy"]["epsilonSpent"])

    # Deleted while it runs: the pods terminate, and the charges stay.
    team.kubectl("delete", "tsj", "triage", "--timeout=300s")
    team.wait_until_none(lambda: team.pod_names(), 180)
    assert team.steps_charged(resumed["ledgerName"]) >= resumed["privacy"]["stepsCharged"]

    # The same name again is another job with another ledger. It may not write over the first job's checkpoints, so it
    # has another address for them. This job exhausts its budget.
    changes = {**budget_of(12), "spec.checkpoint.uri": f"s3://{BUCKET}/models/again/"}
    team.submit(**{path.replace(".", "__"): value for path, value in changes.items()})
    finished = team.wait_until_finished(600)
    assert finished["phase"] == "BudgetExhausted", json.dumps(finished, indent=1)
    assert finished["ledgerName"] != resumed["ledgerName"]
    assert finished["privacy"]["stepsCharged"] == finished["progress"]["step"] == 12
    assert float(finished["privacy"]["epsilonSpent"]) <= float(finished["privacy"]["targetEpsilon"])
    # Its last adapter can be loaded and differs from the initial one. After so few steps its accuracy is low.
    download_final_model(team, finished["finalModel"], tmp_path)
    weights = load_file(tmp_path / "adapter_model.safetensors")
    assert all(weight.isfinite().all() for weight in weights.values())
    assert all(weight.any() for name, weight in weights.items() if "lora_B" in name)
    accuracy(tmp_path, data / "eval.jsonl")
    assert team.steps_charged(resumed["ledgerName"]) >= resumed["privacy"]["stepsCharged"], (
        "the first job's ledger stays"
    )
