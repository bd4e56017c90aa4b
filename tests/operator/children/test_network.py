"""What the NetworkPolicies allow, by the evaluator of cyclonus. The cluster's network plugin enforces them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_api.manifest.validation import parse_job
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator.children import configuration, network, rayjob
from tensafe_operator.job_network import Dns, JobNetwork, MetadataService
from tensafe_operator.settings import Settings
from tests.support.manifests import MINIMAL, changed
from tests.support.programs.gotools import program

pytestmark = pytest.mark.cluster

SETTINGS = Settings(image="registry.example/tensafe-trainer:0.1", egress_cidrs=("10.1.0.0/16",))
GLOO, DASHBOARD, GCS, S3 = 34567, 8265, 6379, 9000


def admitted(namespace: str, name: str, uid: str) -> TenSafeTrainingJob:
    changes = {
        "metadata.namespace": namespace,
        "metadata.name": name,
        "metadata.uid": uid,
        "spec.cluster": {"workers": 2},
        "spec.privacy.noiseMultiplier": "1",
    }
    return resolve_job(parse_job(changed(MINIMAL, changes)))[0]


OURS = admitted("clinic", "triage", "uid-1")
NEIGHBOUR = admitted("clinic", "claims", "uid-2")
ELSEWHERE = admitted("insurer", "triage", "uid-3")


def pod(namespace: str, labels: dict[str, str], address: str) -> dict[str, Any]:
    of_namespace = {"kubernetes.io/metadata.name": namespace}
    internal = {"Namespace": namespace, "NamespaceLabels": of_namespace, "PodLabels": labels}
    return {"Internal": internal, "IP": address}


def pods_of(job: TenSafeTrainingJob, address: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A head and a worker, with the labels that their templates give them."""
    parameters = configuration.config_map(job, 1, "ledger", "ledger-uid", "key-digest")
    made = rayjob.ray_job(job, 1, SETTINGS, parameters=parameters, key_secret="k", account="a")
    spec = made["spec"]["rayClusterSpec"]
    templates = (spec["headGroupSpec"]["template"], spec["workerGroupSpecs"][0]["template"])
    head, worker = (
        pod(str(job.metadata.namespace), template["metadata"]["labels"], f"{address}.{number}")
        for number, template in enumerate(templates)
    )
    return head, worker


HEAD, WORKER = pods_of(OURS, "10.85.1")
OTHER = pods_of(NEIGHBOUR, "10.85.2")[1]
FOREIGN = pods_of(ELSEWHERE, "10.85.3")[1]
STRANGER = pod("clinic", {"app": "shell"}, "10.85.4.1")
IMPOSTOR = pod("insurer", WORKER["Internal"]["PodLabels"], "10.85.4.2")
KUBERAY = pod("kuberay-system", {"app.kubernetes.io/component": "kuberay-operator"}, "10.85.5.1")
BESIDE_KUBERAY = pod("kuberay-system", {"app.kubernetes.io/component": "other"}, "10.85.5.2")
KUBE_DNS = pod("kube-system", {"k8s-app": "kube-dns"}, "10.85.6.1")
OPENSHIFT_DNS = pod("openshift-dns", {"dns": "default"}, "10.85.6.2")
INTERNET, BUCKET, METADATA = {"IP": "203.0.113.9"}, {"IP": "10.1.2.3"}, {"IP": "169.254.169.254"}
NODE_DNS, POD_IDENTITY = {"IP": "169.254.20.10"}, {"IP": "169.254.170.23"}


def test_pods_accept_connections_of_their_job_only_and_open_only_needed_ones(tmp_path: Path) -> None:
    connections = [
        # in
        (WORKER, HEAD, GCS, True),
        (HEAD, WORKER, GLOO, True),
        (WORKER, WORKER, GLOO, True),
        (KUBERAY, HEAD, DASHBOARD, True),
        (KUBERAY, HEAD, GCS, False),
        *((other, HEAD, DASHBOARD, False) for other in (BESIDE_KUBERAY, WORKER, HEAD)),
        *((WORKER, HEAD, port, True) for port in (DASHBOARD - 1, DASHBOARD + 1)),
        *(
            (source, target, port, False)
            for source in (OTHER, FOREIGN, STRANGER, IMPOSTOR, INTERNET)
            for target, port in ((WORKER, GLOO), (HEAD, GCS), (HEAD, DASHBOARD))
        ),
        # out
        (WORKER, INTERNET, 443, True),
        (WORKER, INTERNET, 80, False),
        (WORKER, INTERNET, 25, False),
        (WORKER, BUCKET, S3, True),
        (WORKER, STRANGER, S3, False),
        (WORKER, STRANGER, 443, True),  # as any pod that no policy selects
        *((WORKER, neighbour, 443, False) for neighbour in (OTHER, FOREIGN)),
        (WORKER, METADATA, 80, False),  # the node's credentials
        (WORKER, POD_IDENTITY, 80, True),
        (WORKER, INTERNET, 6443, True),
        *((WORKER, server, port, True) for server in (KUBE_DNS, OPENSHIFT_DNS, NODE_DNS) for port in (53, 5353)),
        *((WORKER, other, 53, False) for other in (INTERNET, STRANGER)),
    ]
    assert evaluate(connections, tmp_path, SETTINGS) == [allowed for *_, allowed in connections]


def test_administrator_can_close_all_but_named_destinations(tmp_path: Path) -> None:
    """An API server and an object store with known addresses, and a DNS service outside the cluster."""
    closed = JobNetwork(
        dns=Dns(to=({"ipBlock": {"cidr": "10.9.0.10/32"}},), ports=(53,)),
        api_server_ports=(8443,),
        api_server_cidrs=("10.9.0.1/32",),
        metadata=(),
        egress=({"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"protocol": "TCP", "port": S3}]},),
    )
    connections = [
        (WORKER, HEAD, GCS, True),
        (WORKER, {"IP": "10.9.0.10"}, 53, True),
        (WORKER, KUBE_DNS, 53, False),
        (WORKER, {"IP": "10.9.0.1"}, 8443, True),
        (WORKER, {"IP": "10.9.0.1"}, 443, False),
        (WORKER, INTERNET, 8443, False),
        (WORKER, BUCKET, S3, True),
        (WORKER, BUCKET, 443, False),
        *((WORKER, INTERNET, port, False) for port in (443, 6443, 53)),
        (WORKER, POD_IDENTITY, 80, False),
    ]
    found = evaluate(connections, tmp_path, Settings(image="trainer:1", job_network=closed))
    assert found == [allowed for *_, allowed in connections]


@pytest.mark.parametrize(
    ("service", "address", "port"),
    [
        (MetadataService.NODE, "169.254.169.254", 80),
        (MetadataService.GKE_WORKLOAD_IDENTITY, "169.254.169.254", 80),
        (MetadataService.GKE_WORKLOAD_IDENTITY, "169.254.169.252", 988),
    ],
)
def test_credentials_of_a_cloud_are_opened_by_name(
    tmp_path: Path, service: MetadataService, address: str, port: int
) -> None:
    opened = Settings(image="trainer:1", job_network=JobNetwork(metadata=(service,)))
    connections = [(WORKER, {"IP": address}, port, True), (WORKER, {"IP": address}, 8080, False)]
    assert evaluate(connections, tmp_path, opened) == [True, False]


def test_administrator_can_leave_the_policies_out() -> None:
    assert network.policy(OURS, Settings(image="trainer:1", job_network=JobNetwork(enabled=False))) is None


def test_evaluator_allows_a_connection_if_a_policy_allows_all(tmp_path: Path) -> None:
    """A check of the evaluator: it does not refuse everything."""
    assert evaluate([(STRANGER, WORKER, GLOO, True)], tmp_path, SETTINGS, opened=True) == [True]


def evaluate(connections: list[Any], folder: Path, settings: Settings, *, opened: bool = False) -> list[bool]:
    """Whether the policies allow each connection (source, destination, TCP port)."""
    policies = [network.policy(job, settings) for job in (OURS, NEIGHBOUR, ELSEWHERE)]
    for job, policy in zip((OURS, NEIGHBOUR, ELSEWHERE), policies):
        assert policy is not None
        policy["metadata"]["namespace"] = job.metadata.namespace
        if opened:
            policy["spec"]["ingress"] = [{}]
    policy_folder = folder / "policies"
    policy_folder.mkdir()
    for number, policy in enumerate(policies):
        (policy_folder / f"{number}.yaml").write_text(yaml.safe_dump(policy))
    traffic = [
        {"Source": source, "Destination": target, "Protocol": "TCP", "ResolvedPort": port}
        for source, target, port, _ in connections
    ]
    (folder / "traffic.json").write_text(json.dumps(traffic))
    cyclonus = program("cyclonus", "github.com/mattfenwick/cyclonus/cmd/cyclonus")
    command = [str(cyclonus), "analyze", "--mode", "query-traffic", "--policy-path", str(policy_folder)]
    command += ["--traffic-path", str(folder / "traffic.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [allowed == "TRUE" for allowed in re.findall(r"IS ALLOWED\? \|\s+(TRUE|FALSE)", done.stdout)]
