"""A job takes from its profile what it leaves out, and waits for a profile that is missing or makes it invalid."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensafe_api.manifest.text import dump_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resources.base import fields_of
from tensafe_api.resources.cluster import Cluster, ClusterSize
from tensafe_api.resources.pods import PodSettings
from tensafe_api.resources.profile import ProfileSpec
from tensafe_api.resources.training import Storage
from tensafe_operator.decision import decide
from tensafe_operator.decision.admission import Admitted, Rejected, admit
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.observation import Create
from tensafe_operator.decision.profile import LISTS, MAPS, merge, take_profile
from tests.support.fake_cluster import SETTINGS, FakeCluster, FakeOperator, condition, start_next_attempt

IMAGE = {"image": "site:1", "rayVersion": "2.60.0"}
TEAM = {"key": "gpu", "operator": "Exists"}
LAB = {"key": "lab", "operator": "Exists"}


def profile(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "gpu-a"}, "spec": spec}


def take(spec: dict[str, Any], **changes: Any) -> Admitted | Blocker:
    """Return a job that names the profile with this spec, with the values of the profile."""
    job = FakeCluster.with_job(spec__cluster__profileRef="gpu-a", **changes).job
    admitted = admit(job, None, lambda figure: figure.compute())
    assert isinstance(admitted, Admitted), admitted
    return take_profile(admitted, profile(**spec))


def given_fields(admitted: Admitted | Blocker) -> dict[str, Any]:
    """Return the spec of the job without the fields that have their default."""
    assert isinstance(admitted, Admitted), admitted
    spec: dict[str, Any] = json.loads(dump_manifest(admitted.job, "json", defaults=False))["spec"]
    return spec


def cluster_of(spec: dict[str, Any], **changes: Any) -> dict[str, Any]:
    cluster: dict[str, Any] = given_fields(take(spec, **changes))["cluster"]
    return cluster


def test_profile_fills_in_what_the_job_leaves_out() -> None:
    spec = {
        **IMAGE,
        "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "registry"}],
        "queueName": "team",
        "priorityClassName": "low",
        "runtimeClassName": "gvisor",
        "schedulerName": "volcano",
        "nodeSelector": {"pool": "a"},
        "tolerations": [TEAM],
        "affinity": {"podAntiAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "rayJobLabels": {"volcano.sh/queue-name": "q"},
        "podLabels": {"team": "ml"},
        "podAnnotations": {"example.com/cost": "7"},
        "securityContext": {"fsGroup": 2000},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "envFrom": [{"configMapRef": {"name": "site"}}],
        "volumes": [{"name": "cache", "mountPath": "/cache", "emptyDir": "1Gi"}],
        "head": {"nodeSelector": {"pool": "cpu"}, "tolerations": [LAB], "affinity": {"nodeAffinity": {}}},
    }
    assert spec.keys() == fields_of(PodSettings).keys(), "the test has every field"
    own = {"workers": 2, "serviceAccountName": "trainer", "profileRef": "gpu-a"}
    assert cluster_of(spec) == {**own, **spec}


@pytest.mark.parametrize(
    ("mine", "taken", "expected"),
    [
        ({"queueName": "mine"}, {"queueName": "team"}, {"queueName": "mine"}),
        ({"imagePullPolicy": "Never"}, {"imagePullPolicy": "Always"}, {"imagePullPolicy": "Never"}),
        ({"image": "mine:1", "rayVersion": "2.55.0"}, IMAGE, {"image": "mine:1", "rayVersion": "2.55.0"}),
        ({"rayVersion": "2.55.0"}, IMAGE, {"rayVersion": "2.55.0"}),
        (
            {"nodeSelector": {"pool": "b", "disk": "ssd"}},
            {"nodeSelector": {"pool": "a", "zone": "x"}},
            {"nodeSelector": {"pool": "b", "disk": "ssd", "zone": "x"}},
        ),
        (
            {"securityContext": {"runAsUser": 7}},
            {"securityContext": {"runAsUser": 8, "fsGroup": 9}},
            {"securityContext": {"runAsUser": 7, "fsGroup": 9}},
        ),
        ({"tolerations": [LAB, TEAM]}, {"tolerations": [TEAM]}, {"tolerations": [LAB, TEAM]}),
        ({"tolerations": [LAB]}, {"tolerations": [TEAM]}, {"tolerations": [TEAM, LAB]}),
        (
            {"env": [{"name": "A", "value": "mine"}]},
            {"env": [{"name": "A", "value": "site"}, {"name": "B", "value": "site"}]},
            {"env": [{"name": "B", "value": "site"}, {"name": "A", "value": "mine"}]},
        ),
        (
            {"envFrom": [{"secretRef": {"name": "mine"}}]},
            {"envFrom": [{"secretRef": {"name": "site"}}]},
            {"envFrom": [{"secretRef": {"name": "site"}}, {"secretRef": {"name": "mine"}}]},
        ),
        (
            {"volumes": [{"name": "mine", "mountPath": "/cache", "pvc": "mine"}]},
            {"volumes": [{"name": "cache", "mountPath": "/cache", "emptyDir": "1Gi"}]},
            {"volumes": [{"name": "mine", "mountPath": "/cache", "pvc": "mine"}]},
        ),
        (
            {"topologySpreadConstraints": [{"maxSkew": 2}], "affinity": {"podAffinity": {}}},
            {"topologySpreadConstraints": [{"maxSkew": 1}], "affinity": {"nodeAffinity": {}}},
            {"topologySpreadConstraints": [{"maxSkew": 2}], "affinity": {"podAffinity": {}}},
        ),
        (
            {"head": {"cpus": "4", "nodeSelector": {"pool": "b"}}},
            {"head": {"nodeSelector": {"pool": "a", "zone": "x"}, "tolerations": [TEAM]}},
            {"head": {"cpus": "4", "nodeSelector": {"pool": "b", "zone": "x"}, "tolerations": [TEAM]}},
        ),
    ],
    ids=lambda value: "+".join(value),
)
def test_value_of_the_job_takes_precedence(
    mine: dict[str, Any], taken: dict[str, Any], expected: dict[str, Any]
) -> None:
    changes = {f"spec__cluster__{name}": value for name, value in mine.items()}
    found = cluster_of(taken, **changes)
    assert {name: found.get(name) for name in {*mine, *taken}} == {name: expected.get(name) for name in {*mine, *taken}}


def test_explicit_default_is_not_distinguished_from_an_absent_field() -> None:
    """The API server fills it in."""
    taken = {"imagePullPolicy": "Always"}
    assert cluster_of(taken, spec__cluster__imagePullPolicy="IfNotPresent")["imagePullPolicy"] == "Always"


def test_storage_is_taken_field_by_field() -> None:
    taken = {"storage": {"endpoint": "https://s3.example", "region": "eu-1", "secretName": "keys"}}
    assert given_fields(take(taken))["storage"] == taken["storage"]
    merged = given_fields(take(taken, spec__storage={"secretName": "mine"}))["storage"]
    assert merged == {"endpoint": "https://s3.example", "region": "eu-1", "secretName": "mine"}


_NAMES = st.sampled_from(["a", "b", "c"])
_MAPPINGS = st.dictionaries(_NAMES, _NAMES, max_size=3)
_VOLUMES = st.lists(
    st.fixed_dictionaries({"name": _NAMES, "mountPath": st.sampled_from(["/a", "/b", "/c"]), "pvc": _NAMES}),
    max_size=3,
    unique_by=(lambda each: each["name"], lambda each: each["mountPath"]),
)
_VARIABLES = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["A", "B", "C"]), "value": _NAMES}),
    max_size=3,
    unique_by=lambda each: each["name"],
)
_TOLERATIONS = st.lists(st.sampled_from([TEAM, LAB]), max_size=2, unique_by=lambda each: each["key"])
_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "queueName": _NAMES,
        "schedulerName": _NAMES,
        "nodeSelector": _MAPPINGS,
        "podLabels": _MAPPINGS,
        "env": _VARIABLES,
        "volumes": _VOLUMES,
        "tolerations": _TOLERATIONS,
        "imagePullSecrets": st.lists(st.fixed_dictionaries({"name": _NAMES}), unique_by=lambda each: each["name"]),
        "securityContext": st.dictionaries(st.sampled_from(["runAsUser", "fsGroup"]), st.integers(1, 9)),
    },
)


@pytest.mark.slow
@given(_SETTINGS, _SETTINGS)
@settings(max_examples=60, deadline=None)
def test_values_of_the_job_always_survive_and_nothing_else_changes(mine: dict[str, Any], taken: dict[str, Any]) -> None:
    changes = {f"spec__cluster__{name}": value for name, value in mine.items()}
    before = given_fields(take({}, **changes))
    after = given_fields(take(taken, **changes))
    assert {**after, "cluster": None} == {**before, "cluster": None}
    for name, value in before["cluster"].items():
        found = after["cluster"][name]
        if name in MAPS:
            assert found.items() >= value.items()
        elif name in LISTS:
            assert found[len(found) - len(value) :] == value, "the job's entries come last, in their order"
        else:
            assert found == value
    for name in taken.keys() - before["cluster"].keys():
        assert after["cluster"].get(name, type(taken[name])()) == taken[name]


@pytest.mark.parametrize("name", ["workers", "worker", "serviceAccountName", "profileRef"])
def test_size_and_service_account_are_never_taken(name: str) -> None:
    assert name not in fields_of(ProfileSpec)
    found = take({name: {"workers": 7, "worker": {"gpus": 8}}.get(name, "other")})
    assert isinstance(found, Blocker) and (found.reason, name in found.message) == (Reason.PROFILE_INVALID, True)


def test_profile_has_no_field_beside_those_of_the_pods_and_of_the_storage() -> None:
    assert fields_of(ProfileSpec).keys() == fields_of(PodSettings).keys() | {"storage"}
    own = fields_of(Cluster).keys() - fields_of(PodSettings).keys()
    assert own == fields_of(ClusterSize).keys() | {"serviceAccountName", "profileRef"}
    assert not fields_of(Storage).keys() & fields_of(Cluster).keys()


def test_job_without_a_profile_stays_as_it_is() -> None:
    admitted = admit(FakeCluster.with_job().job, None, lambda figure: figure.compute())
    assert isinstance(admitted, Admitted)
    assert take_profile(admitted, None) is admitted


def test_merge_leaves_its_arguments_alone() -> None:
    mine, taken = {"nodeSelector": {"a": "1"}}, {"nodeSelector": {"b": "2"}, **IMAGE}
    merge(mine, taken)
    assert (mine, taken) == ({"nodeSelector": {"a": "1"}}, {"nodeSelector": {"b": "2"}, **IMAGE})


@pytest.mark.parametrize(
    ("taken", "changes", "message"),
    [
        ({"image": "site:1"}, {}, "cluster.rayVersion is required with cluster.image"),
        ({"head": {"tolerations": [{"value": "x"}]}}, {}, "tolerations must have a key"),
        ({"futureField": "x"}, {}, "spec.futureField"),
        ({"nodeSelector": ["a"]}, {}, "spec.nodeSelector"),
        (
            {"env": [{"name": "HF_TOKEN", "value": "x"}]},
            {"spec__model__tokenSecret": {"name": "hub", "key": "token"}},
            "must not have HF_TOKEN",
        ),
        (
            {"volumes": [{"name": "claims", "mountPath": "/mnt/claims", "emptyDir": "1Gi"}]},
            {"spec__dataset__uri": "pvc://claims/x"},
            "must not cover /mnt/NAME",
        ),
        (
            {"volumes": [{"name": "out", "mountPath": "/out", "pvc": "out", "readOnly": True}]},
            {"spec__checkpoint__uri": "/out/claims"},
            "would be lost with its pod",
        ),
    ],
)
def test_profile_that_makes_the_job_invalid_is_named_with_the_problem(
    taken: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    found = take(taken, **changes)
    assert isinstance(found, Blocker) and found.reason is Reason.PROFILE_INVALID
    assert found.object == "TenSafeClusterProfile gpu-a" and message in found.message


def test_checkpoint_may_be_on_a_volume_of_the_profile() -> None:
    taken = {"volumes": [{"name": "out", "mountPath": "/out", "pvc": "out"}]}
    assert isinstance(take(taken, spec__checkpoint__uri="/out/claims"), Admitted)
    assert isinstance(
        admit(FakeCluster.with_job(spec__checkpoint__uri="/out/claims").job, None, lambda figure: figure.compute()),
        Rejected,
    )


# Histories


def job_with_profile(spec: dict[str, Any] | None) -> tuple[FakeCluster, FakeOperator]:
    cluster = FakeCluster.with_job(spec__cluster__profileRef="gpu-a")
    cluster.profile = None if spec is None else profile(**spec)
    return cluster, FakeOperator(cluster)


def worker_pod(ray_job: dict[str, Any]) -> dict[str, Any]:
    (group,) = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    pod: dict[str, Any] = group["template"]["spec"]
    return pod


def test_first_attempt_has_the_values_of_the_profile() -> None:
    cluster, operator = job_with_profile({**IMAGE, "queueName": "team", "nodeSelector": {"pool": "a"}})
    operator.settle()
    ray_job = cluster.ray_jobs["claims-triage-a1"]
    assert ray_job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert ray_job["spec"]["rayClusterSpec"]["rayVersion"] == "2.60.0"
    pod = worker_pod(ray_job)
    assert (pod["containers"][0]["image"], pod["nodeSelector"]) == ("site:1", {"pool": "a"})
    assert cluster.status["resolved"] == {"image": "site:1", "rayVersion": "2.60.0"}


@pytest.mark.parametrize(("trained", "image"), [(True, "site:1"), (False, "site:2")])
def test_job_that_has_trained_keeps_its_image_when_the_profile_has_another(trained: bool, image: str) -> None:
    cluster, operator = job_with_profile(IMAGE)
    operator.settle()
    cluster.start_pods()
    if trained:
        cluster.acquire_ledger()
    operator.settle()
    cluster.profile = profile(**{**IMAGE, "image": "site:2"})
    assert worker_pod(start_next_attempt(cluster, operator))["containers"][0]["image"] == image


def test_workers_read_the_storage_of_the_profile() -> None:
    cluster, operator = job_with_profile({"storage": {"endpoint": "https://s3.example"}})
    operator.settle()
    cluster.ray_jobs.clear()
    actions = decide(cluster.observe(), cluster.now, SETTINGS).actions
    (config,) = [each.manifest for each in actions if isinstance(each, Create) and each.kind == "ConfigMap"]
    assert json.loads(config["data"]["job.json"])["spec"]["storage"] == {"endpoint": "https://s3.example"}


@pytest.mark.parametrize(
    ("wrong", "reason"), [(None, "ProfileMissing"), ({"image": "site:1"}, "ProfileInvalid")], ids=["missing", "invalid"]
)
def test_job_waits_for_its_profile_and_then_starts(wrong: dict[str, Any] | None, reason: str) -> None:
    cluster, operator = job_with_profile(wrong)
    operator.settle()
    stalled = condition(cluster, "Stalled")
    assert (cluster.status["phase"], stalled["status"], stalled["reason"]) == ("Pending", "True", reason)
    assert "gpu-a" in stalled["message"] and condition(cluster, "Accepted")["status"] == "True"
    assert not cluster.created and not cluster.status.get("attempts")
    assert operator.wake is not None and cluster.now < operator.wake <= cluster.now + 10
    cluster.profile = profile(**IMAGE)
    operator.settle()
    assert cluster.created == ["claims-triage-a1"]
    assert cluster.status["resolved"]["image"] == "site:1"


def test_profile_that_is_deleted_after_the_attempt_was_recorded_stalls_the_start() -> None:
    cluster, operator = job_with_profile(IMAGE)
    operator.settle()
    cluster.ray_jobs.clear()
    cluster.profile = None
    operator.settle()
    assert not cluster.ray_jobs and condition(cluster, "Stalled")["reason"] == "ProfileMissing"
    cluster.profile = profile(**IMAGE)
    operator.settle()
    assert list(cluster.ray_jobs) == ["claims-triage-a1"]


def test_running_attempt_does_not_need_its_profile() -> None:
    cluster, operator = job_with_profile(IMAGE)
    operator.settle()
    cluster.start_pods()
    cluster.acquire_ledger()
    cluster.charge(5)
    cluster.profile = None
    operator.settle()
    assert cluster.status["phase"] == "Running" and condition(cluster, "Stalled")["status"] == "False"
    cluster.charge(15)
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == "Succeeded"


def test_next_attempt_has_the_edited_profile_and_the_image_of_the_first() -> None:
    cluster, operator = job_with_profile({**IMAGE, "nodeSelector": {"pool": "a"}})
    operator.settle()
    before = json.dumps(cluster.ray_jobs)
    cluster.profile = profile(image="site:2", rayVersion="2.61.0", nodeSelector={"pool": "b"})
    operator.settle()
    assert json.dumps(cluster.ray_jobs) == before
    cluster.start_pods()
    cluster.acquire_ledger()
    pod = worker_pod(start_next_attempt(cluster, operator))
    assert len(cluster.created) == 2
    assert (pod["containers"][0]["image"], pod["nodeSelector"]) == ("site:1", {"pool": "b"})


def test_profile_is_never_decided_on_from_a_cache() -> None:
    cluster, operator = job_with_profile(IMAGE)
    operator.settle()
    cluster.start_pods()
    cluster.acquire_ledger()
    cluster.end_ray_job("FAILED")
    operator.settle()
    cluster.remove_terminating_pods()
    cluster.now += 400
    cluster.take_snapshot()
    cached = cluster.snapshots[-1]
    assert cached.profile is None
    assert decide(cached, cluster.now, SETTINGS).irreversible
    operator.reconcile(cached)
    operator.reconcile()
    assert len(cluster.created) == 2
