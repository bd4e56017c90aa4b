"""What a pod finds mounted: the job, the place of its ledger, in workers the job key, and a folder for the run.

The operator makes a ConfigMap for each attempt and a Secret for each job; every pod of the attempt mounts the first at
/etc/tensafe/job, and workers alone the second at /etc/tensafe/key. /var/run/tensafe is empty at first and the pod's
own. Nothing of this travels through Ray: each pod reads its own files, so the head, which has no key, cannot hand a
worker another job either.

Whoever may write ConfigMaps or Secrets in the namespace could put others in their place: the pod's environment holds
the digest of the first, which holds the digest of the second.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensafe_api.manifest import ManifestError, load_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.ledger.backends import LedgerLocation
from tensorguard.storage import PVC_SCHEME
from tensorguard.training.config import JOB_KEY

ROOT_VARIABLE = "TENSAFE_ROOT"
"""Environment variable: the folder under which everything is looked for. Pods leave it unset, which means /."""
DIGEST_VARIABLE = "TENSAFE_JOB_DIGEST"
"""Environment variable: SHA-256 of job.json and place.json, one after the other, in hex."""
_FILES = ("job.json", "place.json")
_PLACE: dict[str, type] = {
    "namespace": str,
    "job": str,
    "ledger": str,
    "ledger_uid": str,
    "attempt": int,
    "key_digest": str,
}
_SAME_RELEASE = "the operator writes it for trainers of its own release: name such an image in spec.cluster.image"


class PodFilesError(Exception):
    """A mounted file is not there, or not what it should be. `str()` is a sentence that names the file and the mend."""

    def __init__(self, path: Path, what: str, mend: str, reason: Reason = Reason.INVALID_MANIFEST) -> None:
        super().__init__(f"{path} {what}; {mend}")
        self.reason = reason


@dataclass(frozen=True)
class PodFiles:
    """The files of one pod.

    Args:
        digest: of the job's files; anything else there is refused.
    """

    root: Path = Path("/")
    digest: str = ""

    @classmethod
    def here(cls) -> PodFiles:
        """Those of the pod that this process runs in."""
        return cls(Path(os.environ.get(ROOT_VARIABLE) or "/"), os.environ.get(DIGEST_VARIABLE, ""))

    @property
    def run(self) -> Path:
        """The pod's own folder: stop flag, events, tracebacks, shards."""
        return self.root / "var/run/tensafe"

    @property
    def output(self) -> Path:
        """The output of the pod's first process, which is the pod's log."""
        return self.root / "proc/1/fd/1"

    @property
    def key_file(self) -> Path:
        return self.root / "etc/tensafe/key" / JOB_KEY

    @property
    def mounts(self) -> Path:
        """Where volume claims are mounted, each by its name."""
        return self.root / "mnt"

    def job(self) -> TenSafeTrainingJob:
        """The completed job, its pvc:// addresses as paths. Raises PodFilesError."""
        path, text = self._read("job.json")
        try:
            job = load_manifest(text)
        except ManifestError as error:
            problems = "; ".join(str(problem) for problem in error.problems)
            raise PodFilesError(path, f"is no job ({problems})", _SAME_RELEASE) from error
        if not job.metadata.uid:
            raise PodFilesError(path, "has no metadata.uid", _SAME_RELEASE)
        return self._with_claims(job)

    def place(self) -> tuple[LedgerLocation, int]:
        """Where the ledger is, and the number of the attempt. Raises PodFilesError."""
        values = self._place()
        attempt, _ = values.pop("attempt"), values.pop("key_digest")
        return LedgerLocation(**values), attempt

    def key(self) -> bytes:
        """The job key, which workers alone have. Raises PodFilesError."""
        mend = "the Secret of the job's key was changed: make the job again under another name"
        digest = self._place()["key_digest"]
        try:
            key = self.key_file.read_bytes()
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise PodFilesError(self.key_file, what, mend, Reason.INTERNAL_ERROR) from error
        if hashlib.sha256(key).hexdigest() != digest:
            what = "is not the key that the job's ledger was opened with"
            raise PodFilesError(self.key_file, what, mend, Reason.INTERNAL_ERROR)
        return key

    def _place(self) -> dict[str, Any]:
        path, text = self._read("place.json")
        try:
            found: Any = json.loads(text)
            values = {name: found[name] for name in _PLACE}
        except (ValueError, KeyError, TypeError) as error:
            raise PodFilesError(path, f"does not hold {', '.join(_PLACE)}", _SAME_RELEASE) from error
        if odd := [name for name, kind in _PLACE.items() if type(values[name]) is not kind or not values[name]]:
            raise PodFilesError(path, f"has no usable {' and '.join(odd)}", _SAME_RELEASE)
        return values

    def _read(self, name: str) -> tuple[Path, str]:
        """Path and text of a file of the job's, which together are what the operator wrote."""
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
            what = "holds something else than the operator wrote"
            mend = "the attempt's ConfigMap was changed, and the next attempt gets its own"
            raise PodFilesError(folder, what, mend, Reason.INTERNAL_ERROR)
        return folder / name, found[folder / name].decode()

    def _with_claims(self, job: TenSafeTrainingJob) -> TenSafeTrainingJob:
        """pvc://claim/path is mounted at /mnt/claim."""
        spec = job.spec
        update = {
            name: getattr(spec, name).model_copy(update={"uri": str(self.mounts / uri.removeprefix(PVC_SCHEME))})
            for name, uri in spec.uris().items()
            if uri.startswith(PVC_SCHEME)
        }
        return job.model_copy(update={"spec": spec.model_copy(update=update)})
