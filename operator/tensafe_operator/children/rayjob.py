"""Builds the RayJob of one attempt, with the cluster that KubeRay creates for it: one head and N workers.

The head runs the driver and has access to neither records nor keys: no service account token, no job key, no
credentials. The workers mount the key, the job and its data. Rank 0 writes the ledger with the bound token of its pod.
Where a job signs its checkpoints, one worker has a group of its own, and only its pod mounts the signing key. The
trainer makes it rank 0 (`tensorguard.runners.rendezvous`). Where a job encrypts its checkpoints, every worker mounts
the identity that decrypts them, because every rank restores a checkpoint.

KubeRay retries nothing (`backoffLimit: 0`), because the operator counts the attempts. Admission refuses everything that
KubeRay would refuse, because a RayJob that KubeRay finds invalid never recovers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensafe_api.resources.cluster import Cluster
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.numeric import parse_quantity
from tensafe_api.resources.pods import EnvFrom, EnvVar, Toleration
from tensafe_operator import names
from tensafe_operator.children import Manifest, configuration, metadata, tls, volumes
from tensafe_operator.settings import Settings

ENTRYPOINT = "python -m tensorguard.driver"
"""A constant: parameters are passed in the ConfigMap."""
JOB_PATH = "/etc/tensafe/job"
KEY_PATH = "/etc/tensafe/key"
SIGNING_PATH = "/etc/tensafe/signing"
SIGNER_VARIABLE = "TENSAFE_SIGNER"
"""Environment variable of the workers of a job that signs: 1 in the pod with the signing key, which becomes rank 0."""
JOB_DIGEST_VARIABLE = "TENSAFE_JOB_DIGEST"
"""Environment variable with the digest that the files below JOB_PATH must have (`configuration.digest`)."""
GRACE_SECONDS = 120
"""Grace period of a pod that is asked to terminate: a worker saves a checkpoint in it, and the head waits for the
workers.
"""
HEAD_CONTAINER, WORKER_CONTAINER = "ray-head", "ray-worker"
_PRE_STOP = f"touch {volumes.RUN_PATH}/stop && exec flock {volumes.RUN_PATH}/.run.lock true"
"""The preStop hook of all pods. When it ends, Ray and all its processes are ended. So it waits for the lock that a
working process in the pod holds (`tensorguard.runners.run_folder`).
"""
_OBJECT_STORE_SHARE = 0.3
"""Share of a pod's memory for Ray's object store, which is in /dev/shm."""
_AGENT_PORT = 52365
_HEALTH_PATH_SINCE = (2, 53)
_RAY_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_NO_DRAIN = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
"""Without it, Ray drains for half a minute after all tasks have ended. The preStop hook has already waited for them."""
_FIXED = {"TENSAFE_ROOT": "/", "BASH_ENV": ""}
"""Variables that a Secret in `envFrom` must not set: where mounts are searched, and what a shell runs at its start."""
_ANNOTATIONS = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
}


def ray_job(
    job: TenSafeTrainingJob, attempt: int, settings: Settings, *, parameters: Manifest, key_secret: str, account: str
) -> Manifest:
    """The RayJob of attempt number `attempt` of an admitted job.

    Args:
        parameters: the attempt's ConfigMap (`configuration.config_map`).
        key_secret: name of the Secret with the job's key.
        account: name of the workers' service account.
    """
    name = names.ray_job_name(job.metadata.name, attempt)
    cluster = job.spec.cluster
    head = metadata(job, name, attempt)
    if cluster.queue_name:
        head["labels"] = {**head["labels"], names.QUEUE: cluster.queue_name}
    head["labels"] = {**cluster.ray_job_labels, **head["labels"]}
    if settings.job_tls.enabled:
        head["annotations"] = {names.TLS_SECRET: tls.secret_name(job, attempt)}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": head,
        "spec": {
            "entrypoint": ENTRYPOINT,
            "jobId": names.submission_id(job.metadata.name, job.metadata.uid or "", attempt),
            "submissionMode": "HTTPMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            **({"ttlSecondsAfterFinished": kept} if (kept := job.spec.pods_ttl_seconds) else {}),
            "suspend": bool(cluster.queue_name),  # Kueue resumes it
            "rayClusterSpec": {
                "rayVersion": cluster.ray_version or settings.ray_version,
                "authOptions": tls.auth_options(settings),
                "enableInTreeAutoscaling": False,
                "headGroupSpec": {
                    "rayStartParams": {
                        "num-cpus": "0",
                        "num-gpus": "0",
                        "object-store-memory": _object_store_bytes(cluster.head.memory),
                        **tls.dashboard(settings),
                    },
                    "template": _head_template(job, attempt, settings, parameters),
                },
                "workerGroupSpecs": _worker_groups(
                    job,
                    lambda signer: _worker_template(
                        job, attempt, settings, parameters, key_secret, account, signer=signer
                    ),
                ),
            },
        },
    }


def _worker_groups(job: TenSafeTrainingJob, template: Callable[[bool | None], Manifest]) -> list[Manifest]:
    """The groups of equal workers: all in one, or the one that signs apart from the others.

    Args:
        template: of a pod, from whether it signs; None where the job does not sign.
    """
    cluster = job.spec.cluster
    signs = job.spec.checkpoint.signing is not None
    sizes = (
        [("signer", 1, True), ("workers", cluster.workers - 1, False)]
        if signs
        else [("workers", cluster.workers, None)]
    )
    return [
        {
            "groupName": name,
            "replicas": replicas,
            "minReplicas": replicas,
            "maxReplicas": replicas,
            "rayStartParams": {
                "num-cpus": str(_whole_cpus(cluster) + 1),  # one more for Ray Data, which reads the data
                "num-gpus": str(cluster.worker.gpus),
                "object-store-memory": _object_store_bytes(cluster.worker.memory),
            },
            "template": template(signer),
        }
        for name, replicas, signer in sizes
        if replicas
    ]


def _head_template(job: TenSafeTrainingJob, attempt: int, settings: Settings, parameters: Manifest) -> Manifest:
    cluster = job.spec.cluster
    size = {"cpu": cluster.head.cpus, "memory": cluster.head.memory}
    container = {
        **_container(HEAD_CONTAINER, cluster, settings, size),
        "env": [
            *_home(settings),
            *_common_environment(parameters),
            {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(GRACE_SECONDS)},
            *tls.environment(job, attempt, settings),
        ],
        "volumeMounts": [volumes.mount("job", JOB_PATH), *volumes.writable_mounts(settings)],
    }
    own = [volumes.job_volume(parameters), *volumes.writable_volumes(settings)]
    template = _template(job, attempt, settings, container, own)
    if settings.pull_secrets and not cluster.image_pull_secrets:  # workers have them from their service account
        template["spec"]["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    if before := tls.init_containers(job, attempt, settings, container, head=True):
        template["spec"]["initContainers"] = before
    return _placed(template, cluster.head.node_selector, cluster.head.tolerations, cluster.head.affinity)


def _worker_template(
    job: TenSafeTrainingJob,
    attempt: int,
    settings: Settings,
    parameters: Manifest,
    key_secret: str,
    account: str,
    *,
    signer: bool | None,
) -> Manifest:
    cluster, signing = job.spec.cluster, job.spec.checkpoint.signing
    size: dict[str, str] = {"cpu": cluster.worker.cpus, "memory": cluster.worker.memory}
    if cluster.worker.gpus:
        size[cluster.worker.gpu_resource] = str(cluster.worker.gpus)
    disk = cluster.worker.ephemeral_storage
    of_job = [*cluster.volumes, *volumes.pvc_volumes(job)]
    container = {
        **_container(WORKER_CONTAINER, cluster, settings, size),
        "env": [
            *_home(settings, cluster.env),
            *_worker_environment(job, parameters),
            *([] if signer is None else [{"name": SIGNER_VARIABLE, "value": str(int(signer))}]),
            *tls.environment(job, attempt, settings),
        ],
        "envFrom": [_env_from(source) for source in cluster.env_from] + _storage(job),
        "volumeMounts": [
            volumes.mount("job", JOB_PATH),
            volumes.mount("key", KEY_PATH),
            *volumes.writable_mounts(settings, of_job),
            *(volumes.mount(each.name, each.mount_path, read_only=each.read_only) for each in of_job),
        ],
    }
    own = [
        volumes.job_volume(parameters),
        {"name": "key", "secret": {"secretName": key_secret, "defaultMode": 0o440}},
        *volumes.writable_volumes(settings, of_job),
        *(volumes.pod_volume(each) for each in of_job),
    ]
    if signer and signing is not None:
        name = volumes.free_name("signing", {each["name"] for each in own})
        container["volumeMounts"].append(volumes.mount(name, SIGNING_PATH))
        own.append({"name": name, "secret": {"secretName": signing.secret_name, "defaultMode": 0o440}})
    for volume, path in volumes.encryption_volumes(job, taken={each["name"] for each in own}):
        container["volumeMounts"].append(volumes.mount(volume["name"], path))
        own.append(volume)
    template = _template(job, attempt, settings, container, own)
    if disk is not None:  # a request alone: a pod above a limit would be evicted
        container["resources"]["requests"] = {**size, "ephemeral-storage": disk}
    template = _placed(template, None, None, cluster.affinity)
    if cluster.topology_spread_constraints:
        template["spec"]["topologySpreadConstraints"] = [
            {"labelSelector": _workers_of(job), **each} for each in cluster.topology_spread_constraints
        ]
    template["spec"] |= {
        "initContainers": [
            _check_container(container),
            *tls.init_containers(job, attempt, settings, container, head=False),
        ],
        "serviceAccountName": account,
        "automountServiceAccountToken": True,
    }
    return template


def _template(
    job: TenSafeTrainingJob, attempt: int, settings: Settings, container: Manifest, volumes: list[Manifest]
) -> Manifest:
    cluster = job.spec.cluster
    uid = job.metadata.uid or ""
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": _pod_security(cluster, settings),
        "containers": [container],
        "volumes": volumes,
        "nodeSelector": dict(cluster.node_selector),
        "tolerations": [_toleration(each) for each in cluster.tolerations],
        "imagePullSecrets": [{"name": each.name} for each in cluster.image_pull_secrets],
        "priorityClassName": cluster.priority_class_name,
        "runtimeClassName": cluster.runtime_class_name,
        "schedulerName": cluster.scheduler_name,
    }
    return {
        "metadata": {
            "labels": {**cluster.pod_labels, **names.labels(job.metadata.name, uid, attempt)},
            "annotations": {**_ANNOTATIONS, **cluster.pod_annotations},
        },
        "spec": {key: value for key, value in spec.items() if value not in ("", [], {})},
    }


def _placed(
    template: Manifest,
    node_selector: Mapping[str, str] | None,
    tolerations: Sequence[Toleration] | None,
    affinity: Mapping[str, Any] | None,
) -> Manifest:
    """`template` with a placement of its own, where one is given."""
    own: Manifest = {
        "nodeSelector": None if node_selector is None else dict(node_selector),
        "tolerations": None if tolerations is None else [_toleration(each) for each in tolerations],
        "affinity": affinity,
    }
    return {**template, "spec": {**template["spec"], **{key: value for key, value in own.items() if value is not None}}}


def _toleration(toleration: Toleration) -> Manifest:
    return toleration.model_dump(by_alias=True, exclude_none=True)


def _workers_of(job: TenSafeTrainingJob) -> Manifest:
    """The label selector of the job's workers, without its head."""
    return {"matchLabels": {names.JOB_UID: job.metadata.uid, names.RAY_NODE_TYPE: "worker"}}


def _check_container(container: Manifest) -> Manifest:
    """An init container that does nothing. It runs before KubeRay's init container, which waits for the head. A missing
    Secret or an unreadable variable is then reported when the pod starts, instead of half a minute later.
    """
    taken = ("image", "imagePullPolicy", "env", "envFrom", "resources")
    security = {**container["securityContext"], "readOnlyRootFilesystem": True}
    return {
        "name": "first-look",
        "command": ["true"],
        **{key: container[key] for key in taken},
        "securityContext": security,
    }


def _container(name: str, cluster: Cluster, settings: Settings, size: dict[str, str]) -> Manifest:
    """A container that runs Ray. CPUs are requested and not limited: a head with a CPU limit takes minutes to start.
    Memory and GPUs are limited to the request.
    """
    limits = {resource: amount for resource, amount in size.items() if resource != "cpu"}
    return {
        "name": name,
        **_probe(cluster.ray_version or settings.ray_version),
        "image": cluster.image or settings.image,
        "imagePullPolicy": cluster.image_pull_policy,
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", _PRE_STOP]}}},
        "resources": {"requests": size, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": settings.read_only_root,
            "runAsNonRoot": True,
        },
    }


def _probe(ray_version: str) -> Manifest:
    """A readiness probe every second. KubeRay's probe starts after ten seconds and runs every five. Versions of Ray
    before 2.53 do not serve the path, and keep KubeRay's probe.
    """
    parts = [int(part) for part in ray_version.split(".")[:2] if part.isdigit()]
    if parts < list(_HEALTH_PATH_SINCE):
        return {}
    check = {"httpGet": {"path": "/api/healthz", "port": _AGENT_PORT}}
    return {"readinessProbe": {**check, "initialDelaySeconds": 1, "periodSeconds": 1, "failureThreshold": 60}}


def _pod_security(cluster: Cluster, settings: Settings) -> Manifest:
    """User and group ids of the containers. Files of volumes belong to root: without `fsGroup` the processes could
    neither read the key nor write to a PVC. OpenShift sets both ids itself.
    """
    requested = cluster.security_context
    group = settings.fs_group if requested.fs_group is None else requested.fs_group
    context: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if requested.run_as_user is not None:
        context["runAsUser"] = requested.run_as_user
    if group is not None:
        # The owner of each file in a large volume is changed once, and not at each start of a pod.
        context |= {"fsGroup": group, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def _common_environment(parameters: Manifest) -> list[Manifest]:
    """Environment variables of every pod."""
    variables = {**_RAY_SETTINGS, **_NO_DRAIN, **_FIXED, JOB_DIGEST_VARIABLE: configuration.digest(parameters)}
    return [{"name": name, "value": value} for name, value in variables.items()]


def _worker_environment(job: TenSafeTrainingJob, parameters: Manifest) -> list[Manifest]:
    """Environment variables of a worker: those of the job, then ours. The schema refuses names that we set."""
    own = _common_environment(parameters)
    own.append({"name": "TENSAFE_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}})
    if token := job.spec.model.token_secret:
        reference = {"secretKeyRef": {"name": token.name, "key": token.key}}
        own.append({"name": "HF_TOKEN", "valueFrom": reference})
    return [_env(each) for each in job.spec.cluster.env] + own


def _env(variable: EnvVar) -> Manifest:
    return variable.model_dump(by_alias=True, exclude_none=True)


def _env_from(source: EnvFrom) -> Manifest:
    return source.model_dump(by_alias=True, exclude_none=True)


def _storage(job: TenSafeTrainingJob) -> list[Manifest]:
    secret = job.spec.storage.secret_name
    return [{"secretRef": {"name": secret}}] if secret else []


def _home(settings: Settings, own: Sequence[EnvVar] = ()) -> list[Manifest]:
    """A home that can be written, for caches such as that of the hub. A job may set another one."""
    needs_one = settings.read_only_root and all(each.name != "HOME" for each in own)
    return [{"name": "HOME", "value": volumes.TEMPORARY_PATH}] if needs_one else []


def _object_store_bytes(memory: str) -> str:
    return str(int(parse_quantity(memory) * _OBJECT_STORE_SHARE))


def _whole_cpus(cluster: Cluster) -> int:
    return max(1, int(parse_quantity(cluster.worker.cpus)))
