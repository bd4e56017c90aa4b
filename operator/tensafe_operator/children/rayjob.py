"""The RayJob of one attempt, with the cluster that KubeRay makes for it: one head that schedules, N workers that train.

The head runs the driver and sees neither records nor keys: no service account token, no job key, no credentials.
Workers mount the key, the job and its data; rank 0 among them writes the ledger with the pod's own bound token.

KubeRay retries nothing (`backoffLimit: 0`): an attempt is ours to count. What it would refuse is refused by us first,
since a RayJob that it finds invalid never recovers.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from tensafe_api.resources.cluster import Cluster, EnvFrom, EnvVar, Volume
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.values import parse_quantity
from tensafe_operator import names
from tensafe_operator.children import Manifest, metadata, service_account
from tensafe_operator.settings import Settings

ENTRYPOINT = "python -m tensorguard.cluster"
"""A constant: parameters travel in the ConfigMap."""
JOB_PATH = "/etc/tensafe/job"
KEY_PATH = "/etc/tensafe/key"
RUN_PATH = "/var/run/tensafe"
JOB_DIGEST_VARIABLE = "TENSAFE_JOB_DIGEST"
"""Environment variable: what the files below JOB_PATH must add up to (`configuration.digest`)."""
OWN_GROUP = 1000
"""Of the image's user."""
PRE_RUNNING_SECONDS = 1800
"""How long the pods may take to be scheduled and started."""
GRACE_SECONDS = 120
"""How long a pod that is told to go may take: a worker until a checkpoint is sealed, the head until they have ended."""
_LEAVE = f"touch {RUN_PATH}/stop && exec flock {RUN_PATH}/.run.lock true"
"""The preStop hook of all pods. Once it ends, Ray is ended too, and everything with it: so it waits for the lock that
whoever is at work there holds (`tensorguard.runners.run_folder`)."""
_STORE_SHARE = 0.3
"""Of a pod's memory for Ray's object store, which lies in /dev/shm."""
_AGENT_PORT = 52365
_HEALTH_SINCE = (2, 53)
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_AT_ONCE = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
"""Ray would spend half a minute on tasks that have ended: whoever had something to lose was waited for."""
_FIXED = {"TENSAFE_ROOT": "/", "BASH_ENV": ""}
"""What no Secret that a job takes its environment from may decide: where mounts are looked for, what a shell runs."""
_ANNOTATIONS = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
}


def ray_job(job: TenSafeTrainingJob, attempt: int, settings: Settings, *, job_digest: str, key_secret: str) -> Manifest:
    """The RayJob of attempt number `attempt` of a completed job.

    Args:
        job_digest: of the attempt's ConfigMap.
        key_secret: name of the Secret with the job's key.
    """
    name = names.ray_job_name(job.metadata.name, attempt)
    cluster = job.spec.cluster
    head = metadata(job, name, attempt)
    if cluster.queue_name:
        head["labels"] = {**head["labels"], names.QUEUE: cluster.queue_name}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": head,
        "spec": {
            "entrypoint": ENTRYPOINT,
            "submissionMode": "HTTPMode",
            "backoffLimit": 0,
            "preRunningDeadlineSeconds": PRE_RUNNING_SECONDS,
            "shutdownAfterJobFinishes": True,
            "suspend": bool(cluster.queue_name),  # Kueue lets it go
            "rayClusterSpec": {
                "rayVersion": cluster.ray_version or settings.ray_version,
                "authOptions": {"mode": "token"},
                "enableInTreeAutoscaling": False,
                "headGroupSpec": {
                    "rayStartParams": {
                        "num-cpus": "0",
                        "num-gpus": "0",
                        "object-store-memory": _store(cluster.head.memory),
                        "dashboard-host": "0.0.0.0",
                    },
                    "template": _head(job, attempt, settings, job_digest),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": cluster.workers,
                        "minReplicas": cluster.workers,
                        "maxReplicas": cluster.workers,
                        "rayStartParams": {
                            "num-cpus": str(_whole_cpus(cluster) + 1),  # one for reading the data, which a worker holds
                            "num-gpus": str(cluster.worker.gpus),
                            "object-store-memory": _store(cluster.worker.memory),
                        },
                        "template": _worker(job, attempt, settings, job_digest, key_secret),
                    }
                ],
            },
        },
    }


def _head(job: TenSafeTrainingJob, attempt: int, settings: Settings, job_digest: str) -> Manifest:
    cluster = job.spec.cluster
    size = {"cpu": cluster.head.cpus, "memory": cluster.head.memory}
    container = {
        **_container("ray-head", cluster, settings, size),
        "env": [*_own_environment(job_digest), {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(GRACE_SECONDS)}],
        "volumeMounts": [_mount("job", JOB_PATH), _mount("run", RUN_PATH, read_only=False)],
    }
    return _template(job, attempt, container, [_job_volume(job, attempt), {"name": "run", "emptyDir": {}}])


def _worker(job: TenSafeTrainingJob, attempt: int, settings: Settings, job_digest: str, key_secret: str) -> Manifest:
    cluster = job.spec.cluster
    size: dict[str, str] = {"cpu": cluster.worker.cpus, "memory": cluster.worker.memory}
    if cluster.worker.gpus:
        size[cluster.worker.gpu_resource] = str(cluster.worker.gpus)
    volumes = [*cluster.volumes, *_claims(job)]
    container = {
        **_container("ray-worker", cluster, settings, size),
        "env": _environment(job, job_digest),
        "envFrom": [_env_from(source) for source in cluster.env_from] + _storage(job),
        "volumeMounts": [
            _mount("job", JOB_PATH),
            _mount("key", KEY_PATH),
            _mount("run", RUN_PATH, read_only=False),
            *(_mount(volume.name, volume.mount_path, read_only=volume.read_only) for volume in volumes),
        ],
    }
    own = [
        _job_volume(job, attempt),
        {"name": "key", "secret": {"secretName": key_secret, "defaultMode": 0o440}},
        {"name": "run", "emptyDir": {}},
    ]
    template = _template(job, attempt, container, own + [_volume(volume) for volume in volumes])
    template["spec"] |= {
        "initContainers": [_first_look(container)],
        "serviceAccountName": service_account(job),
        "automountServiceAccountToken": True,
    }
    return template


def _template(job: TenSafeTrainingJob, attempt: int, container: Manifest, volumes: list[Manifest]) -> Manifest:
    cluster = job.spec.cluster
    uid = job.metadata.uid or ""
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": _pod_security(cluster),
        "containers": [container],
        "volumes": volumes,
        "nodeSelector": dict(cluster.node_selector),
        "tolerations": [each.model_dump(by_alias=True, exclude_none=True) for each in cluster.tolerations],
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


def _first_look(container: Manifest) -> Manifest:
    """A container that ends at once, before KubeRay's own, which waits for the head: a Secret that is missing, or a
    variable that cannot be read, is then told when the pod starts instead of half a minute later.
    """
    taken = ("image", "imagePullPolicy", "env", "envFrom", "resources", "securityContext")
    return {"name": "first-look", "command": ["true"], **{key: container[key] for key in taken}}


def _container(name: str, cluster: Cluster, settings: Settings, size: dict[str, str]) -> Manifest:
    """A container of Ray's. CPUs are asked for and not limited: a head that is held to its share takes minutes to start
    (decision 0013). Of memory and GPUs none has more than it asked for.
    """
    limits = {resource: amount for resource, amount in size.items() if resource != "cpu"}
    return {
        "name": name,
        **_probe(cluster.ray_version or settings.ray_version),
        "image": cluster.image or settings.image,
        "imagePullPolicy": cluster.image_pull_policy,
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", _LEAVE]}}},
        "resources": {"requests": size, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
        },
    }


def _probe(ray_version: str) -> Manifest:
    """A readiness probe that looks every second: KubeRay's own begins after ten and looks every five. Older versions of
    Ray have no address for it, and keep KubeRay's.
    """
    parts = [int(part) for part in ray_version.split(".")[:2] if part.isdigit()]
    if parts < list(_HEALTH_SINCE):
        return {}
    check = {"httpGet": {"path": "/api/healthz", "port": _AGENT_PORT}}
    return {"readinessProbe": {**check, "initialDelaySeconds": 1, "periodSeconds": 1, "failureThreshold": 60}}


def _pod_security(cluster: Cluster) -> Manifest:
    """Under which ids the containers run. Files of volumes belong to root: without a group of their own the processes
    could not read the key, nor write to a claim.
    """
    asked = cluster.security_context
    context: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if asked.run_as_user is not None:
        context["runAsUser"] = asked.run_as_user
    return {**context, "fsGroup": OWN_GROUP if asked.fs_group is None else asked.fs_group}


def _own_environment(job_digest: str) -> list[Manifest]:
    """What every pod is told."""
    told = {**_QUIET, **_AT_ONCE, **_FIXED, JOB_DIGEST_VARIABLE: job_digest}
    return [{"name": name, "value": value} for name, value in told.items()]


def _environment(job: TenSafeTrainingJob, job_digest: str) -> list[Manifest]:
    """What the job adds, and ours. The schema refuses names that we set."""
    own = _own_environment(job_digest)
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


def _volume(volume: Volume) -> Manifest:
    if volume.pvc:
        return {"name": volume.name, "persistentVolumeClaim": {"claimName": volume.pvc, "readOnly": volume.read_only}}
    if volume.secret:
        return {"name": volume.name, "secret": {"secretName": volume.secret}}
    if volume.config_map:
        return {"name": volume.name, "configMap": {"name": volume.config_map}}
    return {"name": volume.name, "emptyDir": {"sizeLimit": volume.empty_dir}}


def _claims(job: TenSafeTrainingJob) -> list[Volume]:
    """The volumes that pvc:// URIs of the job ask for, each claim once; the checkpoints' one is written to. Their names
    are ours alone, so the schema would refuse them.
    """
    places = job.spec.uris()
    written = _claim(places["checkpoint"])
    claims = dict.fromkeys(claim for uri in places.values() if (claim := _claim(uri)))
    return [
        Volume.model_construct(
            name=f"pvc-{claim}"[:63], mount_path=f"/mnt/{claim}", read_only=claim != written, pvc=claim
        )
        for claim in claims
    ]


def _claim(uri: str) -> str:
    return urlsplit(uri).netloc if uri.startswith("pvc://") else ""


def _job_volume(job: TenSafeTrainingJob, attempt: int) -> Manifest:
    return {"name": "job", "configMap": {"name": names.ray_job_name(job.metadata.name, attempt)}}


def _mount(name: str, path: str, *, read_only: bool = True) -> Manifest:
    return {"name": name, "mountPath": path, "readOnly": read_only}


def _store(memory: str) -> str:
    return str(int(parse_quantity(memory) * _STORE_SHARE))


def _whole_cpus(cluster: Cluster) -> int:
    return max(1, int(parse_quantity(cluster.worker.cpus)))
