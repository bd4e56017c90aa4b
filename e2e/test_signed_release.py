"""A signed and encrypted release on real pods: a stranger verifies it, a recipient decrypts and loads it.

A changed byte in the bucket stops the next attempt, and a pod that would serve the adapter.
"""

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
import yaml

from e2e.platform import images
from tests.support.planted_secrets import PlantedSecrets, plant_in_records
from tests.support.programs.controlplane import kubectl
from tests.support.team_namespace import BUCKET, LABELS, TeamNamespace
from tests.support.trainer.adapters import accuracy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800, func_only=True)]

RECORD = "zq9canary7kx"
"""A word that is in every record and nowhere else."""
SECRET, SIGNING_PATH = "release-key", "/etc/tensafe/signing"
IDENTITY, IDENTITY_PATH = "release-identity", "/etc/tensafe/identity"
READABLE = {
    "README.md",
    "adapter_config.json",
    "manifest.json",
    "model.sig",
    "privacy-attestation.json",
    "statement.json",
    "statement.md",
    "trainer_state.json",
}
"""The files of an encrypted checkpoint that stay readable."""
ENCRYPTED = b"age-encryption.org/"
CHANCE = 1 / len(LABELS)
SERVING = Path(__file__).parents[1] / "examples" / "serving" / "deployment.yaml"
SERVER = "app.kubernetes.io/name=claims"
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
    """What `tensafe keygen` made, and the changes to a job that uses it."""

    private: Path
    public: Path
    identity: Path
    changes: dict[str, Any]

    @property
    def lines(self) -> list[str]:
        """The secret parts: the lines of the signing key, and the identity."""
        return [*self.private.read_text().splitlines()[1:-1], self.identity.read_text().splitlines()[-1]]


@pytest.fixture
def keys(team: TeamNamespace, data: Path, tmp_path: Path) -> Keys:
    """A namespace that is ready for a job that signs, and the keys of that job."""
    folder = tmp_path / "keys"
    assert not tensafe("keygen", folder).returncode
    private, public, identity = (
        folder / name for name in ("signing-key.pem", "signing-key.pub.pem", "age-identity.txt")
    )
    recipient = identity.read_text().partition("# public key: ")[2].splitlines()[0]
    team.kubectl("create", "secret", "generic", SECRET, f"--from-file={private}")
    team.kubectl("create", "secret", "generic", IDENTITY, f"--from-file=identity={identity}")
    plant_in_records(RECORD, data, tmp_path / "data")
    team.upload_data(tmp_path / "data")
    team.copy_model_to_pvc()
    changes = {
        "spec__checkpoint__signing": {"secretName": SECRET},
        "spec__checkpoint__encryption": {"recipients": [recipient], "identitySecretName": IDENTITY},
        "spec__observability__auditLog": "Enabled",
    }
    return Keys(private, public, identity, changes)


@pytest.mark.gate
def test_release_is_verified_outside_decrypted_and_served_only_as_it_was_signed(
    team: TeamNamespace, keys: Keys, data: Path, tmp_path: Path
) -> None:
    team.submit(**keys.changes)
    team.wait_for_step(2)

    # One worker has the signing key, both have the identity, and the head has neither.
    workers = team.pod_names("worker")
    assert len(pods_with(team, SIGNING_PATH)) == 1
    assert pods_with(team, SIGNING_PATH) < pods_with(team, IDENTITY_PATH) == set(workers)

    # The processes with records dump no memory.
    for worker in workers:
        assert team.exec_in_pod(worker, "python", "-c", CORE_LIMITS).stdout == "0 0 00000000\n"

    # Nothing that a running job shows has a record, a key or a token.
    secrets = PlantedSecrets({"a record": RECORD, **secrets_in(team)})
    for number, line in enumerate(keys.lines):
        secrets.add(f"part {number} of the keys", line)
    logs = {f"the logs of Ray in {pod}": ray_logs(team, pod) for pod in team.pod_names()}
    assert all(len(each) > 10_000 for each in logs.values())
    assert [found for place, log in logs.items() for found in secrets.found_in(place, log)] == []
    assert secrets.found_in("what the cluster shows", shown_by_cluster(team)) == []

    status = team.wait_until_finished(900)
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    final = status["finalModel"]
    assert secrets.found_in("what the cluster shows", shown_by_cluster(team)) == []

    # Everything of a checkpoint in the bucket is readable metadata, or encrypted.
    bucket = tmp_path / "bucket"
    download(team, f"s3://{BUCKET}/models", bucket)
    assert secrets.found_below(bucket) == []
    files = [path for path in bucket.rglob("*") if path.is_file() and path.parent.name.startswith(("final", "step-"))]
    weights = [path for path in files if path.name not in READABLE]
    assert {path.name for path in weights} == {"adapter_model.safetensors.age", "optimizer.safetensors.age"}
    assert all(path.read_bytes().startswith(ENCRYPTED) for path in weights)

    # A stranger has the public key. A recipient also has the identity.
    (release,) = bucket.rglob("final")
    against = ("--ledger", "kubernetes", "-n", team.namespace)
    report = verify(team, release, "--public-key", keys.public, *against)
    assert (report["verified"], report["signerTrusted"]) == (True, True), report
    assert report["digest"] == final["digest"]
    assert {each["signer"] for each in status["checkpoints"]} == {report["signer"]}
    assert verify(team, release, "--public-key", keys.public, "--identity", keys.identity)["verified"]
    (log,) = bucket.rglob("audit-*")
    assert verify(team, release, "--public-key", keys.public, *against, "--audit-log", log)["verified"]
    adapter = tmp_path / "adapter"
    assert not tensafe("decrypt", release, "--identity", keys.identity, "--output", adapter).returncode
    assert accuracy(adapter, data / "eval.jsonl") > 2 * CHANCE

    # The pod that serves it gets what was signed, and does not start after a byte in the bucket was changed.
    serve(team, keys, final)
    team.kubectl("wait", "--for=condition=Ready", "pod", "-l", SERVER, "--timeout=300s")
    team.kubectl("delete", "deployment", "claims", "--wait")
    change_a_byte(team, f"{final['uri']}/adapter_model.safetensors.age")
    serve(team, keys, final)
    refused = team.wait_for(lambda: message_of_init_container(team), 300)
    assert "not verified: adapter_model.safetensors.age" in refused


def test_attempt_refuses_a_checkpoint_in_which_a_byte_was_changed(team: TeamNamespace, keys: Keys) -> None:
    team.submit(**keys.changes)
    team.wait_for_step(6)
    team.kubectl("patch", "tsj", "triage", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    suspended = team.wait_for_status(lambda status: status["phase"] == "Suspended", 180)
    team.wait_for_status(lambda _: not team.pod_names(), 180)
    newest = suspended["checkpoints"][-1]
    change_a_byte(team, f"{newest['uri']}/adapter_model.safetensors.age")

    team.kubectl("patch", "tsj", "triage", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    failed = team.wait_until_finished(600)
    assert failed["phase"] == "Failed", json.dumps(failed, indent=1)
    assert failed["attempts"][-1]["reason"] == "CheckpointCorrupt"
    ray_job = team.get("rayjob", "triage-a2")
    assert ray_job is not None
    assert newest["uri"] in ray_job["status"]["message"]
    assert "adapter_model.safetensors" in ray_job["status"]["message"]
    assert failed["privacy"]["stepsCharged"] == suspended["privacy"]["stepsCharged"], "the refusal costs nothing"


def pods_with(team: TeamNamespace, path: str) -> set[str]:
    """The job's pods that have a path."""
    return {pod for pod in team.pod_names() if not team.exec_in_pod(pod, "ls", path).returncode}


def change_a_byte(team: TeamNamespace, uri: str) -> None:
    """Change the last byte of an object in the bucket."""
    with team.s3_options() as options:
        bucket = s3fs.S3FileSystem(**options)
        content = bytearray(bucket.cat_file(uri))
        content[-1] ^= 1
        bucket.pipe_file(uri, bytes(content))


def serve(team: TeamNamespace, keys: Keys, final: dict[str, Any]) -> None:
    """Apply the example with this release. In place of the server, which needs a base model, a process waits."""
    signer, deployment, _ = yaml.safe_load_all(SERVING.read_text())
    signer["data"] = {keys.public.name: keys.public.read_text()}
    pod = deployment["spec"]["template"]["spec"]
    (check,), (server,) = pod["initContainers"], pod["containers"]
    check["image"] = server["image"] = images.names_of_ours()[1]
    check["args"] = [
        *(final["uri"], f"--public-key=/signer/{keys.public.name}", f"--digest={final['digest']}"),
        "--output-dir=/adapter/claims",
    ]
    check["env"] = [{"name": "AWS_ENDPOINT_URL_S3", "value": team.endpoint}, {"name": "HOME", "value": "/tmp"}]
    check["envFrom"] = [{"secretRef": {"name": "s3"}}]
    check["resources"] = server["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}}
    server["args"] = ["test -s /adapter/claims/adapter_model.safetensors.age && exec sleep infinity"]
    for probe in ("startupProbe", "readinessProbe"):
        del server[probe]
    server["volumeMounts"] = [each for each in server["volumeMounts"] if each["name"] != "base"]
    pod["volumes"] = [each for each in pod["volumes"] if each["name"] != "base"]
    team.apply(signer, deployment)


def message_of_init_container(team: TeamNamespace) -> str | None:
    """What the container that verifies printed last; None while it has not ended."""
    for pod in json.loads(team.kubectl("get", "pods", "-l", SERVER, "-o", "json"))["items"]:
        for container in (pod.get("status") or {}).get("initContainerStatuses") or ():
            ends = (container["state"].get("terminated"), (container.get("lastState") or {}).get("terminated"))
            for end in ends:
                if end and end["exitCode"]:
                    return str(end.get("message"))
    return None


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
        pods = kubectl(team.kubeconfig, "-n", "tensafe-system", "get", "pods", "-o", "name").stdout.split()
        metrics = "".join(read_metrics(team, pod, token) for pod in pods)  # only the leader's are about jobs
    finally:
        kubectl(team.kubeconfig, "delete", "clusterrolebinding", reader)
        kubectl(team.kubeconfig, "-n", "tensafe-system", "delete", "serviceaccount", reader)
    assert team.namespace in metrics
    return metrics


def read_metrics(team: TeamNamespace, pod: str, token: str) -> str:
    with team.forward_port(pod, 8080, "tensafe-system") as port:
        address = f"http://127.0.0.1:{port}/metrics"
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())


def download(team: TeamNamespace, uri: str, folder: Path) -> None:
    """Copy a checkpoint out of the bucket, as `aws s3 cp --recursive` does."""
    assert uri.startswith(f"s3://{BUCKET}/")
    with team.s3_options() as options:
        s3fs.S3FileSystem(**options).get(uri, str(folder), recursive=True)


def tensafe(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command, as a user does."""
    command = [str(Path(sys.executable).with_name("tensafe")), *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def verify(team: TeamNamespace, release: Path, *arguments: object) -> dict[str, Any]:
    """What `tensafe verify` reports to a person with access to the cluster."""
    done = tensafe("verify", release, *arguments, "-o", "json", KUBECONFIG=str(team.kubeconfig))
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["verified"] else 1)
    return report
