"""What a rank uses on a node of a Ray cluster: the job from the driver, and from the node itself the job key.

A pod reads all of it from files that the operator mounts (`runners.pod.pod_files`). Here the driver sends the job and
the number of the attempt through Ray, which are not secret. The key never passes through Ray: each node has it in a
file, which an environment variable of `ray start` names. The driver sends a keyed digest, by which a rank checks that
it has the same key as all others.

A rank's shard is in a folder of its node's temporary folder, which only its owner can read and which the rank removes.
A killed rank leaves it behind: the next rank of the run on that node removes it, and so does the driver at the end.
"""

from __future__ import annotations

import hmac
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.signing.keys import identity_in_environment

KEY_FILE_VARIABLE = "TENSAFE_JOB_KEY_FILE"
"""Environment variable of each node, set before `ray start`: the path of the file with the job key."""
MIN_KEY_BYTES = 32
MIN_DIFFERENT_BYTES = 8
"""Random bytes, and their hexadecimal digits, have more different values; a file of zeros or of one word has fewer."""
SALT_FILE = ".attempt"
"""File in the run's folder with the salt of the attempt, by which a rank recognises the folder of the driver."""
_FIX = (
    f"put the same file with the job key on each node, with mode 600, and set {KEY_FILE_VARIABLE} to its path before "
    "`ray start`"
)


class NodeKeyError(Exception):
    """The job key of this node cannot be used. `str()` is a sentence without the key."""

    reason = Reason.INVALID_MANIFEST

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; {_FIX}")


class NodeFolderError(Exception):
    """The run's folder on this node is not that of the driver. `str()` is a sentence."""

    reason = Reason.INVALID_MANIFEST


@dataclass(frozen=True)
class NodeFiles:
    """The parameters of a rank on a node: plain values, which Ray sends, and the folder of its shard.

    Attributes:
        text: the completed job as JSON.
        attempt: number of the attempt.
        run_directory: the run's folder, on storage that all nodes share.
        private_directory: the run's private folder, there too.
        salt: random, of this attempt; it goes into the digest of the key, and is in the run's folder (`SALT_FILE`).
        key_digest: keyed digest that every rank's key must have (`digest_of`).
        scratch: folder of the rank's shard, on the node's own disk; empty before the rank has created it.
        last_failure: as in `WorkerConfig`.
    """

    text: str
    attempt: int
    run_directory: str
    private_directory: str
    salt: str
    key_digest: str
    scratch: str = ""
    last_failure: str = ""

    def pack(self) -> dict[str, Any]:
        """The parameters as plain values."""
        return asdict(self)

    @classmethod
    def unpack(cls, values: Mapping[str, Any]) -> NodeFiles:
        return cls(**values)

    @property
    def place(self) -> Literal["Nodes"]:
        return "Nodes"

    @property
    def run(self) -> Path:
        return Path(self.run_directory)

    @property
    def private(self) -> Path:
        return Path(self.private_directory)

    @property
    def work(self) -> Path:
        return Path(self.scratch)

    @property
    def key_file(self) -> Path:
        return key_file()

    @property
    def signing_key_file(self) -> None:
        """Nodes sign nothing: `runners.local.signing` refuses it."""

    @property
    def recipients_file(self) -> None:
        """Nodes have no ConfigMap: the job has its recipients."""

    def identity_file(self, job: TenSafeTrainingJob) -> Path | None:
        """The identity that decrypts checkpoints, which a variable of each node names; None where none does."""
        return identity_in_environment()

    @property
    def mounts(self) -> None:
        """No PVC is mounted on a node."""

    def job(self) -> TenSafeTrainingJob:
        """The completed job."""
        return TenSafeTrainingJob.model_validate(json.loads(self.text))

    def ledger_location(self) -> tuple[None, int]:
        """The ledger is in the run's folder (None); and the number of the attempt.

        Raises:
            NodeFolderError: the folder of that name on this node is another one, whose ledger may be an old copy.
        """
        try:
            same = (self.run / SALT_FILE).read_text() == self.salt
        except OSError:
            same = False
        if not same:
            raise NodeFolderError(
                f"{self.run} on this node is not the folder that the run was started with; mount the same storage on "
                "all nodes, under the same path"
            )
        return None, self.attempt

    def key(self) -> bytes:
        """The job key. Raises NodeKeyError where it is not the key that the driver found on all nodes."""
        key = read_key()
        if not hmac.compare_digest(digest_of(key, self.salt), self.key_digest):
            raise NodeKeyError(f"{self.key_file} does not hold the key of the other nodes")
        return key


def key_file() -> Path:
    """The file of this node's job key. Raises NodeKeyError if no variable names one."""
    path = os.environ.get(KEY_FILE_VARIABLE)
    if not path:
        raise NodeKeyError(f"{KEY_FILE_VARIABLE} is not set")
    return Path(path).expanduser()


def read_key() -> bytes:
    """This node's job key. Raises NodeKeyError if there is none, or others may read it."""
    path = key_file()
    try:
        key, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise NodeKeyError(f"{path} cannot be read ({error.strerror})") from error
    if stat.S_IMODE(mode) & 0o077:
        raise NodeKeyError(f"{path} can be read by other users (mode {stat.S_IMODE(mode):o})")
    if len(key) < MIN_KEY_BYTES:
        raise NodeKeyError(f"{path} holds {len(key)} bytes, and a key has {MIN_KEY_BYTES}")
    if len(set(key)) < MIN_DIFFERENT_BYTES:
        raise NodeKeyError(f"{path} holds a key that is not random")
    return key


def digest_of(key: bytes, salt: str) -> str:
    """A digest that shows whether two nodes have the same key, and nothing else of a random key."""
    return hmac.digest(key, b"tensafe job key of a node\0" + salt.encode(), "sha256").hex()


@contextmanager
def scratch_folder(job_uid: str, rank: int) -> Iterator[Path]:
    """A new folder of `rank` on this node's own disk, with mode 0700, removed after the with block."""
    name = f"{job_uid}-{rank:03d}"
    remove_scratch(name)
    folder = Path(tempfile.mkdtemp(prefix=f"{_scratch_prefix(name)}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_scratch(name: str) -> None:
    """Remove what killed ranks of a run left on this node; `name` is the job's UID, or the UID and a rank."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_scratch_prefix(name)}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _scratch_prefix(name: str) -> str:
    return f"tensafe-{name}"
