"""Reads the statement of a published checkpoint.

In: the folder of a checkpoint, as a path or a URI of fsspec. Out: the statement, and what was checked of it. The files
may come from a stranger: little is read, and nothing but the two files of the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

import fsspec

from tensafe_api.sanitize import clean
from tensafe_api.statement.contents import STATEMENT_FILE, canonical_json, digest
from tensafe_api.statement.document import StatementError
from tensorguard.storage import PVC_SCHEME, explain_storage_error, filesystem_options, without_a_job

LIMIT_BYTES = 4 << 20
"""A statement has a few kilobytes."""
_MANIFEST = "manifest.json"
_MESSAGE_LENGTH = 300
_WEB = ("http://", "https://")
_STREAMED: dict[str, Any] = {"block_size": 0}
"""Else fsspec keeps all that a web server sends, and unpacks it, before it returns the first bytes."""


class StatementUnreadableError(Exception):
    """There is no statement that can be read. `str()` is a sentence for the user."""


def read_statement(uri: str) -> tuple[dict[str, Any], list[str]]:
    """The statement in the folder `uri` as JSON, and sentences on what was checked of its file.

    Raises:
        StatementUnreadableError: there is no statement, or the storage refuses it.
        StatementError: the file is not the one that was published.
    """
    if uri.startswith(PVC_SCHEME):
        raise StatementUnreadableError(f"{uri} is on a PVC, which only pods can read: copy the folder from a pod")
    folder = uri.rstrip("/") or "/"
    content = _read(folder, STATEMENT_FILE)
    if content is None:
        raise StatementUnreadableError(
            f"{uri} has no {STATEMENT_FILE}: pass the folder of a checkpoint, such as runs/first/checkpoints/final"
        )
    document = _parse(content, STATEMENT_FILE)
    if not _is_canonical(document, content):
        raise StatementError(f"{STATEMENT_FILE} is not canonical JSON: it was changed after it was published")
    manifest = _read(folder, _MANIFEST)
    if manifest is None:
        return document, []
    listed = _parse(manifest, _MANIFEST).get("files")
    entry = listed.get(STATEMENT_FILE) if isinstance(listed, Mapping) else None
    if not isinstance(entry, Mapping) or entry.get("sha256") != digest(content):
        raise StatementError(f"{STATEMENT_FILE} is not the file that {_MANIFEST} lists: it was changed")
    return document, [f"{STATEMENT_FILE} is the file that {_MANIFEST} lists."]


def _read(folder: str, name: str) -> bytes | None:
    """The content of a file; None if it does not exist."""
    uri = f"{folder}/{name}"
    try:
        filesystem, path = fsspec.url_to_fs(uri, **filesystem_options(uri, None)[1])
        with filesystem.open(path, "rb", **_STREAMED if uri.startswith(_WEB) else {}) as file:
            content = _start_of(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ImportError as error:
        raise StatementUnreadableError(f"{uri} needs a package for its storage, such as s3fs: install it") from error
    except Exception as error:  # each storage has errors of its own
        why = explain_storage_error(error) or clean(error)[:_MESSAGE_LENGTH] or type(error).__name__
        raise StatementUnreadableError(f"{uri} cannot be read: {without_a_job(why)}") from error
    if len(content) > LIMIT_BYTES:
        raise StatementError(f"{name} has more than {LIMIT_BYTES >> 20} MiB, and is not read")
    return content


def _start_of(file: IO[bytes]) -> bytes:
    """The start of a file, long enough to see that it is too long. A stream returns what has arrived, which is less."""
    content = b""
    while len(content) <= LIMIT_BYTES and (part := file.read(LIMIT_BYTES + 1 - len(content))):
        content += part
    return content


def _is_canonical(document: dict[str, Any], content: bytes) -> bool:
    try:
        return canonical_json(document) == content
    except (ValueError, RecursionError):  # a number such as NaN, half of a character, or very many levels
        return False


def _parse(content: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StatementError(f"{name} is not JSON") from error
    if not isinstance(document, dict):
        raise StatementError(f"{name} is not a JSON object")
    return document
