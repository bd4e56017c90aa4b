"""The limits that an administrator sets with the chart, on a real API server: which jobs are refused, and how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chart_values import named
from tests.support.manifests import MINIMAL, changed
from tests.support.polling import wait_until
from tests.support.programs.controlplane import ControlPlane
from tests.support.programs.helm import render_chart

pytestmark = pytest.mark.cluster

DIGEST = "@sha256:" + 64 * "a"
LIMITS: dict[str, Any] = {
    "limits.enabled": True,
    "limits.images": [
        "registry.example/team",
        "other.example/trainer",
        "trainer",
        "old:1",
        "localhost:1",
        "local:5000/",
        "other.registry.example",
        f"pinned.example/trainer{DIGEST}",
    ],
    "limits.requireDigest": True,
    "limits.serviceAccounts": ["training"],
    "limits.annotationPrefixes": ["team.example/"],
    "limits.priorityClasses": ["batch"],
    "limits.env": ["AWS_CA_BUNDLE", "HF_*"],
    "limits.mountPaths": ["/mnt", "/data/team"],
    "limits.profiles": ["small"],
    "limits.requireProfile": True,
    "limits.trustRemoteCode": False,
    "limits.maxEpsilon": "8",
    "limits.maxDelta": "1e-4",
    "limits.minUnits": 1000,
    "limits.requireLineage": True,
    "limits.namespaceSelector": {"matchLabels": {"limited": "yes"}},
}
WITHIN: dict[str, Any] = {
    "spec.cluster": {
        "workers": 2,
        "rayVersion": "2.60.0",
        "image": f"registry.example/team/own:1{DIGEST}",
        "serviceAccountName": "training",
        "podAnnotations": {"team.example/cost": "1"},
        "priorityClassName": "batch",
        "profileRef": "small",
        "rayJobLabels": {"ray.io/priority-class-name": "batch"},
        "podLabels": {"priorityClassName": "batch", "team": "a"},
        "env": [{"name": "AWS_CA_BUNDLE", "value": "/mnt/ca.crt"}, {"name": "HF_HOME", "value": "/mnt/hub"}],
        "volumes": [
            {"name": "a", "mountPath": "/mnt", "configMap": "ca"},
            {"name": "b", "mountPath": "/data/team/b", "emptyDir": "1Gi"},
        ],
    },
    "spec.privacy.targetEpsilon": "8.00",
    "spec.dataset.unit.atLeast": 1000,
    "spec.dataset.lineage": "claims-2026",
}
ALLOWED: list[dict[str, Any]] = [
    {},
    {"spec.cluster": {"workers": 2, "profileRef": "small"}},
    {"spec.cluster.image": f"other.example/trainer{DIGEST}"},
    {"spec.cluster.image": f"other.example/trainer:1{DIGEST}"},
    {"spec.cluster.image": f"trainer{DIGEST}"},
    {"spec.cluster.image": f"pinned.example/trainer{DIGEST}"},
    {"spec.cluster.image": f"trainer:1.0{DIGEST}"},
    {"spec.cluster.image": f"old:1{DIGEST}"},
    {"spec.cluster.image": f"localhost:1/own{DIGEST}"},
    {"spec.cluster.image": f"local:5000/team/own{DIGEST}"},
    {"spec.cluster.image": f"other.registry.example/own:1{DIGEST}"},
    {"spec.dataset.lineage": "患者"},
    {"spec.dataset.lineage": "2026"},
    {"spec.cluster.image": f"registry.example/team/a/..b/.c{DIGEST}"},
    {"spec.model.trustRemoteCode": False},
    {"spec.privacy.targetEpsilon": "800e-2"},
    {"spec.privacy.targetEpsilon": "7.99999999999999"},
    {"spec.privacy.targetEpsilon": "1e-1"},
    {"spec.privacy.targetDelta": "1e-5"},
    {"spec.privacy.targetDelta": "0.0001"},
    {"spec.privacy.targetDelta": "0.0000999999999"},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"spec.cluster.image": f"registry.example/team-of-others/own{DIGEST}"},
        "spec.cluster.image: registry.example/team-",
    ),
    (
        {"spec.cluster.image": f"registry.example{DIGEST}"},
        "use an image of registry.example/team, other.example/trainer, trainer, old:1, localhost:1, local:5000/, other",
    ),
    (
        {"spec.cluster.image": "pinned.example/trainer@sha256:" + 64 * "b"},
        "spec.cluster.image: pinned.example/trainer@",
    ),
    ({"spec.cluster.image": f"pinned.example/trainer:1{DIGEST}"}, "spec.cluster.image: pinned.example/trainer:1"),
    ({"spec.cluster.image": f"trainer/other{DIGEST}"}, "spec.cluster.image: trainer/other"),
    ({"spec.cluster.image": f"trainer:5000/other{DIGEST}"}, "spec.cluster.image: trainer:5000/other"),
    ({"spec.cluster.image": f"old:1/other{DIGEST}"}, "spec.cluster.image: old:1/other"),
    ({"spec.cluster.image": f"local:5000{DIGEST}"}, "spec.cluster.image: local:5000@"),
    ({"spec.cluster.image": f"localhost:1{DIGEST}"}, "spec.cluster.image: localhost:1@"),
    ({"spec.cluster.image": f"other.registry.example:1{DIGEST}"}, "spec.cluster.image: other.registry.example:1"),
    ({"spec.cluster.image": f"other.registry.example{DIGEST}"}, "spec.cluster.image: other.registry.example@"),
    ({"spec.cluster.image": f"registry.example/team/../other/own{DIGEST}"}, "has . or .. as a folder"),
    ({"spec.cluster.image": f"registry.example/team/./own{DIGEST}"}, "has . or .. as a folder"),
    ({"spec.cluster.image": f"registry.example/team/..{DIGEST}"}, "has . or .. as a folder"),
    ({"spec.cluster.image": f"other.example/trainer:5000/own{DIGEST}"}, "spec.cluster.image"),
    ({"spec.cluster.image": "registry.example/team/own:1"}, "by digest only"),
    (
        {"spec.cluster.serviceAccountName": "admin"},
        "spec.cluster.serviceAccountName: the administrator allows only training",
    ),
    ({"spec.cluster.podAnnotations": {"team.example/a": "1", "other/b": "2"}}, "start with team.example/"),
    ({"spec.cluster.priorityClassName": "system-node-critical"}, "spec.cluster.priorityClassName"),
    ({"spec.cluster.rayJobLabels": {"ray.io/priority-class-name": "system-node-critical"}}, "rayJobLabels"),
    ({"spec.cluster.rayJobLabels": {"kueue.x-k8s.io/priority-class": "urgent"}}, "allows only batch"),
    ({"spec.cluster.podLabels": {"priorityClassName": "urgent"}}, "podLabels: the administrator allows only batch"),
    ({"metadata.labels": {"priorityClassName": "urgent"}}, "metadata.labels.priorityClassName: the"),
    (
        {"spec.cluster.env": [{"name": "HF_HOME", "value": "a"}, {"name": "LD_LIBRARY_PATH", "value": "/mnt/a"}]},
        "spec.cluster.env: the administrator allows only AWS_CA_BUNDLE, HF_*",
    ),
    ({"spec.cluster.env": [{"name": "AWS_CA_BUNDLE_2", "value": "a"}]}, "spec.cluster.env"),
    ({"spec.cluster.envFrom": [{"configMapRef": {"name": "a"}}]}, "spec.cluster.envFrom: the administrator limits"),
    (
        {"spec.cluster.volumes": [{"name": "c", "mountPath": "/data/teams", "configMap": "code"}]},
        "spec.cluster.volumes: the administrator allows only a mountPath in /mnt or /data/team",
    ),
    ({"spec.cluster.volumes": [{"name": "c", "mountPath": "/data", "configMap": "code"}]}, "spec.cluster.volumes"),
    ({"spec.cluster.profileRef": "urgent"}, "spec.cluster.profileRef: the administrator allows only small"),
    ({"spec.cluster": {"workers": 2}}, "spec.cluster.profileRef: the administrator requires a profile: write small"),
    ({"spec.model.trustRemoteCode": True}, "spec.model.trustRemoteCode"),
    ({"spec.privacy.targetEpsilon": "8.000001"}, "spec.privacy.targetEpsilon: the administrator allows at most 8"),
    ({"spec.privacy.targetEpsilon": "9e0"}, "spec.privacy.targetEpsilon"),
    ({"spec.privacy.targetEpsilon": "8.00000000000000001"}, "spec.privacy.targetEpsilon"),
    ({"spec.privacy.targetEpsilon": "80000000000000001e-16"}, "spec.privacy.targetEpsilon"),
    ({"spec.privacy.targetDelta": "0.000101"}, "spec.privacy.targetDelta: the administrator allows at most 1e-4"),
    ({"spec.privacy.targetDelta": "0.0009"}, "spec.privacy.targetDelta"),
    ({"spec.privacy.targetDelta": "1.0000000000000000001e-4"}, "spec.privacy.targetDelta"),
    ({"spec.dataset.unit.atLeast": 999}, "spec.dataset.unit.atLeast"),
    ({"spec.dataset.lineage": "\u200b"}, "write it, with a letter or a digit"),
    ({"spec.dataset.lineage": "\u3164"}, "write it, with a letter or a digit"),
    ({"spec.dataset.lineage": "-"}, "write it, with a letter or a digit"),
    ({"spec.dataset.lineage": None}, "spec.dataset.lineage"),
]


class Limited:
    """A namespace with the label that the limits select, and one without."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace

    def refusal(self, changes: dict[str, Any], namespace: str = "") -> str:
        """What the API server says to a job that differs from WITHIN; empty if it accepts the job."""
        job = changed(MINIMAL, {**WITHIN, "metadata.namespace": namespace or self.namespace})
        job = changed(job, {path: value for path, value in changes.items() if value is not None})
        for path in (path for path, value in changes.items() if value is None):
            section, field = path.split(".")[1:]
            del job["spec"][section][field]
        done = self.plane.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(job), check=False)
        return done.stderr


def apply_limits(plane: ControlPlane, values: dict[str, Any]) -> str:
    """Apply what the chart renders for limits, and return the name of the policy."""
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    rendered = [each for each in render_chart(values) if each["kind"] in kinds and "limits" in each["metadata"]["name"]]
    assert len(rendered) == 2
    plane.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered}))
    return str(rendered[0]["metadata"]["name"])


def delete_limits(plane: ControlPlane, policy: str) -> None:
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        plane.kubectl("delete", kind, policy)


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The chart's limits on the shared control plane."""
    policy = apply_limits(control_plane, LIMITS)
    yield control_plane
    delete_limits(control_plane, policy)


@pytest.fixture
def limited(installed: ControlPlane, namespace: str) -> Limited:
    installed.kubectl("label", "namespace", namespace, "limited=yes")
    made = Limited(installed, namespace)
    wait_until(lambda: made.refusal(REFUSED[-1][0]), 60)  # a new policy takes effect after a moment
    return made


def test_jobs_within_the_limits_are_accepted(limited: Limited) -> None:
    assert [limited.refusal(changes) for changes in ALLOWED] == [""] * len(ALLOWED)


def test_jobs_beyond_the_limits_are_refused_with_the_field_and_the_limit(limited: Limited) -> None:
    for changes, message in REFUSED:
        assert message in limited.refusal(changes), changes


def test_suspended_job_cannot_be_changed_beyond_the_limits(limited: Limited) -> None:
    """Most fields of `cluster` may change while a job is suspended."""
    where = ("-n", limited.namespace)
    job = changed(MINIMAL, {**WITHIN, "metadata.namespace": limited.namespace, "spec.suspend": True})
    limited.plane.kubectl("create", "-f", "-", text=json.dumps(job))

    def patch(body: dict[str, Any]) -> str:
        command = (*where, "patch", "tsj", "claims-triage", "--type=merge", "-p", json.dumps(body))
        return limited.plane.kubectl(*command, check=False).stderr

    cluster = [
        (path.removeprefix("spec.cluster."), value, why)
        for (changes, why) in REFUSED
        for path, value in changes.items()
        if path.startswith("spec.cluster.") and "Account" not in path
    ]
    assert len(cluster) > 5
    for field, value, message in cluster:
        assert message in patch({"spec": {"cluster": {field: value}}}), field
    assert patch({"spec": {"cluster": {"nodeSelector": {"pool": "gpu"}}}}) == "", "what is not limited"
    assert patch({"spec": {"suspend": False}}) == ""


def test_jobs_of_other_namespaces_are_not_limited(limited: Limited) -> None:
    assert limited.refusal(REFUSED[-1][0], "default") == ""


def test_limits_of_an_installation_with_a_list_of_namespaces_are_for_these_alone() -> None:
    """Another installation in the cluster has limits of its own."""
    own = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["clinic", "lab"]}

    def selector(values: dict[str, Any]) -> Any:
        binding = named(render_chart({"limits.enabled": True, **values}), "ValidatingAdmissionPolicyBinding", "-limits")
        return (binding["spec"].get("matchResources") or {}).get("namespaceSelector")

    assert selector({}) is None
    assert selector({"namespaces": ["clinic", "lab"]}) == {"matchExpressions": [own]}
    labels = {"limits.namespaceSelector": {"matchLabels": {"limited": "yes"}}}
    assert selector({"namespaces": ["clinic", "lab"], **labels}) == {
        "matchLabels": {"limited": "yes"},
        "matchExpressions": [own],
    }


def test_limits_apply_after_they_were_off_and_have_their_new_values(limited: Limited) -> None:
    """With an object of parameters, an API server would refuse every job then, or keep the old values."""
    epsilon = {"spec.privacy.targetEpsilon": "5"}
    policy = apply_limits(limited.plane, LIMITS)
    for highest in ("2", "8"):
        delete_limits(limited.plane, policy)
        wait_until(lambda: not limited.refusal(REFUSED[-1][0]), 60)
        apply_limits(limited.plane, {**LIMITS, "limits.maxEpsilon": highest})
        wait_until(lambda: limited.refusal(REFUSED[-1][0]), 60)
        assert limited.refusal(epsilon).count("allows at most 2") == (highest == "2")
    assert limited.refusal({}) == ""


def test_tighter_limits_leave_existing_jobs_alone(limited: Limited) -> None:
    """Otherwise no one could suspend, resume or label them."""
    later = f"{limited.namespace}-later"
    limited.plane.kubectl("create", "namespace", later)
    beyond = {"spec.cluster.priorityClassName": "high", "spec.privacy.targetEpsilon": "20"}
    beyond |= {"metadata.labels": {"priorityClassName": "high"}}
    job = changed(MINIMAL, {**WITHIN, **beyond, "metadata.namespace": later})
    limited.plane.kubectl("create", "-f", "-", text=json.dumps(job))
    limited.plane.kubectl("label", "namespace", later, "limited=yes")
    wait_until(lambda: limited.refusal(beyond, later), 60)
    for body in ({"spec": {"suspend": True}}, {"metadata": {"labels": {"a": "b"}}}):
        limited.plane.kubectl("-n", later, "patch", "tsj", "claims-triage", "--type=merge", "-p", json.dumps(body))
    patch = ("-n", later, "label", "tsj", "claims-triage", "--overwrite", "priorityClassName=higher")
    assert "metadata.labels.priorityClassName" in limited.plane.kubectl(*patch, check=False).stderr


def test_default_delta_counts_as_one_that_is_written(limited: Limited) -> None:
    """A job without targetDelta has 1 / (10 x unit.atLeast), and its author chooses unit.atLeast."""
    message = "spec.privacy.targetDelta: the administrator allows at most 1e-4"
    small = {"spec.dataset.unit.atLeast": 999, "spec.training": {"steps": 60, "expectedBatchSize": 250}}
    apply_limits(limited.plane, {**LIMITS, "limits.minUnits": 1})
    try:
        wait_until(lambda: message in limited.refusal(small), 60)
        assert limited.refusal({**small, "spec.privacy.targetDelta": "1e-5"}) == ""
    finally:
        apply_limits(limited.plane, LIMITS)
    wait_until(lambda: "of at least 1000" in limited.refusal(small), 60)


def test_each_limit_alone_gives_a_policy_that_the_api_server_accepts(limited: Limited) -> None:
    """The policy has the rules of the limits that are set."""
    alone = [{"limits.enabled": True}, *({"limits.enabled": True, name: LIMITS[name]} for name in list(LIMITS)[1:])]
    for values in alone:
        rendered = named(render_chart(values), "ValidatingAdmissionPolicy", "-limits")
        text = json.dumps(changed(rendered, {"metadata.name": "one-limit"}))
        done = limited.plane.kubectl("create", "--dry-run=server", "-f", "-", text=text, check=False)
        assert "created" in done.stdout, (values, done.stderr)


def test_characters_of_a_value_are_no_code_of_the_policy() -> None:
    policy = named(render_chart({"limits.enabled": True, "limits.env": []}), "ValidatingAdmissionPolicy", "-limits")
    assert len(policy["spec"]["validations"]) == 1
    value = """a'"]\\u0041<"""
    policy = named(
        render_chart({"limits.enabled": True, "limits.profiles": [value]}), "ValidatingAdmissionPolicy", "-limits"
    )
    texts = [each["expression"] for each in policy["spec"]["validations"] if "profile" in each["expression"]]
    assert [json.loads(text.partition(" in ")[2]) for text in texts] == [[value]]
