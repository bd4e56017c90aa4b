"""The chart: what it renders, what its schema rejects, and install, upgrade and uninstall on a real API server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.platform.controlplane import ControlPlane
from e2e.platform.fixtures.ledger_objects import LedgerObject, charged_status, make_pod
from e2e.platform.fixtures.manifests import MINIMAL, changed
from e2e.platform.fixtures.polling import wait_until
from e2e.platform.helm import CHART, helm, render_chart
from tensafe_api import crd
from tensafe_api.admission_policy import admission_policies
from tensafe_operator import names
from tensafe_operator.job_metrics import JobMetrics
from tensafe_operator.job_network import Dns, JobNetwork, MetadataService
from tensafe_operator.job_tls import IssuerRef, JobTls, TlsMode
from tensafe_operator.ledger_guard import guard_gauge
from tensafe_operator.runtime.lease_durations import LeaseDurations
from tensafe_operator.runtime.metrics import OperatorMetrics
from tensafe_operator.settings import Settings

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "key"}],
    "image.registry": "images.example",
    "trainer.image.tag": "mine",
    "jobs.egressCIDRs": ["10.20.0.0/16", "fd00::/8"],
    "jobs.fsGroup": None,
    "jobs.tls": {"mode": "CertManager", "issuerRef": {"name": "clinic"}},
    "jobs.networkPolicy.dns.ports": [5353],
    "jobs.networkPolicy.apiServerCIDRs": ["10.0.0.1/32"],
    "jobs.networkPolicy.metadata": ["GKEWorkloadIdentity"],
    "jobs.networkPolicy.egress": [],
    "serviceAccount.annotations": {"team": "clinic"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "proxy.example:3128"}],
    "extraVolumes": [{"name": "certificates", "configMap": {"name": "site"}}],
    "extraVolumeMounts": [{"name": "certificates", "mountPath": "/etc/site", "readOnly": True}],
    "jobs.imagePullSecrets": [{"name": "registry-key"}, {"name": "mirror"}],
    "leaderElection.leaseDurationSeconds": 60,
    "leaderElection.renewDeadlineSeconds": 40,
    "leaderElection.retryPeriodSeconds": 10,
    "priorityClassName": "system-cluster-critical",
    "networkPolicy.metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    "metrics.serviceMonitor.enabled": True,
    "metrics.serviceMonitor.labels": {"release": "prometheus"},
    "metrics.perJob": False,
    "metrics.auth.enabled": True,
    "metrics.tls.secretName": "metrics-tls",
    "metrics.serviceMonitor.tlsConfig": {"insecureSkipVerify": True},
    "metrics.serviceMonitor.authorization": {"credentials": {"name": "metrics-token", "key": "token"}},
    "metrics.prometheusRule.enabled": True,
    "metrics.dashboard.enabled": True,
    "metrics.dashboard.annotations": {"grafana_folder": "TenSafe"},
}
WRONG: list[tuple[str, Any, str]] = [
    ("replicas", 0, "replicas"),
    ("replicas", "two", "replicas"),
    ("image.pullPolicy", "Sometimes", "pullPolicy"),
    ("image.repository", "", "repository"),
    ("image.digest", "sha256:12", "digest"),
    ("trainer.image.digest", "md5:" + "0" * 64, "digest"),
    ("nameOverride", "Guard", "nameOverride"),
    ("fullnameOverride", "a" * 55, "fullnameOverride"),
    ("leaderElection.retryPeriodSeconds", 0, "retryPeriodSeconds"),
    ("leaderElection.renewSeconds", 7, "renewSeconds"),
    ("extraEnv", [{"name": "TENSAFE_PORT", "value": "1"}], "extraEnv"),
    ("extraVolumeMounts", [{"name": "certificates"}], "mountPath"),
    ("jobs.imagePullSecrets", ["registry-key"], "imagePullSecrets"),
    ("trainer.rayVersion", "latest", "rayVersion"),
    ("trainer.rayVersion", "2.51.2", "rayVersion"),
    ("trainer.rayVersion", 2.6, "rayVersion"),
    ("namespaces", ["Clinic"], "namespaces"),
    ("namespaces", ["clinic", "clinic"], "namespaces"),
    ("kuberayNamespace", "", "kuberayNamespace"),
    ("stallSeconds", 5, "stallSeconds"),
    ("jobs.egressCIDRs", ["10.0.0.1"], "egressCIDRs"),
    ("jobs.egressCIDRs", ["10.0.0.0/99"], "egressCIDRs"),
    ("jobs.fsGroup", "None", "fsGroup"),
    ("jobs.tls.mode", "On", "mode"),
    ("jobs.tls.mode", "CertManager", "name"),
    ("jobs.networkPolicy.metadata", ["AWS"], "metadata"),
    ("jobs.networkPolicy.dns.ports", [], "ports"),
    ("jobs.networkPolicy.apiServerCIDRs", ["10.0.0.1"], "apiServerCIDRs"),
    ("jobs.networkPolicy.ports", [443], "ports"),
    ("limits.maxEpsilon", 8, "maxEpsilon"),
    ("limits.images", ["registry.example/team/"], "images"),
    ("limits.highestEpsilon", "8", "highestEpsilon"),
    ("crds.enabled", "yes", "enabled"),
    ("crd", {"enabled": False}, "crd"),
    ("metrics.port", 80, "port"),
    ("metrics.serviceMonitor.interval", "often", "interval"),
    ("metrics.serviceMonitor.scheme", "ftp", "scheme"),
    ("metrics.serviceMonitor.bearerTokenFile", "token", "bearerTokenFile"),
    ("metrics.perJob", "no", "perJob"),
    ("metrics.auth.readerRole", "Metrics Reader", "readerRole"),
    ("metrics.tls.secretName", "Metrics_TLS", "secretName"),
    ("metrics.dashboard.labels", {"grafana_dashboard": 1}, "grafana_dashboard"),
    ("networkPolicy.apiServerPorts", [], "apiServerPorts"),
]


def named(documents: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    return next(each for each in documents if each["kind"] == kind and each["metadata"]["name"].endswith(name))


def test_helm_lint_passes() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART)).stdout


@pytest.mark.parametrize(("name", "value", "field"), WRONG, ids=[f"{name}={value}" for name, value, _ in WRONG])
def test_wrong_value_is_rejected_by_name(name: str, value: Any, field: str) -> None:
    done = helm("template", "tensafe", str(CHART), "--set-json", f"{name}={json.dumps(value)}", check=False)
    assert done.returncode
    assert "schema" in done.stderr
    assert field in done.stderr


def test_chart_has_the_version_and_the_crds_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'version = "{chart["appVersion"]}"' in (ROOT / "pyproject.toml").read_text()
    expected = [
        each for path in sorted((ROOT / "crds").glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())
    ]
    carried = [each for each in render_chart() if each in expected]
    assert len(carried) == len(expected) == 7
    assert all(each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for each in carried)
    without = render_chart({"crds.enabled": False})
    assert not [each for each in without if each in expected]


def named_entry(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The entry of a list with this name."""
    return next(each for each in entries if each["name"] == name)


def test_deployment_sets_every_setting_of_the_operator() -> None:
    pod = named(render_chart(EVERYTHING), "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment.pop("HTTPS_PROXY") == "proxy.example:3128"
    known = {f"TENSAFE_{each.name.upper()}" for each in fields(Settings)}
    assert set(environment) == known
    settings = Settings.from_environment(environment)
    assert settings.image == "tensafe-trainer:mine"
    assert settings.egress_cidrs == ("10.20.0.0/16", "fd00::/8")
    assert settings.fs_group is None
    assert settings.job_network == JobNetwork(
        dns=Dns(ports=(5353,)),
        api_server_cidrs=("10.0.0.1/32",),
        metadata=(MetadataService.GKE_WORKLOAD_IDENTITY,),
        egress=(),
    )
    assert settings.pull_secrets == ("registry-key", "mirror")
    assert settings.lease_durations == LeaseDurations(60, 40, 10)
    assert settings.job_tls == JobTls(mode=TlsMode.CERT_MANAGER, issuer_ref=IssuerRef(name="clinic"))
    assert settings.stall_seconds == Settings().stall_seconds
    assert settings.ray_version == Settings().ray_version
    assert (settings.metrics_per_job, settings.metrics_auth) == (False, True)
    mount, volume = (named_entry(each, "metrics-tls") for each in (container["volumeMounts"], pod["volumes"]))
    assert settings.metrics_tls == mount["mountPath"]
    assert volume["secret"] == {"secretName": "metrics-tls"}
    assert {container[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")} == {"HTTPS"}
    assert container["image"] == "images.example/tensafe-operator:0.1.0"


def test_pod_disruption_budget_needs_a_second_replica() -> None:
    budget = named(render_chart(), "PodDisruptionBudget")["spec"]
    assert (budget["minAvailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert not [each for each in render_chart({"replicas": 1}) if each["kind"] == "PodDisruptionBudget"]


def test_operator_reads_no_secret_runs_no_command_in_a_pod_and_creates_no_role() -> None:
    for values in ({}, {"namespaces": ["clinic"]}):
        for role in (each for each in render_chart(values) if each["kind"] in ("Role", "ClusterRole")):
            if role["metadata"]["name"].endswith(("-edit", "-view", "tensafe-trainer")):
                continue
            for rule in role["rules"]:
                assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
                if "secrets" in rule["resources"]:
                    assert rule["verbs"] == ["create", "delete"]
                assert not {"pods/exec", "roles", "nodes"} & set(rule["resources"])
                if "clusterroles" in rule["resources"]:
                    assert (rule["verbs"], rule["resourceNames"]) == (["bind"], [names.TRAINER_ROLE])


def test_operator_may_create_certificates_only_if_cert_manager_issues_them() -> None:
    def verbs(values: dict[str, Any]) -> list[list[str]]:
        roles = [each for each in render_chart(values) if each["kind"] in ("Role", "ClusterRole")]
        return [rule["verbs"] for each in roles for rule in each["rules"] if "certificates" in rule["resources"]]

    assert verbs({}) == []
    assert verbs({"jobs.tls": {"mode": "CertManager", "issuerRef": {"name": "clinic"}}}) == [
        ["get", "create", "delete"]
    ]


def test_administrator_can_admit_all_pods_of_kuberays_namespace() -> None:
    values = {"jobs.networkPolicy.kuberayPods": {"app.kubernetes.io/component": None}}
    container = named(render_chart(values), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    settings = Settings.from_environment({each["name"]: each["value"] for each in container["env"]})
    assert settings.job_network.kuberay_pods == {}


def test_lease_has_the_name_of_the_release() -> None:
    """Two releases in one namespace elect a leader each."""
    documents = render_chart(release="second")
    container = named(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    lease = next(each["value"] for each in container["env"] if each["name"] == "TENSAFE_LEASE")
    rules = [rule for each in documents if each["kind"] == "Role" for rule in each["rules"]]
    named_leases = [
        rule["resourceNames"] for rule in rules if "leases" in rule["resources"] and "resourceNames" in rule
    ]
    assert lease == "second-tensafe-operator"
    assert named_leases == [[lease]]


def test_operator_with_namespaces_has_no_rights_in_others() -> None:
    documents = render_chart({"namespaces": ["clinic", "lab"]})
    guard, profiles = [each["roleRef"]["name"] for each in documents if each["kind"] == "ClusterRoleBinding"]
    (rule,) = named(documents, "ClusterRole", guard)["rules"]
    assert rule["verbs"] == ["get"]
    assert set(rule["resourceNames"]) == {each["metadata"]["name"] for each in admission_policies()}
    (rule,) = named(documents, "ClusterRole", profiles)["rules"]
    assert rule == {"apiGroups": ["tensafe.io"], "resources": [crd.PROFILES.plural], "verbs": ["get"]}
    bindings = [each["metadata"]["namespace"] for each in documents if each["kind"] == "RoleBinding"]
    assert sorted(bindings) == ["clinic", "lab", "tensafe-system"]


def test_metrics_are_open_and_not_encrypted_by_default() -> None:
    documents = render_chart({"metrics.serviceMonitor.enabled": True})
    pod = named(documents, "Deployment")["spec"]["template"]["spec"]
    environment = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    settings = Settings.from_environment(environment)
    assert (settings.metrics_per_job, settings.metrics_auth, settings.metrics_tls) == (True, False, "")
    assert "volumes" not in pod and "volumeMounts" not in pod["containers"][0]
    assert pod["containers"][0]["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    (endpoint,) = named(documents, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint == {"port": "metrics", "interval": "30s", "honorLabels": True}
    assert not [each for each in documents if "metrics-" in each["metadata"]["name"] and "Role" in each["kind"]]
    assert not [each for each in documents if each["kind"] == "ConfigMap"]


def test_service_monitor_uses_tls_and_a_token() -> None:
    (endpoint,) = named(render_chart(EVERYTHING), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}
    assert endpoint["authorization"] == {"credentials": {"name": "metrics-token", "key": "token"}}
    file = {"metrics.serviceMonitor.enabled": True, "metrics.serviceMonitor.bearerTokenFile": "/token"}
    (endpoint,) = named(render_chart(file), "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["bearerTokenFile"], "authorization" in endpoint, "scheme" in endpoint) == ("/token", False, False)


def test_role_of_readers_has_one_right_and_may_be_left_out() -> None:
    auth = {"metrics.auth.enabled": True}
    reader = named(render_chart(auth), "ClusterRole", "tensafe-metrics-reader")
    assert reader["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    without = [each["metadata"]["name"] for each in render_chart({**auth, "metrics.auth.readerRole": ""})]
    assert "tensafe-metrics-reader" not in without
    assert "tensafe-operator-tensafe-system-metrics-auth" in without


def test_dashboard_is_the_file_of_the_chart_where_the_sidecar_finds_it() -> None:
    found = named(render_chart({**EVERYTHING, "metrics.dashboard.namespace": "monitoring"}), "ConfigMap", "-dashboard")
    assert found["data"] == {"tensafe.json": (CHART / "files" / "dashboard.json").read_text()}
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "TenSafe"}
    assert found["metadata"]["namespace"] == "monitoring"
    assert named(render_chart(EVERYTHING), "ConfigMap", "-dashboard")["metadata"]["namespace"] == "tensafe-system"


@pytest.mark.parametrize("per_job", [True, False])
def test_alerts_use_existing_metrics(per_job: bool) -> None:
    metrics = OperatorMetrics(names.METRICS_PREFIX)
    guard_gauge(metrics.registry)
    stalled = {"type": "Stalled", "status": "True", "reason": "Unschedulable"}
    status = {"conditions": [stalled], "privacy": {"epsilonSpent": "1", "targetEpsilon": "8"}}
    jobs = JobMetrics(metrics.registry, per_job=per_job)
    jobs.update(("clinic", "job"), {"metadata": {"uid": "1"}, "status": status})
    exposed = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    rule = named(render_chart({**EVERYTHING, "metrics.perJob": per_job}), "PrometheusRule")
    (group,) = rule["spec"]["groups"]
    assert sorted(alert["alert"] for alert in group["rules"]) == [
        "TenSafeEpsilonAboveTarget",
        "TenSafeGuardMissing",
        "TenSafeJobFailed",
        "TenSafeJobStalled",
        "TenSafeNoLeader",
        "TenSafeReconcileErrors",
    ]
    for alert in group["rules"]:
        used = set(re.findall(r"tensafe_\w+", alert["expr"]))
        assert used
        assert used <= exposed
    if per_job:
        assert rule["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    else:
        assert "$labels.job" not in json.dumps(rule)


class Release:
    """The chart, installed on its own control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def helm(self, *arguments: str, check: bool = True) -> str:
        done = helm(*arguments, "--namespace", "tensafe-system", kubeconfig=self.plane.admin, check=check)
        return done.stderr if done.returncode else done.stdout

    def get(self, kind: str, name: str, namespace: str = "tensafe-system") -> dict[str, Any] | None:
        done = self.plane.kubectl("-n", namespace, "get", kind, name, "-o", "json", check=False)
        return None if done.returncode else dict(json.loads(done.stdout))

    def replicas(self) -> int:
        found = self.get("deployment", "tensafe-operator")
        assert found is not None
        return int(found["spec"]["replicas"])


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Release]:
    plane = ControlPlane(tmp_path / "plane")
    try:
        plane.start()
        yield Release(plane)
    finally:
        plane.stop()


def test_install_upgrade_rollback_and_uninstall_keep_jobs_and_ledgers(release: Release) -> None:
    plane = release.plane
    notes = release.helm("install", "tensafe", str(CHART), "--create-namespace")
    assert "KubeRay was not found" in notes
    plane.wait_for_crds()
    plane.kubectl("create", "namespace", "clinic")
    plane.kubectl("apply", "-f", "-", text=json.dumps(changed(MINIMAL, {"metadata.namespace": "clinic"})))
    ledger = LedgerObject(plane, "clinic")
    pod = make_pod(plane, "clinic", "trainer")
    assert ledger.write(charged_status(pod), pod) == ""
    before = ledger.get()

    release.helm("upgrade", "tensafe", str(CHART), "--set", "replicas=1")
    assert (release.replicas(), release.get("pdb", "tensafe-operator")) == (1, None)
    release.helm("rollback", "tensafe", "1")
    assert release.replicas() == 2
    assert release.get("pdb", "tensafe-operator") is not None

    release.helm("uninstall", "tensafe")
    assert release.get("deployment", "tensafe-operator") is None
    assert release.get("serviceaccount", "tensafe-operator") is None
    assert release.get("clusterrole", "tensafe-operator-tensafe-system") is None
    assert release.get("clusterrole", "tensafe-trainer") is not None, "running jobs must be able to continue"
    assert release.get("tsj", "claims-triage", "clinic") is not None
    assert ledger.get() == before
    more = charged_status(
        pod, stepsRecharged=0, charges=[{**before["status"]["charges"][0], "steps": 12}], chargedThrough=12, length=3
    )
    assert ledger.write(more, pod) == "", "a running job continues to charge"
    assert "only the service account" in ledger.write(more, None), "the policy applies without the operator"

    release.helm("install", "tensafe", str(CHART))
    assert release.get("deployment", "tensafe-operator") is not None
    assert ledger.get()["status"] == more


@pytest.mark.parametrize(("plural", "what"), [("privacyledgers", "privacy ledger"), ("tensafetrainingjobs", "job")])
def test_crd_is_not_deleted_by_mistake(release: Release, plural: str, what: str) -> None:
    plane = release.plane
    plane.kubectl("apply", "-f", str(ROOT / "crds"))
    refused = f"deleting this CRD would delete every {what} of the cluster"
    kind = f"crd/{plural}.tensafe.io"
    delete = ("delete", kind, "--wait=false")

    def dry_run() -> str:
        return plane.kubectl(*delete, "--dry-run=server", check=False).stderr

    wait_until(lambda: refused in dry_run())  # a new policy takes effect after a moment
    assert refused in plane.kubectl(*delete, check=False).stderr
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?labelSelector=team%3Dml"
    plane.kubectl("label", kind, "team=ml")
    assert refused in plane.kubectl("delete", "--raw", path, check=False).stderr
    uid = plane.kubectl("get", kind, "-o", "jsonpath={.metadata.uid}").stdout
    plane.kubectl("annotate", kind, f"tensafe.io/forget={uid}")
    plane.kubectl(*delete)


def test_helm_takes_ownership_of_crds_after_a_plain_apply(release: Release) -> None:
    release.plane.kubectl("apply", "-f", str(ROOT / "crds"))
    install = ("install", "tensafe", str(CHART), "--create-namespace")
    assert "invalid ownership metadata" in release.helm(*install, check=False)
    assert "TenSafe operator" in release.helm(*install, "--take-ownership")


def test_api_server_accepts_every_document_under_the_restricted_pod_standard(release: Release) -> None:
    plane = release.plane
    plane.kubectl("create", "namespace", "tensafe-system")
    plane.kubectl("label", "namespace", "tensafe-system", "pod-security.kubernetes.io/enforce=restricted")
    documents = [each for each in render_chart(EVERYTHING) if "monitoring.coreos.com" not in each["apiVersion"]]
    plane.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    template = named(documents, "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
    pod["metadata"] = {**template["metadata"], "name": "operator", "namespace": "tensafe-system"}
    plane.kubectl("create", "-f", "-", text=json.dumps(pod))
