"""What our NetworkPolicies mean, by cyclonus' evaluator: whether an engine enforces them is the cluster's affair."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.platform.fixtures.manifests import MINIMAL, changed
from e2e.platform.gotools import program
from tensafe_api.problems import parse_job
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator.children import network, rayjob
from tensafe_operator.settings import Settings

pytestmark = pytest.mark.cluster

SETTINGS = Settings(image="registry.example/tensafe-trainer:0.1", egress_cidrs=("10.1.0.0/16",))
GLOO, DASHBOARD, GCS, S3 = 34567, 8265, 6379, 9000


def admitted(namespace: str, name: str, uid: str) -> TenSafeTrainingJob:
    own = {"metadata.namespace": namespace, "metadata.name": name, "metadata.uid": uid, "spec.cluster": {"workers": 2}}
    return resolve_job(parse_job(changed(MINIMAL, own)))[0]


OURS = admitted("clinic", "triage", "uid-1")
NEIGHBOUR = admitted("clinic", "claims", "uid-2")
ELSEWHERE = admitted("insurer", "triage", "uid-3")


def pod(namespace: str, labels: dict[str, str], address: str) -> dict[str, Any]:
    of_namespace = {"kubernetes.io/metadata.name": namespace}
    internal = {"Namespace": namespace, "NamespaceLabels": of_namespace, "PodLabels": labels}
    return {"Internal": internal, "IP": address}


def pods_of(job: TenSafeTrainingJob, address: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A head and a worker, with the labels that their templates give them."""
    spec = rayjob.ray_job(job, 1, SETTINGS, job_digest="d", key_secret="k")["spec"]["rayClusterSpec"]
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
LIAR = pod("insurer", WORKER["Internal"]["PodLabels"], "10.85.4.2")
KUBERAY = pod("kuberay-system", {"app.kubernetes.io/name": "kuberay-operator"}, "10.85.5.1")
INTERNET, BUCKET, METADATA = {"IP": "203.0.113.9"}, {"IP": "10.1.2.3"}, {"IP": "169.254.169.254"}


def test_only_a_jobs_own_pods_reach_its_pods_and_they_reach_only_what_they_need(tmp_path: Path) -> None:
    questions = [
        # in
        (WORKER, HEAD, GCS, True),
        (HEAD, WORKER, GLOO, True),
        (WORKER, WORKER, GLOO, True),
        (KUBERAY, HEAD, DASHBOARD, True),
        (KUBERAY, HEAD, GCS, False),
        *(
            (asker, target, port, False)
            for asker in (OTHER, FOREIGN, STRANGER, LIAR, INTERNET)
            for target, port in ((WORKER, GLOO), (HEAD, GCS), (HEAD, DASHBOARD))
        ),
        # out
        (WORKER, INTERNET, 443, True),
        (WORKER, INTERNET, 80, False),
        (WORKER, INTERNET, 25, False),
        (WORKER, BUCKET, S3, True),
        (WORKER, STRANGER, S3, False),
        (WORKER, STRANGER, 443, True),  # as anybody whom no policy guards
        *((WORKER, neighbour, 443, False) for neighbour in (OTHER, FOREIGN)),
        (WORKER, METADATA, 80, True),
        (WORKER, INTERNET, 6443, True),
    ]
    assert answers(questions, tmp_path) == [allowed for *_, allowed in questions]


def test_a_policy_that_lets_everybody_in_is_told_from_ours(tmp_path: Path) -> None:
    """The evaluator can say yes: what it says of ours is not said of everything."""
    assert answers([(STRANGER, WORKER, GLOO, True)], tmp_path, opened=True) == [True]


def answers(questions: list[Any], folder: Path, *, opened: bool = False) -> list[bool]:
    """Whether each (source, destination, TCP port) may pass."""
    policies = [network.policy(job, SETTINGS) for job in (OURS, NEIGHBOUR, ELSEWHERE)]
    for job, policy in zip((OURS, NEIGHBOUR, ELSEWHERE), policies):
        policy["metadata"]["namespace"] = job.metadata.namespace
        if opened:
            policy["spec"]["ingress"] = [{}]
    place = folder / "policies"
    place.mkdir()
    for number, policy in enumerate(policies):
        (place / f"{number}.yaml").write_text(yaml.safe_dump(policy))
    traffic = [
        {"Source": source, "Destination": target, "Protocol": "TCP", "ResolvedPort": port}
        for source, target, port, _ in questions
    ]
    (folder / "traffic.json").write_text(json.dumps(traffic))
    cyclonus = program("cyclonus", "github.com/mattfenwick/cyclonus/cmd/cyclonus")
    command = [str(cyclonus), "analyze", "--mode", "query-traffic", "--policy-path", str(place)]
    command += ["--traffic-path", str(folder / "traffic.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [answer == "TRUE" for answer in re.findall(r"IS ALLOWED\? \|\s+(TRUE|FALSE)", done.stdout)]
