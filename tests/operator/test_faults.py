"""Faults on a real API server: whatever is killed, refused or deleted, nothing is lost and nothing is created twice."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from typing import Any, ClassVar

import pytest

from tensafe_operator import names
from tensafe_operator.children import Manifest
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable
from tests.support.fakes import statuses
from tests.support.job_harness import FINAL, JobHarness
from tests.support.polling import wait_until

pytestmark = pytest.mark.cluster

MAX_WRITES = 24
"""Upper bound of the writes that take a job to its first RayJob."""


class Killed(BaseException):
    """The operator was killed here."""


class KillingClient(ApiClient):
    """Kills the operator after a number of writes. The last write reaches the API server, and its answer is lost."""

    writes_left: ClassVar[int]

    async def _request(self, method: str, *rest: Any, **named: Any) -> Manifest:
        answer = await super()._request(method, *rest, **named)
        if method != "GET":
            type(self).writes_left -= 1
            if not self.writes_left:
                raise Killed
        return answer


class FailingClient(ApiClient):
    """Fails about a sixth of the requests as a busy API server does, before or after the request has taken effect.

    Which ones depends on the seed and on the requests of the same kind before, and not on the order of concurrent ones.
    """

    seed: ClassVar[int]
    counts: ClassVar[Counter[tuple[str, str]]]

    async def _request(self, method: str, *rest: Any, **named: Any) -> Manifest:
        resource = str(rest[0]).partition("?")[0].partition("/namespaces/")[2].split("/")[1:2]
        kind = method, "".join(resource)
        self.counts[kind] += 1
        draw = random.Random(f"{self.seed} {kind} {self.counts[kind]}").random()
        if draw < 0.05:
            raise ApiUnavailable("429 Too Many Requests")
        if draw < 0.1 and method != "GET":
            raise ApiError(409, "the object has been modified; please apply your changes to the latest version")
        answer = await super()._request(method, *rest, **named)
        if draw > 0.92:
            raise ApiUnavailable("500 Internal Server Error, although the request took effect")
        return answer


def objects_of(cluster: JobHarness) -> dict[str, list[str]]:
    """The names of the job's objects, by kind."""
    kinds = ("RayJob", "PrivacyLedger", "ConfigMap", "Secret", "NetworkPolicy")
    text = cluster.plane.kubectl("-n", cluster.namespace, "get", ",".join(kinds), "-o", "json").stdout
    found: dict[str, list[str]] = {kind.lower(): [] for kind in kinds}
    for each in json.loads(text)["items"]:
        if each["metadata"]["name"].startswith(cluster.name):
            found[each["kind"].lower()].append(each["metadata"]["name"])
    return found


def job_volume(cluster: JobHarness) -> str:
    """The name of the ConfigMap that the pods of the first attempt mount."""
    ray_job = cluster.get("RayJob", "claims-triage-a1") or {}
    volumes = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    return str(next(each["configMap"]["name"] for each in volumes if each["name"] == "job"))


def assert_started_once(cluster: JobHarness) -> None:
    status, found = cluster.status(), objects_of(cluster)
    ledger = status["ledgerName"]
    assert found == {
        "rayjob": ["claims-triage-a1"],
        "privacyledger": [ledger],
        "configmap": [job_volume(cluster)],
        "secret": found["secret"],  # also those of killed operators that created no ledger for them
        "networkpolicy": ["claims-triage"],
    }
    assert cluster.ledger()["spec"]["keySecretName"] in found["secret"]
    ray_job = cluster.get("RayJob", "claims-triage-a1") or {}
    assert ray_job["metadata"]["annotations"][names.TLS_SECRET] in found["secret"]
    assert [each["number"] for each in status["attempts"]] == [1]
    assert status["ledgerUID"] == (cluster.get("PrivacyLedger", ledger) or {})["metadata"]["uid"]
    assert status["phase"] == "Starting"


def test_job_starts_once_although_the_operator_is_killed_after_any_write(cluster: JobHarness) -> None:
    writes = 0
    for writes in range(1, MAX_WRITES + 1):
        cluster.apply()
        KillingClient.writes_left = writes
        try:
            cluster.reconcile(api=KillingClient)
        except* Killed:
            pass
        survived = KillingClient.writes_left > 0
        cluster.reconcile()
        assert_started_once(cluster)
        uid = cluster.status()["ledgerUID"]
        cluster.plane.kubectl("-n", cluster.namespace, "delete", "tsj", cluster.name)
        # A garbage collector that has just started discovers new kinds every half minute.
        wait_until(lambda: not any(left for kind, left in objects_of(cluster).items() if kind != "privacyledger"))
        forget(cluster, uid)
        if survived:
            break
    assert 8 < writes < MAX_WRITES, "the operator was killed after every write of a start"


@pytest.mark.parametrize("seed", range(4))
def test_failing_requests_only_delay_a_job(cluster: JobHarness, seed: int) -> None:
    cluster.apply()
    FailingClient.seed, FailingClient.counts = seed, Counter()
    tries = 0
    while cluster.get("RayJob", "claims-triage-a1") is None:
        tries += 1
        assert tries < 60
        with contextlib.suppress(ApiUnavailable, ApiError):  # the work queue would retry
            cluster.reconcile(passes=1, api=FailingClient, patient=False)
    cluster.reconcile()
    assert_started_once(cluster)


def test_deleted_ray_job_is_followed_by_the_next_attempt_once_its_pods_are_deleted(cluster: JobHarness) -> None:
    pod = cluster.start_training()
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "rayjob", "claims-triage-a1")
    cluster.reconcile()
    cluster.now += 60
    cluster.reconcile()
    assert cluster.status()["attempts"][0]["reason"] == "WorkerLost"
    assert cluster.get("RayJob", "claims-triage-a2") is None, "a pod of the first attempt could still charge"
    delete_pod(cluster, pod.name)
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a2") is not None
    assert cluster.status()["privacy"]["stepsCharged"] == 5


def test_ray_job_without_its_labels_is_still_the_attempt(cluster: JobHarness) -> None:
    cluster.start_training()
    no_labels = json.dumps({"metadata": {"labels": None}})
    patch = ("-n", cluster.namespace, "patch", "rayjob", "claims-triage-a1", "--type=merge", "-p")
    cluster.plane.kubectl(*patch, no_labels)
    cluster.now += 60
    cluster.reconcile()
    assert [each.get("endTime") for each in cluster.status()["attempts"]] == [None]
    assert cluster.status()["phase"] == "Running"
    cluster.set_ray_job_status(statuses.finished("FAILED", "exit code 10"))
    cluster.reconcile()
    assert "endTime" in cluster.status()["attempts"][0]


def test_job_applied_again_waits_for_the_ray_job_that_a_finalizer_holds(cluster: JobHarness) -> None:
    cluster.apply()
    cluster.reconcile()
    held = json.dumps({"metadata": {"finalizers": ["ray.io/rayjob-finalizer"]}})
    patch = ("-n", cluster.namespace, "patch", "rayjob", "claims-triage-a1", "--type=merge", "-p")
    cluster.plane.kubectl(*patch, held)
    old = (cluster.get("RayJob", "claims-triage-a1") or {})["metadata"]["uid"]
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "tsj", cluster.name)
    wait_until(lambda: "deletionTimestamp" in (cluster.get("RayJob", "claims-triage-a1") or {})["metadata"])

    cluster.apply()
    cluster.reconcile()
    stalled = cluster.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "NameTaken")
    assert "claims-triage-a1" in stalled["message"]
    cluster.plane.kubectl(*patch, json.dumps({"metadata": {"finalizers": None}}))
    wait_until(lambda: cluster.get("RayJob", "claims-triage-a1") is None)
    cluster.reconcile()
    assert (cluster.get("RayJob", "claims-triage-a1") or {})["metadata"]["uid"] != old
    assert cluster.condition("Stalled")["status"] == "False"


OPENED = {"spec": {"egress": [{}], "ingress": [{}]}}
NO_LABELS = {"metadata": {"labels": None}}


@pytest.mark.parametrize("patch", [None, OPENED, NO_LABELS], ids=["deleted", "opened", "without labels"])
def test_network_policy_is_brought_back_while_the_job_trains(cluster: JobHarness, patch: dict[str, Any] | None) -> None:
    assert_brought_back(cluster, "NetworkPolicy", "claims-triage", patch)


def assert_brought_back(cluster: JobHarness, kind: str, name: str, patch: dict[str, Any] | None) -> None:
    cluster.start_training()
    before, status, where = cluster.get(kind, name), cluster.status(), ("-n", cluster.namespace)
    if patch is None:
        cluster.plane.kubectl(*where, "delete", kind, name)
    else:
        cluster.plane.kubectl(*where, "patch", kind, name, "--type=merge", "-p", json.dumps(patch))
    cluster.reconcile(passes=1)
    after = cluster.get(kind, name)
    assert before is not None and after is not None
    for field in ("spec", "subjects", "roleRef"):
        assert after.get(field) == before.get(field)
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert cluster.status() == status
    cluster.reconcile(passes=1)
    assert cluster.get(kind, name) == after, "what is as it should be is not written again"


@pytest.mark.parametrize("recreated", [False, True], ids=["deleted", "recreated"])
def test_ledger_deleted_by_force_ends_the_job(cluster: JobHarness, recreated: bool) -> None:
    cluster.start_training()
    ledger = cluster.get("PrivacyLedger", cluster.status()["ledgerName"])
    assert ledger is not None
    forget(cluster, ledger["metadata"]["uid"])
    if recreated:
        metadata = {key: ledger["metadata"][key] for key in ("name", "namespace", "labels")}
        copy = {**ledger, "metadata": metadata}
        copy.pop("status")
        cluster.plane.kubectl("create", "-f", "-", text=json.dumps(copy))
    cluster.reconcile()
    status = cluster.status()
    assert (status["phase"], cluster.condition("Failed")["reason"]) == ("Failed", "LedgerLost")
    assert status["privacy"]["stepsCharged"] == 5, "the known charges stay"
    assert cluster.get("RayJob", "claims-triage-a1") is None
    cluster.now += 4000
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a2") is None


@pytest.mark.parametrize("phase", ["Pending", "Suspended", "Starting", "Running", "Succeeded", "Failed"])
def test_job_can_be_deleted_in_each_phase_and_its_ledger_stays(cluster: JobHarness, phase: str) -> None:
    bring_to(cluster, phase)
    ledger = cluster.status().get("ledgerName")
    before = cluster.get("PrivacyLedger", ledger) if ledger else None
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "tsj", cluster.name)
    cluster.reconcile()
    wait_until(lambda: not any(left for kind, left in objects_of(cluster).items() if kind != "privacyledger"))
    assert objects_of(cluster)["privacyledger"] == ([ledger] if before else [])
    if before:
        assert cluster.get("PrivacyLedger", ledger) == before
    cluster.apply()
    cluster.reconcile()
    assert cluster.status()["ledgerName"] != ledger
    assert cluster.status()["privacy"]["stepsCharged"] == 0


def bring_to(cluster: JobHarness, phase: str) -> None:
    match phase:
        case "Pending":
            cluster.apply(spec__privacy__noiseMultiplier="0.3")
            cluster.reconcile()
        case "Suspended":
            cluster.apply(spec__suspend=True)
            cluster.reconcile()
        case "Starting":
            cluster.apply()
            cluster.reconcile()
        case "Running":
            cluster.start_training()
        case "Succeeded":
            pod = cluster.start_training()
            cluster.charge(pod, 20, outcome="Completed", releases=[FINAL])
            cluster.set_ray_job_status(statuses.finished("SUCCEEDED"))
            delete_pod(cluster, pod.name)
            cluster.reconcile()
        case "Failed":
            cluster.start_training()
            ended = "Job entrypoint command failed with exit code 76"
            cluster.set_ray_job_status(statuses.finished("FAILED", ended))
            cluster.reconcile()
    assert cluster.status()["phase"] == phase


def delete_pod(cluster: JobHarness, name: str) -> None:
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "pod", name, "--force", "--grace-period=0")


def forget(cluster: JobHarness, uid: str) -> None:
    """Delete the ledger of this UID as an administrator may: the annotation names the UID."""
    ledgers = json.loads(cluster.plane.kubectl("-n", cluster.namespace, "get", "pledger", "-o", "json").stdout)["items"]
    name = next(each["metadata"]["name"] for each in ledgers if each["metadata"]["uid"] == uid)
    where = ("-n", cluster.namespace)
    cluster.plane.kubectl(*where, "annotate", "pledger", name, f"tensafe.io/forget={uid}")
    cluster.plane.kubectl(*where, "delete", "pledger", name)
