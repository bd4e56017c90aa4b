"""The diagnosis of a job, on statuses as the operator writes them. No cluster is needed."""

from __future__ import annotations

from typing import Any

import pytest

from tensafe_api.fixes import Fix
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import Attempt
from tensafe_kubectl.diagnosis import PATIENCE_SECONDS, Seen, diagnose
from tensafe_kubectl.hints import find_hint
from tensafe_kubectl.screen import row_as_json
from tests.support.plugin_team import status_of

NOW = 1_800_000_000.0
CREATED = "2027-01-15T08:00:00Z"  # NOW


def job_with(status: dict[str, Any] | None) -> dict[str, Any]:
    metadata = {"name": "triage", "namespace": "clinic", "uid": "1", "generation": 1, "creationTimestamp": CREATED}
    return {"metadata": metadata, "spec": {}, **({"status": status} if status else {})}


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.QUEUED, Phase.STARTING, Phase.RUNNING])
def test_every_reason_is_explained_with_its_own_words(reason: Reason, phase: Phase) -> None:
    stalled = phase in (Phase.QUEUED, Phase.STARTING)
    found = diagnose(Seen(job_with(status_of(phase, reason, stalled=stalled))), NOW)
    assert found.reason == reason
    assert reason.sentence in found.what
    assert found.fix == reason.fix
    assert found.by_operator


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.fix])
def test_fix_in_a_message_is_not_shown_twice(reason: Reason) -> None:
    status = status_of(Phase.STARTING, reason, "something is wrong", stalled=True, blocked="pod x")
    found = diagnose(Seen(job_with(status)), NOW)
    assert found.what == f"{reason.sentence} pod x: something is wrong"
    assert found.fix == reason.fix


def test_fix_of_a_cause_takes_the_place_of_the_reasons_own() -> None:
    blocked = {"stalled": True, "blocked": "pod x", "fix": Fix.SCHEDULER}
    job = job_with(status_of(Phase.STARTING, Reason.UNSCHEDULABLE, "something is wrong", **blocked))
    found = diagnose(Seen(job), NOW)
    assert "pod x: something is wrong" in found.what and Fix.SCHEDULER.text not in found.what
    assert found.fix == row_as_json(job)["fix"] == Fix.SCHEDULER.text


def test_fix_of_a_newer_operator_is_shown_with_its_message() -> None:
    blocked = {"stalled": True, "blocked": "pod x", "fix": Fix.SCHEDULER}
    status = status_of(Phase.STARTING, Reason.UNSCHEDULABLE, "something is wrong", **blocked)
    status["blocker"]["fix"] = "InventedLater"
    found = diagnose(Seen(job_with(status)), NOW)
    assert Fix.SCHEDULER.text in found.what and not found.fix


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        (Reason.IMAGE_PULL_FAILED, "none:1: ErrImageNeverPull", "Load the image"),
        (Reason.SECRET_MISSING, 'secret "triage-11111111-key-1f2e" not found', "cannot be restored"),
        (Reason.SECRET_MISSING, 'secret "triage-a1-tls-0a1b2c3d" not found', "the next attempt gets a new one"),
        (Reason.QUOTA_EXCEEDED, "exceeded quota: q, requested: secrets=1, used: secrets=2", "deletes objects"),
        (Reason.QUOTA_EXCEEDED, "exceeded quota: q, requested: pods=1, used: pods=2", Reason.QUOTA_EXCEEDED.fix),
        (Reason.FORBIDDEN, 'error looking up service account clinic/a: serviceaccount "a" not found', "Create this"),
        (Reason.FORBIDDEN, "maximum cpu usage per Container is 1, but limit is 2", "LimitRange"),
        (Reason.FORBIDDEN, 'no PriorityClass with name "high" was found', "Create this class"),
        (Reason.FORBIDDEN, "Certificate a-ca: 404 page not found", "cert-manager"),
        (Reason.CRASH_LOOP, "pod x: container certificate ended with exit code 1 (Error)", "jobs.tls.issuerRef"),
        (Reason.UNSCHEDULABLE, 'persistentvolumeclaim "data" not found', "Create this PersistentVolumeClaim"),
        (Reason.UNSCHEDULABLE, "3 node(s) had untolerated taint {gpu: true}", "tolerations"),
        (Reason.UNSCHEDULABLE, "0/3 nodes: 3 Insufficient nvidia.com/gpu", Reason.UNSCHEDULABLE.fix),
    ],
)
def test_frequent_cause_has_a_hint_of_its_own(reason: Reason, message: str, words: str) -> None:
    job = job_with(status_of(Phase.STARTING, reason, message, stalled=True, blocked="RayCluster x"))
    assert words in diagnose(Seen(job), NOW).fix


def test_search_for_a_hint_in_a_long_message_takes_a_moment() -> None:
    for words in ("maximum ", 'serviceaccount "', "ConfigMap ", "a1-"):
        for reason in Reason:
            assert find_hint(reason, words * 1000) is not None


def test_reason_that_stalls_no_job_yet_is_the_operators() -> None:
    """The operator gives an autoscaler ten minutes, but has found the reason at once."""
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
    pod = {"metadata": {"name": "x", "uid": "2"}, "status": {"phase": "Pending", "conditions": [no_room]}}
    job = job_with(status_of(Phase.STARTING, Reason.UNSCHEDULABLE, "0/3 nodes: no GPU", blocked="pod x"))
    found = diagnose(Seen(job, pods=[pod]), NOW)
    assert (found.reason, found.by_operator) == (Reason.UNSCHEDULABLE, True)
    assert found.what == f"{Reason.UNSCHEDULABLE.sentence} pod x: 0/3 nodes: no GPU"
    assert found.fix == Reason.UNSCHEDULABLE.fix


def test_event_of_the_job_that_reports_an_earlier_problem_is_not_repeated() -> None:
    """The API server keeps it for an hour, and the operator has written since that nothing blocks the job."""
    about = {"kind": "TenSafeTrainingJob", "name": "triage", "uid": "1"}
    event = {"involvedObject": about, "reason": "Forbidden", "message": "not allowed"}
    found = diagnose(Seen(job_with(status_of(Phase.STARTING, Reason.RETRYING)), warnings=[event]), NOW)
    assert (found.reason, found.by_operator) == (Reason.RETRYING, True)


def test_change_of_the_spec_that_no_operator_sees_is_explained() -> None:
    """The namespace was taken from the operator's list: the status stays as it was, and looks well."""
    job = job_with({**status_of(Phase.RUNNING, Reason.TRAINING), "observedGeneration": 1})
    job["metadata"] |= {"generation": 2, "managedFields": [{"time": CREATED}, {"subresource": "status"}]}
    assert diagnose(Seen(job), NOW + PATIENCE_SECONDS).reason == Reason.TRAINING, "the operator may see it in time"
    found = diagnose(Seen(job), NOW + PATIENCE_SECONDS + 1)
    assert (found.reason, found.what) == ("NotSeen", "No operator has seen that the spec has changed.")
    assert "the chart's value `namespaces`" in found.fix and not found.by_operator


def ended_ray_job(status: str, owner: str) -> dict[str, Any]:
    """The RayJob of attempt 1 of the job `triage` with this UID."""
    owners = [{"kind": "TenSafeTrainingJob", "name": "triage", "uid": owner, "controller": True}]
    metadata = {"name": "triage-a1", "ownerReferences": owners}
    return {"metadata": metadata, "status": {"jobStatus": status, "endTime": CREATED}}


@pytest.mark.parametrize("is_open", [True, False])
def test_end_of_a_ray_job_that_no_operator_sees_is_explained(is_open: bool) -> None:
    attempt: dict[str, Any] = {"number": 1, "rayJobName": "triage-a1", **({} if is_open else {"endTime": CREATED})}
    job = job_with({**status_of(Phase.RUNNING, Reason.TRAINING), "observedGeneration": 1, "attempts": [attempt]})
    ray_job = ended_ray_job("SUCCEEDED", owner=job["metadata"]["uid"])
    assert diagnose(Seen(job, ray_job=ray_job), NOW + PATIENCE_SECONDS).reason == Reason.TRAINING
    found = diagnose(Seen(job, ray_job=ray_job), NOW + PATIENCE_SECONDS + 1)
    assert found.reason == ("NotSeen" if is_open else Reason.TRAINING)
    assert (found.what == "No operator has seen that RayJob triage-a1 has ended.") == is_open


def test_end_of_a_ray_job_of_an_earlier_job_is_not_what_the_operator_misses() -> None:
    """The job waits until the RayJob is gone, and the operator has written so."""
    text = f"RayJob triage-a1: it does not belong to this job, or is being deleted: {Reason.NAME_TAKEN.fix}"
    status = status_of(Phase.STARTING, Reason.NAME_TAKEN, text, stalled=True)
    job = job_with({**status, "observedGeneration": 1, "attempts": [{"number": 1, "rayJobName": "triage-a1"}]})
    ray_job = ended_ray_job("FAILED", owner="another")
    assert diagnose(Seen(job, ray_job=ray_job), NOW + 600).reason == Reason.NAME_TAKEN


def test_warning_of_an_ended_attempt_is_evidence_alone() -> None:
    ended = Attempt(number=1, ray_job_name="triage-a1", ray_cluster_name="triage-a1-x", end_time=CREATED)
    job = job_with(status_of(Phase.STARTING, Reason.RETRYING, attempts=(ended,)))
    about = {"kind": "RayCluster", "name": "triage-a1-x"}
    event = {"involvedObject": about, "reason": "FailedToCreateHeadPod", "message": "not allowed", "metadata": {}}
    found = diagnose(Seen(job, warnings=[event]), NOW)
    assert (found.reason, found.by_operator) == (Reason.RETRYING, True)
    assert "Event FailedToCreateHeadPod of RayCluster triage-a1-x: not allowed" in found.evidence


@pytest.mark.parametrize(("seconds", "named"), [(PATIENCE_SECONDS - 1, False), (PATIENCE_SECONDS, True)])
def test_queue_that_kueue_does_not_serve_is_named_after_some_time(seconds: float, named: bool) -> None:
    ray_job = {"metadata": {"name": "triage-a1", "creationTimestamp": CREATED}}
    job = job_with(status_of(Phase.QUEUED, Reason.QUEUED))
    found = diagnose(Seen(job, ray_job=ray_job, no_workload=True), NOW + seconds)
    assert ("Kueue has no Workload for RayJob triage-a1." in found.what) == named
    assert ("ray.io/rayjob" in found.fix) == named


@pytest.mark.parametrize(("labels", "named"), [({}, True), ({"kueue.x-k8s.io/queue-name": "clinic"}, False)])
def test_ray_job_that_someone_has_suspended_is_not_said_to_be_in_a_queue(labels: dict[str, str], named: bool) -> None:
    metadata = {"name": "triage-a1", "creationTimestamp": CREATED, "labels": labels}
    job = job_with(status_of(Phase.QUEUED, Reason.QUEUED))
    seen = Seen(job, ray_job={"metadata": metadata, "spec": {"suspend": True}}, no_workload=True)
    found = diagnose(seen, NOW + PATIENCE_SECONDS)
    assert ("someone has suspended it" in found.what) == named
    assert ("queueName" in found.fix) == (not named)
    of_kueue = Seen(job, ray_job=seen.ray_job, workload={"metadata": {"name": "rayjob-1"}})
    assert "Wait, or free room in the queue" in diagnose(of_kueue, NOW + PATIENCE_SECONDS).fix


@pytest.mark.parametrize(("reason", "named"), [("Inadmissible", True), ("Pending", False)])
def test_queue_that_admits_nothing_is_not_said_to_be_full(reason: str, named: bool) -> None:
    """Kueue says so of a queue that does not exist, or is stopped."""
    refused = {"type": "QuotaReserved", "status": "False", "reason": reason, "message": "LocalQueue x doesn't exist"}
    workload = {"metadata": {"name": "rayjob-1"}, "status": {"conditions": [refused]}}
    ray_job = {"metadata": {"name": "triage-a1", "labels": {"kueue.x-k8s.io/queue-name": "x"}}}
    found = diagnose(Seen(job_with(status_of(Phase.QUEUED, Reason.QUEUED)), ray_job=ray_job, workload=workload), NOW)
    assert ("Kueue cannot admit it, whatever room there is." in found.what) == named
    assert ("Create or start the queue that Kueue names" in found.fix) == named
    assert ("Wait, or free room" in found.fix) != named


@pytest.mark.parametrize("active", [True, False, None])
def test_workload_that_is_deactivated_is_named(active: bool | None) -> None:
    """Kueue deactivates one that was evicted too often. It stays so, however much room the queue has."""
    evicted = {"type": "Evicted", "status": "True", "reason": "DeactivatedDueToRequeuingLimitExceeded", "message": "m"}
    workload: dict[str, Any] = {"metadata": {"name": "rayjob-1"}, "status": {"conditions": [evicted]}}
    workload["spec"] = {} if active is None else {"active": active}
    metadata = {"name": "triage-a1", "creationTimestamp": CREATED, "labels": {"kueue.x-k8s.io/queue-name": "clinic"}}
    ray_job = {"metadata": metadata, "spec": {"suspend": True}}
    found = diagnose(Seen(job_with(status_of(Phase.QUEUED, Reason.QUEUED)), ray_job=ray_job, workload=workload), NOW)
    is_named = active is False
    assert ("Workload rayjob-1 is deactivated" in found.what) == is_named
    assert ("set spec.active of Workload rayjob-1 to true. Or suspend the job" in found.fix) == is_named
    assert ("Wait, or free room" in found.fix) != is_named
    assert found.evidence == ["Workload rayjob-1, Evicted=True: DeactivatedDueToRequeuingLimitExceeded: m"]


def test_job_that_no_operator_has_seen_is_an_error_only_after_some_time() -> None:
    assert diagnose(Seen(job_with(None)), NOW + PATIENCE_SECONDS - 1).fix == "Wait."
    late = diagnose(Seen(job_with(None)), NOW + PATIENCE_SECONDS + 1)
    assert late.what == "No operator has seen this job." and "tensafe-system" in late.fix and not late.by_operator


def test_suspended_job_is_resumed_by_a_command() -> None:
    found = diagnose(Seen(job_with(status_of(Phase.SUSPENDED, Reason.SUSPENDED))), NOW)
    assert found.fix == "Set spec.suspend to false to continue. `kubectl tensafe resume triage -n clinic` does this."


def test_unknown_reason_keeps_the_operators_message() -> None:
    status = status_of(Phase.RUNNING, Reason.TRAINING)
    for condition in status["conditions"]:
        condition.update(reason="InventedLater", message="Something new.")
    found = diagnose(Seen(job_with(status)), NOW)
    assert (found.reason, found.what) == ("InventedLater", "Something new.")


def test_running_job_without_a_step_for_long_is_noticed() -> None:
    status = status_of(Phase.RUNNING, Reason.TRAINING)
    status["progress"] = {"step": 3, "totalSteps": 20, "lastUpdateTime": CREATED}
    assert diagnose(Seen(job_with(status)), NOW + 60).evidence == []
    assert diagnose(Seen(job_with(status)), NOW + 3600).evidence == ["The last step was done 60 minutes ago."]


def test_pods_that_an_open_attempt_has_lost_are_named() -> None:
    """KubeRay deletes such a pod, so it is in no list of pods."""
    lost = {"pod": "triage-a1-worker", "reason": "OOMKilled", "exitCode": 137}
    status = {**status_of(Phase.STARTING, Reason.STARTING), "attempts": [{"number": 1, "failedPods": [lost]}]}
    (evidence,) = diagnose(Seen(job_with(status)), NOW).evidence
    assert all(words in evidence for words in ("Attempt 1", "triage-a1-worker", "OOMKilled", "137"))


def test_running_job_whose_first_steps_are_not_over_says_so() -> None:
    status = status_of(Phase.RUNNING, Reason.TRAINING)
    assert diagnose(Seen(job_with(status)), NOW).evidence == ["The first steps are charged, and not over yet."]


def test_message_of_a_ray_job_is_not_repeated() -> None:
    """It holds the last lines of the driver's log, which may quote records."""
    job = job_with(status_of(Phase.FAILED, Reason.WORKER_LOST))
    ray_job = ended_ray_job("FAILED", owner=job["metadata"]["uid"])
    ray_job["status"] |= {"jobDeploymentStatus": "Failed", "reason": "AppFailed", "message": "Ms Jones"}
    assert diagnose(Seen(job, ray_job=ray_job), NOW).evidence == ["RayJob triage-a1: Failed, FAILED, AppFailed"]
    ray_job["metadata"]["ownerReferences"][0]["uid"] = "an earlier job of the same name"
    assert diagnose(Seen(job, ray_job=ray_job), NOW).evidence == []


def test_sentence_of_a_reason_is_not_repeated() -> None:
    sentence = Reason.GUARD_MISSING.sentence
    status = status_of(Phase.PENDING, Reason.GUARD_MISSING, sentence, stalled=True, blocked="")
    assert diagnose(Seen(job_with(status)), NOW).what.count(sentence.rstrip(".")) == 1


def refused(time: str) -> dict[str, Any]:
    """The Event of an operator that cannot write the status."""
    about = {"kind": "TenSafeTrainingJob", "name": "triage", "uid": "1"}
    message = f"The status of this job cannot be written: no: {Reason.FORBIDDEN.fix}"
    metadata = {"creationTimestamp": time}
    return {"metadata": metadata, "involvedObject": about, "reason": "Forbidden", "message": message}


def test_status_that_the_operator_cannot_write_is_explained_by_its_event() -> None:
    earlier, written, later = "2027-01-15T08:09:59Z", "2027-01-15T08:10:00Z", "2027-01-15T08:10:01Z"
    new = diagnose(Seen(job_with(None), warnings=[refused(CREATED)]), NOW)
    assert new.reason == "Forbidden" and new.by_operator
    assert new.what == f"The status of this job cannot be written: no: {Reason.FORBIDDEN.fix}"
    job = job_with({**status_of(Phase.RUNNING, Reason.TRAINING), "observedGeneration": 1})
    job["metadata"] |= {
        "generation": 2,
        "managedFields": [{"time": CREATED}, {"subresource": "status", "time": written}],
    }
    for time, reason in ((later, "Forbidden"), (written, "Forbidden"), (earlier, "NotSeen")):
        assert diagnose(Seen(job, warnings=[refused(time)]), NOW + 700).reason == reason


def test_refused_status_of_a_training_job_is_explained_until_one_is_written() -> None:
    """Its figures are old, and look well."""
    job, (written, later) = (
        job_with(status_of(Phase.RUNNING, Reason.TRAINING)),
        ("2027-01-15T08:10:00Z", "2027-01-15T08:10:01Z"),
    )
    job["metadata"]["managedFields"] = [{"subresource": "status", "time": written}]
    found = diagnose(Seen(job, warnings=[refused(later)]), NOW + 700)
    assert found.what.endswith(" What the status shows, ε too, may be older than the ledger.")
    for warning in (refused(CREATED), {**refused(later), "message": "A pod is forbidden."}):
        assert diagnose(Seen(job, warnings=[warning]), NOW + 700).reason == Reason.TRAINING
    ended = job_with(status_of(Phase.SUCCEEDED, Reason.COMPLETED))
    assert diagnose(Seen(ended, warnings=[refused(later)]), NOW + 700).reason == Reason.COMPLETED


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.SUSPENDED, Phase.SUCCEEDED])
def test_job_that_is_being_deleted_names_the_finalizers_that_keep_it(phase: Phase) -> None:
    """Its status does not change any more, and no fix of its reason helps."""
    job = job_with(status_of(phase, Reason.TRAINING))
    job["metadata"] |= {"deletionTimestamp": CREATED, "finalizers": ["example.com/keep", "foregroundDeletion"]}
    found = diagnose(Seen(job), NOW)
    assert found.what.startswith(f"The job is being deleted since {CREATED}.")
    assert "until its finalizers are removed: example.com/keep, foregroundDeletion." in found.what
    assert (found.reason, found.by_operator) == ("Deleting", False) and "Its ledger stays." in found.fix


def test_pod_of_a_dead_node_is_named() -> None:
    disrupted = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByTaintManager",
        "message": "no answer",
    }
    metadata = {"name": "triage-a1-head", "deletionTimestamp": CREATED}
    pod = {"metadata": metadata, "status": {"phase": "Running", "conditions": [disrupted]}}
    found = diagnose(Seen(job_with(status_of(Phase.STARTING, Reason.TRAINING)), pods=[pod]), NOW)
    assert found.evidence == [
        f"Pod triage-a1-head is being deleted, by {CREATED}",
        "Pod triage-a1-head is ended by the cluster: DeletionByTaintManager: no answer",
    ]
