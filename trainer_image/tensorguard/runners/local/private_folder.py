"""The private folder of a run, which is never published: the job key, tracebacks, private metrics, shards at work.

    runs/claims/            the run's folder: ledger, manifest, run log, checkpoints, picture
    runs/claims.private/    beside it, and readable by its owner only

Users copy, archive and upload the run's folder. Its ledger and its statements hold the digest of the data set, which is
keyed by the job key. A person who has both can test whether the data set is exactly a guessed one. So the two are in
different folders, and the key is deleted once no resume can need it. So are the tracebacks.

In come the run's folder and the checkpoint URI; out come paths, and `RunFolderError` where the folder cannot be used.
Each key has the UID of its run in its name. If a run's folder is moved away and another run starts in its place, each
run keeps its own key.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from tensorguard.runners.run_folder import LOCK_FILE, RunFolderError, write_owner_only
from tensorguard.training.config import TRACEBACKS

SUFFIX = ".private"
_IGNORE_FILE = ".gitignore"
"""Git ignores the whole folder, also after `git add --all`."""


@dataclass(frozen=True)
class PrivateFolder:
    """The private folder of the run in `run_directory`."""

    run_directory: Path
    path: Path

    @classmethod
    def of(cls, run_directory: Path, checkpoint_uri: str) -> PrivateFolder:
        """The private folder of a run. Nothing is created.

        It is beside the run's folder, with symbolic links resolved, so that it is the same for every spelling of a
        path. Where the run's folder is inside that of the checkpoints, it is beside the latter: checkpoints are
        published.

        Args:
            run_directory: the run's folder.
            checkpoint_uri: `spec.checkpoint.uri`, an absolute path or any URI.

        Raises:
            RunFolderError: the run's folder has no parent or the name of a private folder, or the checkpoints would be
                in the private folder.
        """
        outermost = run_directory.resolve()
        local = checkpoint_uri.removeprefix("file://")
        checkpoints = Path(local).resolve() if "://" not in local else None
        if checkpoints and outermost.is_relative_to(checkpoints):
            outermost = checkpoints
        if outermost.name.endswith(SUFFIX):
            raise RunFolderError(
                f"{outermost} has the name of a private folder, where the key of another run may be; choose another "
                "--output-dir"
            )
        if not outermost.name:
            raise RunFolderError(f"{outermost} has no parent for the run's private folder; choose another --output-dir")
        path = outermost.with_name(outermost.name + SUFFIX)
        if checkpoints and checkpoints.is_relative_to(path):
            raise RunFolderError(
                f"spec.checkpoint.uri: {checkpoints} is in the run's private folder {path}, which holds the job key "
                "and is never published; choose another location"
            )
        return cls(run_directory, path)

    def key_file(self, uid: str) -> Path:
        """The file of the job key of the run with this UID."""
        return self.path / f"job-{uid}.key"

    def open(self) -> None:
        """Create the folder if it does not exist, and let only its owner read it.

        Raises:
            RunFolderError: it cannot be created, or another user owns it, who could then read the key.
        """
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            owners = {self.path.lstat().st_uid, self.path.stat().st_uid}
            if not owners <= {os.geteuid(), self.run_directory.stat().st_uid}:
                raise RunFolderError(
                    f"{self.path} belongs to another user, who could read the key of this run; choose another "
                    "--output-dir"
                )
            self.path.chmod(stat.S_IRWXU)
            if not (self.path / _IGNORE_FILE).exists():
                write_owner_only(self.path / _IGNORE_FILE, b"*\n")
        except OSError as error:
            raise RunFolderError(
                f"{self.path} is not writable ({error.strerror}), and the key of a run is kept there, beside the run's "
                "folder and never in it; choose an --output-dir in a folder that is writable"
            ) from error

    def create_key(self, uid: str) -> None:
        """Create the job key of a new run."""
        write_owner_only(self.key_file(uid), secrets.token_bytes(32))

    def check_key(self, uid: str) -> None:
        """Check that the job key of the run to resume can be read.

        Raises:
            RunFolderError: it is missing, for instance because the run's folder was moved without this one.
        """
        try:
            self.key_file(uid).read_bytes()
        except OSError as error:
            found = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            raise RunFolderError(
                f"{self.key_file(uid)} {found}; restore it: without it the data cannot be checked to be the same as "
                f"before. If the run's folder was moved or copied, its folder *{SUFFIX} has to come with it"
            ) from error

    def delete_secrets(self, uid: str) -> None:
        """Delete what a run that is over leaves here: its job key, and tracebacks, which may quote records.

        Tracebacks have no UID: those of an earlier run that failed in the same folder are deleted as well.
        """
        for tracebacks in self.path.glob(TRACEBACKS.format(process="*")):
            tracebacks.unlink(missing_ok=True)
        self.delete_key(uid)

    def delete_key(self, uid: str) -> None:
        """Delete the job key of a run that nothing can resume, and the folder if nothing else is in it."""
        self.key_file(uid).unlink(missing_ok=True)
        if self.path.is_dir() and {entry.name for entry in self.path.iterdir()} <= {_IGNORE_FILE, LOCK_FILE}:
            shutil.rmtree(self.path, ignore_errors=True)
