"""Jobs with few and with every field, and the objects that the operator builds for them."""

from __future__ import annotations

import json
from typing import Any

from tensafe_api.manifest.text import parse_job
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator.children import Manifest, access, configuration, network, rayjob, tls
from tensafe_operator.settings import Settings
from tests.support.manifests import MINIMAL, changed

SETTINGS = Settings(image="registry.example/tensafe-trainer:0.1", egress_cidrs=("10.1.0.0/16",))
HEAD_TERM = {"weight": 1, "preference": {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["small"]}]}}
WORKER_TERM = {
    "weight": 1,
    "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {"matchLabels": {"own": "label"}}},
}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
EVERY_FIELD = {
    "spec.podsTTLSeconds": 600,
    "spec.model.tokenSecret": {"name": "hub", "key": "token"},
    "spec.storage": {"endpoint": "https://minio.clinic:9000", "secretName": "s3-keys"},
    "spec.cluster": {
        "workers": 3,
        "image": "registry.example/own:1",
        "rayVersion": "2.55.1",
        "imagePullSecrets": [{"name": "pull"}],
        "worker": {"gpus": 1, "cpus": "2500m", "memory": "16Gi", "ephemeralStorage": "20Gi"},
        "head": {
            "nodeSelector": {"pool": "small"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [HEAD_TERM]}},
        },
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [WORKER_TERM]}},
        "topologySpreadConstraints": [
            SPREAD,
            {**SPREAD, "topologyKey": "rack", "labelSelector": {"matchLabels": {"own": "label"}}},
        ],
        "rayJobLabels": {"volcano.sh/queue-name": "batch", "kueue.x-k8s.io/priority-class": "low"},
        "serviceAccountName": "federated",
        "queueName": "gpu-queue",
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "schedulerName": "volcano",
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "podLabels": {"team": "triage"},
        "podAnnotations": {"linkerd.io/inject": "enabled"},
        "securityContext": {"runAsUser": 1001, "fsGroup": 2000},
        "env": [{"name": "A", "value": "1"}],
        "envFrom": [{"secretRef": {"name": "more"}}],
        "volumes": [
            {"name": "scratch", "mountPath": "/scratch", "emptyDir": "10Gi"},
            {"name": "certs", "mountPath": "/certs", "readOnly": True, "configMap": "certs"},
            {"name": "keys", "mountPath": "/keys", "readOnly": True, "secret": "keys"},
            {"name": "data", "mountPath": "/data", "pvc": "data"},
        ],
    },
    "spec.dataset.uri": "pvc://records/claims",
    "spec.checkpoint.uri": "pvc://models/claims",
    "spec.evaluation": {"uri": "pvc://records/public", "visibility": "Public"},
}
FEW_FIELDS = {"spec.cluster": {"workers": 2}}


def admitted(changes: dict[str, Any], namespace: str = "clinic", uid: str = "11111111-2222") -> TenSafeTrainingJob:
    """A completed job with the metadata that the API server sets."""
    manifest = changed(MINIMAL, {**changes, "metadata.namespace": namespace, "metadata.uid": uid})
    return resolve_job(parse_job(manifest))[0]


def ray_job_of(job: TenSafeTrainingJob, settings: Settings = SETTINGS, attempt: int = 1) -> Manifest:
    key = "claims-triage-11111111-key"
    account, parameters = access.account_name(job), parameters_of(job, attempt)
    return rayjob.ray_job(job, attempt, settings, parameters=parameters, key_secret=key, account=account)


def parameters_of(job: TenSafeTrainingJob, attempt: int = 1) -> Manifest:
    return configuration.config_map(job, attempt, "claims-triage-11111111", "ledger-uid", "key-digest")


def children(job: TenSafeTrainingJob, settings: Settings = SETTINGS) -> list[Manifest]:
    built = [
        access.account(job, settings),
        access.role_binding(job, access.account_name(job)),
        access.job_key(job),
        network.policy(job, settings),
        parameters_of(job),
        tls.attempt_secret(job, 1, settings),
        ray_job_of(job, settings),
    ]
    return [each for each in built if each is not None]


def pods(job: TenSafeTrainingJob, settings: Settings = SETTINGS) -> tuple[Manifest, Manifest]:
    """The templates of the head and of a worker."""
    spec = ray_job_of(job, settings)["spec"]["rayClusterSpec"]
    return spec["headGroupSpec"]["template"], spec["workerGroupSpecs"][0]["template"]


def text_of(pod: Manifest) -> str:
    return json.dumps(pod)
