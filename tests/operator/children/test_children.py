"""The objects of a job: which pod gets which secrets and rights, and that a real API server accepts all objects."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from e2e.platform.controlplane import ControlPlane
from e2e.platform.fakes.kuberay import install_kuberay_crds
from e2e.platform.fixtures.manifests import MINIMAL, changed
from e2e.platform.fixtures.openshift import restricted_v2
from e2e.platform.fixtures.polling import wait_until
from tensafe_api.manifest import ManifestError, load_manifest, parse_job
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator.children import Manifest, access, configuration, ledger, matches, network, rayjob, tls
from tensafe_operator.settings import Settings

SETTINGS = Settings(image="registry.example/tensafe-trainer:0.1", egress_cidrs=("10.1.0.0/16",))
HEAD_TERM = {"weight": 1, "preference": {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["small"]}]}}
WORKER_TERM = {
    "weight": 1,
    "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {"matchLabels": {"own": "label"}}},
}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
EVERY_FIELD = {
    "spec.podsTTLSeconds": 600,
    "spec.model.tokenSecret": {"name": "hub", "key": "token"},
    "spec.storage": {"endpoint": "https://minio.clinic:9000", "secretName": "s3-keys"},
    "spec.cluster": {
        "workers": 3,
        "image": "registry.example/own:1",
        "rayVersion": "2.55.1",
        "imagePullSecrets": [{"name": "pull"}],
        "worker": {"gpus": 1, "cpus": "2500m", "memory": "16Gi", "ephemeralStorage": "20Gi"},
        "head": {
            "nodeSelector": {"pool": "small"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [HEAD_TERM]}},
        },
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [WORKER_TERM]}},
        "topologySpreadConstraints": [
            SPREAD,
            {**SPREAD, "topologyKey": "rack", "labelSelector": {"matchLabels": {"own": "label"}}},
        ],
        "rayJobLabels": {"volcano.sh/queue-name": "batch", "kueue.x-k8s.io/priority-class": "low"},
        "serviceAccountName": "federated",
        "queueName": "gpu-queue",
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "schedulerName": "volcano",
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "podLabels": {"team": "triage"},
        "podAnnotations": {"linkerd.io/inject": "enabled"},
        "securityContext": {"runAsUser": 1001, "fsGroup": 2000},
        "env": [{"name": "A", "value": "1"}],
        "envFrom": [{"secretRef": {"name": "more"}}],
        "volumes": [
            {"name": "scratch", "mountPath": "/scratch", "emptyDir": "10Gi"},
            {"name": "certs", "mountPath": "/certs", "readOnly": True, "configMap": "certs"},
            {"name": "keys", "mountPath": "/keys", "readOnly": True, "secret": "keys"},
            {"name": "data", "mountPath": "/data", "pvc": "data"},
        ],
    },
    "spec.dataset.uri": "pvc://records/claims",
    "spec.checkpoint.uri": "pvc://models/claims",
    "spec.evaluation": {"uri": "pvc://records/public", "visibility": "Public"},
}
FEW_FIELDS = {"spec.cluster": {"workers": 2}}


def admitted(changes: dict[str, Any], namespace: str = "clinic", uid: str = "11111111-2222") -> TenSafeTrainingJob:
    """A completed job with the metadata that the API server sets."""
    manifest = changed(MINIMAL, {**changes, "metadata.namespace": namespace, "metadata.uid": uid})
    return resolve_job(parse_job(manifest))[0]


def ray_job_of(job: TenSafeTrainingJob, settings: Settings = SETTINGS) -> Manifest:
    return rayjob.ray_job(job, 1, settings, parameters=parameters_of(job), key_secret="claims-triage-11111111-key")


def parameters_of(job: TenSafeTrainingJob) -> Manifest:
    return configuration.config_map(job, 1, "claims-triage-11111111", "ledger-uid", "key-digest")


def children(job: TenSafeTrainingJob, settings: Settings = SETTINGS) -> list[Manifest]:
    built = [
        access.account(job, settings),
        access.role_binding(job),
        access.job_key(job),
        network.policy(job, settings),
        parameters_of(job),
        tls.attempt_secret(job, 1, settings),
        ray_job_of(job, settings),
    ]
    return [each for each in built if each is not None]


def pods(job: TenSafeTrainingJob, settings: Settings = SETTINGS) -> tuple[Manifest, Manifest]:
    """The templates of the head and of a worker."""
    spec = ray_job_of(job, settings)["spec"]["rayClusterSpec"]
    return spec["headGroupSpec"]["template"], spec["workerGroupSpecs"][0]["template"]


def text_of(pod: Manifest) -> str:
    return json.dumps(pod)


def test_the_head_holds_neither_key_nor_token_nor_credentials() -> None:
    head, worker = pods(admitted(EVERY_FIELD))
    assert head["spec"]["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in head["spec"]
    for secret in ("claims-triage-11111111-key", "s3-keys", "hub", "more", "certs", "/data", "records", "models"):
        assert secret not in text_of(head), secret
        assert secret in text_of(worker), secret
    assert worker["spec"]["serviceAccountName"] == "federated"


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


def test_labels_for_schedulers_are_on_the_ray_job_and_never_replace_ours() -> None:
    """KubeRay copies them to the RayCluster, where its batch schedulers read them."""
    labels = ray_job_of(admitted(EVERY_FIELD))["metadata"]["labels"]
    assert labels["volcano.sh/queue-name"] == "batch" and labels["kueue.x-k8s.io/priority-class"] == "low"
    assert labels["kueue.x-k8s.io/queue-name"] == "gpu-queue"
    forged = admitted(EVERY_FIELD)
    cluster = forged.spec.cluster.model_copy(update={"ray_job_labels": {"tensafe.io/job-uid": "another"}})
    forged = forged.model_copy(update={"spec": forged.spec.model_copy(update={"cluster": cluster})})
    assert ray_job_of(forged)["metadata"]["labels"]["tensafe.io/job-uid"] == "11111111-2222"


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
    account that is created for the job, and an account that the job names keeps its own.
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


def test_job_owns_all_its_objects_except_the_ledger() -> None:
    job = admitted(FEW_FIELDS)
    assert children(job)[0]["kind"] == "ServiceAccount"
    assert {each["metadata"]["ownerReferences"][0]["uid"] for each in children(job)} == {"11111111-2222"}
    made = ledger.ledger(job, resolve_job(job)[1], access.job_key(job))
    assert "ownerReferences" not in made["metadata"]
    assert made["metadata"]["name"] == "claims-triage-11111111"


def test_pvc_is_mounted_once_and_is_writable_only_for_checkpoints() -> None:
    _, worker = pods(admitted(EVERY_FIELD))
    mounts = {mount["name"]: mount for mount in worker["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["pvc-records"] == {"name": "pvc-records", "mountPath": "/mnt/records", "readOnly": True}
    assert mounts["pvc-models"]["readOnly"] is False


def test_queued_job_is_created_suspended_for_kueue() -> None:
    made = ray_job_of(admitted(EVERY_FIELD))
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu-queue"
    assert made["spec"]["suspend"] is True
    assert ray_job_of(admitted(FEW_FIELDS))["spec"]["suspend"] is False


@pytest.mark.parametrize(("version", "probes"), [("2.60.0", True), ("2.53.0", True), ("2.52.1", False)])
def test_readiness_is_probed_every_second_if_ray_serves_the_path(version: str, probes: bool) -> None:
    head, _ = pods(admitted({"spec.cluster": {"workers": 1, "image": "own", "rayVersion": version}}))
    assert ("readinessProbe" in head["spec"]["containers"][0]) is probes


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
