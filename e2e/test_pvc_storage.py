"""A job whose data, model and checkpoints are on PVCs: no object store, no credentials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorguard.checkpoint.store import CheckpointStore
from tests.support.team_namespace import JOB, TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

STEPS = 12
EVERY = JOB["spec"]["checkpoint"]["everySteps"]


def test_job_trains_with_pvcs_alone_and_resumes_from_one(team: TeamNamespace, data: Path, tmp_path: Path) -> None:
    team.copy_model_to_pvc()
    team.create_pvc("records")
    team.create_pvc("adapters")
    team.start_idle_pod("nurse", pvc="records")
    for file in ("train.jsonl", "eval.jsonl"):
        team.kubectl("cp", str(data / file), f"nurse:/volume/{file}")
    team.kubectl("delete", "pod", "nurse", "--grace-period=0", "--force")

    team.submit(
        spec__dataset__uri="pvc://records/train.jsonl",
        spec__evaluation__uri="pvc://records/eval.jsonl",
        spec__checkpoint__uri="pvc://adapters/triage",
        spec__storage={},
        spec__training__steps=STEPS,
        spec__privacy__reserveSteps=20,
    )
    team.wait_for_step(6)
    team.kill_processes("worker")
    finished = team.wait_until_finished(600)
    assert finished["phase"] == "Succeeded", json.dumps(finished, indent=1)
    assert team.incarnation(1) == 2
    assert finished["privacy"]["stepsRecharged"] <= EVERY + 1, "it did not resume from the checkpoint on the PVC"
    assert finished["finalModel"]["uri"] == "pvc://adapters/triage/final"

    team.start_idle_pod("reader", pvc="adapters")
    team.kubectl("cp", "reader:/volume/triage", str(tmp_path / "triage"))
    files = CheckpointStore(str(tmp_path / "triage")).read("final", finished["finalModel"]["digest"])
    assert "adapter_model.safetensors" in files
