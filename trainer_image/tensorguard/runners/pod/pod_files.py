"""Reads what the operator mounts into a pod: the job, the location of its ledger, and in workers the job key.

The operator creates a ConfigMap for each attempt and a Secret for each job. Every pod of the attempt mounts the
ConfigMap at /etc/tensafe/job; only workers mount the Secret, at /etc/tensafe/key, and what encrypts and decrypts
checkpoints, where the job names it. /var/run/tensafe belongs to the pod and is empty at first. None of this is sent
through Ray. Each pod reads its own files, so the head, which has no key, cannot give a worker another job either.

A user who may write ConfigMaps or Secrets in the namespace could replace them. So the pod's environment holds the
digest of the ConfigMap's files, and these hold the digest of the key.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tensafe_api.manifest.text import ManifestError, load_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.ledger.backends import LedgerLocation
from tensorguard.runners.run_folder import WORK_FOLDER
from tensorguard.signing.keys import SIGNING_KEY
from tensorguard.storage import PVC_SCHEME

ROOT_VARIABLE = "TENSAFE_ROOT"
"""Environment variable: the folder that replaces / in all paths of this module. Pods leave it unset."""
DIGEST_VARIABLE = "TENSAFE_JOB_DIGEST"
"""Environment variable: SHA-256 of job.json followed by place.json, in hexadecimal."""
TLS_VARIABLE = "RAY_USE_TLS"
"""Environment variable: 1 if Ray encrypts its messages. The operator sets it, and Ray reads it."""
_FILES = ("job.json", "place.json")
_PLACE_FIELDS: dict[str, type] = {
    "namespace": str,
    "job": str,
    "ledger": str,
    "ledger_uid": str,
    "attempt": int,
    "key_digest": str,
}
_NEWER_IMAGE = "set spec.cluster.image to an image of the operator's release, or remove the fields that it lacks"
_SAME_RELEASE = "the operator writes it: set spec.cluster.image to an image of the operator's release"


class PodFilesError(Exception):
    """A mounted file is missing or wrong. `str()` is a sentence with the path of the file and the fix."""

    def __init__(self, path: Path, what: str, fix: str, reason: Reason = Reason.INVALID_MANIFEST) -> None:
        super().__init__(f"{path} {what}; {fix}")
        self.reason = reason


@dataclass(frozen=True)
class PodFiles:
    """The files of one pod.

    Args:
        root: folder that replaces / in all paths.
        digest: digest of the job's files; files with another digest are refused.
    """

    root: Path = Path("/")
    digest: str = ""

    @classmethod
    def here(cls) -> PodFiles:
        """The files of the pod in which this process runs."""
        return cls(Path(os.environ.get(ROOT_VARIABLE) or "/"), os.environ.get(DIGEST_VARIABLE, ""))

    @property
    def place(self) -> Literal["Pods", "PodsWithTLS"]:
        """Where the workers run, for the statement: it depends on whether Ray encrypts its messages here."""
        return "PodsWithTLS" if os.environ.get(TLS_VARIABLE) == "1" else "Pods"

    @property
    def run(self) -> Path:
        """The run's folder: stop flag, run log, shards; and its private folder, too: tracebacks and private metrics.

        It belongs to the pod and ends with it, so nothing in it is published.
        """
        return self.root / "var/run/tensafe"

    @property
    def private(self) -> Path:
        """The run's private folder."""
        return self.run

    @property
    def work(self) -> Path:
        """The folder of the rank's shard."""
        return self.run / WORK_FOLDER

    @property
    def output(self) -> Path:
        """The output of the pod's first process, which Kubernetes keeps as the pod's log."""
        return self.root / "proc/1/fd/1"

    @property
    def key_file(self) -> Path:
        return self.root / "etc/tensafe/key/job.key"

    @property
    def signing_key_file(self) -> Path:
        """The signing key, which only the pod of rank 0 has, and only where the job signs its checkpoints."""
        return self.root / "etc/tensafe/signing" / SIGNING_KEY

    @property
    def recipients_file(self) -> Path:
        """The recipients of the job's ConfigMap, where it names one."""
        return self.root / "etc/tensafe/recipients/recipients"

    def identity_file(self, job: TenSafeTrainingJob) -> Path | None:
        """The identity that decrypts the job's checkpoints; None where the job names no Secret with one."""
        encryption = job.spec.checkpoint.encryption
        if encryption is None or encryption.identity_secret_name is None:
            return None
        return self.root / "etc/tensafe/identity/identity"

    @property
    def mounts(self) -> Path:
        """The folder in which PVCs are mounted, each under its name."""
        return self.root / "mnt"

    def job(self) -> TenSafeTrainingJob:
        """The job, with its pvc:// URIs as paths, and without defaults that depend on others. Raises PodFilesError."""
        path, text = self._read("job.json")
        try:
            job = load_manifest(text)
        except ManifestError as error:
            problems = "; ".join(str(problem) for problem in error.problems)
            raise PodFilesError(path, f"is not a valid job ({problems})", _NEWER_IMAGE) from error
        if not job.metadata.uid:
            raise PodFilesError(path, "has no metadata.uid", _SAME_RELEASE)
        return self._with_mounted_paths(job)

    def ledger_location(self) -> tuple[LedgerLocation, int]:
        """Where the ledger is, and the number of the attempt. Raises PodFilesError."""
        values = self._place()
        attempt, _ = values.pop("attempt"), values.pop("key_digest")
        return LedgerLocation(**values), attempt

    def key(self) -> bytes:
        """The job key, which only workers have. Raises PodFilesError."""
        fix = "the Secret of the job key was changed: create the job again under another name"
        digest = self._place()["key_digest"]
        try:
            key = self.key_file.read_bytes()
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise PodFilesError(self.key_file, what, fix, Reason.INTERNAL_ERROR) from error
        if hashlib.sha256(key).hexdigest() != digest:
            what = "is not the key that the job's ledger was opened with"
            raise PodFilesError(self.key_file, what, fix, Reason.INTERNAL_ERROR)
        return key

    def _place(self) -> dict[str, Any]:
        path, text = self._read("place.json")
        try:
            found: Any = json.loads(text)
            values = {name: found[name] for name in _PLACE_FIELDS}
        except (ValueError, KeyError, TypeError) as error:
            raise PodFilesError(path, f"does not hold {', '.join(_PLACE_FIELDS)}", _SAME_RELEASE) from error
        if odd := [name for name, kind in _PLACE_FIELDS.items() if type(values[name]) is not kind or not values[name]]:
            raise PodFilesError(path, f"has no usable {' and '.join(odd)}", _SAME_RELEASE)
        return values

    def _read(self, name: str) -> tuple[Path, str]:
        """Path and text of one of the job's files, after the digest of all of them was checked."""
        folder = self.root / "etc/tensafe/job"
        found = {}
        for path in (folder / each for each in _FILES):
            try:
                found[path] = path.read_bytes()
            except OSError as error:
                raise PodFilesError(path, f"cannot be read ({error.strerror})", _SAME_RELEASE) from error
        if not self.digest:
            raise PodFilesError(folder, f"cannot be checked, since {DIGEST_VARIABLE} is not set", _SAME_RELEASE)
        if hashlib.sha256(b"".join(found.values())).hexdigest() != self.digest:
            what = "does not hold what the operator wrote"
            fix = "the ConfigMap of the attempt was changed, and the next attempt gets a new one"
            raise PodFilesError(folder, what, fix, Reason.INTERNAL_ERROR)
        return folder / name, found[folder / name].decode()

    def _with_mounted_paths(self, job: TenSafeTrainingJob) -> TenSafeTrainingJob:
        """`job` with each URI pvc://name/path replaced by /mnt/name/path, where the PVC is mounted."""
        spec = job.spec
        mounted = {
            path: str(self.mounts / uri.removeprefix(PVC_SCHEME))
            for path, uri in spec.uris().items()
            if uri.startswith(PVC_SCHEME)
        }
        return job.model_copy(update={"spec": spec.with_uris(mounted)})
