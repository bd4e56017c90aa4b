"""A whole attempt as the RayJob's entrypoint runs it, on two Ray nodes with a real API server.

One node is a head without CPUs, the others are workers: one, or two where one of them signs. The test mounts the files
that the operator would mount. Each node has its own root folder, as a pod has.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.manifest.text import load_manifest
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.statement.contents import digest
from tensafe_operator.children import configuration
from tensafe_operator.children.access import job_key, key_digest
from tensafe_operator.children.ledger import ledger
from tensafe_operator.children.rayjob import JOB_DIGEST_VARIABLE, SIGNER_VARIABLE, ray_job
from tensafe_operator.children.volumes import RUN_PATH
from tensafe_operator.settings import Settings
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.ledger.backends import POD_UID
from tensorguard.runners.pod.pod_files import ROOT_VARIABLE, PodFiles
from tensorguard.runners.run_folder import WORK_FOLDER
from tensorguard.signing.keys import new_signing_key, write_new
from tests.support.ledger_objects import make_pod
from tests.support.polling import TIMEOUT_SECONDS, wait_until
from tests.support.programs.controlplane import ControlPlane
from tests.support.trainer.rank_harness import MANIFEST, make_model, records
from tests.support.trainer.ray_nodes import RayNodes

pytestmark = pytest.mark.cluster

STEPS = 12


class Pods:
    """The nodes of Ray, and the driver. `head` and `worker` are the root folders of the two pods."""

    def __init__(self, base: Path, of_all: dict[str, str], of_worker: dict[str, str]) -> None:
        """Args: of_all, of_worker: environment variables."""
        self.head, self.worker = base / "head", base / "worker"
        self._nodes = RayNodes()
        for name in ("KUBECONFIG", POD_UID):
            self._nodes.environment.pop(name, None)
        self._nodes.environment |= of_all
        self._of_worker = of_worker

    def start(self) -> None:
        """Start the head, and then the worker."""
        self.start_head()
        self.start_worker(self.worker)

    def start_head(self) -> None:
        self._nodes.start_head(self.head, cpus=0, **{ROOT_VARIABLE: str(self.head)})

    def start_worker(self, root: Path, **variables: str) -> None:
        """Start a worker whose pod has this root folder."""
        self._nodes.start_node(root, cpus=2, **{ROOT_VARIABLE: str(root)}, **self._of_worker, **variables)

    def drive(self) -> subprocess.Popen[str]:
        """Start the entrypoint in the head."""
        return subprocess.Popen(
            [sys.executable, "-m", "tensorguard.driver"],
            env=self._nodes.environment | {ROOT_VARIABLE: str(self.head), "RAY_ADDRESS": self._nodes.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def stop(self) -> None:
        self._nodes.stop()


class Clinic:
    """A job in a namespace, the objects that the operator creates for it, and the folders where they are mounted."""

    def __init__(self, plane: ControlPlane, namespace: str, base: Path, steps: int, *overrides: str) -> None:
        """Args: overrides: of the job, as in `--set`."""
        self._plane, self._namespace = plane, namespace
        make_model(base / "model")
        (base / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records(240)))
        overrides = ("spec.cluster.workers=1", f"spec.training.steps={steps}", *overrides)
        self.job, plan = resolve_job(load_manifest(self._text(base), overrides))
        plane.kubectl("-n", namespace, "create", "-f", "-", text=self._text(base))
        uid = json.loads(plane.kubectl("-n", namespace, "get", "tsj", "tiny", "-o", "json").stdout)["metadata"]["uid"]
        metadata = self.job.metadata.model_copy(update={"uid": uid, "namespace": namespace})
        self.job: TenSafeTrainingJob = self.job.model_copy(update={"metadata": metadata})
        secret = job_key(self.job)
        made = plane.kubectl("create", "-o", "json", "-f", "-", text=json.dumps(ledger(self.job, plan, secret)))
        created = json.loads(made.stdout)
        self._ledger = created["metadata"]
        self.pod = make_pod(plane, namespace, created["spec"]["serviceAccountName"])
        for root in ("head", "worker"):
            for folder in ("etc/tensafe/job", "var/run/tensafe"):
                (base / root / folder).mkdir(parents=True)
        key = base / "worker/etc/tensafe/key"
        key.mkdir()
        for name, content in secret["data"].items():
            self.key = base64.b64decode(content)
            (key / name).write_bytes(self.key)
        self._base = base
        self._written = configuration.config_map(
            self.job, 1, self._ledger["name"], self._ledger["uid"], key_digest(secret)
        )
        for root in ("head", "worker"):
            for name, content in self._written["data"].items():
                (base / root / "etc/tensafe/job" / name).write_text(content)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that the operator sets in all pods."""
        return {JOB_DIGEST_VARIABLE: configuration.digest(self._written)}

    def status(self) -> dict[str, Any]:
        name = self._ledger["name"]
        found = self._plane.kubectl("-n", self._namespace, "get", "privacyledger", name, "-o", "json")
        return dict(json.loads(found.stdout).get("status", {}))

    def hooks(self) -> list[list[str]]:
        """The preStop commands of head and worker, each with the paths of its own root folder."""
        made = ray_job(self.job, 1, Settings(), parameters=self._written, key_secret="", account="trainer")
        job = made["spec"]["rayClusterSpec"]
        pods = {"head": job["headGroupSpec"], "worker": job["workerGroupSpecs"][0]}
        found = []
        for root, pod in pods.items():
            (container,) = pod["template"]["spec"]["containers"]
            command = container["lifecycle"]["preStop"]["exec"]["command"]
            found.append([part.replace(RUN_PATH, str(self._base / root / "var/run/tensafe")) for part in command])
        return found

    @staticmethod
    def _text(base: Path) -> str:
        text = MANIFEST.replace("MODEL", str(base / "model")).replace("CHECKPOINTS", str(base / "checkpoints"))
        return text.replace("uri: unused.jsonl", f"uri: {base / 'data.jsonl'}")


@pytest.fixture
def clinic(control_plane: ControlPlane, namespace: str, tmp_path: Path, request: pytest.FixtureRequest) -> Clinic:
    return Clinic(control_plane, namespace, tmp_path, getattr(request, "param", STEPS))


@pytest.fixture
def pods(clinic: Clinic, tmp_path: Path) -> Iterator[Pods]:
    pods = Pods(tmp_path, clinic.variables, {"KUBECONFIG": str(clinic.pod.kubeconfig), POD_UID: clinic.pod.uid})
    try:
        pods.start()
        yield pods
    finally:
        pods.stop()


def test_attempt_completes_and_prints_one_sentence(clinic: Clinic, pods: Pods) -> None:
    driver = pods.drive()
    out, _ = driver.communicate(timeout=TIMEOUT_SECONDS)
    assert (driver.returncode, out) == (0, f"Completed: all {STEPS} steps are done.\n")
    status = clinic.status()
    assert status["outcome"] == "Completed"
    (charge,) = status["charges"]
    assert charge.pop("writer")
    assert charge == {"attempt": 1, "steps": STEPS, "incarnation": 1, "podUID": clinic.pod.uid}
    assert status["datasetDigest"].startswith("hmac-sha256:")
    final = status["releases"][-1]
    assert (final["final"], final["step"], final["attempt"]) == (True, STEPS, 1)
    saved = CheckpointStore(str(pods.head.parent / "checkpoints")).read("final", final["digest"])
    assert digest(saved["statement.json"]) == final["statementDigest"]
    assert (PodFiles(pods.worker).run / WORK_FOLDER / "shard-000-of-001.arrow").exists()
    of_head = [path for path in PodFiles(pods.head).root.rglob("*") if path.is_file()]
    assert not PodFiles(pods.head).key_file.exists()
    assert not any(clinic.key in path.read_bytes() or b"w1 " in path.read_bytes() for path in of_head)


@pytest.mark.parametrize("clinic", [20_000], indirect=True)
def test_stopped_attempt_saves_a_checkpoint_and_reports_it(clinic: Clinic, pods: Pods) -> None:
    driver = pods.drive()
    wait_until(lambda: (clinic.status().get("progress") or {}).get("step", 0) > 0)
    driver.send_signal(signal.SIGTERM)
    out, _ = driver.communicate(timeout=TIMEOUT_SECONDS)
    status = clinic.status()
    saved = status["releases"][-1]
    sentence = f"Interrupted: stopped on request after step {saved['step']} of 20000.\n"
    assert (driver.returncode, out, status["outcome"]) == (0, sentence, "Suspended")
    assert 0 < saved["step"] <= status["charges"][0]["steps"] < 20_000
    store = CheckpointStore(str(pods.head.parent / "checkpoints"))
    assert store.read(saved["uri"].rsplit("/", 1)[1], saved["digest"])


@pytest.mark.parametrize("clinic", [20_000], indirect=True)
def test_terminating_pods_save_a_checkpoint_first(clinic: Clinic, pods: Pods) -> None:
    """The test calls the preStop hooks of head and worker, as the kubelet does before it ends Ray."""
    driver = pods.drive()
    wait_until(lambda: (clinic.status().get("progress") or {}).get("step", 0) > 0)
    try:
        hooks = [subprocess.Popen(hook) for hook in clinic.hooks()]
        assert [hook.wait(TIMEOUT_SECONDS) for hook in hooks] == [0, 0]
        status = clinic.status()
        assert status["outcome"] == "Suspended"
        assert status["releases"][-1]["step"] == status["progress"]["step"]
        assert driver.poll() is None, "it printed the end of the job, although only its pod ends"
    finally:
        driver.kill()
    assert driver.communicate()[0] == ""


def test_worker_with_the_signing_key_is_rank_0_and_signs(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    signing = ("spec.cluster.workers=2", "spec.checkpoint.signing={secretName: release-key}")
    clinic = Clinic(control_plane, namespace, tmp_path, 3, *signing)
    shutil.copytree(tmp_path / "worker", tmp_path / "signer")
    private, public, fingerprint = new_signing_key()
    key = PodFiles(tmp_path / "signer").signing_key_file
    write_new(key.parent, {key.name: (private, 0o400)})
    pods = Pods(tmp_path, clinic.variables, {"KUBECONFIG": str(clinic.pod.kubeconfig), POD_UID: clinic.pod.uid})
    try:
        pods.start_head()
        pods.start_worker(tmp_path / "worker", **{SIGNER_VARIABLE: "0"})
        pods.start_worker(tmp_path / "signer", **{SIGNER_VARIABLE: "1"})
        driver = pods.drive()
        out, _ = driver.communicate(timeout=TIMEOUT_SECONDS)
        assert (driver.returncode, out) == (0, "Completed: all 3 steps are done.\n")
    finally:
        pods.stop()
    assert [each["signer"] for each in clinic.status()["releases"]] == [fingerprint]
    assert (PodFiles(tmp_path / "signer").work / "shard-000-of-002.arrow").exists()
    assert (PodFiles(tmp_path / "worker").work / "shard-001-of-002.arrow").exists()
    assert (tmp_path / "checkpoints/final/model.sig").exists()
    others = [path for root in ("head", "worker") for path in (tmp_path / root).rglob("*") if path.is_file()]
    assert not any(private in path.read_bytes() for path in others)
    public_key = tmp_path / "signer.pub.pem"
    public_key.write_text(public)
    found = verify(control_plane, tmp_path / "checkpoints/final", public_key, namespace)
    assert (found["verified"], found["signerTrusted"], found["signer"]) == (True, True, fingerprint)
    assert [each.split(":")[0] for each in found["notChecked"]] == ["the charges at the time of writing"]
    refused = verify(control_plane, tmp_path / "checkpoints/final", public_key, "default")
    assert refused["reason"] == f"the namespace default has no ledger of the job with UID {clinic.job.metadata.uid}"


def verify(plane: ControlPlane, place: Path, public_key: Path, namespace: str) -> dict[str, Any]:
    """What `tensafe verify` reports to a user of the cluster."""
    command = [Path(sys.executable).with_name("tensafe"), "verify", place, "--public-key", public_key, "-o", "json"]
    found = subprocess.run(
        [*command, "--ledger", "kubernetes", "-n", namespace],
        env={**os.environ, "KUBECONFIG": str(plane.admin)},
        capture_output=True,
        text=True,
        check=False,
    )
    report: dict[str, Any] = json.loads(found.stdout)
    assert found.returncode == (0 if report["verified"] else 1), found.stderr
    return report
