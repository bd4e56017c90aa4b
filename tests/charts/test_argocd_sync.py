"""Argo CD on a git repository: it installs the chart, creates jobs, and does not conflict with the operator.

The operator is the real process, with the account and the roles that Argo CD installed. The test takes the place of
KubeRay, the kubelet and the trainer, each with its own rights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_operator import names
from tests.support.argocd import ArgoCD, GitRepository
from tests.support.fakes import blocking, statuses
from tests.support.ledger_objects import Pod, make_pod
from tests.support.manifests import MINIMAL, changed
from tests.support.operator_process import OperatorProcess
from tests.support.polling import wait_until
from tests.support.programs import versions
from tests.support.programs.controlplane import ControlPlane
from tests.support.programs.gotools import module_source
from tests.support.programs.helm import CHART

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SYSTEM, CLINIC = "tensafe-system", "clinic"
KINDS = "tsj,privacyledger,rayjob,configmap,secret,serviceaccount,networkpolicy,rolebinding"
EXAMPLES = Path(__file__).parents[2] / "examples"
OF_TRIAGE = {"TenSafeTrainingJob", "PrivacyLedger", "RayJob", "ConfigMap", "Secret", "NetworkPolicy"}
SERVER_SIDE = {
    "metadata.name": "server-side",
    "spec.source.path": "more",
    "spec.syncPolicy.syncOptions": ["ServerSideApply=true"],
}
IMMUTABLE = "spec.lora cannot change after creation: create a new job with another name"


class Site:
    """A cluster that Argo CD manages from git, with the operator and the fakes around the jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plane = ControlPlane(folder / "plane")
        self.argo = ArgoCD(self.plane, folder / "argocd")
        self.git = GitRepository(folder / "git")
        self._operator: OperatorProcess | None = None

    def start(self) -> None:
        """Start a cluster with RayJobs and Argo CD, but without TenSafe."""
        self.plane.start()
        kuberay = module_source("kuberay", versions.KUBERAY_MODULE) / "config" / "crd" / "bases"
        self.plane.kubectl("apply", "--server-side", "-f", str(kuberay / "ray.io_rayjobs.yaml"))
        self.plane.kubectl("create", "namespace", CLINIC)
        self.argo.start()

    def start_operator(self) -> None:
        """Start the operator as the Deployment would, with the account that the chart created."""
        token = self.plane.kubectl("-n", SYSTEM, "create", "token", "tensafe-operator").stdout.strip()
        kubeconfig = self.plane.kubeconfig_of_token("tensafe-operator", token)
        self._operator = OperatorProcess(self.folder / "operator.log", {"KUBECONFIG": str(kubeconfig)})

    def stop(self) -> None:
        if self._operator is not None:
            self._operator.kill()
        self.argo.stop()
        self.plane.stop()

    def kubectl(self, *arguments: str) -> str:
        return self.plane.kubectl("-n", CLINIC, *arguments).stdout

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        found = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return dict(json.loads(found)) if found else None

    def job(self, name: str) -> dict[str, Any]:
        found = self.get("tsj", name)
        assert found is not None
        return found

    def objects(self) -> set[tuple[str, str, str]]:
        """Return the objects in the namespace, by kind, name and UID."""
        items = json.loads(self.kubectl("get", KINDS, "-o", "json"))["items"]
        return {(item["kind"], item["metadata"]["name"], item["metadata"]["uid"]) for item in items}

    def until(self, happened: Callable[[], object]) -> None:
        """Wait until something has happened."""

        def so() -> object:
            self._keep()
            return happened()

        log = self.folder / "operator.log"
        wait_until(
            so, failure_message=lambda: f"{log.read_text()[-3000:]}\n{self.kubectl('get', KINDS)}\n{self.argo.logs()}"
        )

    def until_application(self, name: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until the status of an Application fulfils a condition, and return it."""

        def so(status: dict[str, Any]) -> object:
            self._keep()
            return holds(status)

        return self.argo.wait_for_status(name, so)

    def _keep(self) -> None:
        if self._operator is not None:
            self._operator.restart_if_lease_lost()

    def suspend(self, name: str, value: bool) -> None:
        """Set `spec.suspend`, as an action of Argo CD or a user with kubectl does."""
        self.kubectl("patch", "tsj", name, "--type=merge", "-p", json.dumps({"spec": {"suspend": value}}))

    def set_ray_job_status(self, ray_job: str, status: Mapping[str, Any]) -> None:
        self.plane.api.patch("RayJob", CLINIC, ray_job, {"status": status}, "status")

    def worker(self, name: str) -> Pod:
        """Create the pod of rank 0 in a job's first attempt."""
        labels = {names.JOB_UID: self.job(name)["metadata"]["uid"], names.ATTEMPT: "1", "ray.io/node-type": "worker"}
        return make_pod(self.plane, CLINIC, "trainer", **labels)

    def charge(self, name: str, pod: Pod, **more: Any) -> None:
        """Charge five steps to a job's ledger, as the trainer does."""
        blocking.charge_through(pod, CLINIC, self.job(name)["status"]["ledgerName"], 5, **more)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    created = Site(tmp_path)
    try:
        created.start()
        yield created
    finally:
        created.stop()


def manifest(name: str, **changes: Any) -> str:
    """Return a job as users write it in git: short, with list items that omit fields with a default."""
    short = {
        "metadata.name": name,
        "spec.training": {"steps": 20, "expectedBatchSize": 250},
        "spec.cluster.tolerations": [{"key": "gpu", "effect": "NoSchedule"}],
        "spec.cluster.volumes": [{"name": "models", "mountPath": "/models", "pvc": "models"}],
    }
    dotted = {path.replace("__", "."): value for path, value in changes.items()}
    return json.dumps(changed(MINIMAL, {**short, **dotted}))


def synced(revision: str) -> Callable[[dict[str, Any]], bool]:
    """Return a condition: the cluster matches git at a revision."""

    def holds(status: dict[str, Any]) -> bool:
        now = status.get("sync") or {}
        return (now.get("status"), now.get("revision")) == ("Synced", revision)

    return holds


def healthy(job: str, word: str, message: str) -> Callable[[dict[str, Any]], bool]:
    """Return a condition: a job of the Application has this health, and a message with this start."""

    def holds(status: dict[str, Any]) -> bool:
        health = next((each.get("health") or {} for each in status["resources"] if each["name"] == job), {})
        return bool(health.get("status") == word and health.get("message", "").startswith(message))

    return holds


def last_sync(status: dict[str, Any]) -> str:
    """Return when the Application was last synced. With selfHeal, each drift causes another sync."""
    assert status["sync"]["status"] == "Synced"
    return str(status["operationState"]["startedAt"])


def test_jobs_in_git_from_first_commit_to_removal(site: Site) -> None:
    argo, git = site.argo, site.git
    for path in (CHART, CHART.parents[1] / "crds"):  # the chart has links to the CRDs
        shutil.copytree(path, git.folder / path.relative_to(CHART.parents[1]), symlinks=True)
    jobs = {f"jobs/{name}.json": manifest(name) for name in ("triage", "second")}
    revision = git.commit({**jobs, "more/third.json": manifest("third")})
    chart, clinic = yaml.safe_load_all((EXAMPLES / "argocd" / "application.yaml").read_text())

    # Argo CD installs the chart: CRDs, policies, roles and the operator's account.
    argo.create(chart, git)
    site.until_application("tensafe", synced(revision))
    site.plane.wait_for_crds()
    site.start_operator()

    # Jobs are applied on the client and on the server side. The operator causes no drift, and nothing is pruned.
    argo.create(clinic, git)
    argo.create(changed(clinic, SERVER_SIDE), git)
    site.until_application("server-side", synced(revision))
    site.until_application("clinic-jobs", synced(revision))
    site.until(lambda: site.get("rayjob", "third-a1") and site.get("rayjob", "triage-a1"))
    site.until_application("server-side", healthy("third", "Progressing", "Starting: "))
    at = {name: last_sync(argo.refresh(name)) for name in ("tensafe", "clinic-jobs", "server-side")}
    pod = site.worker("triage")
    site.set_ray_job_status("triage-a1", statuses.running("triage-a1-x"))
    site.charge("triage", pod)
    site.until_application("clinic-jobs", healthy("triage", "Progressing", "Training: The job trains."))
    before = {each for each in site.objects() if not each[1].startswith("second")}
    assert {kind for kind, name, _ in before if name.startswith("triage")} == OF_TRIAGE
    site.suspend("second", True)  # the manifest in git has no such field, so the value of the action stays
    assert {name: last_sync(argo.refresh(name)) for name in at} == at
    assert before <= site.objects()
    assert site.job("second")["spec"]["suspend"] is True

    # A commit suspends the job, and another one resumes it.
    revision = git.commit({"jobs/triage.json": manifest("triage", spec__suspend=True)})
    site.until_application("clinic-jobs", synced(revision))
    site.until_application("clinic-jobs", healthy("triage", "Progressing", "Suspending: "))
    site.charge("triage", pod, outcome="Suspended")
    site.set_ray_job_status("triage-a1", statuses.finished("SUCCEEDED"))
    site.until_application("clinic-jobs", healthy("triage", "Suspended", "Suspended: "))
    site.kubectl("delete", "pod", pod.name, "--force")
    revision = git.commit({"jobs/triage.json": manifest("triage", spec__suspend=False)})
    site.until_application("clinic-jobs", synced(revision))
    site.until(lambda: site.get("rayjob", "triage-a2"))
    site.suspend("triage", True)  # the manifest in git has the field now, so its value is restored
    site.until(lambda: site.job("triage")["spec"]["suspend"] is False)

    # A forbidden change is rejected with the message of its rule, and an unknown field is reported. One commit fixes
    # both.
    wrong = {"jobs/triage.json": manifest("triage", spec__lora={"rank": 32})}
    revision = git.commit({**wrong, "jobs/misspelt.json": manifest("misspelt", spec__cluster__wokers=3)})
    failed = site.until_application("clinic-jobs", lambda status: status["operationState"]["phase"] == "Failed")
    refused = failed["operationState"]
    assert refused["syncResult"]["revision"] == revision
    assert IMMUTABLE in refused["message"]
    assert site.job("triage")["spec"]["lora"]["rank"] == 16
    site.until_application(
        "clinic-jobs", healthy("misspelt", "Degraded", "UnknownField: spec.cluster.wokers: unknown field")
    )
    fixed = {"jobs/triage.json": manifest("triage", spec__suspend=False), "jobs/misspelt.json": None}
    site.until_application("clinic-jobs", synced(git.commit(fixed)))

    # A job that is removed from git is deleted with its children. Its ledger is kept.
    spent = site.job("triage")["status"]["ledgerName"]
    site.until_application("clinic-jobs", synced(git.commit({"jobs/triage.json": None})))
    site.until(lambda: {kind for kind, name, _ in site.objects() if name.startswith("triage")} == {"PrivacyLedger"})
    ledger = site.get("privacyledger", spent)
    assert ledger is not None and ledger["status"]["charges"][0]["steps"] == 5

    # Applications are deleted with their objects: jobs and operator are deleted, ledgers and their CRD are kept.
    argo.delete("clinic-jobs")
    argo.delete("tensafe")
    assert site.get("tsj", "second") is None
    assert site.get("privacyledger", spent) is not None
    assert site.job("third"), "its Application still exists"
