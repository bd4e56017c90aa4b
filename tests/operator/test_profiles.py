"""Profiles on a real API server, with the rights of the chart's roles, and the two manifests of the how-to page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_api.resources.ledger import LEDGER_KIND
from tests.support.fakes import statuses
from tests.support.job_harness import JobHarness
from tests.support.polling import wait_until
from tests.support.programs.controlplane import ControlPlane
from tests.support.roles import install_roles

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs/how-to/profiles.md"
PROFILE, MANIFEST = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[:2]


@pytest.fixture(autouse=True)
def no_profile(control_plane: ControlPlane) -> Iterator[None]:
    """Profiles have no namespace, so the next test would find this one's."""
    yield
    control_plane.kubectl("delete", "tsprofile", "--all")


def apply_profile(plane: ControlPlane, **changes: Any) -> None:
    """Apply the profile of the page with other fields in its spec."""
    profile = yaml.safe_load(PROFILE)
    profile["spec"] |= changes
    plane.kubectl("apply", "-f", "-", text=json.dumps(profile))


def apply_job(cluster: JobHarness) -> None:
    """Apply the job of the page."""
    job = yaml.safe_load(MANIFEST)
    assert job["metadata"]["name"] == cluster.name
    cluster.plane.kubectl("-n", cluster.namespace, "apply", "-f", "-", text=MANIFEST)


def worker_pod(ray_job: dict[str, Any] | None) -> dict[str, Any]:
    assert ray_job is not None
    (group,) = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    pod: dict[str, Any] = group["template"]["spec"]
    return pod


def test_manifest_of_the_page_has_nine_lines() -> None:
    assert len(MANIFEST.strip().splitlines()) == 9


def test_job_of_nine_lines_starts_with_the_image_the_queue_and_the_nodes_of_its_profile(cluster: JobHarness) -> None:
    apply_profile(cluster.plane)
    apply_job(cluster)
    cluster.reconcile()
    ray_job, spec = cluster.get("RayJob", "claims-triage-a1"), yaml.safe_load(PROFILE)["spec"]
    pod = worker_pod(ray_job)
    assert ray_job is not None
    assert ray_job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == spec["queueName"]
    assert ray_job["spec"]["rayClusterSpec"]["rayVersion"] == spec["rayVersion"]
    assert pod["containers"][0]["image"] == spec["image"]
    assert pod["nodeSelector"] == spec["nodeSelector"]
    assert pod["tolerations"] == spec["tolerations"]
    assert {"secretRef": {"name": spec["storage"]["secretName"]}} in pod["containers"][0]["envFrom"]
    assert cluster.status()["resolved"]["image"] == spec["image"]
    shown = cluster.plane.kubectl("get", "tsprofile").stdout.split("\n")
    assert shown[0].split() == ["NAME", "IMAGE", "QUEUE", "AGE"]
    assert shown[1].split()[:3] == ["gpu-a", spec["image"], spec["queueName"]]


def test_job_waits_until_its_profile_is_created(cluster: JobHarness) -> None:
    apply_job(cluster)
    wake = cluster.reconcile()
    stalled = cluster.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "ProfileMissing")
    assert cluster.status()["blocker"]["object"] == "TenSafeClusterProfile gpu-a"
    assert cluster.status()["phase"] == "Pending" and wake is not None and wake <= cluster.now + 10
    assert cluster.get("RayJob", "claims-triage-a1") is None
    apply_profile(cluster.plane)
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a1")
    assert cluster.condition("Stalled")["status"] == "False"


def test_operator_without_the_right_to_read_profiles_says_so(cluster: JobHarness) -> None:
    """Such as after an upgrade of the operator without its roles."""
    binding = "tensafe-operator-tensafe-system-profiles"
    cluster.plane.kubectl("delete", "clusterrolebinding", binding)
    try:
        apply_profile(cluster.plane)
        apply_job(cluster)
        cluster.reconcile()
        stalled = cluster.condition("Stalled")
        assert stalled["reason"] == "ProfileMissing" and "may not read it" in stalled["message"]
    finally:
        install_roles(cluster.plane)

    def started() -> bool:
        cluster.reconcile()
        return cluster.get("RayJob", "claims-triage-a1") is not None

    wait_until(started)  # a new binding takes effect after a moment


def test_profile_that_makes_the_job_invalid_stalls_it_until_it_is_corrected(cluster: JobHarness) -> None:
    apply_profile(cluster.plane, head={"tolerations": [{"value": "x"}]})  # this part has no schema
    apply_job(cluster)
    cluster.reconcile()
    stalled = cluster.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "ProfileInvalid")
    assert "gpu-a" in stalled["message"] and "tolerations must have a key" in stalled["message"]
    apply_profile(cluster.plane)
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a1")


def test_edited_profile_reaches_the_next_attempt(cluster: JobHarness) -> None:
    apply_profile(cluster.plane)
    apply_job(cluster)
    cluster.reconcile()
    apply_profile(cluster.plane, image="registry.example/trainer:2", nodeSelector={"pool": "b"})
    cluster.reconcile()
    cluster.set_ray_job_status(statuses.finished("FAILED"))
    cluster.reconcile()
    cluster.now += 400
    cluster.reconcile()
    first, second = (worker_pod(cluster.get("RayJob", f"claims-triage-a{number}")) for number in (1, 2))
    assert second["nodeSelector"] == {"pool": "b"} != first["nodeSelector"]
    assert second["containers"][0]["image"] == "registry.example/trainer:2", "nothing was trained with the first one"


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        ({"image": "site:1"}, "cluster.rayVersion is required with cluster.image"),
        ({"workers": 7}, 'unknown field "spec.workers"'),
        ({"worker": {"gpus": 8}}, 'unknown field "spec.worker"'),
        ({"serviceAccountName": "other"}, 'unknown field "spec.serviceAccountName"'),
        ({"head": {"cpus": "4"}}, 'unknown field "spec.head.cpus"'),
        ({"podLabels": {"ray.io/x": "y"}}, "cluster.podLabels must not have"),
        ({"rayJobLabels": {"x": "y"}}, "cluster.rayJobLabels may have"),
    ],
)
def test_api_server_refuses_a_profile_that_breaks_a_rule(
    control_plane: ControlPlane, kubeconfig: Path, spec: dict[str, Any], refused: str
) -> None:
    profile = {**yaml.safe_load(PROFILE), "spec": spec}
    done = control_plane.kubectl("apply", "--validate=strict", "-f", "-", text=json.dumps(profile), check=False)
    assert done.returncode == 1 and refused in done.stderr


def test_api_server_fills_nothing_into_a_profile(control_plane: ControlPlane, kubeconfig: Path) -> None:
    """A default would look like a value that the administrator gives."""
    profile = {**yaml.safe_load(PROFILE), "spec": {"volumes": [{"name": "c", "mountPath": "/c", "emptyDir": "1Gi"}]}}
    control_plane.kubectl("apply", "-f", "-", text=json.dumps(profile))
    stored = json.loads(control_plane.kubectl("get", "tsprofile", "gpu-a", "-o", "json").stdout)
    assert stored["spec"] == profile["spec"]


def test_data_scientists_may_read_profiles_and_only_administrators_write_them(cluster: JobHarness) -> None:
    def may(verb: str, resource: str = "tensafeclusterprofiles.tensafe.io") -> bool:
        done = cluster.plane.kubectl("auth", "can-i", verb, resource, "--as=ada", check=False)
        return done.stdout.strip() == "yes"

    role = "tensafe-operator-tensafe-system-profiles-view"
    cluster.plane.kubectl("create", "clusterrolebinding", "ada", f"--clusterrole={role}", "--user=ada")
    try:
        wait_until(lambda: may("get"))
        assert may("list") and not may("create") and not may("update") and not may("delete")
        assert not may("list", f"{LEDGER_KIND.lower()}s.tensafe.io")
    finally:
        cluster.plane.kubectl("delete", "clusterrolebinding", "ada")
