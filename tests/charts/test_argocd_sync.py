"""Argo CD itself, on a git repository: it installs the chart, makes jobs, and stays out of the operator's way.

The operator is the real process, with the account and the roles that Argo CD installed. KubeRay, the kubelet and the
trainer are played by the test, each with its own rights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.platform import versions
from e2e.platform.controlplane import ControlPlane
from e2e.platform.fakes import blocking, statuses
from e2e.platform.fixtures.argocd import ArgoCD, Repository
from e2e.platform.fixtures.ledger_objects import Pod, make_pod
from e2e.platform.fixtures.manifests import MINIMAL, changed
from e2e.platform.fixtures.operator_process import OperatorProcess
from e2e.platform.fixtures.polling import wait_until
from e2e.platform.gotools import module_source
from e2e.platform.helm import CHART
from tensafe_operator import names

pytestmark = pytest.mark.cluster

SYSTEM, CLINIC = "tensafe-system", "clinic"
KINDS = "tsj,privacyledger,rayjob,configmap,secret,serviceaccount,networkpolicy,rolebinding"
EXAMPLES = Path(__file__).parents[2] / "examples"
OF_TRIAGE = {"TenSafeTrainingJob", "PrivacyLedger", "RayJob", "ConfigMap", "Secret", "NetworkPolicy", "RoleBinding"}
SERVER_SIDE = {
    "metadata.name": "server-side",
    "spec.source.path": "more",
    "spec.syncPolicy.syncOptions": ["ServerSideApply=true"],
}
IMMUTABLE = "spec.lora cannot change after creation: create a new job with another name"


class Site:
    """A cluster that is run from git, and everybody who has to do with the jobs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plane = ControlPlane(folder / "plane")
        self.argo = ArgoCD(self.plane, folder / "argocd")
        self.git = Repository(folder / "git")
        self._operator: OperatorProcess | None = None

    def start(self) -> None:
        """A cluster with RayJobs and Argo CD, and nothing of ours."""
        self.plane.start()
        kuberay = module_source("kuberay", versions.KUBERAY_MODULE) / "config" / "crd" / "bases"
        self.plane.kubectl("apply", "--server-side", "-f", str(kuberay / "ray.io_rayjobs.yaml"))
        self.plane.kubectl("create", "namespace", CLINIC)
        self.argo.start()

    def start_operator(self) -> None:
        """What the Deployment would do, with the account that the chart made."""
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
        """What there is in the namespace, by kind, name and UID."""
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

    def until_argo_tells(self, name: str, told: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The status of an Application once it tells something."""

        def so(status: dict[str, Any]) -> object:
            self._keep()
            return told(status)

        return self.argo.until(name, so)

    def _keep(self) -> None:
        if self._operator is not None:
            self._operator.restart_if_lease_lost()

    def suspend(self, name: str, value: bool) -> None:
        """What Argo CD's actions do, and a person with kubectl."""
        self.kubectl("patch", "tsj", name, "--type=merge", "-p", json.dumps({"spec": {"suspend": value}}))

    def set_ray_job_status(self, ray_job: str, status: Mapping[str, Any]) -> None:
        blocking.write_ray_job_status(self.plane.admin, CLINIC, ray_job, status)

    def worker(self, name: str) -> Pod:
        """The pod of rank 0 in a job's first attempt."""
        labels = {names.JOB_UID: self.job(name)["metadata"]["uid"], names.ATTEMPT: "1", "ray.io/node-type": "worker"}
        return make_pod(self.plane, CLINIC, "trainer", **labels)

    def charge(self, name: str, pod: Pod, **more: Any) -> None:
        """Write a job's ledger as the trainer does: five steps are charged."""
        blocking.charge_through(pod, CLINIC, self.job(name)["status"]["ledgerName"], 5, **more)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def manifest(name: str, **changes: Any) -> str:
    """A job as people write it into git: short, with lists whose items leave out what has a default."""
    short = {
        "metadata.name": name,
        "spec.training": {"steps": 20, "expectedBatchSize": 250},
        "spec.cluster.tolerations": [{"key": "gpu", "effect": "NoSchedule"}],
        "spec.cluster.volumes": [{"name": "models", "mountPath": "/models", "pvc": "models"}],
    }
    dotted = {path.replace("__", "."): value for path, value in changes.items()}
    return json.dumps(changed(MINIMAL, {**short, **dotted}))


def synced(revision: str) -> Callable[[dict[str, Any]], bool]:
    """Whether the cluster is what git says at a revision."""

    def told(status: dict[str, Any]) -> bool:
        now = status.get("sync") or {}
        return (now.get("status"), now.get("revision")) == ("Synced", revision)

    return told


def healthy(job: str, word: str, message: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a job of the Application is in this health, with a message that begins so."""

    def told(status: dict[str, Any]) -> bool:
        health = next((each.get("health") or {} for each in status["resources"] if each["name"] == job), {})
        return bool(health.get("status") == word and health.get("message", "").startswith(message))

    return told


def last_sync(status: dict[str, Any]) -> str:
    """When the Application was last synced: with selfHeal, each drift is another sync."""
    assert status["sync"]["status"] == "Synced"
    return str(status["operationState"]["startedAt"])


def test_jobs_in_git_from_their_first_commit_to_their_removal(site: Site) -> None:
    argo, git = site.argo, site.git
    shutil.copytree(CHART, git.folder / "charts" / "tensafe")
    jobs = {f"jobs/{name}.json": manifest(name) for name in ("triage", "second")}
    revision = git.commit({**jobs, "more/third.json": manifest("third")})
    chart, clinic = yaml.safe_load_all((EXAMPLES / "argocd" / "application.yaml").read_text())

    # The chart: CRDs, policies, roles and the operator's account.
    argo.create(chart, git)
    site.until_argo_tells("tensafe", synced(revision))
    site.plane.wait_for_crds()
    site.start_operator()

    # Jobs, however they are applied. While the operator works there is no drift to heal, and nothing is pruned.
    argo.create(clinic, git)
    argo.create(changed(clinic, SERVER_SIDE), git)
    site.until_argo_tells("server-side", synced(revision))
    site.until_argo_tells("clinic-jobs", synced(revision))
    site.until(lambda: site.get("rayjob", "third-a1") and site.get("rayjob", "triage-a1"))
    site.until_argo_tells("server-side", healthy("third", "Progressing", "Starting: "))
    at = {name: last_sync(argo.refresh(name)) for name in ("tensafe", "clinic-jobs", "server-side")}
    pod = site.worker("triage")
    site.set_ray_job_status("triage-a1", statuses.running("triage-a1-x"))
    site.charge("triage", pod)
    site.until_argo_tells("clinic-jobs", healthy("triage", "Progressing", "Training: The job trains."))
    made = {each for each in site.objects() if not each[1].startswith("second")}
    assert {kind for kind, name, _ in made if name.startswith("triage")} == OF_TRIAGE
    site.suspend("second", True)  # git does not name it, so it stays as the action set it
    assert {name: last_sync(argo.refresh(name)) for name in at} == at
    assert made <= site.objects()
    assert site.job("second")["spec"]["suspend"] is True

    # A commit suspends the job, and another one lets it go on.
    revision = git.commit({"jobs/triage.json": manifest("triage", spec__suspend=True)})
    site.until_argo_tells("clinic-jobs", synced(revision))
    site.until_argo_tells("clinic-jobs", healthy("triage", "Progressing", "Suspending: "))
    site.charge("triage", pod, outcome="Suspended")
    site.set_ray_job_status("triage-a1", statuses.finished("SUCCEEDED"))
    site.until_argo_tells("clinic-jobs", healthy("triage", "Suspended", "Suspended: "))
    site.kubectl("delete", "pod", pod.name, "--force")
    revision = git.commit({"jobs/triage.json": manifest("triage", spec__suspend=False)})
    site.until_argo_tells("clinic-jobs", synced(revision))
    site.until(lambda: site.get("rayjob", "triage-a2"))
    site.suspend("triage", True)  # git names it now, so it is put back
    site.until(lambda: site.job("triage")["spec"]["suspend"] is False)

    # What cannot change is refused with our sentence, and what nobody knows is told; git is mended, and all is well.
    wrong = {"jobs/triage.json": manifest("triage", spec__lora={"rank": 32})}
    revision = git.commit({**wrong, "jobs/misspelt.json": manifest("misspelt", spec__cluster__wokers=3)})
    failed = site.until_argo_tells("clinic-jobs", lambda status: status["operationState"]["phase"] == "Failed")
    refused = failed["operationState"]
    assert refused["syncResult"]["revision"] == revision
    assert IMMUTABLE in refused["message"]
    assert site.job("triage")["spec"]["lora"]["rank"] == 16
    site.until_argo_tells(
        "clinic-jobs", healthy("misspelt", "Degraded", "UnknownField: spec.cluster.wokers: unknown field")
    )
    mended = {"jobs/triage.json": manifest("triage", spec__suspend=False), "jobs/misspelt.json": None}
    site.until_argo_tells("clinic-jobs", synced(git.commit(mended)))

    # A job that is no longer in git is deleted with its children; its ledger, and what was spent, stay.
    spent = site.job("triage")["status"]["ledgerName"]
    site.until_argo_tells("clinic-jobs", synced(git.commit({"jobs/triage.json": None})))
    site.until(lambda: {kind for kind, name, _ in site.objects() if name.startswith("triage")} == {"PrivacyLedger"})
    ledger = site.get("privacyledger", spent)
    assert ledger is not None and ledger["status"]["charges"][0]["steps"] == 5

    # Applications that are deleted with all they made: jobs and operator go, ledgers and their CRD stay.
    argo.delete("clinic-jobs")
    argo.delete("tensafe")
    assert site.get("tsj", "second") is None
    assert site.get("privacyledger", spent) is not None
    assert site.job("third"), "its Application is still there"
