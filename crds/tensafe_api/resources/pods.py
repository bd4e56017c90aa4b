"""What the pods of a job are made from and where they run: the fields that a job and a profile have in common.

A job has them in `spec.cluster`, an administrator in a TenSafeClusterProfile. None of them is about privacy or size.
Fields that pods have too keep their Kubernetes names and shapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tensafe_api.resources.base import Block, Opaque, Rule, Unique
from tensafe_api.resources.model import ObjectKey
from tensafe_api.resources.numeric import Count, Flag, Size
from tensafe_api.resources.string_form import cel_matches
from tensafe_api.resources.strings import (
    QUALIFIED,
    EnvName,
    Image,
    LabelMap,
    Labels,
    LabelValue,
    MountPath,
    ObjectName,
    OptionalName,
    QualifiedName,
    QueueName,
    RayVersion,
    Text,
    VolumeName,
)

RAY_JOB_LABELS = (
    "kueue.x-k8s.io/priority-class",
    "ray.io/priority-class-name",
    "ray.io/gang-scheduling-enabled",
    "volcano.sh/queue-name",
    "yunikorn.apache.org/app-id",
    "yunikorn.apache.org/queue",
    "kai.scheduler/queue",
)
"""Labels of a RayJob that queues and gang schedulers read, and that a job may set."""
PodPart = Annotated[dict[str, Any], Opaque()]
"""A part of a pod's spec, which only Kubernetes checks."""
_RESERVED_ENV = ("RAY_", "TENSAFE_", "BASH_ENV")
_RESERVED_LABELS = ("tensafe.io/", "ray.io/", "kueue.x-k8s.io/")


def _one_of(*values: object) -> bool:
    return sum(value is not None for value in values) == 1


class NamedObject(Block):
    """A Secret or ConfigMap in the namespace of the job, by name."""

    name: ObjectName = Field(description="Name of the Secret or ConfigMap.")


class Toleration(Block):
    """A toleration of the pods, as in a pod's spec.

    Its fields have no defaults in the schema. A default that the API server fills into a list looks like drift to
    Argo CD.
    """

    key: QualifiedName | None = Field(None, description="Key of the taint. Absent, with operator Exists: all taints.")
    operator: Literal["Exists", "Equal"] | None = Field(
        None, description="Equal: key and value must match. Exists: the key must match. Default: Equal."
    )
    value: LabelValue | None = Field(None, description="Value of the taint. For operator Equal only.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint. Default: all effects."
    )
    toleration_seconds: Count | None = Field(
        None, description="How long a taint with effect NoExecute is tolerated, in seconds. Default: without limit."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.key) || has(self.operator) && self.operator == 'Exists'",
            "tolerations must have a key, except with operator Exists: write the key of the taint, or operator: "
            "Exists for all taints",
            lambda toleration: toleration.key is not None or toleration.operator == "Exists",
            ".key",
            id="TolerationKey",
        ),
        Rule(
            "!has(self.value) || !has(self.operator) || self.operator != 'Exists'",
            "tolerations must not have a value with operator Exists: remove it, or write operator: Equal",
            lambda toleration: toleration.value is None or toleration.operator != "Exists",
            ".value",
            id="TolerationValue",
        ),
        Rule(
            "!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
            "tolerations.tolerationSeconds is only valid with effect NoExecute: write effect: NoExecute, or remove it",
            lambda toleration: toleration.toleration_seconds is None or toleration.effect == "NoExecute",
            ".tolerationSeconds",
            id="TolerationSeconds",
        ),
    )


class HeadPlacement(Block):
    """On which nodes the Ray head runs."""

    node_selector: Labels | None = Field(None, description="As in cluster. Default: that of cluster.")
    tolerations: Annotated[tuple[Annotated[Toleration, Opaque()], ...], Field(max_length=32)] | None = Field(
        None, description="As in cluster. Default: those of cluster."
    )
    affinity: PodPart | None = Field(None, description="As in cluster. Default: none.")


class SecurityContext(Block):
    """User and group ids of the containers."""

    run_as_user: Count | None = Field(
        None, description="User id of the processes, above 0: pods never run as root. Default: the user of the image."
    )
    fs_group: Count | None = Field(
        None, description="Group id that owns the volumes. Default: that of the operator, 1000 unless it was changed."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.runAsUser) || self.runAsUser > 0",
            "securityContext.runAsUser must be above 0, because pods never run as root: write another user id, or "
            "remove it to use the user of the image",
            lambda context: context.run_as_user is None or context.run_as_user > 0,
            ".runAsUser",
            id="RunAsUserNotRoot",
        ),
    )


class EnvSource(Block):
    """The source of an environment variable's value: a key of a Secret or of a ConfigMap."""

    secret_key_ref: ObjectKey | None = Field(None, description="A key of a Secret.")
    config_map_key_ref: ObjectKey | None = Field(None, description="A key of a ConfigMap.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.secretKeyRef) != has(self.configMapKeyRef)",
            "valueFrom must have exactly one source: write secretKeyRef or configMapKeyRef",
            lambda source: _one_of(source.secret_key_ref, source.config_map_key_ref),
            id="OneValueSource",
        ),
    )


class EnvVar(Block):
    """An environment variable of the workers."""

    name: EnvName = Field(
        description="Name of the variable. BASH_ENV and names that start with RAY_ or TENSAFE_ are refused: "
        "KubeRay and the operator set them."
    )
    value: Text | None = Field(
        None, description="Value of the variable. Exactly one of value and valueFrom is required."
    )
    value_from: EnvSource | None = Field(
        None, description="Source of the value. Exactly one of value and valueFrom is required."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.value) != has(self.valueFrom)",
            "env must have exactly one of value and valueFrom for each variable: write one of them",
            lambda variable: _one_of(variable.value, variable.value_from),
            id="OneVariableSource",
        ),
        Rule(
            f"!{list(_RESERVED_ENV)}.exists(prefix, self.name.startsWith(prefix))",
            "env must not set BASH_ENV or names that start with RAY_ or TENSAFE_, because KubeRay and the operator "
            "set them: remove the variable",
            lambda variable: not variable.name.startswith(_RESERVED_ENV),
            ".name",
            id="ReservedVariable",
        ),
    )


class EnvFrom(Block):
    """A Secret or ConfigMap."""

    secret_ref: NamedObject | None = Field(None, description="A Secret.")
    config_map_ref: NamedObject | None = Field(None, description="A ConfigMap.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.secretRef) != has(self.configMapRef)",
            "envFrom must have exactly one source in each entry: write secretRef or configMapRef",
            lambda source: _one_of(source.secret_ref, source.config_map_ref),
            id="OneEnvFromSource",
        ),
    )


class Volume(Block):
    """A volume of the workers and its mount path."""

    name: VolumeName = Field(description="Name of the volume, unique in the list.")
    mount_path: MountPath = Field(description="Directory of the volume in the container, unique in the list.")
    read_only: Flag = Field(False, description="Mount the volume read-only.")
    pvc: ObjectName | None = Field(None, description="Name of a PersistentVolumeClaim.")
    secret: ObjectName | None = Field(None, description="Name of a Secret.")
    config_map: ObjectName | None = Field(None, description="Name of a ConfigMap.")
    empty_dir: Size | None = Field(None, description="Size limit of an empty directory, such as 10Gi.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.pvc), has(self.secret), has(self.configMap), has(self.emptyDir)].exists_one(kind, kind)",
            "volumes must have exactly one source in each entry: write one of pvc, secret, configMap and emptyDir",
            lambda volume: _one_of(volume.pvc, volume.secret, volume.config_map, volume.empty_dir),
            id="OneVolumeSource",
        ),
    )


def _qualified(name: str, labels: Callable[[Any], Mapping[str, str]]) -> Rule:
    return Rule(
        f"!has(self.{name}) || self.{name}.all(key, {cel_matches('key', QUALIFIED)})",
        f"cluster.{name} must have keys such as zone or example.com/zone: correct the key",
        lambda cluster: all(re.fullmatch(QUALIFIED, key) for key in labels(cluster)),
        f".{name}",
        id=f"{name[0].upper()}{name[1:]}Keys",
    )


class PodSettings(Block):
    """The image of the pods, and where and how they run."""

    head: HeadPlacement = Field(default_factory=HeadPlacement, description="On which nodes the Ray head runs.")
    image: Image | None = Field(
        None,
        description="Image of workers and head. It requires rayVersion. Default: that of the operator's release.",
    )
    ray_version: RayVersion | None = Field(
        None,
        description="Version of Ray in the image, at least 2.52.0. Required with image. Default: that of the "
        "operator's release.",
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        "IfNotPresent", description="When a node pulls the image, as in pods."
    )
    image_pull_secrets: Annotated[tuple[NamedObject, ...], Field(max_length=16), Unique(("name",))] = Field(
        (), description="Secrets with the credentials to pull the image. Default: none."
    )
    queue_name: QueueName = Field("", description="Name of the Kueue queue in which the job waits. Default: none.")
    priority_class_name: OptionalName = Field("", description="PriorityClass of the pods. Default: the cluster's.")
    runtime_class_name: OptionalName = Field("", description="RuntimeClass of the pods. Default: the cluster's.")
    scheduler_name: OptionalName = Field("", description="Scheduler of the pods. Default: the cluster's.")
    node_selector: Labels = Field(
        default_factory=dict, description="Labels that a node must have to run the pods. Default: any node."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = Field(
        (), description="Tolerations of the pods. Default: none."
    )
    affinity: PodPart | None = Field(None, description="Affinity of the workers, as in a pod's spec. Default: none.")
    topology_spread_constraints: Annotated[tuple[PodPart, ...], Field(max_length=8)] = Field(
        (),
        description="How the workers are spread, as in a pod's spec. Without a labelSelector they count "
        "the workers of this job. Default: none.",
    )
    ray_job_labels: Labels = Field(
        default_factory=dict,
        description="Labels of the RayJob that queues and gang schedulers read. Default: none.",
    )
    pod_labels: Labels = Field(
        default_factory=dict,
        description="Additional labels of the pods. app.kubernetes.io/managed-by and keys that start with tensafe.io/, "
        "ray.io/ or kueue.x-k8s.io/ are refused.",
    )
    pod_annotations: LabelMap = Field(
        default_factory=dict,
        description="Additional annotations of the pods. The operator sets those against autoscalers' evictions and "
        "sidecars.",
    )
    security_context: SecurityContext = Field(
        default_factory=SecurityContext, description="User and group ids of the containers."
    )
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64), Unique(("name",))] = Field(
        (), description="Environment variables of the workers. The head does not get them."
    )
    env_from: Annotated[tuple[EnvFrom, ...], Field(max_length=16)] = Field(
        (),
        description="Secrets and ConfigMaps whose keys become environment variables of the workers. The head does not "
        "get them.",
    )
    volumes: Annotated[tuple[Volume, ...], Field(max_length=16), Unique(("name",))] = Field(
        (),
        description="Additional volumes of the workers. That of a pvc:// URI is mounted without an entry here. "
        "Default: none.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.image) || has(self.rayVersion)",
            "cluster.rayVersion is required with cluster.image: write the version of Ray in the image",
            lambda cluster: cluster.image is None or cluster.ray_version is not None,
            ".rayVersion",
            id="RayVersionOfImage",
        ),
        _qualified("nodeSelector", lambda cluster: cluster.node_selector),
        Rule(
            f"!has(self.rayJobLabels) || self.rayJobLabels.all(key, key in {list(RAY_JOB_LABELS)})",
            f"cluster.rayJobLabels may have {', '.join(RAY_JOB_LABELS)}: remove the others",
            lambda cluster: cluster.ray_job_labels.keys() <= set(RAY_JOB_LABELS),
            ".rayJobLabels",
            id="RayJobLabelsKnown",
        ),
        _qualified("podLabels", lambda cluster: cluster.pod_labels),
        _qualified("podAnnotations", lambda cluster: cluster.pod_annotations),
        Rule(
            "!has(self.podLabels) || !self.podLabels.exists(key, key == 'app.kubernetes.io/managed-by' || "
            f"{list(_RESERVED_LABELS)}.exists(prefix, key.startsWith(prefix)))",
            "cluster.podLabels must not have app.kubernetes.io/managed-by or keys that start with tensafe.io/, ray.io/ "
            "or kueue.x-k8s.io/: remove them, and write labels of Kueue into queueName and rayJobLabels",
            lambda cluster: (
                not any(
                    key == "app.kubernetes.io/managed-by" or key.startswith(_RESERVED_LABELS)
                    for key in cluster.pod_labels
                )
            ),
            ".podLabels",
            id="PodLabelsReserved",
        ),
        Rule(
            "!has(self.volumes) || "
            "self.volumes.all(one, self.volumes.exists_one(other, other.mountPath == one.mountPath))",
            "cluster.volumes must not have the same mountPath twice: write a different one for each volume",
            lambda cluster: len({volume.mount_path for volume in cluster.volumes}) == len(cluster.volumes),
            ".volumes",
            id="OneVolumeEachPath",
        ),
    )
