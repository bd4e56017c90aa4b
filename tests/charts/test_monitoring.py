"""What the chart renders for Prometheus and Grafana: monitor, rights, dashboard and alerts."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tensafe_operator import names
from tensafe_operator.gate import guard_gauge
from tensafe_operator.job_metrics import JobMetrics
from tensafe_operator.runtime.metrics import OperatorMetrics
from tensafe_operator.settings import Settings
from tests.support.chart_values import EVERYTHING, named
from tests.support.programs.helm import CHART, render_chart

pytestmark = pytest.mark.cluster


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
    metrics.namespace_served.labels("clinic").set(0)
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
        "TenSafeNamespaceNotServed",
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
