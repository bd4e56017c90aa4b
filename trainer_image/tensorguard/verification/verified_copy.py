"""Keeps a copy of what was verified, so that it is loaded without a second read of the place that it came from.

In: a folder that does not exist, and the bytes that were verified. Out: the folder with exactly these files, or none.
"""

from __future__ import annotations

import errno
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from tensorguard.storage import sync_directory, write_files


def write_copy(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write `files`, their content by name, into a new folder: all of them, or none.

    A folder that already has exactly these files is left as it is, because Kubernetes may run an init container again.

    Raises:
        FileExistsError: something else is there. It is left as it is.
        OSError: the folder cannot be written.
    """
    directory = directory.absolute()
    if _has_exactly(directory, files):
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = directory.with_name(f".{directory.name}-{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        write_files(temporary, files)
        sync_directory(temporary)
        temporary.rename(directory)  # it can replace an empty folder, and nothing else
        sync_directory(directory.parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(error.errno, "it exists, and has other content: choose a new folder") from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _has_exactly(directory: Path, files: Mapping[str, bytes]) -> bool:
    """Whether the folder has these files with this content, and nothing else."""
    if directory.is_symlink() or not directory.is_dir():
        return False
    found = list(directory.iterdir())
    if {path.name for path in found} != files.keys() or any(path.is_symlink() or not path.is_file() for path in found):
        return False
    return all(path.read_bytes() == files[path.name] for path in found)
