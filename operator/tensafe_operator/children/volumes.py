"""Builds the volumes of the pods, and where a container mounts them: those of the job, and those of the operator."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from urllib.parse import urlsplit

from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.pods import Volume
from tensafe_operator.children import Manifest
from tensafe_operator.settings import Settings

RUN_PATH = "/var/run/tensafe"
TEMPORARY_PATH = "/tmp"
RECIPIENTS_PATH = "/etc/tensafe/recipients"
IDENTITY_PATH = "/etc/tensafe/identity"


def pod_volume(volume: Volume) -> Manifest:
    """A volume of the job, as a pod has it."""
    if volume.pvc:
        return {"name": volume.name, "persistentVolumeClaim": {"claimName": volume.pvc, "readOnly": volume.read_only}}
    if volume.secret:
        return {"name": volume.name, "secret": {"secretName": volume.secret}}
    if volume.config_map:
        return {"name": volume.name, "configMap": {"name": volume.config_map}}
    return {"name": volume.name, "emptyDir": {"sizeLimit": volume.empty_dir}}


def pvc_volumes(job: TenSafeTrainingJob) -> list[Volume]:
    """The volumes for the pvc:// URIs of the job, each PVC once. Only the checkpoints' PVC is writable. The volumes are
    built without validation, because the schema refuses their names to users.
    """
    uris = job.spec.uris()
    written = _pvc_of(uris["checkpoint"])
    pvcs = dict.fromkeys(pvc for uri in uris.values() if (pvc := _pvc_of(uri)))
    return [
        Volume.model_construct(name=f"pvc-{pvc}"[:63], mount_path=f"/mnt/{pvc}", read_only=pvc != written, pvc=pvc)
        for pvc in pvcs
    ]


def _pvc_of(uri: str) -> str:
    return urlsplit(uri).netloc if uri.startswith("pvc://") else ""


def _writable(settings: Settings, own: Sequence[Volume]) -> dict[str, str]:
    """Names and directories of the volumes that a pod may write to, besides the job's `own`. Without a writable root,
    Ray needs one for its session.
    """
    needs_one = settings.read_only_root and all(each.mount_path != TEMPORARY_PATH for each in own)
    if not needs_one:
        return {"run": RUN_PATH}
    return {"run": RUN_PATH, free_name("tensafe-tmp", {each.name for each in own}): TEMPORARY_PATH}


def free_name(wanted: str, taken: Collection[str]) -> str:
    """A name for a volume of the operator: `wanted`, or with a number, where a volume of the job has that one."""
    names = itertools.chain([wanted], (f"{wanted}-{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


def writable_volumes(settings: Settings, own: Sequence[Volume] = ()) -> list[Manifest]:
    """The volumes that a pod may write to, besides the job's `own`."""
    return [{"name": name, "emptyDir": {}} for name in _writable(settings, own)]


def writable_mounts(settings: Settings, own: Sequence[Volume] = ()) -> list[Manifest]:
    """Where a container mounts these volumes."""
    return [mount(name, path, read_only=False) for name, path in _writable(settings, own).items()]


def encryption_volumes(job: TenSafeTrainingJob, taken: Collection[str]) -> Iterator[tuple[Manifest, str]]:
    """The volumes of a worker that encrypts checkpoints and restores them, and where they are mounted.

    Only one key of each object is mounted: a Secret may hold more than the identity.

    Args:
        taken: names of other volumes.
    """
    encryption = job.spec.checkpoint.encryption
    if encryption is None:
        return
    if config_map := encryption.recipients_config_map:
        items = [{"key": "recipients", "path": "recipients"}]
        name = free_name("tensafe-recipients", taken)
        yield {"name": name, "configMap": {"name": config_map, "items": items}}, RECIPIENTS_PATH
    if secret := encryption.identity_secret_name:
        items = [{"key": "identity", "path": "identity"}]
        name = free_name("tensafe-identity", taken)
        yield {"name": name, "secret": {"secretName": secret, "items": items, "defaultMode": 0o440}}, IDENTITY_PATH


def job_volume(parameters: Manifest) -> Manifest:
    """The volume with the job, from the attempt's ConfigMap."""
    return {"name": "job", "configMap": {"name": parameters["metadata"]["name"]}}


def mount(name: str, path: str, *, read_only: bool = True) -> Manifest:
    """Where a container mounts the volume of this name."""
    return {"name": name, "mountPath": path, "readOnly": read_only}
