"""A ledger on a real API server, and pods with bound tokens that write to it."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensafe_api.resources.ledger import LEDGER_KIND
from tests.support.programs.api_server import RequestRejected
from tests.support.programs.controlplane import ControlPlane

_NUMBERS = itertools.count(1)

SPEC: dict[str, Any] = {
    "jobName": "claims-triage",
    "jobUID": "11111111-2222-3333-4444-555555555555",
    "mechanism": {
        "sampleRate": "0.05",
        "noiseMultiplier": "0.9",
        "clip": "1.0",
        "unit": "Example",
        "workers": 2,
        "gridBits": 21,
        "expectedBatchSize": 250,
    },
    "unitAtLeast": 5000,
    "plannedSteps": 60,
    "reserveSteps": 6,
    "targetEpsilon": "8",
    "delta": "0.00002",
    "accountant": "RDP",
    "serviceAccountName": "trainer",
    "keySecretName": "claims-triage-key",
    "keyDigest": "0" * 64,
}


@dataclass(frozen=True)
class Pod:
    """A pod as an object, without a kubelet, and a token of its service account that is bound to it."""

    name: str
    uid: str
    token: str
    kubeconfig: Path


def make_pod(plane: ControlPlane, namespace: str, account: str, **labels: str) -> Pod:
    """Create a pod with the service account `account`, which is created if it is missing."""
    if plane.api.find("ServiceAccount", namespace, account) is None:
        metadata = {"name": account, "namespace": namespace}
        plane.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    bind_trainer_role(plane, namespace, account)
    name = f"worker-{next(_NUMBERS)}"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"serviceAccountName": account, "containers": [{"name": "ray", "image": "localhost/none"}]},
    }
    uid = plane.api.create(pod)["metadata"]["uid"]
    token = plane.api.token(namespace, account, {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid})
    return Pod(name, uid, token, plane.kubeconfig_of_token(name, token))


def bind_trainer_role(plane: ControlPlane, namespace: str, account: str) -> None:
    """Bind a service account to the chart's ClusterRole for trainers, as the operator does."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": account, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tensafe-trainer"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    if plane.api.find("RoleBinding", namespace, account) is None:
        plane.api.create(binding)


class LedgerObject:
    """One PrivacyLedger, which tests write."""

    def __init__(self, plane: ControlPlane, namespace: str, *, name: str = "claims-triage", **spec: Any) -> None:
        self.plane, self.namespace, self.name = plane, namespace, name
        document = {
            "apiVersion": "tensafe.io/v1alpha1",
            "kind": "PrivacyLedger",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**SPEC, **spec},
        }
        plane.api.create(document)

    def get(self) -> dict[str, Any]:
        found = self.plane.api.find(LEDGER_KIND, self.namespace, self.name)
        assert found is not None
        return found

    def write(self, status: dict[str, Any] | None, pod: Pod | None) -> str:
        """Replace the status with `pod`'s token, or as an administrator.

        Returns:
            The API server's error; empty if it accepts the write.
        """
        document = self.get()
        document.pop("status", None)
        if status is not None:
            document["status"] = copy.deepcopy(status)
        try:
            (self.plane.api_as(pod.kubeconfig) if pod else self.plane.api).replace(document, "status")
        except RequestRejected as error:
            return str(error)
        return ""


def charged_status(pod: Pod, **changes: Any) -> dict[str, Any]:
    """The ledger's status after `pod` has acquired it and charged ten steps."""
    return {
        "attempt": 1,
        "charges": [{"attempt": 1, "steps": 10, "incarnation": 1, "podUID": pod.uid}],
        "chargedThrough": 10,
        "length": 2,
        "head": "0" * 64,
        **changes,
    }
