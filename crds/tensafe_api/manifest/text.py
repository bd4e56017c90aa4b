"""Reads the text of a manifest as a job, and writes a job as text.

Reading: a file or a text comes in, with the changes of the command line; a validated job goes out, or all problems at
once. Writing: a job becomes text that this reader and the API server read as the same job.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from tensafe_api.manifest import yaml_io
from tensafe_api.manifest.overrides import apply_overrides
from tensafe_api.manifest.validation import ManifestError, Problem, parse_job
from tensafe_api.resources.base import Block, alias_of
from tensafe_api.resources.job import TenSafeTrainingJob

__all__ = ["ManifestError", "Problem", "dump_manifest", "load_manifest", "parse_job"]


def load_manifest(text_or_path: str | Path, overrides: Sequence[str] = ()) -> TenSafeTrainingJob:
    """The job that a manifest describes.

    Args:
        text_or_path: path of the manifest, or its text in YAML or JSON. A string with a line break or a brace is text.
        overrides: changes such as `spec.training.steps=20`, applied in order before the manifest is validated.

    Raises:
        ManifestError: the file cannot be read, is not the manifest of one job, or has problems; all are listed.
    """
    name, text = _text_of(text_or_path)
    data, problems = _mapping_of(name, text)
    problems += apply_overrides(data, overrides)
    if not _is_encodable(data):
        raise ManifestError([Problem("--set", "contains characters that UTF-8 cannot encode: remove them")])
    try:
        job = parse_job(data, yaml_io.WrittenScalars(text))
    except ManifestError as error:
        raise ManifestError([*problems, *error.problems]) from None
    if problems:
        raise ManifestError(problems)
    return job


def dump_manifest(
    job: TenSafeTrainingJob,
    format: Literal["yaml", "json"] = "yaml",  # noqa: A002
    *,
    defaults: bool = True,
) -> str:
    """The job as text: camelCase, without null and empty values.

    `load_manifest(dump_manifest(job)) == job` for every job.

    Args:
        defaults: whether fields that have their default are written. Without them an older release, which lacks some of
            the fields, reads the text too.
    """
    data = {"apiVersion": job.api_version, "kind": job.kind, **_plain_block(job, defaults)}
    if format == "json":
        return yaml_io.write_json(data)
    return yaml_io.write(data)


def _text_of(text_or_path: str | Path) -> tuple[str, str]:
    """The name of the manifest in messages, and its text."""
    if isinstance(text_or_path, str) and ("\n" in text_or_path or "{" in text_or_path):
        return "manifest", text_or_path
    path = Path(text_or_path)
    try:
        return str(path), path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ManifestError([Problem(str(path), "is not text in UTF-8: give the YAML file of a job")]) from None
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise ManifestError([Problem(str(path), f"cannot be read ({reason}): give the YAML file of a job")]) from None


def _mapping_of(name: str, text: str) -> tuple[dict[str, Any], list[Problem]]:
    """The mapping in the text, and the problems of its keys."""
    try:
        documents, key_problems = yaml_io.read_documents(text)
    except yaml.YAMLError as error:
        raise ManifestError([Problem(name, f"is not YAML: {_first_line(error)}")]) from None
    if not _is_encodable(documents):
        raise ManifestError(
            [Problem(name, "contains characters that UTF-8 cannot encode: give the YAML file of a job")]
        )
    if len(documents) != 1:
        count = f"{len(documents)} documents" if documents else "no document"
        raise ManifestError([Problem(name, f"contains {count}: give exactly one, the document of the job")])
    if not isinstance(documents[0], dict):
        raise ManifestError([Problem(name, "is not a mapping: write apiVersion, kind, metadata and spec")])
    return documents[0], [Problem(name, problem) for problem in key_problems]


def _is_encodable(value: Any) -> bool:
    """Whether the value can be written as UTF-8: it has no unpaired surrogates."""
    try:
        json.dumps(value, default=str, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def _first_line(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{where}{problem or str(error).splitlines()[0]}"


def _plain_block(block: Block, defaults: bool) -> dict[str, Any]:
    """The block as a mapping, without null values and without values that are empty by default."""
    data = {}
    for name, field in type(block).model_fields.items():
        value = _plain(getattr(block, name), defaults)
        default = None if field.is_required() else _plain(field.get_default(call_default_factory=True), defaults)
        if value is None or (value == default and not (defaults and value not in ([], {}, ""))):
            continue
        data[alias_of(field)] = value
    return data


def _plain(value: Any, defaults: bool) -> Any:
    if isinstance(value, Block):
        return _plain_block(value, defaults)
    if isinstance(value, tuple):
        return [_plain(item, defaults) for item in value]
    return value
