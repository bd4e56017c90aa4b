"""A whole attempt as the RayJob's entrypoint runs it, on two Ray nodes with a real API server.

One node is a head without CPUs, the other a worker. The test mounts the files that the operator would mount. Each node
has its own root folder, as a pod has.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.controlplane import ControlPlane
from e2e.platform.fixtures.ledger_objects import make_pod
from e2e.platform.fixtures.polling import TIMEOUT_SECONDS, wait_until
from e2e.platform.trainer.rank_harness import MANIFEST, free_port, make_model, records
from tensafe_api.manifest import load_manifest
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.statement import digest
from tensafe_operator.children import configuration
from tensafe_operator.children.access import job_key, key_digest
from tensafe_operator.children.ledger import ledger
from tensafe_operator.children.rayjob import JOB_DIGEST_VARIABLE, RUN_PATH, ray_job
from tensafe_operator.settings import Settings
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.ledger.backends import POD_UID
from tensorguard.runners.pod.pod_files import ROOT_VARIABLE, PodFiles
from tensorguard.runners.run_folder import WORK_FOLDER

pytestmark = pytest.mark.cluster

STEPS = 12
STARTS = 3


class Nodes:
    """The processes of Ray and of the driver. `head` and `worker` are the root folders of the two pods."""

    def __init__(self, base: Path, of_all: dict[str, str], of_worker: dict[str, str]) -> None:
        """Args: of_all, of_worker: environment variables."""
        self.head, self.worker = base / "head", base / "worker"
        self._temporary = tempfile.mkdtemp(prefix="t", dir="/tmp")  # the path of a socket must be short
        self._port = free_port()
        self._address = f"127.0.0.1:{self._port}"
        self._of_worker = of_worker
        outside = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", POD_UID)}
        self._common = (
            outside
            | of_all
            | {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": secrets.token_hex(32),
                "RAY_USAGE_STATS_ENABLED": "0",
                "OMP_NUM_THREADS": "1",
            }
        )
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the head, and then the worker."""
        head = ("--head", "--num-cpus=0", f"--port={self._port}", "--include-dashboard=false")
        self._start(self.head, {}, *head, f"--temp-dir={self._temporary}")
        self._start(self.worker, self._of_worker, f"--address={self._address}", "--num-cpus=2")

    def drive(self) -> subprocess.Popen[str]:
        """Start the entrypoint in the head."""
        return subprocess.Popen(
            [sys.executable, "-m", "tensorguard.cluster"],
            env=self._common | {ROOT_VARIABLE: str(self.head), "RAY_ADDRESS": self._address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def stop(self) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _start(self, root: Path, more: dict[str, str], *arguments: str) -> None:
        """Start a node. Retry if the machine is too slow for the half minute that Ray allows itself."""
        log = root / "ray.log"
        memory = ("--object-store-memory=100000000", "--node-ip-address=127.0.0.1")
        for _ in range(STARTS):
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [str(Path(sys.executable).with_name("ray")), "start", "--block", *arguments, *memory],
                    env=self._common | {ROOT_VARIABLE: str(root)} | more,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._processes.append(process)
            while process.poll() is None:
                if b"Ray runtime started" in log.read_bytes():
                    return
                time.sleep(0.1)  # it reports this in its log only
        raise AssertionError(log.read_text())


class Clinic:
    """A job in a namespace, the objects that the operator creates for it, and the folders where they are mounted."""

    def __init__(self, plane: ControlPlane, namespace: str, base: Path, steps: int) -> None:
        self._plane, self._namespace = plane, namespace
        make_model(base / "model")
        (base / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records(240)))
        overrides = ("spec.cluster.workers=1", f"spec.training.steps={steps}")
        self.job, plan = resolve_job(load_manifest(self._text(base), overrides))
        plane.kubectl("-n", namespace, "create", "-f", "-", text=self._text(base))
        uid = json.loads(plane.kubectl("-n", namespace, "get", "tsj", "tiny", "-o", "json").stdout)["metadata"]["uid"]
        metadata = self.job.metadata.model_copy(update={"uid": uid, "namespace": namespace})
        self.job: TenSafeTrainingJob = self.job.model_copy(update={"metadata": metadata})
        secret = job_key(self.job)
        made = plane.kubectl("create", "-o", "json", "-f", "-", text=json.dumps(ledger(self.job, plan, secret)))
        self._ledger = json.loads(made.stdout)["metadata"]
        self.pod = make_pod(plane, namespace, "tiny")
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
        job = ray_job(self.job, 1, Settings(), job_digest="", key_secret="")["spec"]["rayClusterSpec"]
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
def nodes(clinic: Clinic, tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, clinic.variables, {"KUBECONFIG": str(clinic.pod.kubeconfig), POD_UID: clinic.pod.uid})
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.stop()


def test_attempt_completes_and_prints_one_sentence(clinic: Clinic, nodes: Nodes) -> None:
    driver = nodes.drive()
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
    saved = CheckpointStore(str(nodes.head.parent / "checkpoints")).read("final", final["digest"])
    assert digest(saved["statement.json"]) == final["statementDigest"]
    assert (PodFiles(nodes.worker).run / WORK_FOLDER / "shard-000-of-001.arrow").exists()
    of_head = [path for path in PodFiles(nodes.head).root.rglob("*") if path.is_file()]
    assert not PodFiles(nodes.head).key_file.exists()
    assert not any(clinic.key in path.read_bytes() or b"w1 " in path.read_bytes() for path in of_head)


@pytest.mark.parametrize("clinic", [20_000], indirect=True)
def test_stopped_attempt_saves_a_checkpoint_and_reports_it(clinic: Clinic, nodes: Nodes) -> None:
    driver = nodes.drive()
    wait_until(lambda: (clinic.status().get("progress") or {}).get("step", 0) > 0)
    driver.send_signal(signal.SIGTERM)
    out, _ = driver.communicate(timeout=TIMEOUT_SECONDS)
    status = clinic.status()
    saved = status["releases"][-1]
    sentence = f"Interrupted: stopped on request after step {saved['step']} of 20000.\n"
    assert (driver.returncode, out, status["outcome"]) == (0, sentence, "Suspended")
    assert 0 < saved["step"] <= status["charges"][0]["steps"] < 20_000
    store = CheckpointStore(str(nodes.head.parent / "checkpoints"))
    assert store.read(saved["uri"].rsplit("/", 1)[1], saved["digest"])


@pytest.mark.parametrize("clinic", [20_000], indirect=True)
def test_terminating_pods_save_a_checkpoint_first(clinic: Clinic, nodes: Nodes) -> None:
    """The test calls the preStop hooks of head and worker, as the kubelet does before it ends Ray."""
    driver = nodes.drive()
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
