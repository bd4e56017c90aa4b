"""Everything that can be pulled out from under a job, on a real API server: nothing is lost, nothing is made twice."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any, ClassVar

import pytest

from e2e.platform.fakes import statuses
from e2e.platform.fixtures.job_harness import FINAL, JobHarness
from e2e.platform.fixtures.polling import wait_until
from tensafe_operator.children import Manifest
from tensafe_operator.runtime.api_client import ApiClient, ApiError, ApiUnavailable

pytestmark = pytest.mark.cluster

LIFE = 24
"""So many writes bring a job to its first RayJob, at most."""


class Killed(BaseException):
    """The operator died here."""


class Mortal(ApiClient):
    """Dies after so many writes: the last one is done, and nobody hears the answer."""

    left: ClassVar[int]

    async def _request(self, method: str, *rest: Any, **named: Any) -> Manifest:
        answer = await super()._request(method, *rest, **named)
        if method != "GET":
            type(self).left -= 1
            if not self.left:
                raise Killed
        return answer


class Moody(ApiClient):
    """Answers every third request with what a busy API server says: before the deed, or after it."""

    dice: ClassVar[random.Random]

    async def _request(self, method: str, *rest: Any, **named: Any) -> Manifest:
        mood = self.dice.random()
        if mood < 0.1:
            raise ApiUnavailable("429 Too Many Requests")
        if mood < 0.2 and method != "GET":
            raise ApiError(409, "the object has been modified; please apply your changes to the latest version")
        answer = await super()._request(method, *rest, **named)
        if mood > 0.85:
            raise ApiUnavailable("500 Internal Server Error, after all was done")
        return answer


def made(cluster: JobHarness) -> dict[str, list[str]]:
    """What there is of a job, but for the UIDs in names."""
    kinds = ("RayJob", "PrivacyLedger", "ConfigMap", "Secret", "NetworkPolicy", "RoleBinding")
    text = cluster.plane.kubectl("-n", cluster.namespace, "get", ",".join(kinds), "-o", "json").stdout
    found: dict[str, list[str]] = {kind.lower(): [] for kind in kinds}
    for each in json.loads(text)["items"]:
        if each["metadata"]["name"].startswith(cluster.name):
            found[each["kind"].lower()].append(each["metadata"]["name"])
    return found


def assert_begun_once(cluster: JobHarness) -> None:
    status, there = cluster.status(), made(cluster)
    ledger = status["ledgerName"]
    assert there == {
        "rayjob": ["claims-triage-a1"],
        "privacyledger": [ledger],
        "configmap": ["claims-triage-a1"],
        "secret": there["secret"],  # one whose ledger was not made any more is nobody's
        "networkpolicy": ["claims-triage"],
        "rolebinding": ["claims-triage-trainer"],
    }
    assert cluster.ledger()["spec"]["keySecretName"] in there["secret"]
    assert [each["number"] for each in status["attempts"]] == [1]
    assert status["ledgerUID"] == (cluster.get("privacyledger", ledger) or {})["metadata"]["uid"]
    assert status["phase"] == "Starting"


def test_an_operator_that_dies_after_any_write_leaves_nothing_half_done(cluster: JobHarness) -> None:
    writes = 0
    for writes in range(1, LIFE + 1):
        cluster.apply()
        Mortal.left = writes
        try:
            cluster.reconcile(api=Mortal)
        except* Killed:
            pass
        survived = Mortal.left > 0
        cluster.reconcile()
        assert_begun_once(cluster)
        uid = cluster.status()["ledgerUID"]
        cluster.plane.kubectl("-n", cluster.namespace, "delete", "tsj", cluster.name)
        # A garbage collector that has just begun hears of new kinds each half a minute.
        wait_until(lambda: not any(names for kind, names in made(cluster).items() if kind != "privacyledger"))
        forget(cluster, uid)
        if survived:
            break
    assert 8 < writes < LIFE, "every write of a beginning was the last one once"


@pytest.mark.parametrize("seed", range(2))
def test_an_api_server_in_a_bad_mood_delays_a_job_and_no_more(cluster: JobHarness, seed: int) -> None:
    cluster.apply()
    Moody.dice = random.Random(seed)
    tries = 0
    while cluster.get("rayjob", "claims-triage-a1") is None:
        tries += 1
        assert tries < 60
        with contextlib.suppress(ApiUnavailable, ApiError):  # the queue would try again
            cluster.reconcile(passes=1, api=Moody, patient=False)
    cluster.reconcile()
    assert_begun_once(cluster)


def test_a_ray_job_that_somebody_deletes_is_the_next_attempt_once_its_pods_are_gone(cluster: JobHarness) -> None:
    pod = trained(cluster)
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "rayjob", "claims-triage-a1")
    cluster.reconcile()
    cluster.now += 60
    cluster.reconcile()
    assert cluster.status()["attempts"][0]["reason"] == "WorkerLost"
    assert cluster.get("rayjob", "claims-triage-a2") is None, "a pod of the first attempt could still charge"
    delete_pod(cluster, pod.name)
    cluster.reconcile()
    assert cluster.get("rayjob", "claims-triage-a2") is not None
    assert cluster.status()["privacy"]["stepsCharged"] == 5


def test_a_ray_job_whose_labels_somebody_takes_away_is_still_the_attempt(cluster: JobHarness) -> None:
    trained(cluster)
    strip = json.dumps({"metadata": {"labels": None}})
    patch = ("-n", cluster.namespace, "patch", "rayjob", "claims-triage-a1", "--type=merge", "-p")
    cluster.plane.kubectl(*patch, strip)
    cluster.now += 60
    cluster.reconcile()
    assert [each.get("endTime") for each in cluster.status()["attempts"]] == [None]
    assert cluster.status()["phase"] == "Running"
    cluster.set_ray_job_status(statuses.finished("FAILED", "exit code 10"))
    cluster.reconcile()
    assert "endTime" in cluster.status()["attempts"][0]


def test_a_ray_job_with_our_labels_that_we_did_not_make_is_nobodys_attempt(cluster: JobHarness) -> None:
    pod = trained(cluster)
    copied = cluster.get("rayjob", "claims-triage-a1")
    assert copied is not None
    copied = {**copied, "metadata": {"labels": copied["metadata"]["labels"], "namespace": cluster.namespace}}
    copied["metadata"]["name"] = "claims-triage-a2"
    cluster.plane.kubectl("create", "-f", "-", text=json.dumps(copied))
    cluster.reconcile()
    assert cluster.status()["phase"] == "Running"
    cluster.set_ray_job_status({"jobStatus": "FAILED", "jobDeploymentStatus": "Failed"})
    cluster.reconcile()
    delete_pod(cluster, pod.name)
    cluster.now += 60
    cluster.reconcile()
    assert cluster.condition("Stalled")["reason"] == "NameTaken"
    assert "claims-triage-a2" in cluster.condition("Stalled")["message"]


def test_a_job_applied_again_waits_for_the_ray_job_that_a_finalizer_holds(cluster: JobHarness) -> None:
    cluster.apply()
    cluster.reconcile()
    held = json.dumps({"metadata": {"finalizers": ["ray.io/rayjob-finalizer"]}})
    patch = ("-n", cluster.namespace, "patch", "rayjob", "claims-triage-a1", "--type=merge", "-p")
    cluster.plane.kubectl(*patch, held)
    old = (cluster.get("rayjob", "claims-triage-a1") or {})["metadata"]["uid"]
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "tsj", cluster.name)
    wait_until(lambda: "deletionTimestamp" in (cluster.get("rayjob", "claims-triage-a1") or {})["metadata"])

    cluster.apply()
    cluster.reconcile()
    stalled = cluster.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "NameTaken")
    assert "claims-triage-a1" in stalled["message"]
    cluster.plane.kubectl(*patch, json.dumps({"metadata": {"finalizers": None}}))
    wait_until(lambda: cluster.get("rayjob", "claims-triage-a1") is None)
    cluster.reconcile()
    assert (cluster.get("rayjob", "claims-triage-a1") or {})["metadata"]["uid"] != old
    assert cluster.condition("Stalled")["status"] == "False"


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
def test_a_ledger_that_was_taken_away_by_force_ends_the_job(cluster: JobHarness, again: bool) -> None:
    trained(cluster)
    ledger = cluster.get("privacyledger", cluster.status()["ledgerName"])
    assert ledger is not None
    forget(cluster, ledger["metadata"]["uid"])
    if again:
        bare = {key: ledger["metadata"][key] for key in ("name", "namespace", "labels")}
        anew = {**ledger, "metadata": bare}
        anew.pop("status")
        cluster.plane.kubectl("create", "-f", "-", text=json.dumps(anew))
    cluster.reconcile()
    status = cluster.status()
    assert (status["phase"], cluster.condition("Failed")["reason"]) == ("Failed", "LedgerLost")
    assert status["privacy"]["stepsCharged"] == 5, "what was known to be spent stays"
    assert cluster.get("rayjob", "claims-triage-a1") is None
    cluster.now += 4000
    cluster.reconcile()
    assert cluster.get("rayjob", "claims-triage-a2") is None


@pytest.mark.parametrize("phase", ["Pending", "Suspended", "Starting", "Running", "Succeeded", "Failed"])
def test_a_job_may_be_deleted_in_each_phase_and_its_ledger_stays(cluster: JobHarness, phase: str) -> None:
    bring_to(cluster, phase)
    ledger = cluster.status().get("ledgerName")
    before = cluster.get("privacyledger", ledger) if ledger else None
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "tsj", cluster.name)
    cluster.reconcile()
    wait_until(lambda: not any(names for kind, names in made(cluster).items() if kind != "privacyledger"))
    assert made(cluster)["privacyledger"] == ([ledger] if before else [])
    if before:
        assert cluster.get("privacyledger", ledger) == before
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
            trained(cluster)
        case "Succeeded":
            pod = trained(cluster)
            cluster.charge(pod, 20, outcome="Completed", releases=[FINAL])
            cluster.set_ray_job_status(statuses.finished("SUCCEEDED"))
            delete_pod(cluster, pod.name)
            cluster.reconcile()
        case "Failed":
            trained(cluster)
            ended = "Job entrypoint command failed with exit code 76"
            cluster.set_ray_job_status(statuses.finished("FAILED", ended))
            cluster.reconcile()
    assert cluster.status()["phase"] == phase


def trained(cluster: JobHarness) -> Any:
    """A job that has charged five steps; its worker's pod."""
    cluster.apply()
    cluster.reconcile()
    cluster.set_ray_job_status(statuses.running("claims-triage-a1-x"))
    pod = cluster.create_worker_pod()
    cluster.charge(pod, 5)
    cluster.reconcile()
    assert cluster.status()["phase"] == "Running"
    return pod


def delete_pod(cluster: JobHarness, name: str) -> None:
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "pod", name, "--force", "--grace-period=0")


def forget(cluster: JobHarness, uid: str) -> None:
    """Delete the ledger of this UID, as its administrator may when its data are gone for good."""
    ledgers = json.loads(cluster.plane.kubectl("-n", cluster.namespace, "get", "pledger", "-o", "json").stdout)["items"]
    name = next(each["metadata"]["name"] for each in ledgers if each["metadata"]["uid"] == uid)
    where = ("-n", cluster.namespace)
    cluster.plane.kubectl(*where, "annotate", "pledger", name, f"tensafe.io/forget={uid}")
    cluster.plane.kubectl(*where, "delete", "pledger", name)
