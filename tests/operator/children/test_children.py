"""The objects of a job: which pod gets which secrets and rights, and that a real API server accepts all objects."""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.manifest.text import ManifestError, load_manifest
from tensafe_api.resolve import resolve_job
from tensafe_operator.children import Manifest, access, configuration, ledger, matches, network
from tensafe_operator.kinds import SHARED_KINDS
from tests.support.fakes.kuberay import install_kuberay_crds
from tests.support.job_objects import (
    EVERY_FIELD,
    FEW_FIELDS,
    SETTINGS,
    admitted,
    children,
    parameters_of,
    pods,
    ray_job_of,
    text_of,
)
from tests.support.openshift import restricted_v2
from tests.support.polling import wait_until
from tests.support.programs.controlplane import ControlPlane


def test_labels_for_schedulers_are_on_the_ray_job_and_never_replace_ours() -> None:
    """KubeRay copies them to the RayCluster, where its batch schedulers read them."""
    labels = ray_job_of(admitted(EVERY_FIELD))["metadata"]["labels"]
    assert labels["volcano.sh/queue-name"] == "batch" and labels["kueue.x-k8s.io/priority-class"] == "low"
    assert labels["kueue.x-k8s.io/queue-name"] == "gpu-queue"
    forged = admitted(EVERY_FIELD)
    cluster = forged.spec.cluster.model_copy(update={"ray_job_labels": {"tensafe.io/job-uid": "another"}})
    forged = forged.model_copy(update={"spec": forged.spec.model_copy(update={"cluster": cluster})})
    assert ray_job_of(forged)["metadata"]["labels"]["tensafe.io/job-uid"] == "11111111-2222"


def labels_in_the_documentation() -> list[str]:
    """The labels of the table of batch schedulers, as `LABEL` or `LABEL: "VALUE"`."""
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "gpu-nodes.md").read_text()
    rows = re.search(r"\| scheduler \|.*\n\|---.*\n((?:\|.*\n)+)", page)
    assert rows is not None
    return re.findall(r"`([a-z.0-9-]+/[a-z-]+)(?:: [^`]*)?`", rows[1])


@pytest.mark.parametrize("label", labels_in_the_documentation())
def test_label_of_a_batch_scheduler_in_the_documentation_is_on_the_ray_job(label: str) -> None:
    job = admitted({"spec.cluster": {"workers": 1, "rayJobLabels": {label: "true"}}})
    assert ray_job_of(job)["metadata"]["labels"][label] == "true"


def test_documentation_names_labels_of_four_batch_schedulers() -> None:
    groups = {label.partition("/")[0] for label in labels_in_the_documentation()}
    assert groups == {"kueue.x-k8s.io", "volcano.sh", "ray.io", "yunikorn.apache.org", "kai.scheduler"}


def refused(cluster: dict[str, Any]) -> bool:
    try:
        admitted({"spec.cluster": {"workers": 1, **cluster}})
    except ManifestError:
        return True
    return False


def test_job_cannot_replace_variables_mounts_and_labels_of_the_operator() -> None:
    head, worker = pods(admitted(EVERY_FIELD))
    for pod in (head, worker):
        container = pod["spec"]["containers"][0]
        for variable in container["env"]:
            if variable["name"] not in ("A", "HF_TOKEN", "HOME"):  # a job may set its home
                assert refused({"env": [{"name": variable["name"], "value": "x"}]}), variable
        for mount in container["volumeMounts"]:
            if mount["name"] in ("job", "key", "run"):
                assert refused({"volumes": [{**mount, "mountPath": "/v", "pvc": "p"}]}), mount
                assert refused({"volumes": [{**mount, "name": "v", "pvc": "p"}]}), mount
        for label in pod["metadata"]["labels"]:
            assert refused({"podLabels": {label: "x"}}) or label == "team", label
    assert worker["metadata"]["labels"]["tensafe.io/job-uid"] == "11111111-2222"
    assert worker["metadata"]["labels"]["team"] == "triage"
    assert worker["metadata"]["annotations"]["linkerd.io/inject"] == "enabled"


def test_no_label_of_the_job_is_copied() -> None:
    job = admitted({"metadata.labels": {"app.kubernetes.io/instance": "argo"}})
    assert all("argo" not in text_of(each) for each in children(job) if each["kind"] != "ConfigMap")


def test_job_owns_all_its_objects_except_the_ledger_and_those_that_jobs_share() -> None:
    job = admitted(FEW_FIELDS)
    owners = {each["kind"]: each["metadata"].get("ownerReferences") for each in children(job)}
    assert {kind for kind, found in owners.items() if found is None} == set(SHARED_KINDS)
    assert {found[0]["uid"] for found in owners.values() if found} == {"11111111-2222"}
    made = ledger.ledger(job, resolve_job(job)[1], access.job_key(job))
    assert "ownerReferences" not in made["metadata"]
    assert made["metadata"]["name"] == "claims-triage-11111111"


def test_queued_job_is_created_suspended_for_kueue() -> None:
    made = ray_job_of(admitted(EVERY_FIELD))
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu-queue"
    assert made["spec"]["suspend"] is True
    assert ray_job_of(admitted(FEW_FIELDS))["spec"]["suspend"] is False


def test_job_is_unchanged_after_it_was_written_to_and_read_from_the_config_map() -> None:
    job = admitted(EVERY_FIELD)
    made = configuration.config_map(job, 2, "ledger", "ledger-uid", "key-digest")
    assert load_manifest(made["data"]["job.json"]) == job
    assert json.loads(made["data"]["place.json"])["ledger_uid"] == "ledger-uid"


def test_pods_get_the_digest_of_the_job() -> None:
    job = admitted(FEW_FIELDS)
    config = parameters_of(job)
    assert configuration.digest(config) != configuration.digest({"data": {**config["data"], "place.json": "{}"}})
    for pod in pods(job):
        variables = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        assert variables["TENSAFE_JOB_DIGEST"] == configuration.digest(config)
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert volumes["job"] == {"name": "job", "configMap": {"name": config["metadata"]["name"]}}


def test_changed_manifest_has_a_config_map_of_another_name() -> None:
    """Otherwise a ConfigMap of before an edit would block the attempt for ever, because it cannot change."""
    job = admitted(FEW_FIELDS)
    edited = admitted({**FEW_FIELDS, "spec.retry": {"maxAttempts": 7}})
    numbered = job.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": 9})})
    assert parameters_of(numbered) == parameters_of(job)
    assert parameters_of(edited)["metadata"]["name"] != parameters_of(job)["metadata"]["name"]


def test_keys_differ_by_job_and_by_process_and_the_ledger_names_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    job = admitted(FEW_FIELDS)
    one = access.job_key(job)
    assert one == access.job_key(job), "a retry builds the same Secret"
    assert len(base64.b64decode(one["data"]["job.key"])) == 32
    monkeypatch.setattr(access, "_SEED", bytes(32))
    other, third = access.job_key(job), access.job_key(admitted(FEW_FIELDS, uid="11111111-3333"))
    assert len({each["data"]["job.key"] for each in (one, other, third)}) == 3
    assert len({each["metadata"]["name"] for each in (one, other, third)}) == 3
    spec = ledger.ledger(job, resolve_job(job)[1], one)["spec"]
    assert spec["keySecretName"] == one["metadata"]["name"]
    assert spec["keyDigest"] == access.key_digest(one) != access.key_digest(other)


@pytest.mark.parametrize("place", ["labels", "ingress", "port", "spec"])
def test_object_with_one_more_field_does_not_match(place: str) -> None:
    """A port with `endPort` is a range of ports, and a peer with a `namespaceSelector` selects more pods."""
    made = network.policy(admitted(FEW_FIELDS), SETTINGS)
    found = copy.deepcopy(made)
    assert matches({**found, "status": {}}, made)
    match place:
        case "labels":
            found["metadata"]["labels"]["team"] = "radiology"
            assert matches(found, made), "labels and other metadata of others are left alone"
            found["metadata"]["labels"].popitem()
            found["metadata"]["labels"].popitem()
        case "ingress":
            found["spec"]["ingress"][0]["from"][0]["namespaceSelector"] = {}
        case "port":
            found["spec"]["egress"][1]["ports"][0]["endPort"] = 65535
        case "spec":
            found["spec"]["other"] = True
    assert not matches(found, made)
    assert not matches({**made, "subjects": []}, made)


@pytest.fixture(scope="module")
def with_kuberay(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with KubeRay's CRDs."""
    install_kuberay_crds(control_plane)
    yield control_plane


@pytest.mark.cluster
@pytest.mark.parametrize("changes", [FEW_FIELDS, EVERY_FIELD], ids=["few fields", "every field"])
def test_real_api_server_accepts_all_objects(
    changes: dict[str, Any], with_kuberay: ControlPlane, namespace: str
) -> None:
    """The namespace admits only pods of the restricted Pod Security Standard."""
    with_kuberay.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    job = admitted(changes, namespace)
    with_kuberay.kubectl("-n", namespace, "create", "clusterrole", "tensafe-trainer", "--verb=get", "--resource=pods",
                         check=False)  # fmt: skip
    made = [*children(job), ledger.ledger(job, resolve_job(job)[1], access.job_key(job))]
    for child in made:
        with_kuberay.kubectl("create", "--validate=strict", "-f", "-", text=json.dumps(child))
    for template in pods(job):
        named = ("priorityClassName", "runtimeClassName", "serviceAccountName")  # these objects would have to exist
        spec = {key: value for key, value in template["spec"].items() if key not in named}
        head = {**template["metadata"], "generateName": "p-"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec}
        with_kuberay.kubectl(
            "-n", namespace, "create", "--dry-run=server", "--validate=strict", "-f", "-", text=json.dumps(pod)
        )


@pytest.mark.cluster
def test_openshift_admits_pods_that_leave_the_ids_to_it(with_kuberay: ControlPlane, namespace: str) -> None:
    """With the rules of the SCC restricted-v2 in the namespace. The default group of volumes is refused there."""
    policies = {"apiVersion": "v1", "kind": "List", "items": restricted_v2(namespace)}
    with_kuberay.kubectl("apply", "-f", "-", text=json.dumps(policies))

    def refusal(template: Manifest) -> str:
        head = {**template["metadata"], "generateName": "p-", "namespace": namespace}
        spec = {**template["spec"], "serviceAccountName": "default"}  # the job's own would have to exist
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec}
        create = ("create", "--dry-run=server", "-f", "-")
        return with_kuberay.kubectl(*create, text=json.dumps(pod), check=False).stderr

    job = admitted(FEW_FIELDS, namespace)
    group = "SCC: fsGroup"
    wait_until(lambda: all(group in refusal(each) for each in pods(job)), 20, lambda: refusal(pods(job)[0]))
    for template in pods(job, replace(SETTINGS, fs_group=None)):
        assert "fsGroup" not in template["spec"]["securityContext"]
        assert refusal(template) == ""
