"""Reads the file that a ledger names from the storage, with the credentials of this machine.

A pod of the job wrote the URI in the ledger, and the file at it. Neither is trusted. A URI comes in; at most
`LIMIT_BYTES` go out, from a scheme that is listed here, and from the folder of the job's checkpoints.
"""

from __future__ import annotations

import os
from urllib.parse import unquote

from tensafe_kubectl.api import Object
from tensafe_kubectl.errors import FAILED, INVALID, CommandError
from tensafe_kubectl.reading import part
from tensafe_kubectl.terminal import cut

LIMIT_BYTES = 4 << 20
"""A statement has a few kilobytes."""
REMOTE_SCHEMES = ("s3", "gs")
"""Those that a manifest can name. A server of a pod's choice, such as one behind https, could send without end."""
_FILE = "file://"
_COPY = "copy the file with the storage's own tool"


def read_stored(uri: str, job: Object | None) -> bytes:
    """The content of a file that a ledger names.

    Args:
        job: the job of the ledger; None if it was deleted.

    Raises:
        CommandError: the URI is refused, or the file cannot be read or is too large. Names the URI and why.
    """
    check_uri(uri, job)
    try:
        import fsspec
    except ImportError as error:
        raise CommandError("--read needs fsspec: pipx inject tensafe fsspec s3fs", INVALID) from error
    try:
        filesystem, path = fsspec.url_to_fs(_with_scheme(uri))
        with filesystem.open(path, "rb") as file:
            content: bytes = file.read(LIMIT_BYTES + 1)
    except ImportError as error:
        raise CommandError(
            f"{cut(uri)} needs a package for its storage: pipx inject tensafe s3fs (or gcsfs)", INVALID
        ) from error
    except Exception as error:  # each storage has errors of its own
        found = " ".join(str(error).split())[:300]
        raise CommandError(
            f"{cut(uri)} cannot be read ({type(error).__name__}: {found}): check the credentials of this machine for "
            f"the storage{_other_endpoint(job)}, or {_COPY}"
        ) from error
    if len(content) > LIMIT_BYTES:
        raise CommandError(f"{cut(uri)} is not a statement: it has more than {LIMIT_BYTES >> 20} MiB, and is not read")
    return content


def check_uri(uri: str, job: Object | None) -> None:
    """Refuse a URI that a pod of the job may have written to make this machine read something else.

    Raises:
        CommandError: names the URI, why it is refused, and what to do instead.
    """
    if uri.startswith("pvc://"):
        raise CommandError(
            f"{cut(uri)} is on a PVC, which only pods can read: read it in a pod that mounts the PVC", FAILED
        )
    if "::" in uri:
        raise _refused(uri, "it is a chain of file systems (::), which could run code or read another place")
    scheme, separator, path = _with_scheme(uri).partition("://")
    allowed = ", ".join(f"{each}://" for each in REMOTE_SCHEMES)
    if not separator or scheme not in (*REMOTE_SCHEMES, "file"):
        raise _refused(uri, f"only {allowed} and the job's own file:// are read")
    if ".." in unquote(path).replace("\\", "/").split("/"):
        raise _refused(uri, "it has a path with ..")
    if scheme == "file" and (not path.startswith("/") or path.startswith("//") or "\\" in path):
        raise _refused(uri, "it is not an absolute path of this machine")
    if job is None:
        if scheme == "file":
            raise _refused(uri, "it is a path, and the job that could name the same folder was deleted")
        return
    folder = str(part(job, "spec.checkpoint.uri") or "")
    if not _is_inside(_with_scheme(uri), _with_scheme(folder)):
        raise _refused(uri, f"it is outside of the job's spec.checkpoint.uri, {folder or 'which is empty'}")


def _other_endpoint(job: Object | None) -> str:
    """What to set where the job has an S3 server of its own. It is not asked without the user's will: the author of the
    job chose it.
    """
    endpoint = part(job, "spec.storage.endpoint")
    if not endpoint or os.environ.get("AWS_ENDPOINT_URL") == endpoint:
        return ""
    return f", set AWS_ENDPOINT_URL if you trust the job's spec.storage.endpoint, {cut(str(endpoint))}"


def _with_scheme(uri: str) -> str:
    """A path as the URI that a ledger has for it."""
    return f"{_FILE}{uri}" if uri.startswith("/") else uri


def _is_inside(uri: str, folder: str) -> bool:
    folder = folder.rstrip("/")
    return "://" in folder and uri.startswith(f"{folder}/")


def _refused(uri: str, why: str) -> CommandError:
    return CommandError(
        f"{cut(uri)} in the ledger is not read: {why}. If you trust it, {_COPY}; else report it to an administrator"
    )
