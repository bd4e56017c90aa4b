"""Where it runs: workers, head, and what their pods need.

In comes the manifest's `spec.cluster`, `spec.retry` and `spec.observability`; the operator's `children` package builds
a RayJob from them, and a local run uses `workers` and `worker`. A PodTemplateSpec is not embedded: it alone would make
the CRD too large for `kubectl apply`, and most of its fields would have to be refused. Names and shapes that
Kubernetes users know are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tensafe_api.resources.base import Block, Rule, Unique
from tensafe_api.resources.model import ObjectKey
from tensafe_api.resources.values import (
    QUALIFIED,
    Count,
    Cpus,
    EnvName,
    Flag,
    Image,
    LabelMap,
    Labels,
    LabelValue,
    Memory,
    MountPath,
    ObjectName,
    OptionalName,
    QualifiedName,
    QueueName,
    RayVersion,
    ResourceName,
    Size,
    Text,
    VolumeName,
    cel_matches,
)

_OURS = ("RAY_", "TENSAFE_", "BASH_ENV")


def _one_of(*values: object) -> bool:
    return sum(value is not None for value in values) == 1


class NamedObject(Block):
    """A Secret or ConfigMap in the job's namespace."""

    name: ObjectName = Field(description="Name of the object.")


class Worker(Block):
    """What each worker gets. One worker is one process, one pod and one domain of trust."""

    gpus: Annotated[int, Field(strict=True, ge=0)] = Field(
        0, description="GPUs of a worker, 0 or 1. More workers are how more GPUs are used."
    )
    gpu_resource: ResourceName = Field(
        "nvidia.com/gpu", description="Name under which the cluster offers GPUs; used when gpus is 1."
    )
    cpus: Cpus = Field("1", description="CPU cores that a worker is sure of; it may use idle ones beside them.")
    memory: Memory = Field("8Gi", description="Memory of a worker.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.gpus) || self.gpus <= 1",
            "worker.gpus must be 0 or 1, since one worker is one rank: write 1 and raise cluster.workers",
            lambda worker: worker.gpus <= 1,
            ".gpus",
        ),
    )


class Head(Block):
    """What the head gets. It schedules; it sees neither records nor keys."""

    cpus: Cpus = Field("2", description="CPU cores that the head is sure of; it may use idle ones beside them.")
    memory: Memory = Field("8Gi", description="Memory of the head. Ray's own processes there take 2 GB.")


class Toleration(Block):
    """A taint that the pods put up with, as Kubernetes writes it.

    It has no defaults of its own: one that the API server fills into a list looks like drift to Argo CD.
    """

    key: QualifiedName | None = Field(None, description="Key of the taint; absent with Exists: every taint.")
    operator: Literal["Exists", "Equal"] | None = Field(
        None, description="Whether the value counts; default: Equal, as in pods."
    )
    value: LabelValue | None = Field(None, description="Value of the taint, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint; default: every effect."
    )
    toleration_seconds: Count | None = Field(
        None, description="How long a NoExecute taint is put up with, in seconds; default: for ever."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.key) || has(self.operator) && self.operator == 'Exists'",
            "tolerations needs a key, but for Exists: write the key of the taint, or operator: Exists for every taint",
            lambda toleration: toleration.key is not None or toleration.operator == "Exists",
            ".key",
        ),
        Rule(
            "!has(self.value) || !has(self.operator) || self.operator != 'Exists'",
            "tolerations takes no value with Exists: leave it out, or write operator: Equal",
            lambda toleration: toleration.value is None or toleration.operator != "Exists",
            ".value",
        ),
        Rule(
            "!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
            "tolerations.tolerationSeconds belongs to NoExecute: write effect: NoExecute, or leave it out",
            lambda toleration: toleration.toleration_seconds is None or toleration.effect == "NoExecute",
            ".tolerationSeconds",
        ),
    )


class SecurityContext(Block):
    """Under which ids the containers run."""

    run_as_user: Count | None = Field(
        None, description="User id of the processes, not 0, since pods never run as root; default: the image's."
    )
    fs_group: Count | None = Field(
        None, description="Group id that owns the volumes; default: 1000, the group of the image's user."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.runAsUser) || self.runAsUser > 0",
            "securityContext.runAsUser must be above 0, since pods never run as root: write another user's id, or "
            "leave it out for the image's",
            lambda context: context.run_as_user is None or context.run_as_user > 0,
            ".runAsUser",
        ),
    )


class EnvSource(Block):
    """Where the value of an environment variable comes from."""

    secret_key_ref: ObjectKey | None = Field(None, description="A key of a Secret.")
    config_map_key_ref: ObjectKey | None = Field(None, description="A key of a ConfigMap.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.secretKeyRef) != has(self.configMapKeyRef)",
            "valueFrom takes exactly one source: write secretKeyRef or configMapKeyRef",
            lambda source: _one_of(source.secret_key_ref, source.config_map_key_ref),
        ),
    )


class EnvVar(Block):
    """An environment variable of the workers."""

    name: EnvName = Field(
        description="Name of the variable; not BASH_ENV, and none that begins with RAY_ or TENSAFE_, which KubeRay and "
        "the operator set."
    )
    value: Text | None = Field(None, description="Its value; or valueFrom.")
    value_from: EnvSource | None = Field(None, description="Where its value comes from; or value.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.value) != has(self.valueFrom)",
            "env takes exactly one of value and valueFrom for each name: write one of them",
            lambda variable: _one_of(variable.value, variable.value_from),
        ),
        Rule(
            f"!{list(_OURS)}.exists(prefix, self.name.startsWith(prefix))",
            "env takes no BASH_ENV and no names that begin with RAY_ or TENSAFE_, which KubeRay and the operator set: "
            "leave it out",
            lambda variable: not variable.name.startswith(_OURS),
            ".name",
        ),
    )


class EnvFrom(Block):
    """An object all of whose keys become environment variables of the workers."""

    secret_ref: NamedObject | None = Field(None, description="A Secret.")
    config_map_ref: NamedObject | None = Field(None, description="A ConfigMap.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.secretRef) != has(self.configMapRef)",
            "envFrom takes exactly one object for each entry: write secretRef or configMapRef",
            lambda source: _one_of(source.secret_ref, source.config_map_ref),
        ),
    )


class Volume(Block):
    """A volume of the workers, and where it appears."""

    name: VolumeName = Field(
        description="Name of the volume, different for each; not job, key, run, shared-mem or pvc-..., which are the "
        "pods' own."
    )
    mount_path: MountPath = Field(
        description="Directory where the volume appears, different for each; not one that holds or lies in "
        "/etc/tensafe, /var/run/tensafe or /var/run/secrets."
    )
    read_only: Flag = Field(False, description="Whether the volume cannot be written to.")
    pvc: ObjectName | None = Field(None, description="A PersistentVolumeClaim, by name.")
    secret: ObjectName | None = Field(None, description="A Secret, by name.")
    config_map: ObjectName | None = Field(None, description="A ConfigMap, by name.")
    empty_dir: Size | None = Field(None, description="An empty directory of at most this size, such as 10Gi.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.pvc), has(self.secret), has(self.configMap), has(self.emptyDir)].exists_one(kind, kind)",
            "volumes takes exactly one source for each entry: write one of pvc, secret, configMap and emptyDir",
            lambda volume: _one_of(volume.pvc, volume.secret, volume.config_map, volume.empty_dir),
        ),
    )


def _qualified(name: str, labels: Callable[[Any], Mapping[str, str]]) -> Rule:
    return Rule(
        f"!has(self.{name}) || self.{name}.all(key, {cel_matches('key', QUALIFIED)})",
        f"cluster.{name} must have keys such as zone or example.com/zone, with at most 63 letters, digits, -, _ and . "
        "after the /: mend the key",
        lambda cluster: all(re.fullmatch(QUALIFIED, key) for key in labels(cluster)),
        f".{name}",
    )


class Cluster(Block):
    """The workers and the head. It may change while the job is suspended, except for workers and serviceAccountName."""

    workers: Annotated[int, Field(strict=True, ge=1, le=16)] = Field(
        description="How many workers share the work, from 1 to 16. One alone has nothing to mask."
    )
    worker: Worker = Field(default_factory=Worker, description="What each worker gets.")
    head: Head = Field(default_factory=Head, description="What the head gets.")
    image: Image | None = Field(
        None, description="Image of workers and head, with rayVersion; default: the operator's release has its own."
    )
    ray_version: RayVersion | None = Field(
        None,
        description="Version of Ray in the image, with image, at least 2.52.0; default: the operator's release has its "
        "own.",
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        "IfNotPresent", description="When the image is pulled."
    )
    image_pull_secrets: Annotated[tuple[NamedObject, ...], Field(max_length=16), Unique(("name",))] = Field(
        (), description="Secrets to pull the image with; default: none."
    )
    service_account_name: OptionalName = Field(
        "",
        description="Service account of the workers, which alone may charge the ledger; it cannot change. Default: the "
        "operator makes one of the job's own, named as the job.",
    )
    queue_name: QueueName = Field("", description="Kueue queue that the job waits in; default: none.")
    priority_class_name: OptionalName = Field("", description="Priority class of the pods; default: the cluster's.")
    runtime_class_name: OptionalName = Field("", description="Runtime class of the pods; default: the cluster's.")
    scheduler_name: OptionalName = Field("", description="Scheduler of the pods; default: the cluster's.")
    node_selector: Labels = Field(
        default_factory=dict, description="Labels of the nodes that the pods may run on; default: any node."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = Field(
        (), description="Taints that the pods put up with; default: none."
    )
    pod_labels: Labels = Field(
        default_factory=dict,
        description="Further labels of the pods; none of tensafe.io/, ray.io/ and app.kubernetes.io/managed-by, which "
        "the operator and KubeRay set.",
    )
    pod_annotations: LabelMap = Field(
        default_factory=dict,
        description="Further annotations of the pods, on top of those that keep autoscalers and meshes away.",
    )
    security_context: SecurityContext = Field(
        default_factory=SecurityContext, description="Under which ids the containers run."
    )
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64), Unique(("name",))] = Field(
        (), description="Environment variables of the workers; the head does not get them."
    )
    env_from: Annotated[tuple[EnvFrom, ...], Field(max_length=16)] = Field(
        (), description="Objects whose keys become environment variables of the workers; the head does not get them."
    )
    volumes: Annotated[tuple[Volume, ...], Field(max_length=16), Unique(("name",))] = Field(
        (), description="Volumes of the workers; default: those that pvc:// URIs ask for."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.image) || has(self.rayVersion)",
            "cluster.rayVersion is needed with an image of your own: write the version of Ray in it",
            lambda cluster: cluster.image is None or cluster.ray_version is not None,
            ".rayVersion",
        ),
        _qualified("nodeSelector", lambda cluster: cluster.node_selector),
        _qualified("podLabels", lambda cluster: cluster.pod_labels),
        _qualified("podAnnotations", lambda cluster: cluster.pod_annotations),
        Rule(
            "!has(self.podLabels) || !self.podLabels.exists(key, key == 'app.kubernetes.io/managed-by' || "
            "key.startsWith('tensafe.io/') || key.startsWith('ray.io/'))",
            "cluster.podLabels must not have app.kubernetes.io/managed-by, tensafe.io/ or ray.io/, since the operator "
            "and KubeRay set those: leave them out",
            lambda cluster: (
                not any(
                    key == "app.kubernetes.io/managed-by" or key.startswith(("tensafe.io/", "ray.io/"))
                    for key in cluster.pod_labels
                )
            ),
            ".podLabels",
        ),
        Rule(
            "!has(self.volumes) || "
            "self.volumes.all(one, self.volumes.exists_one(other, other.mountPath == one.mountPath))",
            "cluster.volumes must not have a mountPath twice: choose another one for each volume",
            lambda cluster: len({volume.mount_path for volume in cluster.volumes}) == len(cluster.volumes),
            ".volumes",
        ),
    )


class Retry(Block):
    """How often it is tried again. It may change while the job is suspended."""

    max_attempts: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        3,
        description="How many attempts may fail before the job does; each has new workers, which resume at the last "
        "checkpoint. Suspended ones do not count, but of all together there are at most 64.",
    )
    max_restarts: Annotated[int, Field(strict=True, ge=0, le=1000)] = Field(
        5, description="Most restarts of the workers within one attempt."
    )


class Observability(Block):
    """What is shown of the training."""

    private_metrics: Literal["Hidden", "Internal"] = Field(
        "Hidden",
        description="Training loss, gradient norms and batch sizes are functions of private data. Hidden: shown "
        "nowhere. Internal: in logs and callbacks, for trusted eyes, and the statement says so.",
    )
