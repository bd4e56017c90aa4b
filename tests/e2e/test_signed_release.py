"""A signed release on real pods: a stranger verifies it, and a changed byte in the bucket stops the next attempt."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import s3fs

from e2e.platform.controlplane import kubectl
from e2e.platform.fixtures.planted_secrets import PlantedSecrets, plant_in_records
from e2e.platform.fixtures.team_namespace import BUCKET, LABELS, TeamNamespace
from e2e.platform.trainer.adapters import accuracy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800, func_only=True)]

RECORD = "zq9canary7kx"
"""A word that is in every record and nowhere else."""
SECRET, SIGNING_PATH = "release-key", "/etc/tensafe/signing"
SIGNED = {"spec__checkpoint__signing": {"secretName": SECRET}}
CHANCE = 1 / len(LABELS)
CORE_LIMITS = """
from pathlib import Path
for process in Path("/proc").glob("[0-9]*"):
    if (process / "cmdline").read_bytes().startswith(b"ray::RayTrainWorker"):
        (line,) = (line for line in (process / "limits").read_text().splitlines() if "core file" in line)
        print(*line.split()[4:6], (process / "coredump_filter").read_text().strip())
"""
"""Prints the soft and the hard limit of core dumps of each rank in a pod, and which memory is in them."""


@dataclass(frozen=True)
class Keys:
    """What `tensafe keygen` made."""

    folder: Path
    private: Path
    public: Path


@pytest.fixture
def keys(team: TeamNamespace, data: Path, tmp_path: Path) -> Keys:
    """A namespace that is ready for a job that signs, and the keys of that job."""
    folder = tmp_path / "keys"
    assert not tensafe("keygen", folder).returncode
    made = Keys(folder, folder / "signing-key.pem", folder / "signing-key.pub.pem")
    team.kubectl("create", "secret", "generic", SECRET, f"--from-file={made.private}")
    plant_in_records(RECORD, data, tmp_path / "data")
    team.upload_data(tmp_path / "data")
    team.copy_model_to_pvc()
    return made


@pytest.mark.gate
def test_release_is_signed_in_the_cluster_and_verified_outside(
    team: TeamNamespace, keys: Keys, data: Path, tmp_path: Path
) -> None:
    team.submit(**SIGNED)
    team.wait_for_step(2)

    # Only one worker has the signing key. The head and the other worker do not.
    holders = [pod for pod in team.pod_names() if not team.exec_in_pod(pod, "ls", SIGNING_PATH).returncode]
    assert len(holders) == 1
    assert holders[0] in team.pod_names("worker")

    # The processes with records dump no memory.
    for worker in team.pod_names("worker"):
        assert team.exec_in_pod(worker, "python", "-c", CORE_LIMITS).stdout == "0 0 00000000\n"

    # Nothing that a running job shows has a record, a key or a token.
    secrets = PlantedSecrets({"a record": RECORD, **secrets_in(team)})
    logs = {f"the logs of Ray in {pod}": ray_logs(team, pod) for pod in team.pod_names()}
    assert all(len(each) > 10_000 for each in logs.values())
    assert [found for place, log in logs.items() for found in secrets.found_in(place, log)] == []
    assert secrets.found_in("what the cluster shows", shown_by_cluster(team)) == []

    status = team.wait_until_finished(900)
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    assert [each["signed"] for each in status["checkpoints"]] == [True] * len(status["checkpoints"])
    assert secrets.found_in("what the cluster shows", shown_by_cluster(team)) == []

    # A stranger copies the release, and has the public key.
    release = tmp_path / "release"
    download(team, status["finalModel"]["uri"], release)
    assert secrets.found_below(release) == []
    report = verify(release, "--public-key", keys.public, "--ledger", "kubernetes", "-n", team.namespace, team=team)
    assert (report["verified"], report["signerTrusted"]) == (True, True), report
    assert report["digest"] == status["finalModel"]["digest"]
    assert accuracy(release, data / "eval.jsonl") > 2 * CHANCE


def test_attempt_refuses_a_checkpoint_in_which_a_byte_was_changed(team: TeamNamespace, keys: Keys) -> None:
    team.submit(**SIGNED)
    team.wait_for_step(6)
    team.kubectl("patch", "tsj", "triage", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    suspended = team.wait_for_status(lambda status: status["phase"] == "Suspended", 180)
    team.wait_for_status(lambda _: not team.pod_names(), 180)
    newest = suspended["checkpoints"][-1]
    with team.s3_options() as options:
        path = f"{newest['uri'].removeprefix('s3://')}/adapter_model.safetensors"
        bucket = s3fs.S3FileSystem(**options)
        content = bytearray(bucket.cat_file(path))
        content[-1] ^= 1
        bucket.pipe_file(path, bytes(content))

    team.kubectl("patch", "tsj", "triage", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    failed = team.wait_until_finished(600)
    assert failed["phase"] == "Failed", json.dumps(failed, indent=1)
    last = failed["attempts"][-1]
    assert last["reason"] == "CheckpointCorrupt"
    ray_job = team.get("rayjob", "triage-a2")
    assert ray_job is not None
    assert newest["uri"] in ray_job["status"]["message"]
    assert "adapter_model.safetensors" in ray_job["status"]["message"]
    assert failed["privacy"]["stepsCharged"] == suspended["privacy"]["stepsCharged"], "the refusal costs nothing"


def secrets_in(team: TeamNamespace) -> dict[str, bytes]:
    """The values in all Secrets of a namespace, without certificates. A PEM key is its lines, which a log may split."""
    found = {}
    for secret in json.loads(team.kubectl("get", "secrets", "-o", "json"))["items"]:
        for key, value in secret["data"].items():
            content = base64.b64decode(value)
            lines = content.splitlines()[1:-1] if content.startswith(b"-----BEGIN") else [content]
            for number, line in enumerate(lines):
                if not key.endswith(".crt") and len(line) > 12:  # the last line of a PEM file may be short
                    found[f"{key} of the Secret {secret['metadata']['name']}, part {number}"] = line
    assert {name.split()[0] for name in found} >= {"AWS_SECRET_ACCESS_KEY", "job.key", "ray.token", "signing-key.pem"}
    return found


def ray_logs(team: TeamNamespace, pod: str) -> bytes:
    """An archive of the files of Ray's session in a pod."""
    command = "tar -c /tmp/ray/session_*/logs /var/run/tensafe/events.jsonl 2> /dev/null | base64 -w 0"
    return base64.b64decode(team.exec_in_pod(pod, "sh", "-c", command).stdout)


def shown_by_cluster(team: TeamNamespace) -> str:
    """What users of a cluster see of a job: objects, Events, the logs of all pods, and the operator's metrics."""
    parts = [team.kubectl("get", "tsj,privacyledger,rayjob,raycluster,pod,event,configmap,networkpolicy", "-o", "yaml")]
    for namespace in (team.namespace, "tensafe-system", "kuberay-system"):
        pods = kubectl(team.kubeconfig, "-n", namespace, "get", "pods", "-o", "name").stdout.split()
        logs = (("-n", namespace, "logs", pod, "--all-containers") for pod in pods)
        parts += (kubectl(team.kubeconfig, *command, check=False).stdout for command in logs)
    return "\n".join([*parts, operator_metrics(team)])


def operator_metrics(team: TeamNamespace) -> str:
    reader = f"reader-{team.namespace}"
    kubectl(team.kubeconfig, "-n", "tensafe-system", "create", "serviceaccount", reader)
    role = ("--clusterrole=tensafe-metrics-reader", f"--serviceaccount=tensafe-system:{reader}")
    kubectl(team.kubeconfig, "create", "clusterrolebinding", reader, *role)
    try:
        token = kubectl(team.kubeconfig, "-n", "tensafe-system", "create", "token", reader).stdout.strip()
        with team.forward_port("deployment/tensafe-operator", 8080, "tensafe-system") as port:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                metrics = str(answer.read().decode())
    finally:
        kubectl(team.kubeconfig, "delete", "clusterrolebinding", reader)
        kubectl(team.kubeconfig, "-n", "tensafe-system", "delete", "serviceaccount", reader)
    assert team.namespace in metrics
    return metrics


def download(team: TeamNamespace, uri: str, folder: Path) -> None:
    """Copy a checkpoint out of the bucket, as `aws s3 cp --recursive` does."""
    assert uri.startswith(f"s3://{BUCKET}/")
    with team.s3_options() as options:
        s3fs.S3FileSystem(**options).get(uri, str(folder), recursive=True)


def tensafe(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command, as a user does."""
    command = [str(Path(sys.executable).with_name("tensafe")), *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def verify(release: Path, *arguments: object, team: TeamNamespace) -> dict[str, Any]:
    done = tensafe("verify", release, *arguments, "-o", "json", KUBECONFIG=str(team.kubeconfig))
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["verified"] else 1)
    return report
