"""`helm test` on a real API server. No node runs its pod here: the test runs the pod's command, with the token of the
pod's service account, and writes the pod's phase as a kubelet does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.fakes.kuberay import install_kuberay_crds
from tests.support.operator_process import OperatorProcess
from tests.support.polling import wait_until
from tests.support.programs.controlplane import ControlPlane
from tests.support.programs.helm import CHART, helm, helm_command, render_chart, set_arguments

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
NAMESPACE = "tensafe-system"
ACCOUNT = "tensafe-operator-test"
NOWHERE = "http://127.0.0.1:9/healthz"
REFUSE_EVERY_JOB = """\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-jobs}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [tensafe.io], apiVersions: ["*"], operations: [CREATE], resources: [tensafetrainingjobs]}
  validations: [{expression: "false", message: no job today}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-jobs}
spec: {policyName: no-jobs, validationActions: [Deny]}
"""


class Installation:
    """A release of the chart on a control plane of its own, and the pod of its test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plane = ControlPlane(folder / "plane")
        self.operator: OperatorProcess | None = None

    def helm(self, *arguments: str, **values: Any) -> subprocess.CompletedProcess[str]:
        options = ("--namespace", NAMESPACE, *set_arguments({name.replace("_", "."): v for name, v in values.items()}))
        return helm(*arguments, *options, kubeconfig=self.plane.admin, check=False)

    def kubeconfig_of(self, account: str) -> Path:
        token = self.plane.kubectl("-n", NAMESPACE, "create", "token", account).stdout.strip()
        return self.plane.kubeconfig_of_token(account, token)

    def start_operator(self) -> None:
        environment = {"KUBECONFIG": str(self.kubeconfig_of("tensafe-operator"))}
        self.operator = OperatorProcess(self.folder / "operator.log", environment)
        wait_until(lambda: self.operator is not None and self.operator.leading)

    def pod(self) -> dict[str, Any] | None:
        done = self.plane.kubectl("-n", NAMESPACE, "get", "pod", ACCOUNT, "-o", "json", check=False)
        return None if done.returncode else dict(json.loads(done.stdout))

    def test(self) -> tuple[str, str, int]:
        """Run `helm test`; return what the pod printed, what Helm reported, and Helm's exit code."""
        command = helm_command("test", "tensafe", "--namespace", NAMESPACE, kubeconfig=self.plane.admin)
        earlier = (self.pod() or {"metadata": {"uid": ""}})["metadata"]["uid"]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            wait_until(lambda: (found := self.pod()) is not None and found["metadata"]["uid"] != earlier)
            pod = self.pod()
            assert pod is not None
            printed, code = self.run_pod(pod)
            patch = json.dumps({"status": {"phase": "Failed" if code else "Succeeded"}})
            self.plane.kubectl(
                "-n", NAMESPACE, "patch", "pod", ACCOUNT, "--subresource=status", "--type=merge", "-p", patch
            )
            reported, _ = running.communicate(timeout=120)
        finally:
            running.kill()
        return printed, reported, running.returncode

    def run_pod(self, pod: dict[str, Any]) -> tuple[str, int]:
        """Run the command of the pod as its service account; return what it prints, and its exit code."""
        spec = pod["spec"]
        (container,) = spec["containers"]
        health, *others = container["args"]
        assert health == f"--health=http://tensafe-operator-metrics.{NAMESPACE}.svc:8080/healthz"
        there = f"--health={self.operator.health if self.operator else NOWHERE}"
        program, *module = container["command"]
        assert program == "python3"
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig_of(spec["serviceAccountName"]))}
        command = [sys.executable, *module, there, *others, "--wait", "2"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.stderr == ""
        return done.stdout, done.returncode


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    try:
        made.plane.start()
        yield made
    finally:
        if made.operator is not None:
            made.operator.kill()
        made.plane.stop()


def test_job_of_the_test_is_the_quickstart() -> None:
    carried = yaml.safe_load((CHART / "files" / "quickstart.yaml").read_text())
    assert carried == yaml.safe_load((ROOT / "examples" / "quickstart" / "job.yaml").read_text())


def test_health_is_asked_over_tls_where_the_metrics_are_served_over_tls() -> None:
    documents = render_chart({"metrics.tls.secretName": "certificate"}, tests=True)
    (pod,) = [each for each in documents if each["kind"] == "Pod"]
    assert pod["spec"]["containers"][0]["args"][0].startswith("--health=https://tensafe-operator-metrics.")


def test_operators_selectors_leave_the_pod_of_the_test_out() -> None:
    documents = render_chart({"networkPolicy.metricsFrom": [{"podSelector": {}}]}, tests=True)
    (pod,) = [each for each in documents if each["kind"] == "Pod"]
    labels = pod["metadata"]["labels"]
    (service,) = [each["spec"] for each in documents if each["kind"] == "Service"]
    assert not service["selector"].items() <= labels.items()
    (policy,) = [each["spec"] for each in documents if each["kind"] == "NetworkPolicy"]
    assert not policy["podSelector"]["matchLabels"].items() <= labels.items()
    allowed = [peer["podSelector"].get("matchLabels", {}) for peer in policy["ingress"][0]["from"]]
    assert any(each and each.items() <= labels.items() for each in allowed), "it may ask for the operator's health"


def test_good_installation_passes_and_leaves_only_the_log(installation: Installation) -> None:
    plane = installation.plane
    assert installation.helm("install", "tensafe", str(CHART), "--create-namespace").returncode == 0
    plane.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    plane.wait_for_crds()
    install_kuberay_crds(plane)
    installation.start_operator()
    printed, reported, code = installation.test()
    assert code == 0, printed + reported
    assert printed.splitlines() == [
        "the CRD of TenSafeTrainingJob is served",
        "the CRD of PrivacyLedger is served",
        "the CRD of TenSafeClusterProfile is served",
        "the CRDs and the policies that protect ledgers are in force",
        "the operator is healthy (1 ready)",
        "the API server accepts the job quickstart (dry run)",
    ]
    assert installation.pod() is not None, "its log can be read"
    for kind in ("serviceaccount", "role", "rolebinding", "clusterrolebinding"):
        left = plane.kubectl("get", kind, "-A", "-o", "name").stdout
        assert "-test" not in left, kind
    assert plane.kubectl("get", "tsj", "-A", "-o", "name").stdout == ""


def test_each_fault_is_named(installation: Installation) -> None:
    plane = installation.plane
    assert installation.helm("install", "tensafe", str(CHART), "--create-namespace").returncode == 0
    plane.wait_for_crds()
    plane.kubectl("delete", "validatingadmissionpolicybinding", "privacyledgers.tensafe.io")
    plane.kubectl("apply", "-f", "-", text=REFUSE_EVERY_JOB)
    account = ("auth", "can-i", "create", "tsj", f"--as=system:serviceaccount:{NAMESPACE}:{ACCOUNT}")
    assert "no" in plane.kubectl("-n", NAMESPACE, *account, check=False).stdout, "no right without a test"

    def job_is_refused() -> bool:  # a new policy takes effect after a moment
        job = ROOT / "examples" / "quickstart" / "job.yaml"
        return "no job today" in plane.kubectl("create", "--dry-run=server", "-f", str(job), check=False).stderr

    wait_until(job_is_refused)
    printed, reported, code = installation.test()
    assert code
    assert "FAILED" in reported.upper()
    failed = [line for line in printed.splitlines() if line.startswith("FAILED: ")]
    assert len(failed) == 3
    assert failed[0].startswith("FAILED: ValidatingAdmissionPolicyBinding privacyledgers.tensafe.io is missing: ")
    assert failed[1].startswith("FAILED: the operator is not healthy: 127.0.0.1 does not answer")
    assert failed[2].startswith("FAILED: the API server refuses the job quickstart: ")
    assert "no job today" in failed[2]
    assert "warning: KubeRay's RayJob is not served" in printed
    assert installation.pod() is not None, "its log can be read"


def test_missing_crds_are_named_and_limits_are_no_fault(installation: Installation) -> None:
    plane = installation.plane
    without = installation.helm("install", "tensafe", str(CHART), "--create-namespace", crds_enabled=False)
    assert without.returncode == 0, without.stderr
    assert "Apply the CRDs and the policies that protect ledgers: kubectl apply -f crds/" in without.stdout
    printed, _, code = installation.test()
    assert code
    for kind in ("TenSafeTrainingJob", "PrivacyLedger", "TenSafeClusterProfile"):
        assert f"FAILED: the CRD of {kind} is not served: apply the files in crds/" in printed
    values = {"limits_enabled": True, "limits_requireLineage": True}
    assert installation.helm("upgrade", "tensafe", str(CHART), **values).returncode == 0
    plane.wait_for_crds()
    installation.start_operator()

    def limited() -> bool:
        job = ROOT / "examples" / "quickstart" / "job.yaml"
        return "requires a name" in plane.kubectl("create", "--dry-run=server", "-f", str(job), check=False).stderr

    wait_until(limited)
    printed, reported, code = installation.test()
    assert code == 0, printed + reported
    assert "the job quickstart is beyond the chart's `limits`, as they are set" in printed
