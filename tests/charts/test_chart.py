"""The chart: what it renders, and what its schema rejects."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_api.schema import crd
from tensafe_api.schema.admission_policy import admission_policies
from tensafe_operator import names
from tensafe_operator.job_network import Dns, JobNetwork, MetadataService
from tensafe_operator.job_tls import IssuerRef, JobTls, TlsMode
from tensafe_operator.runtime.lease_durations import LeaseDurations
from tensafe_operator.settings import Settings
from tests.support.chart_values import EVERYTHING, named, named_entry
from tests.support.programs.helm import CHART, helm, render_chart

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
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
    ("jobs.egressCIDRs", ["300.1.1.0/24"], "egressCIDRs"),
    ("jobs.networkPolicy.apiServerCIDRs", ["10.0.0.1"], "apiServerCIDRs"),
    ("jobs.networkPolicy.egress", [{"port": 443}], "port"),
    ("jobs.networkPolicy.egress", [{"ports": [{"prot": "TCP"}]}], "prot"),
    ("jobs.networkPolicy.egress", [{"ports": [{"protocol": "tcp"}]}], "protocol"),
    ("jobs.networkPolicy.egress", [{"to": [{"ipBlok": {"cidr": "10.0.0.0/8"}}]}], "ipBlok"),
    ("jobs.networkPolicy.egress", [{"to": [{"ipBlock": {"cidr": "10.0.0.1"}}]}], "cidr"),
    ("jobs.networkPolicy.dns.to", [{"namespace": "kube-system"}], "namespace"),
    ("networkPolicy.metricsFrom", [{"namespace": "monitoring"}], "namespace"),
    ("limits.namespaceSelector", {"team": "research"}, "team"),
    ("trainer.image.registry", "https://registry.example", "registry"),
    ("trainer.image.repository", "registry.example/Team/own", "repository"),
    ("image.tag", "1.0 beta", "tag"),
    ("stallSeconds", 10**12, "stallSeconds"),
    ("jobs.tls", None, "tls"),
    ("metrics", None, "metrics"),
    ("jobs.networkPolicy.ports", [443], "ports"),
    ("limits.maxEpsilon", 8, "maxEpsilon"),
    ("limits.maxDelta", 1e-5, "maxDelta"),
    ("limits.maxDelta", "1e5", "maxDelta"),
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


def test_helm_lint_passes() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART)).stdout


@pytest.mark.parametrize(("name", "value", "field"), WRONG, ids=[f"{name}={value}" for name, value, _ in WRONG])
def test_wrong_value_is_rejected_by_name(name: str, value: Any, field: str) -> None:
    done = helm("template", "tensafe", str(CHART), "--set-json", f"{name}={json.dumps(value)}", check=False)
    assert done.returncode
    assert "schema" in done.stderr
    assert field in done.stderr


@pytest.mark.parametrize(
    ("dependency", "key", "on", "off"),
    [
        ({"condition": "tensafe.enabled"}, "tensafe", {"tensafe.enabled": True}, {"tensafe.enabled": False}),
        ({"condition": "dp.enabled", "alias": "dp"}, "dp", {"dp.enabled": True}, {"dp.enabled": False}),
        (
            {"condition": "global.dp,tensafe.enabled"},
            "tensafe",
            {"global.dp": True, "tensafe.enabled": False},
            {"global.dp": False, "tensafe.enabled": True},
        ),
        ({"tags": ["training"]}, "tensafe", {"global.registry": "mirror.example"}, {"tags.training": False}),
    ],
    ids=["condition", "alias", "two conditions", "tags"],
)
def test_chart_is_an_optional_part_of_another(
    dependency: dict[str, Any], key: str, on: dict[str, Any], off: dict[str, Any], tmp_path: Path
) -> None:
    """Helm gives to a dependency its values in the parent, with that of the condition, and the global values."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    part = {"name": chart["name"], "version": chart["version"], "repository": "", **dependency}
    whole = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [part]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(whole))
    shutil.copytree(CHART, tmp_path / "charts" / CHART.name)
    rendered = render_chart({**on, f"{key}.fullnameOverride": "guard"}, chart=tmp_path)
    assert [each["metadata"]["name"] for each in rendered if each["kind"] == "Deployment"] == ["guard"]
    assert render_chart(off, chart=tmp_path) == []


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


def test_chart_whose_links_were_dropped_is_refused(tmp_path: Path) -> None:
    """Flux leaves links out of what it fetches. Without the policies, no one keeps others from writing ledgers."""
    chart = shutil.copytree(CHART, tmp_path / CHART.name)
    shutil.rmtree(chart / "files" / "crds")
    done = helm("template", "tensafe", str(chart), check=False)
    assert done.returncode != 0
    assert "helm package" in done.stderr
    assert not [each for each in render_chart({"crds.enabled": False}, chart=chart) if "CustomResource" in each["kind"]]


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


@pytest.mark.parametrize("own", [None, [16443]])
def test_ports_of_the_api_server_reach_the_operators_policy_and_jobs(own: list[int] | None) -> None:
    values: dict[str, Any] = {"networkPolicy.apiServerPorts": [8443, 9443]}
    documents = render_chart(values if own is None else {**values, "jobs.networkPolicy.apiServerPorts": own})
    (policy,) = (each for each in documents if each["kind"] == "NetworkPolicy")
    ports = [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]]
    assert {8443, 9443} <= set(ports) and 6443 not in ports
    (container,) = named(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert Settings.from_environment(environment).job_network.api_server_ports == tuple(own or (8443, 9443))


def test_security_contexts_are_the_administrators() -> None:
    documents = render_chart({"podSecurityContext": {"runAsUser": 1234}, "securityContext": {"privileged": False}})
    pod = named(documents, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == 1234
    assert pod["containers"][0]["securityContext"]["privileged"] is False


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
    policies, definitions = named(documents, "ClusterRole", guard)["rules"]
    assert policies["verbs"] == definitions["verbs"] == ["get"]
    assert set(policies["resourceNames"]) == {each["metadata"]["name"] for each in admission_policies()}
    assert definitions["resources"] == ["customresourcedefinitions"]
    assert set(definitions["resourceNames"]) == {f"{each.plural}.tensafe.io" for each in (crd.JOBS, crd.LEDGERS)}
    (rule,) = named(documents, "ClusterRole", profiles)["rules"]
    assert rule == {"apiGroups": ["tensafe.io"], "resources": [crd.PROFILES.plural], "verbs": ["get"]}
    bindings = [each["metadata"]["namespace"] for each in documents if each["kind"] == "RoleBinding"]
    assert sorted(bindings) == ["clinic", "lab", "tensafe-system"]
