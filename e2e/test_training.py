"""A job on real pods from apply to an adapter in a bucket: one head, two workers, masked sums over the network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensafe_api.accounting.composition import format_epsilon
from tensafe_api.resolve import Claim
from tensafe_api.resources.ledger import PrivacyLedgerSpec
from tensafe_api.statement.contents import digest, recompute_epsilon
from tests.support.stopwatch import Stopwatch
from tests.support.team_namespace import LABELS, TeamNamespace
from tests.support.trainer.adapters import accuracy, download_final_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

CHANCE = 1 / len(LABELS)
UNKNOWN_ID = 1_000_650_000


def test_job_writes_a_useful_adapter_and_an_epsilon_that_can_be_recomputed(
    team: TeamNamespace, data: Path, tmp_path: Path, stopwatch: Stopwatch
) -> None:
    team.upload_data(data)
    team.copy_model_to_pvc()
    with stopwatch("a job of 30 steps from apply to Succeeded"):
        team.submit()
        status = team.wait_until_finished(900)
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    assert [attempt["number"] for attempt in status["attempts"]] == [1]
    assert status["progress"]["step"] == status["progress"]["totalSteps"] == 30

    # The ledger has the charges, from which the spent epsilon can be recomputed.
    ledger = team.get("privacyledger", status["ledgerName"])
    assert ledger is not None and ledger["metadata"]["uid"] == status["ledgerUID"]
    claim = Claim.of(PrivacyLedgerSpec.model_validate(ledger["spec"], by_alias=True, by_name=False))
    assert team.steps_charged(status["ledgerName"]) == 30
    assert status["privacy"]["epsilonSpent"] == format_epsilon(claim.epsilon(30))

    # The files of the adapter in the bucket match the digests in the status.
    final = status["finalModel"]
    files = download_final_model(team, final, tmp_path)
    statement = json.loads(files["statement.json"])
    assert final["statementDigest"] == digest(files["statement.json"])
    assert recompute_epsilon(statement) == statement["claim"]["epsilon"] == status["privacy"]["epsilonClaimed"]

    # peft can load it, and it has learned.
    assert accuracy(tmp_path, data / "eval.jsonl") > 2 * CHANCE


def test_job_trains_under_an_id_that_no_image_knows(team: TeamNamespace, data: Path) -> None:
    """OpenShift chooses such an id for each namespace, and group 0."""
    team.upload_data(data)
    team.copy_model_to_pvc()
    ids = {"runAsUser": UNKNOWN_ID, "fsGroup": UNKNOWN_ID}
    team.submit(spec__cluster__securityContext=ids, spec__training__steps=10)
    team.wait_for_step(1)
    for pod in team.pod_names():
        assert team.exec_in_pod(pod, "sh", "-c", "id -u; id -g").stdout.split() == [str(UNKNOWN_ID), "0"]
    finished = team.wait_until_finished(600)
    assert finished["phase"] == "Succeeded", json.dumps(finished, indent=1)
