"""The chart's values for names, images, volumes and the Lease, and several releases in one cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensafe_operator.runtime.lease_durations import LeaseDurations
from tensafe_operator.settings import Settings
from tests.support.programs.controlplane import ControlPlane
from tests.support.programs.helm import CHART, helm, render_chart, set_arguments

pytestmark = pytest.mark.cluster

DIGEST = "sha256:" + "0123456789abcdef" * 4
LONG = "a-release-with-a-name-as-long-as-helm-allows-for-them"
CLUSTER_SCOPED = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
SECOND = {"crds.enabled": False, "rbac.trainerRole": False}


def deployment(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [each for each in documents if each["kind"] == "Deployment"]
    return found


def variables(documents: list[dict[str, Any]]) -> dict[str, str]:
    (container,) = deployment(documents)["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


def test_digest_replaces_the_tag() -> None:
    images = {"image.registry": "mirror.example", "image.tag": "mine", "image.digest": DIGEST}
    trainer = {"trainer.image.tag": "mine", "trainer.image.digest": DIGEST}
    documents = render_chart(images | trainer)
    (container,) = deployment(documents)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"mirror.example/tensafe-operator@{DIGEST}"
    assert Settings.from_environment(variables(documents)).image == f"tensafe-trainer@{DIGEST}"


def test_default_durations_are_those_of_the_operator() -> None:
    assert Settings.from_environment(variables(render_chart())).lease_durations == LeaseDurations()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"renewDeadlineSeconds": 10}, "renewDeadlineSeconds is 10: set it below leaseDurationSeconds, which is 10"),
        ({"retryPeriodSeconds": 3}, "is 7: set it above three times retryPeriodSeconds, which is 3"),
    ],
)
def test_durations_that_do_not_fit_together_are_refused(values: dict[str, int], message: str) -> None:
    arguments = set_arguments({f"leaderElection.{name}": value for name, value in values.items()})
    done = helm("template", "tensafe", str(CHART), *arguments, check=False)
    assert done.returncode
    assert message in done.stderr


def test_volumes_and_variables_reach_the_operator() -> None:
    volume = {"name": "certificates", "configMap": {"name": "site"}}
    mount = {"name": "certificates", "mountPath": "/etc/site", "readOnly": True}
    variable = {"name": "SSL_CERT_FILE", "value": "/etc/site/ca.crt"}
    values = {"extraEnv": [variable], "extraVolumes": [volume], "extraVolumeMounts": [mount]}
    pod = deployment(render_chart(values))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["volumes"] == [volume]
    assert container["volumeMounts"] == [mount]
    assert container["env"][-1] == variable
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    plain = deployment(render_chart())["spec"]["template"]["spec"]
    assert "volumes" not in plain and "volumeMounts" not in plain["containers"][0]


@pytest.mark.parametrize(
    ("release", "values", "name", "label"),
    [
        ("tensafe", {}, "tensafe-operator", "tensafe-operator"),
        ("second", {}, "second-tensafe-operator", "tensafe-operator"),
        ("second", {"nameOverride": "guard"}, "second-guard", "guard"),
        ("guard-east", {"nameOverride": "guard"}, "guard-east", "guard"),
        ("second", {"fullnameOverride": "guard"}, "guard", "tensafe-operator"),
        (LONG, {}, LONG, "tensafe-operator"),
    ],
)
def test_every_name_follows_the_overrides(release: str, values: dict[str, Any], name: str, label: str) -> None:
    documents = render_chart(
        {**values, "limits.enabled": True, "metrics.serviceMonitor.enabled": True}, release=release
    )
    found = deployment(documents)
    assert found["metadata"]["name"] == name
    assert variables(documents)["TENSAFE_LEASE"] == name
    rules = [rule for each in documents if each["kind"] == "Role" for rule in each["rules"]]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [[name]], "its Lease, and no other"
    selector = {"app.kubernetes.io/name": label, "app.kubernetes.io/instance": release}
    assert found["spec"]["selector"]["matchLabels"] == selector
    for each in documents:
        if each["kind"] in ("Service", "NetworkPolicy", "PodDisruptionBudget", "ServiceMonitor"):
            spec = each["spec"]
            chosen = spec.get("podSelector") or spec["selector"]
            assert chosen.get("matchLabels", chosen) == selector, each["kind"]
        if each["kind"] == "Service":
            assert len(each["metadata"]["name"]) <= 63
        for subject in each.get("subjects", ()):
            assert subject["name"] == name


def test_two_releases_share_no_object_whatever_their_names() -> None:
    def scoped(values: dict[str, Any], release: str, namespace: str) -> set[tuple[str, str, str]]:
        documents = render_chart({**SECOND, "limits.enabled": True, **values}, release=release, namespace=namespace)
        return {
            (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
            for each in documents
            if each["kind"] in CLUSTER_SCOPED or each["metadata"].get("namespace") == namespace
        }

    east = scoped({}, "tensafe", "east")
    assert not east & scoped({}, "tensafe", "west")
    assert not east & scoped({}, "second", "east")
    assert not east & scoped({"nameOverride": "guard"}, "tensafe", "east")
    long = "n" * 63
    assert not scoped({}, LONG, long) & scoped({}, LONG, "n" * 62)


def test_releases_in_one_cluster(tmp_path: Path) -> None:
    """Names that are taken are refused by Helm with the object and the release that has it."""
    plane = ControlPlane(tmp_path / "plane")
    try:
        plane.start()

        def install(release: str, namespace: str, **values: Any) -> str:
            arguments = ("install", release, str(CHART), "--namespace", namespace, "--create-namespace")
            done = helm(*arguments, *set_arguments(values), kubeconfig=plane.admin, check=False)
            links = "found symbolic link in path"  # to the CRDs
            return "".join(line for line in done.stderr.splitlines(keepends=True) if links not in line)

        assert install("tensafe", "east") == ""
        refused = install("second", "west")
        assert "cannot be imported into the current release" in refused
        assert 'must equal "second": current value is "tensafe"' in refused
        assert install("second", "west", **SECOND, fullnameOverride="tensafe-operator") == ""
        taken = install("third", "east", **SECOND, fullnameOverride="tensafe-operator")
        assert 'must equal "third": current value is "tensafe"' in taken
        assert install("third", "east", **SECOND, nameOverride="guard") == ""
        found = plane.kubectl("get", "deployment", "-A", "-o", "json").stdout
        names = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in json.loads(found)["items"]]
        assert names == [("east", "tensafe-operator"), ("east", "third-guard"), ("west", "tensafe-operator")]
    finally:
        plane.stop()


@pytest.mark.parametrize("name", ["123", "true", "1e3"])
def test_namespace_that_looks_like_another_type_is_a_name(name: str) -> None:
    values = {"namespaces": [name], "kuberayNamespace": name, "metrics.serviceMonitor.enabled": True}
    documents = render_chart(values, namespace=name, tests=True)
    in_a_namespace = [each["metadata"]["namespace"] for each in documents if "namespace" in each["metadata"]]
    assert set(in_a_namespace) == {name} and len(in_a_namespace) > 5
    subjects = [subject["namespace"] for each in documents for subject in each.get("subjects", ())]
    assert set(subjects) == {name}
    assert all(isinstance(value, str) for value in variables(documents).values())
