"""A whole job whose ledger is a Kubernetes object: charged, suspended by its author, and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tensafe_api.manifest.text import dump_manifest
from tensafe_api.resolve import ledger_spec
from tensorguard.ledger.backends import POD_UID, LedgerLocation
from tensorguard.ledger.contract import LedgerState
from tensorguard.ledger.kubernetes import KubernetesLedger
from tensorguard.ledger.kubernetes_object import decode
from tensorguard.training.budget_gate import BudgetGate
from tensorguard.training.worker import train
from tensorguard.verification.audit_logs import verify_audit_log
from tensorguard.verification.errors import NotVerified
from tensorguard.verification.ledgers import LedgerHistory
from tests.support.ledger_objects import LedgerObject, Pod, make_pod
from tests.support.programs.controlplane import ControlPlane
from tests.support.trainer.rank_harness import Job, SingleRankChannel

pytestmark = pytest.mark.cluster

ONE = ("spec.cluster.workers=1", "spec.training.steps=12", "spec.checkpoint.everySteps=3")


@dataclass
class InCluster:
    """A job of one worker, its objects in the cluster, and the pod that trains it."""

    plane: ControlPlane
    namespace: str
    job: Job
    ledger: LedgerObject
    pod: Pod

    def train(self) -> str:
        """Run one attempt; return the reason of its end."""
        self.job.attempt += 1
        location = LedgerLocation(self.namespace, "tiny", "tiny-ledger", self.ledger.get()["metadata"]["uid"])
        train(replace(self.job.config(), ledger_location=location), SingleRankChannel(), torch.device("cpu"))
        return self.job.ended().reason

    def suspend(self, value: bool) -> None:
        change = json.dumps({"spec": {"suspend": value}})
        self.plane.kubectl("-n", self.namespace, "patch", "tsj", "tiny", "--type=merge", "-p", change)

    def status(self) -> dict[str, Any]:
        return dict(self.ledger.get()["status"])


@pytest.fixture
def in_cluster(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> InCluster:
    job = Job.make(tmp_path / "run", *ONE)
    (tmp_path / "run" / "ledger.jsonl").unlink()
    control_plane.kubectl("-n", namespace, "create", "-f", "-", text=dump_manifest(job.job))
    pod = make_pod(control_plane, namespace, "trainer")
    spec = ledger_spec(job.job, job.plan, job.job_uid).model_dump(by_alias=True, mode="json", exclude_none=True)
    ledger = LedgerObject(control_plane, namespace, name="tiny-ledger", **spec)
    monkeypatch.setenv("KUBECONFIG", str(pod.kubeconfig))
    monkeypatch.setenv(POD_UID, pod.uid)
    return InCluster(control_plane, namespace, job, ledger, pod)


def test_job_charges_the_cluster_ledger_and_reports_progress(in_cluster: InCluster) -> None:
    assert in_cluster.train() == "Completed"
    status = in_cluster.status()
    assert status["outcome"] == "Completed"
    (charge,) = status["charges"]
    assert charge.pop("writer")
    assert charge == {"attempt": 1, "steps": 12, "incarnation": 1, "podUID": in_cluster.pod.uid}
    assert status["progress"]["step"] == 12
    assert [record["step"] for record in status["releases"]] == [3, 6, 9, 12]
    assert status["releases"][-1]["final"] is True
    assert status["datasetDigest"] == in_cluster.job.digest
    assert not (in_cluster.job.directory / "ledger.jsonl").exists()


def test_job_is_suspended_and_resumed_by_its_author(in_cluster: InCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    charge: Callable[..., Any] = BudgetGate.ensure_charged

    def suspended_at_five(gate: BudgetGate, step: int, stop: bool) -> Any:
        if step == 5:
            in_cluster.suspend(True)
        return charge(gate, step, stop)

    monkeypatch.setattr(BudgetGate, "ensure_charged", suspended_at_five)
    assert in_cluster.train() == "Interrupted"
    status = in_cluster.status()
    assert status["outcome"] == "Suspended"
    assert status["charges"][0]["steps"] == 5
    assert status["releases"][-1]["step"] == 5
    in_cluster.suspend(False)
    monkeypatch.setattr(BudgetGate, "ensure_charged", charge)
    assert in_cluster.train() == "Completed"
    status = in_cluster.status()
    assert [(charge["attempt"], charge["steps"]) for charge in status["charges"]] == [(1, 5), (2, 7)]
    assert status["stepsRecharged"] == 0


def test_plan_that_differs_from_the_ledger_is_not_trained(in_cluster: InCluster) -> None:
    in_cluster.job.job_uid = "another"
    assert in_cluster.train() == "ConfigurationChanged"
    assert "status" not in in_cluster.ledger.get()


def test_audit_log_is_beside_the_checkpoints_and_agrees_with_the_object(
    in_cluster: InCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after a charge of the object, before its line: the next attempt adds it."""
    observability = in_cluster.job.job.spec.observability.model_copy(update={"audit_log": "Enabled"})
    in_cluster.job.job = in_cluster.job.job.model_copy(
        update={"spec": in_cluster.job.job.spec.model_copy(update={"observability": observability})}
    )
    charge = KubernetesLedger.charge

    def killed(self: KubernetesLedger, steps: int) -> LedgerState:
        charge(self, steps)
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(KubernetesLedger, "charge", killed)
        with pytest.raises(SystemExit):
            in_cluster.train()
    assert in_cluster.train() == "Completed"
    log = in_cluster.job.directory / "checkpoints" / "audit-tiny-uid.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(entry["event"], entry["steps"]) for entry in entries if "recovered" in entry] == [("Charge", 1)]
    assert {entry["actor"].split("/")[0] for entry in entries} == {"pod"}
    state = decode(in_cluster.ledger.get())
    report = verify_audit_log(str(log), lambda uid: LedgerHistory([state], "tiny"))
    assert report.steps_charged == state.steps_charged == 13
    log.write_text("".join(f"{line}\n" for line in log.read_text().splitlines()[:-1]))
    with pytest.raises(NotVerified, match="is the last one, but the ledger has"):
        verify_audit_log(str(log), lambda uid: LedgerHistory([state], "tiny"))
