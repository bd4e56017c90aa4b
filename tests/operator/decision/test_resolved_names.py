"""A job keeps the image, the version of Ray and the commit of the model with which it started."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensafe_operator.decision import decide
from tensafe_operator.settings import Settings
from tests.support import fake_cluster
from tests.support.fake_cluster import (
    FakeCluster,
    FakeOperator,
    condition,
    running_job,
    start_next_attempt,
    started_job,
)

DIGEST = "sha256:" + "ab" * 32
PULLED = f"hub.example/library/trainer@{DIGEST}"
NEWER = Settings(image="trainer:2", ray_version="2.99.0")


def images_of(ray_job: dict[str, Any]) -> set[str]:
    """The images of all containers, init containers included."""
    spec = ray_job["spec"]["rayClusterSpec"]
    templates = (each["template"]["spec"] for each in (spec["headGroupSpec"], *spec["workerGroupSpecs"]))
    return {each["image"] for pod in templates for each in (*pod["containers"], *pod.get("initContainers", ()))}


def report_images(cluster: FakeCluster, *image_ids: str) -> None:
    """The kubelets report these images of the workers; the head reports that of the first one."""
    (worker,) = (name for name in cluster.pods if name.endswith("worker"))
    body = cluster.pods.pop(worker)
    for number, image_id in enumerate(image_ids):
        container = {"name": "ray-worker", "imageID": image_id}
        status = {**body["status"], "containerStatuses": [container]}
        cluster.pods[f"{number}-{worker}"] = {**body, "status": status}


def test_job_without_an_image_keeps_that_of_the_release_which_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, operator = running_job()
    assert cluster.status["resolved"] == {"image": "trainer:1", "rayVersion": "2.60.0"}
    monkeypatch.setattr(fake_cluster, "SETTINGS", NEWER)
    ray_job = start_next_attempt(cluster, operator)
    assert ray_job["metadata"]["name"] == "claims-triage-a2"
    assert images_of(ray_job) == {"trainer:1"}
    assert ray_job["spec"]["rayClusterSpec"]["rayVersion"] == "2.60.0"


def test_job_that_has_trained_nothing_gets_the_image_that_an_administrator_has_corrected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first image of an installation may be misspelt, and then no later attempt could pull it either."""
    cluster, operator = started_job()
    cluster.start_pods()
    waiting = {"name": "worker", "image": "trainer:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    for pod in cluster.pods.values():
        pod["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    operator.settle()
    assert condition(cluster, "Stalled")["reason"] == "ImagePullFailed"
    monkeypatch.setattr(fake_cluster, "SETTINGS", NEWER)
    for suspended in (True, False):
        cluster.suspend(suspended)
        operator.settle()
        cluster.remove_terminating_pods()
        operator.settle()
    assert images_of(cluster.ray_jobs["claims-triage-a2"]) == {"trainer:2"}
    assert cluster.status["resolved"] == {"image": "trainer:2", "rayVersion": "2.99.0"}


@pytest.mark.parametrize("own", ["registry.example/own:1", None])
def test_job_whose_image_is_gone_says_that_it_needs_another_one(own: str | None) -> None:
    """A registry deletes the digest of a tag that was pushed again. The image with this tag is another one."""
    image = {"image": own, "rayVersion": "2.60.0"} if own else {}
    cluster, operator = running_job(spec__cluster={"workers": 2, **image})
    report_images(cluster, f"registry.example/own@{DIGEST}" if own else PULLED)
    operator.settle()
    start_next_attempt(cluster, operator)
    cluster.start_pods()
    kept = f"{own or 'trainer:1'}@{DIGEST}"
    waiting = {"name": "worker", "image": kept, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    cluster.pods["claims-triage-a2-head"]["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    operator.settle()
    stalled = condition(cluster, "Stalled")
    assert stalled["reason"] == "ImagePullFailed" and kept in stalled["message"]


@pytest.mark.parametrize(
    ("image", "pulled"),
    [
        ("own:latest", f"hub.example/library/own@{DIGEST}"),
        ("team/own", f"docker-pullable://hub.example/team/own@{DIGEST}"),
        ("registry.example:5000/a/own:1", f"registry.example:5000/a/own@{DIGEST}"),
        ("localhost/own:1", f"localhost/own@{DIGEST}"),
    ],
)
def test_moved_tag_does_not_change_the_image_of_a_job_that_has_run(image: str, pulled: str) -> None:
    cluster, operator = running_job(spec__cluster={"workers": 2, "image": image, "rayVersion": "2.60.0"})
    report_images(cluster, pulled, pulled)
    operator.settle()
    assert cluster.status["resolved"]["image"] == f"{image}@{DIGEST}"
    assert images_of(start_next_attempt(cluster, operator)) == {f"{image}@{DIGEST}"}


@pytest.mark.parametrize(
    "image_ids",
    [
        ("",),
        (DIGEST,),
        (f"hub.example/library/import-2026-11-25@{DIGEST}",),
        (f"registry.example/mirror/trainer@{DIGEST}",),
        (PULLED, ""),
        (PULLED, f"hub.example/library/trainer@sha256:{'cd' * 32}"),
    ],
    ids=["not pulled yet", "loaded", "loaded by kind", "another registry", "one of two pulled", "two under one tag"],
)
def test_image_has_no_digest_until_all_workers_agree_on_it(image_ids: tuple[str, ...]) -> None:
    cluster, operator = running_job()
    report_images(cluster, *image_ids)
    operator.settle()
    assert cluster.status["resolved"]["image"] == "trainer:1"


def test_pod_that_does_not_hold_the_ledger_chooses_no_digest() -> None:
    """Any user may give a pod the labels of a worker, before the workers have pulled their image. The digest is in the
    statement of this attempt, and later attempts run it.
    """
    forged = f"hub.example/library/trainer@sha256:{'cd' * 32}"
    cluster, operator = running_job()
    report_images(cluster, "", forged)
    worker, stranger = (pod for name, pod in cluster.pods.items() if name.endswith("worker"))
    stranger["metadata"] = {**stranger["metadata"], "name": "stranger", "uid": "uid-of-a-stranger"}
    worker["status"]["containerStatuses"] = []
    operator.settle()
    assert cluster.status["resolved"]["image"] == "trainer:1"
    worker["status"]["containerStatuses"] = [{"name": "ray-worker", "imageID": PULLED}]
    operator.settle()
    assert cluster.status["resolved"]["image"] == "trainer:1", "they do not agree"
    del cluster.pods[next(name for name, pod in cluster.pods.items() if pod is stranger)]
    operator.settle()
    assert cluster.status["resolved"]["image"] == f"trainer:1@{DIGEST}"


def test_digest_of_an_earlier_attempt_is_not_taken_for_that_of_the_next() -> None:
    cluster, operator = running_job()
    report_images(cluster, PULLED)
    for pod in cluster.pods.values():
        pod["metadata"]["labels"]["tensafe.io/attempt"] = "7"
    operator.settle()
    assert cluster.status["resolved"]["image"] == "trainer:1"


def test_author_may_write_another_image_while_the_job_is_suspended() -> None:
    cluster, operator = running_job()
    report_images(cluster, PULLED)
    operator.settle()
    cluster.suspend(True)
    operator.settle()
    cluster.record_outcome("Suspended")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    cluster.remove_terminating_pods()
    cluster.job["spec"]["cluster"] |= {"image": "fixed:2", "rayVersion": "2.61.0"}
    cluster.suspend(False)
    operator.settle()
    assert images_of(cluster.ray_jobs["claims-triage-a2"]) == {"fixed:2"}
    assert cluster.status["resolved"]["image"] == "fixed:2"
    assert cluster.status["resolved"]["rayVersion"] == "2.61.0"


def test_image_is_recorded_before_its_ray_job_is_created() -> None:
    """An operator that dies in between would start the attempt with another image after its upgrade."""
    cluster = FakeCluster.with_job()
    operator = FakeOperator(cluster)
    for dies_after in range(12):
        try:
            operator.reconcile(dies_after=dies_after)
        except fake_cluster.Killed:
            cluster.take_snapshot()
        if cluster.created:
            assert cluster.status["resolved"]["image"] == "trainer:1"
    assert cluster.created == ["claims-triage-a1"]


def test_later_attempt_loads_the_commit_that_the_first_one_recorded() -> None:
    cluster, operator = running_job()
    assert cluster.ledger is not None
    cluster.ledger["status"] |= {"modelWeights": "commit:1a2b", "chatTemplateDigest": "sha256:t"}
    operator.settle()
    resolved = cluster.status["resolved"]
    assert (resolved["modelCommit"], resolved["chatTemplateDigest"]) == ("1a2b", "sha256:t")
    cluster.end_ray_job("FAILED")
    operator.settle()
    cluster.remove_terminating_pods()
    cluster.now += 400
    decision = None
    while decision is None or not decision.actions:
        decision = decide(cluster.observe(), cluster.now, fake_cluster.SETTINGS)
        cluster.job["status"] = decision.status.model_dump(by_alias=True, mode="json", exclude_none=True)
    written = {each.manifest["kind"]: each.manifest for each in decision.actions}  # type: ignore[union-attr]
    assert json.loads(written["ConfigMap"]["data"]["job.json"])["spec"]["model"]["revision"] == "1a2b"


def test_files_of_a_model_outside_a_hub_have_no_commit() -> None:
    cluster, operator = started_job()
    cluster.start_pods()
    cluster.acquire_ledger()
    assert cluster.ledger is not None
    cluster.ledger["status"]["modelWeights"] = "sha256:1a2b"
    operator.settle()
    assert "modelCommit" not in cluster.status["resolved"]


def test_image_that_is_written_before_a_recorded_attempt_starts_is_the_one_in_the_status() -> None:
    """Otherwise the statement would name the earlier image, with the digest of the later one."""
    cluster, operator = running_job(spec__cluster={"workers": 2, "image": "own:1", "rayVersion": "2.60.0"})
    cluster.end_ray_job("FAILED")
    operator.settle()
    cluster.now += 15
    cluster.remove_terminating_pods()
    operator.reconcile(cluster.observe())
    assert len(cluster.status["attempts"]) == 2 and cluster.created == ["claims-triage-a1"]
    cluster.suspend(True)
    operator.settle()
    cluster.job["spec"]["cluster"]["image"] = "own:2"
    cluster.suspend(False)
    operator.settle()
    assert images_of(cluster.ray_jobs["claims-triage-a2"]) == {"own:2"}
    assert cluster.status["resolved"]["image"] == "own:2"
