"""The pods of a job: which one gets which secrets, where it runs, what it may write and how it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensafe_operator.children import access
from tests.support.job_objects import (
    EVERY_FIELD,
    FEW_FIELDS,
    SETTINGS,
    admitted,
    pods,
    ray_job_of,
    text_of,
)
from tests.support.rule_examples import RECIPIENT


def test_the_head_holds_neither_key_nor_token_nor_credentials() -> None:
    head, worker = pods(admitted(EVERY_FIELD))
    assert head["spec"]["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in head["spec"]
    for secret in ("claims-triage-11111111-key", "s3-keys", "hub", "more", "certs", "/data", "records", "models"):
        assert secret not in text_of(head), secret
        assert secret in text_of(worker), secret
    assert worker["spec"]["serviceAccountName"] == "federated"


SIGNING = {"spec.checkpoint": {"uri": "s3://models/claims", "signing": {"secretName": "release-key"}}}


@pytest.mark.parametrize("workers", [1, 4])
def test_only_one_worker_and_not_the_head_mounts_the_signing_key(workers: int) -> None:
    spec = ray_job_of(admitted({"spec.cluster": {"workers": workers}, **SIGNING}))["spec"]["rayClusterSpec"]
    assert "release-key" not in text_of(spec["headGroupSpec"])
    signer, *others = spec["workerGroupSpecs"]
    assert [group["groupName"] for group in spec["workerGroupSpecs"]] == ["signer", "workers"][: min(workers, 2)]
    assert (signer["replicas"], signer["minReplicas"], signer["maxReplicas"]) == (1, 1, 1)
    assert sum(group["replicas"] for group in spec["workerGroupSpecs"]) == workers
    pod = signer["template"]["spec"]
    assert {"name": "signing", "secret": {"secretName": "release-key", "defaultMode": 0o440}} in pod["volumes"]
    mounts = {each["name"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert (mounts["signing"]["mountPath"], mounts["signing"]["readOnly"]) == ("/etc/tensafe/signing", True)
    for group in others:
        assert "release-key" not in text_of(group)


def test_volume_of_the_job_may_have_the_name_of_the_volume_with_the_signing_key() -> None:
    taken = {"name": "signing", "mountPath": "/data", "pvc": "records"}
    job = admitted({"spec.cluster": {"workers": 2, "volumes": [taken]}, **SIGNING})
    for group in ray_job_of(job)["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        names = [each["name"] for each in pod["volumes"]]
        assert len(names) == len(set(names))
        mounts = {each["mountPath"]: each["name"] for each in pod["containers"][0]["volumeMounts"]}
        assert mounts["/data"] == "signing"
        assert mounts.get("/etc/tensafe/signing") == {"signer": "signing-2"}.get(group["groupName"])


def test_signer_is_a_worker_like_the_others() -> None:
    changes = {
        **EVERY_FIELD,
        "spec.checkpoint": {"uri": "pvc://models/claims", "signing": {"secretName": "release-key"}},
    }
    signer, others = ray_job_of(admitted(changes))["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    for group, value in ((signer, "1"), (others, "0")):
        pod = group["template"]["spec"]
        pod["volumes"] = [each for each in pod["volumes"] if each["name"] != "signing"]
        for container in (*pod["containers"], *pod["initContainers"]):
            container["volumeMounts"] = [
                each for each in container.get("volumeMounts", ()) if each["name"] != "signing"
            ]
            named = {each["name"]: each for each in container["env"]}
            if "TENSAFE_SIGNER" in named:
                assert named.pop("TENSAFE_SIGNER")["value"] == value
            container["env"] = list(named.values())
        for name in ("groupName", "replicas", "minReplicas", "maxReplicas"):
            group.pop(name)
    assert signer == others


def test_workers_of_a_job_that_does_not_sign_are_one_group() -> None:
    (group,) = ray_job_of(admitted(EVERY_FIELD))["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["groupName"] == "workers" and "TENSAFE_SIGNER" not in text_of(group)


def encrypting(**more: object) -> dict[str, object]:
    encryption = {"recipientsConfigMap": "readers", "identitySecretName": "clinic-identity"}
    return {"spec.checkpoint": {"uri": "s3://models/claims", "encryption": encryption, **more}}


@pytest.mark.parametrize("signs", [False, True])
def test_every_worker_and_not_the_head_mounts_the_identity(signs: bool) -> None:
    """Every rank restores a checkpoint. The Secret may hold more than the identity."""
    more = {"signing": {"secretName": "release-key"}} if signs else {}
    spec = ray_job_of(admitted({"spec.cluster": {"workers": 3}, **encrypting(**more)}))["spec"]["rayClusterSpec"]
    assert "clinic-identity" not in text_of(spec["headGroupSpec"]) and "readers" not in text_of(spec["headGroupSpec"])
    assert len(spec["workerGroupSpecs"]) == 1 + signs
    for group in spec["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        of_name = {each["name"]: each for each in pod["volumes"]}
        assert of_name["tensafe-identity"]["secret"] == {
            "secretName": "clinic-identity",
            "items": [{"key": "identity", "path": "identity"}],
            "defaultMode": 0o440,
        }
        assert of_name["tensafe-recipients"]["configMap"] == {
            "name": "readers",
            "items": [{"key": "recipients", "path": "recipients"}],
        }
        mounts = {each["name"]: each for each in pod["containers"][0]["volumeMounts"]}
        for name, path in (("identity", "/etc/tensafe/identity"), ("recipients", "/etc/tensafe/recipients")):
            assert (mounts[f"tensafe-{name}"]["mountPath"], mounts[f"tensafe-{name}"]["readOnly"]) == (path, True)
        for container in pod["initContainers"]:
            assert "tensafe-identity" not in text_of(container)


def test_job_that_names_its_recipients_itself_mounts_no_more_than_it_needs() -> None:
    changes = {"spec.checkpoint": {"uri": "s3://models/claims", "encryption": {"recipients": [RECIPIENT]}}}
    _, worker = pods(admitted(changes))
    assert not {"tensafe-identity", "tensafe-recipients"} & {each["name"] for each in worker["spec"]["volumes"]}


def test_volume_of_a_job_may_have_the_name_of_the_identity() -> None:
    taken = {"name": "tensafe-identity", "mountPath": "/data", "pvc": "records"}
    _, worker = pods(admitted({"spec.cluster": {"workers": 2, "volumes": [taken]}, **encrypting()}))
    mounts = {each["mountPath"]: each["name"] for each in worker["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["/data"] == "tensafe-identity" and mounts["/etc/tensafe/identity"] == "tensafe-identity-2"


def test_head_and_workers_are_placed_apart() -> None:
    head, worker = (each["spec"] for each in pods(admitted(EVERY_FIELD)))
    assert (head["nodeSelector"], worker["nodeSelector"]) == ({"pool": "small"}, {"gpu": "a100"})
    assert [each["key"] for each in head["tolerations"] + worker["tolerations"]] == ["spot", "gpu"]
    assert (list(head["affinity"]), list(worker["affinity"])) == (["nodeAffinity"], ["podAffinity"])
    own = {"tensafe.io/job-uid": "11111111-2222", "ray.io/node-type": "worker"}
    selectors = [each["labelSelector"]["matchLabels"] for each in worker["topologySpreadConstraints"]]
    assert selectors == [own, {"own": "label"}] and "topologySpreadConstraints" not in head
    requests = [pod["containers"][0]["resources"]["requests"].get("ephemeral-storage") for pod in (head, worker)]
    assert requests == [None, "20Gi"]
    assert "ephemeral-storage" not in worker["containers"][0]["resources"]["limits"]


def test_head_without_a_placement_of_its_own_is_placed_as_the_workers() -> None:
    places = {"nodeSelector": {"gpu": "a100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    head, worker = (each["spec"] for each in pods(admitted({"spec.cluster": {"workers": 2, **places}})))
    for field in places:
        assert head[field] == worker[field] == places[field]
    head, _ = pods(
        admitted({"spec.cluster": {"workers": 2, **places, "head": {"nodeSelector": {}, "tolerations": []}}})
    )
    assert head["spec"]["nodeSelector"] == {} and head["spec"]["tolerations"] == [], "anywhere"


def test_containers_write_to_volumes_only_unless_the_administrator_allows_more() -> None:
    for settings, read_only in ((SETTINGS, True), (replace(SETTINGS, read_only_root=False), False)):
        for template in pods(admitted(FEW_FIELDS), settings):
            (main,) = template["spec"]["containers"]
            assert main["securityContext"]["readOnlyRootFilesystem"] is read_only
            writable = {each["mountPath"] for each in main["volumeMounts"] if not each["readOnly"]}
            assert writable == {"/var/run/tensafe", *(["/tmp"] if read_only else [])}
            homes = [each["value"] for each in main["env"] if each["name"] == "HOME"]
            assert homes == (["/tmp"] if read_only else [])


def test_volume_of_a_job_may_be_its_temporary_directory() -> None:
    own = [{"name": "scratch", "mountPath": "/tmp", "emptyDir": "10Gi"}]
    _, worker = pods(admitted({"spec.cluster": {"workers": 2, "volumes": own}}))
    mounted = [each["name"] for each in worker["spec"]["containers"][0]["volumeMounts"] if each["mountPath"] == "/tmp"]
    assert mounted == ["scratch"]


@pytest.mark.parametrize("taken", [["tensafe-tmp"], ["tensafe-tmp", "tensafe-tmp-2"]], ids=len)
def test_volume_of_a_job_may_have_the_name_of_ours(taken: list[str]) -> None:
    own = [{"name": name, "mountPath": f"/data/{name}", "emptyDir": "1Gi"} for name in taken]
    _, worker = pods(admitted({"spec.cluster": {"workers": 2, "volumes": own}}))
    names = [each["name"] for each in worker["spec"]["volumes"]]
    assert len(names) == len(set(names)) == len(taken) + 4
    mounts = {each["mountPath"]: each["name"] for each in worker["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["/tmp"] == f"tensafe-tmp-{len(taken) + 1}"
    assert [mounts[f"/data/{name}"] for name in taken] == taken
    assert set(mounts.values()) == set(names)


def test_pull_secrets_of_the_chart_reach_every_pod_that_names_none() -> None:
    """The head runs under the namespace's account `default`, so its template has them. Workers have them from the
    account that jobs share, and an account that the job names keeps its own.
    """
    settings = replace(SETTINGS, pull_secrets=("mirror", "other"))
    expected = [{"name": "mirror"}, {"name": "other"}]
    account = access.account(admitted(FEW_FIELDS), settings)
    head, worker = pods(admitted(FEW_FIELDS), settings)
    assert account is not None
    assert (account["imagePullSecrets"], head["spec"]["imagePullSecrets"]) == (expected, expected)
    assert "imagePullSecrets" not in worker["spec"], "Kubernetes copies those of the account"
    assert access.account(admitted(EVERY_FIELD), settings) is None
    for pod in pods(admitted(EVERY_FIELD), settings):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}], "the job's own come first"
    named = admitted({"spec.cluster.serviceAccountName": "federated"})
    head, worker = pods(named, settings)
    assert head["spec"]["imagePullSecrets"] == expected
    assert "imagePullSecrets" not in worker["spec"], "an account that the job names has its own"


def test_processes_can_read_the_key_and_write_to_pvcs() -> None:
    """Files of volumes belong to root. On real pods a mounted Secret of mode 0440 was unreadable without `fsGroup`."""
    for changes, group in ((FEW_FIELDS, 1000), (EVERY_FIELD, 2000)):
        for pod in pods(admitted(changes)):
            assert pod["spec"]["securityContext"]["fsGroup"] == group
            assert pod["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    key = next(each for each in pods(admitted(FEW_FIELDS))[1]["spec"]["volumes"] if each["name"] == "key")
    assert key["secret"]["defaultMode"] == 0o440


def test_missing_secret_is_reported_before_the_worker_waits_for_the_head() -> None:
    """KubeRay appends its own init container, which waits for the head, to those in the template."""
    worker = pods(admitted(EVERY_FIELD))[1]
    (first, *_), (main,) = worker["spec"]["initContainers"], worker["spec"]["containers"]
    for field in ("image", "env", "envFrom", "resources"):
        assert first[field] == main[field]
    assert first["securityContext"] == {**main["securityContext"], "readOnlyRootFilesystem": True}
    assert first["command"] == ["true"]


def test_cpus_are_not_limited_and_memory_is_limited_to_the_request() -> None:
    for pod, cpus in zip(pods(admitted(EVERY_FIELD)), ("2", "2500m"), strict=True):
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources["requests"]["cpu"] == cpus
        unlimited = ("cpu", "ephemeral-storage")
        limited = {name: size for name, size in resources["requests"].items() if name not in unlimited}
        assert resources["limits"] == limited


def test_terminating_pod_has_time_to_save_a_checkpoint() -> None:
    """`test_attempt_on_ray` runs the hook itself. The tests on real pods check that the kubelet waits for it."""
    for pod in pods(admitted(FEW_FIELDS)):
        assert pod["spec"]["terminationGracePeriodSeconds"] == 120
        (container,) = pod["spec"]["containers"]
        assert "preStop" in container["lifecycle"]
        assert {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "0"} in container["env"]


def test_pvc_is_mounted_once_and_is_writable_only_for_checkpoints() -> None:
    _, worker = pods(admitted(EVERY_FIELD))
    mounts = {mount["name"]: mount for mount in worker["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["pvc-records"] == {"name": "pvc-records", "mountPath": "/mnt/records", "readOnly": True}
    assert mounts["pvc-models"]["readOnly"] is False


@pytest.mark.parametrize(("version", "probes"), [("2.60.0", True), ("2.53.0", True), ("2.52.1", False)])
def test_readiness_is_probed_every_second_if_ray_serves_the_path(version: str, probes: bool) -> None:
    head, _ = pods(admitted({"spec.cluster": {"workers": 1, "image": "own", "rayVersion": version}}))
    assert ("readinessProbe" in head["spec"]["containers"][0]) is probes
