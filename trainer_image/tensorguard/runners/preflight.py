"""Checks a job and its machine before a run starts. The checks spend nothing and change nothing.

In comes a completed job; a job that cannot run raises `RunRefused`, for which `tensafe run` exits with code 2.
`runners.local.driver` calls these checks first; `runners.pod.worker` calls those that apply to a pod.
"""

from __future__ import annotations

import glob
import os
import sys
import unicodedata
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar

from tensafe_api.manifest.text import dump_manifest, load_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.numeric import parse_quantity
from tensorguard.training.config import RUN_LOG

_GLOB = frozenset("*?[")
"""The characters that make a path a pattern, if no file has it as its name."""


class RunRefused(Exception):
    """The run cannot start as requested. `str()` is a sentence with the fix.

    Attributes:
        path: the field of the manifest, or empty.
    """

    reason: ClassVar[Reason] = Reason.INVALID_MANIFEST

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


def cpus_per_worker(job: TenSafeTrainingJob) -> float:
    """CPU cores of one worker, as a number: 0.5 for the quantity "500m"."""
    return parse_quantity(job.spec.cluster.worker.cpus)


def cpus_per_rank(job: TenSafeTrainingJob) -> float:
    """CPU cores of one training process. The GPUs of a worker share its cores."""
    return cpus_per_worker(job) / job.spec.cluster.ranks_per_worker


def changed_fields(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """The leaves in which two JSON objects differ, each as "a.b was 1, is 2"."""
    found: list[str] = []
    for key in sorted(before.keys() | now.keys()):
        here, there = now.get(key), before.get(key)
        if isinstance(here, dict) and isinstance(there, dict):
            found += changed_fields(there, here, f"{path}{key}.")
        elif here != there:
            found.append(f"{path}{key} was {there}, is {here}")
    return found


def check_local_resources(job: TenSafeTrainingJob) -> None:
    """Refuse more workers than this machine has CPUs or GPUs for.

    If the caller has joined a Ray cluster, that cluster may grow. Then `runners.worker_group` waits for the resources.
    """
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return
    cluster = job.spec.cluster
    have = os.cpu_count() or 1
    wanted = cluster.workers * cpus_per_worker(job)
    if wanted > have:
        raise RunRefused(
            "spec.cluster.workers",
            f"{cluster.workers} workers of {cluster.worker.cpus} CPUs need {wanted:g}, but this machine has {have}; "
            "lower it, or spec.cluster.worker.cpus",
        )
    if cluster.worker.gpus:
        import torch

        if (found := torch.cuda.device_count()) < cluster.workers * cluster.worker.gpus:
            raise RunRefused(
                "spec.cluster.worker.gpus",
                f"{cluster.workers * cluster.worker.gpus} GPUs are requested, but this machine has {found}; "
                "set it to 0 to train on CPUs",
            )


def check_evaluation_is_public(job: TenSafeTrainingJob) -> None:
    """Refuse an evaluation set that is declared public but shares a file with the private data set.

    Files are compared, not spellings: another path, a link, or a compressed copy beside a file is the same file.
    """
    spec = job.spec
    if spec.evaluation is None or spec.evaluation.visibility != "Public":
        return
    from tensorguard.data.listing import files_at

    try:
        private = files_at(spec.dataset.uri, spec.storage, spec.dataset.format)
        public = files_at(spec.evaluation.uri, spec.storage, spec.evaluation.format)
        shared = sorted(path for file, path in public.items() if file in private)
    except Exception:  # reading the data raises the same error, with its cause
        return
    if shared:
        raise RunRefused(
            "spec.evaluation.uri",
            f"{shared[0]} is also in spec.dataset, so it is private: choose other files, or set "
            "spec.evaluation.visibility to Private",
        )


def check_folders_are_outside_data(job: TenSafeTrainingJob, *folders: Path) -> None:
    """Refuse a run's folder, or local checkpoints, in a folder from which the job reads data.

    Files of the run would be read as records, and a resume would be refused because the data changed.

    Args:
        job: with absolute paths.
        folders: of the run.
    """
    spec = job.spec
    sets = {"spec.dataset.uri": spec.dataset.uri, "spec.evaluation.uri": spec.evaluation.uri if spec.evaluation else ""}
    written = [*folders, *_local(spec.checkpoint.uri)]
    for field, uri in sets.items():
        for data in _local(uri):
            inside = next((folder for folder in written if _reads(data, folder.resolve())), None)
            if inside is not None:
                raise RunRefused(
                    field,
                    f"the run writes to {inside}, and {data} would read its files as records: choose another "
                    "--output-dir, spec.checkpoint.uri, or folder for the data",
                )


def _reads(data: Path, folder: Path) -> bool:
    """Whether `data`, a directory or a glob, may include files that a run writes in `folder`."""
    parts = data.parts
    first = next((i for i, part in enumerate(parts) if set(part) & _GLOB), None)
    if first is None or data.exists():
        return data.is_dir() and folder.is_relative_to(data.resolve())
    if "**" in parts:
        return folder.is_relative_to(Path(*parts[:first]).resolve())
    written = (folder / RUN_LOG).parts
    pattern = (*Path(*parts[:first]).resolve().parts, *parts[first:])
    return len(pattern) == len(written) and all(map(fnmatch, written, pattern))


def _local(uri: str) -> list[Path]:
    """The path that a URI names on this machine; none for another URI, or an empty one."""
    path = uri.removeprefix("file://")
    return [Path(path)] if path and "://" not in path else []


def check_absolute_paths(job: TenSafeTrainingJob) -> None:
    """Refuse absolute paths that a manifest cannot have: the workers and a resume read them from one.

    Raises:
        RunRefused: a path has a line break, or bytes that are not UTF-8.
        ManifestError: a path is too long.
    """
    for field, uri in job.spec.uris().items():
        if set(uri) & set("\r\n") or any(unicodedata.category(character) == "Cs" for character in uri):
            raise RunRefused(
                f"spec.{field}.uri",
                f"the path {uri!a} has a line break, or bytes that are not UTF-8: rename the folder",
            )
    load_manifest(dump_manifest(job, format="json"))


def with_absolute_paths(job: TenSafeTrainingJob, base_dir: Path) -> TenSafeTrainingJob:
    """`job` with its relative paths made absolute, so that it does not depend on the current folder."""
    spec = job.spec.with_uris({path: _absolute(base_dir, uri) for path, uri in job.spec.uris().items()})
    name = spec.model.name
    if name.startswith((".", "/", "~")) or (base_dir / name / "config.json").exists():
        spec = spec.model_copy(update={"model": spec.model.model_copy(update={"name": str(_in(base_dir, name))})})
    return job.model_copy(update={"spec": spec})


def _absolute(base_dir: Path, uri: str) -> str:
    """A URI as it is, a path as an absolute one. Of a pattern only what the manifest has is a pattern."""
    if "://" in uri:
        return uri
    path = _in(base_dir, uri)
    if set(uri) & _GLOB and not path.exists():
        path = _in(Path(glob.escape(str(base_dir.absolute()))), uri)
    return str(path)


def _in(base_dir: Path, path: str) -> Path:
    return (base_dir / Path(path).expanduser()).absolute()
