"""The shortest useful job, and everything that is wrong with others: what `tensafe validate` and the API server refuse.

One table for both, so that a manifest that one of them lets through cannot be refused by the other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MINIMAL: dict[str, Any] = {
    "apiVersion": "tensafe.io/v1alpha1",
    "kind": "TenSafeTrainingJob",
    "metadata": {"name": "claims-triage"},
    "spec": {
        "model": {"name": "Qwen/Qwen3-0.6B"},
        "dataset": {
            "uri": "s3://clinic/claims/",
            "columns": {"messages": "messages"},
            "unit": {"kind": "User", "column": "patient_id", "maxExamplesPerUnit": 8, "atLeast": 5000},
        },
        "privacy": {"targetEpsilon": "8"},
        "checkpoint": {"uri": "s3://models/claims-triage/"},
        "cluster": {"workers": 2, "serviceAccountName": "trainer"},
    },
}


def changed(manifest: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the manifest with the values at these dotted paths; None takes a field away."""
    result = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, last = path.split(".")
        here = result
        for name in parents:
            here = here.setdefault(name, {})
        if value is None:
            here.pop(last, None)
        else:
            here[last] = value
    return result


EXAMPLE_UNIT = {"kind": "Example", "atLeast": 5000}
CLASSES = {"spec.model.task": "SequenceClassification", "spec.dataset.columns": {"text": "note", "label": "ward"}}
TEXT = {"text": "note"}
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


def volume(path: str, name: str = "v") -> dict[str, Any]:
    return {"name": name, "mountPath": path, "pvc": "p"}


@dataclass(frozen=True)
class Example:
    """Changes to the shortest manifest that break one rule and no other, and changes that come close but keep it."""

    refused: dict[str, Any]
    at: str
    says: str
    kept: dict[str, Any]


EXAMPLES = [
    Example(
        {"spec.privacy.targetDelta": "2e-4"},
        "spec.privacy.targetDelta",
        "privacy.targetDelta must be below 1 / dataset.unit.atLeast: lower it, or leave it out for "
        "1 / (10 x unit.atLeast)",
        {"spec.privacy.targetDelta": "1.99e-4"},
    ),
    Example(
        {"spec.training": {"steps": 10, "expectedBatchSize": 5001}},
        "spec.training.expectedBatchSize",
        "training.expectedBatchSize must not be above dataset.unit.atLeast, since it counts units: lower it",
        {"spec.training": {"steps": 10, "expectedBatchSize": 5000}},
    ),
    Example(
        {"spec.aggregation.colludingWorkers": 2},
        "spec.aggregation.colludingWorkers",
        "aggregation.colludingWorkers must be below cluster.workers: lower it, or raise cluster.workers",
        {"spec.aggregation.colludingWorkers": 1},
    ),
    Example(
        {"spec.dataset.columns": {"text": "note", "label": "ward"}},
        "spec.dataset.columns",
        "dataset.columns must fit model.task: write text and label for SequenceClassification, and no label for "
        "CausalLM",
        {**CLASSES, "spec.model.numLabels": 3},
    ),
    Example(
        {"spec.model.chatTemplate": "{{ messages }}", "spec.dataset.columns": TEXT},
        "spec.model.chatTemplate",
        "model.chatTemplate belongs to conversations: write dataset.columns.messages, or leave it out",
        {"spec.model.chatTemplate": "{{ messages }}"},
    ),
    Example(
        {"spec.evaluation": {"uri": "s3://clinic/claims/", "visibility": "Public"}},
        "spec.evaluation.visibility",
        "evaluation.visibility must not be Public where evaluation.uri is dataset.uri, since the status would show "
        "exact losses of the private data: write Private, or the uri of a public set",
        {"spec.evaluation": {"uri": "s3://clinic/claims/", "visibility": "Private"}},
    ),
    Example(
        CLASSES,
        "spec.model.numLabels",
        "model.numLabels belongs to SequenceClassification: write it there (the number of classes), and leave it out "
        "for CausalLM",
        {**CLASSES, "spec.model.numLabels": 2},
    ),
    Example(
        {**CLASSES, "spec.model.numLabels": 3, "spec.model.labelNames": ["a", "b"]},
        "spec.model.labelNames",
        "model.labelNames must name each class once: write as many names as numLabels says, or leave it out",
        {**CLASSES, "spec.model.numLabels": 3, "spec.model.labelNames": ["a", "b", "c"]},
    ),
    Example(
        {"spec.lora.targetModules": ["all-linear", "q_proj"]},
        "spec.lora.targetModules",
        "lora.targetModules takes all-linear only by itself: write [all-linear], or the names of layers",
        {"spec.lora.targetModules": ["all-linear"]},
    ),
    Example(
        {"spec.dataset.columns": {"prompt": "p"}},
        "spec.dataset.columns",
        "dataset.columns must name one shape of data: write prompt and completion, or messages, or text",
        {"spec.dataset.columns": {"prompt": "p", "completion": "c"}},
    ),
    Example(
        {"spec.dataset.columns": {"text": "note", "tools": "t"}},
        "spec.dataset.columns.tools",
        "dataset.columns.tools belongs to conversations: write it beside messages, or leave it out",
        {"spec.dataset.columns": {"messages": "m", "tools": "t"}},
    ),
    Example(
        {**CLASSES, "spec.model.numLabels": 2, "spec.dataset.columns": {"messages": "m", "label": "ward"}},
        "spec.dataset.columns.label",
        "dataset.columns.label belongs to text: write it beside text, or leave it out",
        {**CLASSES, "spec.model.numLabels": 2},
    ),
    Example(
        {"spec.dataset.unit.column": None},
        "spec.dataset.unit.column",
        "unit.column belongs to User: write the column of the user's id there, and leave it out for Example",
        {"spec.dataset.unit": EXAMPLE_UNIT},
    ),
    Example(
        {"spec.dataset.unit": {**EXAMPLE_UNIT, "maxExamplesPerUnit": 8}},
        "spec.dataset.unit.maxExamplesPerUnit",
        "unit.maxExamplesPerUnit belongs to User: leave it out for Example",
        {"spec.dataset.unit": EXAMPLE_UNIT},
    ),
    Example(
        {"spec.dataset.lossOn": "Completion"},
        "spec.dataset.lossOn",
        "dataset.lossOn does not fit dataset.columns: write Completion with prompt and completion, Assistant with "
        "messages, All with any text, and leave it out for labels",
        {"spec.dataset.lossOn": "Assistant"},
    ),
    Example(
        {"spec.training": {"steps": 10, "epochs": "1"}},
        "spec.training",
        "training takes one of epochs and steps, not both: leave one of them out",
        {"spec.training": {"steps": 10}},
    ),
    Example(
        {"spec.training": {"steps": 10, "precision": "fp16"}},
        "spec.training.lossScale",
        'training.lossScale belongs to fp16: write it there, for example "1024", and leave it out otherwise',
        {"spec.training": {"steps": 10, "precision": "fp16", "lossScale": "1024"}},
    ),
    Example(
        {"spec.cluster.worker.gpus": 2},
        "spec.cluster.worker.gpus",
        "worker.gpus must be 0 or 1, since one worker is one rank: write 1 and raise cluster.workers",
        {"spec.cluster.worker.gpus": 1},
    ),
    Example(
        {"spec.cluster.env": [{"name": "A", "valueFrom": {}}]},
        "spec.cluster.env[0].valueFrom",
        "valueFrom takes exactly one source: write secretKeyRef or configMapKeyRef",
        {"spec.cluster.env": [{"name": "A", "valueFrom": SECRET}]},
    ),
    Example(
        {"spec.cluster.env": [{"name": "A", "value": ""}, {"name": "B", "value": "1", "valueFrom": SECRET}]},
        "spec.cluster.env[1]",
        "env takes exactly one of value and valueFrom for each name: write one of them",
        {"spec.cluster.env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": SECRET}]},
    ),
    Example(
        {"spec.cluster.envFrom": [{}]},
        "spec.cluster.envFrom[0]",
        "envFrom takes exactly one object for each entry: write secretRef or configMapRef",
        {"spec.cluster.envFrom": [{"secretRef": {"name": "s"}}]},
    ),
    Example(
        {"spec.cluster.volumes": [{"name": "v", "mountPath": "/v", "pvc": "p", "secret": "s"}]},
        "spec.cluster.volumes[0]",
        "volumes takes exactly one source for each entry: write one of pvc, secret, configMap and emptyDir",
        {"spec.cluster.volumes": [{"name": "v", "mountPath": "/v", "emptyDir": "1Gi"}]},
    ),
    Example(
        {"spec.cluster.image": "registry/trainer:1"},
        "spec.cluster.rayVersion",
        "cluster.rayVersion is needed with an image of your own: write the version of Ray in it",
        {"spec.cluster.image": "registry/trainer:1", "spec.cluster.rayVersion": "2.60.0"},
    ),
    Example(
        {"spec.checkpoint.uri": "s3://clinic/claims"},
        "spec.checkpoint.uri",
        "checkpoint.uri must not be or lie in dataset.uri or evaluation.uri, since checkpoints would be read as data: "
        "write a place of their own",
        {"spec.checkpoint.uri": "s3://clinic/claims-adapter"},
    ),
    Example(
        {"spec.dataset.uri": "pvc://claims/a.csv", "spec.cluster.volumes": [volume("/mnt/claims")]},
        "spec.cluster.volumes",
        "cluster.volumes must not hide /mnt/claim, where the claim of a pvc:// URI is mounted by itself: choose "
        "another mountPath, or leave the volume out",
        {"spec.dataset.uri": "pvc://claims/a.csv", "spec.cluster.volumes": [volume("/mnt/claims2")]},
    ),
    Example(
        {"spec.model.tokenSecret": {"name": "s", "key": "k"}, "spec.cluster.env": [{"name": "HF_TOKEN", "value": "t"}]},
        "spec.cluster.env",
        "cluster.env must not have HF_TOKEN beside model.tokenSecret, which sets it: leave one of them out",
        {"spec.cluster.env": [{"name": "HF_TOKEN", "value": "t"}]},
    ),
    Example(
        {"spec.cluster.env": [{"name": "RAY_ADDRESS", "value": "x"}]},
        "spec.cluster.env[0].name",
        "env takes no BASH_ENV and no names that begin with RAY_ or TENSAFE_, which KubeRay and the operator set: "
        "leave it out",
        {"spec.cluster.env": [{"name": "XRAY_ADDRESS", "value": "x"}]},
    ),
    Example(
        {"spec.cluster.volumes": [volume("/a", "one"), volume("/a", "two")]},
        "spec.cluster.volumes",
        "cluster.volumes must not have a mountPath twice: choose another one for each volume",
        {"spec.cluster.volumes": [volume("/a", "one"), volume("/a/b", "two")]},
    ),
    Example(
        {"spec.cluster.tolerations": [{"operator": "Equal", "value": "a"}]},
        "spec.cluster.tolerations[0].key",
        "tolerations needs a key, but for Exists: write the key of the taint, or operator: Exists for every taint",
        {"spec.cluster.tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b"}]},
    ),
    Example(
        {"spec.cluster.tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        "spec.cluster.tolerations[0].value",
        "tolerations takes no value with Exists: leave it out, or write operator: Equal",
        {"spec.cluster.tolerations": [{"key": "a", "operator": "Equal", "value": "b"}]},
    ),
    Example(
        {"spec.cluster.tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 9}]},
        "spec.cluster.tolerations[0].tolerationSeconds",
        "tolerations.tolerationSeconds belongs to NoExecute: write effect: NoExecute, or leave it out",
        {"spec.cluster.tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 9}]},
    ),
    Example(
        {"spec.cluster.securityContext.runAsUser": 0},
        "spec.cluster.securityContext.runAsUser",
        "securityContext.runAsUser must be above 0, since pods never run as root: write another user's id, or leave it "
        "out for the image's",
        {"spec.cluster.securityContext": {"runAsUser": 1, "fsGroup": 0}},
    ),
    *(
        Example(
            {f"spec.cluster.{name}": {"two words": "a"}},
            f"spec.cluster.{name}",
            f"cluster.{name} must have keys such as zone or example.com/zone, with at most 63 letters, digits, -, _ "
            "and . after the /: mend the key",
            {f"spec.cluster.{name}": {"Zone_1": "a", f"example.com/{'a' * 63}": "b"}},
        )
        for name in ("nodeSelector", "podLabels", "podAnnotations")
    ),
    Example(
        {"spec.cluster.podLabels": {"tensafe.io/job-uid": "another"}},
        "spec.cluster.podLabels",
        "cluster.podLabels must not have app.kubernetes.io/managed-by, tensafe.io/ or ray.io/, since the operator and "
        "KubeRay set those: leave them out",
        {"spec.cluster.podLabels": {"app.kubernetes.io/part-of": "claims"}},
    ),
]

MORE_REFUSED = [
    {"spec.training": {"steps": 10, "lossScale": "1024"}},
    {"spec.training": {"steps": 10, "precision": "bf16", "lossScale": "1024"}},
    {"spec.model.numLabels": 2},
    {"spec.model.labelNames": ["a", "b"]},
    {"spec.dataset.columns": {}},
    {"spec.dataset.columns": {"messages": "m", "text": "t"}},
    {"spec.dataset.columns": {"messages": "m", "text": "t", "prompt": "p", "completion": "c"}},
    {"spec.dataset.columns": {"completion": "c"}},
    {"spec.dataset.columns": {"messages": "m", "prompt": "p"}},
    {"spec.dataset.unit": {**EXAMPLE_UNIT, "column": "id"}},
    {"spec.dataset.lossOn": "Completion", "spec.dataset.columns": TEXT},
    {"spec.dataset.lossOn": "Assistant", "spec.dataset.columns": TEXT},
    {**CLASSES, "spec.model.numLabels": 2, "spec.dataset.lossOn": "All"},
    {**CLASSES, "spec.model.numLabels": 2, "spec.dataset.columns": TEXT},
    {"spec.cluster.volumes": [{"name": "v", "mountPath": "/v"}]},
    {"spec.privacy.targetDelta": "0.5"},
    {"spec.evaluation": {"uri": "s3://clinic/claims", "visibility": "Public"}},
    {"spec.evaluation": {"uri": "file:///data/a/", "visibility": "Public"}, "spec.dataset.uri": "/data/a"},
    {"spec.evaluation": {"uri": "/data/a", "visibility": "Public"}, "spec.dataset.uri": "file:///data/a/"},
    {"spec.cluster.workers": 1, "spec.aggregation.colludingWorkers": 1},
    {"spec.dataset.uri": "/data/a", "spec.checkpoint.uri": "file:///data/a/"},
    {"spec.evaluation": {"uri": "s3://e", "visibility": "Private"}, "spec.checkpoint.uri": "s3://e/"},
    {"spec.checkpoint.uri": "pvc://m/a", "spec.cluster.volumes": [volume("/mnt/m/a")]},
    {
        "spec.evaluation": {"uri": "pvc://m", "visibility": "Private"},
        "spec.cluster.volumes": [volume("/mnt/v", "one"), volume("/mnt", "two")],
    },
    {"spec.cluster.env": [{"name": "A", "value": ""}, {"name": "TENSAFE_POD_UID", "value": "x"}]},
    {"spec.cluster.env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "two words"}}}]},
    {"spec.cluster.image": "my image", "spec.cluster.rayVersion": "2.60.0"},
    {"spec.cluster.image": "https://registry.example/a", "spec.cluster.rayVersion": "2.60.0"},
    {"spec.cluster.podLabels": {"ray.io/cluster": "x"}},
    {"spec.cluster.podLabels": {"app.kubernetes.io/managed-by": "x"}},
    {"spec.cluster.podLabels": {"-a": "x"}},
    {"spec.cluster.podLabels": {"Example.com/a": "x"}},
    {"spec.cluster.nodeSelector": {"a" * 64: "x"}},
    {"spec.cluster.tolerations": [{"key": "two words"}]},
    {"spec.cluster.tolerations": [{"key": "a", "tolerationSeconds": 9}]},
    {"spec.cluster.tolerations": [{"key": "a", "value": "two words"}]},
    {"spec.cluster.volumes": [volume("/v", "run")]},
    {"spec.cluster.volumes": [volume("/v", "a.b")]},
    {"spec.cluster.volumes": [volume("/etc/tensafe/job")]},
    {"spec.cluster.volumes": [volume("/var")]},
    {"spec.cluster.volumes": [volume("/")]},
    {"spec.cluster.volumes": [volume("/a/../etc")]},
    {"spec.cluster.volumes": [{"name": "v", "mountPath": "/v", "emptyDir": "1"}]},
]

DECIMAL = 'is not a decimal number such as "8", "0.05" or "2e-4"'
DATA = (
    "is not a place of data: s3://bucket/path/, gs://bucket/path/, file:///path, pvc://claim/path, "
    "hf://datasets/owner/name or a path"
)
BAD_INPUT: list[tuple[dict[str, Any], str | None]] = [
    (
        {"spec.privacy.targetEpsilon": 8},
        'spec.privacy.targetEpsilon: is a bare number: write "8", quoted',
    ),
    ({"spec.privacy.targetEpsilon": "NaN"}, f'spec.privacy.targetEpsilon: "NaN" {DECIMAL}'),
    ({"spec.privacy.targetEpsilon": "inf"}, f'spec.privacy.targetEpsilon: "inf" {DECIMAL}'),
    ({"spec.privacy.targetEpsilon": "-1"}, 'spec.privacy.targetEpsilon: "-1" must be above 0'),
    ({"spec.privacy.targetEpsilon": "+5"}, f'spec.privacy.targetEpsilon: "+5" {DECIMAL}'),
    ({"spec.privacy.targetEpsilon": "0x1p-2"}, f'spec.privacy.targetEpsilon: "0x1p-2" {DECIMAL}'),
    ({"spec.privacy.targetEpsilon": "lots"}, f'spec.privacy.targetEpsilon: "lots" {DECIMAL}'),
    ({"spec.privacy.targetEpsilon": float("nan")}, f"spec.privacy.targetEpsilon: nan {DECIMAL}"),
    ({"spec.privacy.targetEpsilon": float("inf")}, f"spec.privacy.targetEpsilon: inf {DECIMAL}"),
    ({"spec.privacy.targetEpsilon": "0"}, 'spec.privacy.targetEpsilon: "0" must be above 0'),
    ({"spec.privacy.targetDelta": "1e-320"}, 'spec.privacy.targetDelta: "1e-320" must be at least 1e-300'),
    ({"spec.privacy.targetEpsilon": "1e999"}, 'spec.privacy.targetEpsilon: "1e999" must be at most 1e12'),
    ({"spec.privacy.targetDelta": "1"}, 'spec.privacy.targetDelta: "1" must be below 1'),
    (
        {"spec.privacy.targetEpsilon": True},
        "spec.privacy.targetEpsilon: is read as a truth value: write a decimal number such as "
        '"8", "0.05" or "2e-4", quoted',
    ),
    ({"spec.lora.rank": float("nan")}, "spec.lora.rank: must be a whole number without quotes, not NaN"),
    ({"spec.lora.rank": "16"}, 'spec.lora.rank: must be a whole number without quotes, not "16"'),
    ({"spec.lora.rank": True}, "spec.lora.rank: must be a whole number without quotes, not true"),
    ({"spec.lora.rank": -1}, "spec.lora.rank: must be at least 1, not -1"),
    ({"spec.cluster.workers": 17}, "spec.cluster.workers: must be at most 16, not 17"),
    ({"spec.cluster.workers": 0}, "spec.cluster.workers: must be at least 1, not 0"),
    ({"spec.cluster.wokers": 2}, "spec.cluster.wokers: unknown field: did you mean workers?"),
    ({"spec.privacy.target_delta": "1e-6"}, "spec.privacy.target_delta: unknown field: did you mean targetDelta?"),
    ({"spec.maxGradNorm": "1"}, "spec.maxGradNorm: unknown field here: did you mean spec.privacy.maxGradNorm?"),
    ({"spec.retry.xyz": 1}, "spec.retry.xyz: unknown field: spec.retry has maxAttempts, maxRestarts"),
    ({"spec.privacy.hideStepTime": True}, None),
    ({"spec.dataset.uri": "s3:/clinic"}, None),
    ({"spec.dataset.uri": "pvc://My_Claim/train.jsonl"}, f'spec.dataset.uri: "pvc://My_Claim/train.jsonl" {DATA}'),
    ({"spec.dataset.uri": "pvc:///train.jsonl"}, f'spec.dataset.uri: "pvc:///train.jsonl" {DATA}'),
    ({"spec.dataset.uri": "az://clinic/claims"}, f'spec.dataset.uri: "az://clinic/claims" {DATA}'),
    (
        {"spec.checkpoint.uri": "hf://clinic/claims"},
        'spec.checkpoint.uri: "hf://clinic/claims" is not a place of checkpoints: s3://bucket/path/, '
        "gs://bucket/path/, file:///path, pvc://claim/path or a path",
    ),
    ({"spec.checkpoint.uri": "pvc://../other"}, None),
    (
        {"spec.cluster.worker.memory": "1"},
        'spec.cluster.worker.memory: "1" must be at least 256Mi: write its unit, as in "8Gi"',
    ),
    (
        {"spec.cluster.head.memory": "8"},
        'spec.cluster.head.memory: "8" must be at least 256Mi: write its unit, as in "8Gi"',
    ),
    (
        {"spec.cluster.worker.gpuResource": "kubernetes.io/gpu"},
        'spec.cluster.worker.gpuResource: "kubernetes.io/gpu" is no name of a device, since kubernetes.io is '
        "Kubernetes' own: write one such as nvidia.com/gpu",
    ),
    (
        {"spec.cluster.rayVersion": "2.9.0"},
        'spec.cluster.rayVersion: "2.9.0" is not a version of Ray such as 2.60.0, at least 2.52.0, whose clusters ask '
        "for a token",
    ),
    ({"spec.cluster.rayVersion": "2.60.0-py311"}, None),
    (
        {"spec.cluster.queueName": "q" * 64},
        "spec.cluster.queueName: is 64 characters long: write at most 63",
    ),
    ({"spec.cluster.schedulerName": "a..b"}, None),
    (
        {"spec.cluster.nodeSelector": {"zone": "two words"}},
        'spec.cluster.nodeSelector.zone: "two words" is not the value of a label: at most 63 letters, digits, -, _ and '
        "., a letter or digit first and last",
    ),
    ({"spec.cluster.nodeSelector": {"zone": 1}}, 'spec.cluster.nodeSelector.zone: is a bare number: write "1", quoted'),
    (
        {"spec.training": {"steps": 1, "schedule": "linear"}},
        'spec.training.schedule: "linear" is none of Linear, Cosine, Constant: did you mean Linear?',
    ),
    (
        {"spec.aggregation.verify": False},
        "spec.aggregation.verify: false is none of Disabled, Standard, Strict: choose one of them",
    ),
    (
        {"spec.cluster.worker.memory": "8GB"},
        'spec.cluster.worker.memory: "8GB" is not a size such as "8Gi" or "512Mi"',
    ),
    ({"spec.cluster.worker.cpus": 8}, 'spec.cluster.worker.cpus: is a bare number: write "8", quoted'),
    ({"spec.lora": [1]}, "spec.lora: must be a mapping of names to values, not [1]"),
    ({"spec.lora.targetModules": "q"}, 'spec.lora.targetModules: must be a list such as [a, b], not "q"'),
    ({"spec.lora.targetModules": ["q", "q"]}, 'spec.lora.targetModules: has "q" twice: keep one of them'),
    (
        {"spec.cluster.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        'spec.cluster.env: has "A" twice: keep one of them',
    ),
    ({"metadata.labels": {"a": 1}}, "metadata.labels.a: must be a string, not 1: write it in quotes"),
    ({"metadata.name": "a" * 41}, "metadata.name: is 41 characters long: write at most 40"),
    ({"spec.model.chatTemplate": ""}, "spec.model.chatTemplate: is empty: write it, or leave it out"),
    ({"kind": "Job"}, 'kind: "Job" is not known here: write TenSafeTrainingJob'),
    ({"apiVersion": "tensafe.io/v1"}, 'apiVersion: "tensafe.io/v1" is not known here: write tensafe.io/v1alpha1'),
    ({"apiVersion": None}, "apiVersion: is missing: write apiVersion: tensafe.io/v1alpha1"),
    ({"spec.dataset.unit": None}, None),
    ({"spec.dataset.unit.atLeast": None}, None),
    ({"spec.dataset.uri": None}, None),
    ({"spec.checkpoint.uri": None}, None),
    ({"spec.checkpoint": None}, None),
    ({"spec.evaluation": {"uri": "eval.csv"}}, None),
]
"""Changes, and what `tensafe validate` says of them; None where the sentence is not pinned."""

ARITHMETIC: list[tuple[dict[str, Any], str]] = [
    ({"spec.privacy.targetEpsilon": "0.0001"}, "spec.privacy.targetEpsilon: "),
    ({"spec.privacy.noiseMultiplier": "0.01"}, "spec.privacy.noiseMultiplier: "),
    ({"spec.privacy.noiseMultiplier": "0.3"}, "spec.privacy.noiseMultiplier: "),
    ({"spec.privacy.accountant": "PLD", "spec.privacy.targetDelta": "1e-12"}, "spec.privacy.accountant: "),
    ({"spec.privacy.accountant": "PLD", "spec.privacy.noiseMultiplier": "0.05"}, "spec.privacy.accountant: "),
    ({"spec.privacy.accountant": "PLD", "spec.training": {"steps": 2_000_000}}, "spec.privacy.accountant: "),
    ({"spec.privacy.accountant": "PLD", "spec.privacy.targetEpsilon": "101"}, "spec.privacy.accountant: "),
    ({"spec.training": {"epochs": "1000000000"}}, "spec.training.epochs: "),
    (
        {"spec.dataset.unit.atLeast": 2_000_000_000, "spec.training": {"expectedBatchSize": 1_000_000_000, "steps": 2}},
        "spec.training.expectedBatchSize: ",
    ),
]
"""Changes that only arithmetic can refuse, and the field that it names: the API server takes them, and the operator
says so in a condition.
"""
