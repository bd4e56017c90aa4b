"""Profile: what a job takes from the TenSafeClusterProfile that it names, when an attempt starts.

A value that the job gives takes precedence. Given means different from the default of the field, because the API server
fills the defaults in. Maps are merged by key, and most lists are joined (`LISTS`). All other values are replaced as a
whole. Nothing outside `spec.cluster` and `spec.storage` is read or changed.

The job with these values must keep all rules of a manifest. A running attempt keeps the values with which it started.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from tensafe_api.manifest.text import dump_manifest
from tensafe_api.manifest.validation import ManifestError, parse_job, without_nulls
from tensafe_api.reasons import Reason
from tensafe_api.resources.profile import PROFILE_KIND, ProfileSpec
from tensafe_operator.decision.admission import Admitted, find_local_path
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.observation import Object

MAPS = ("nodeSelector", "rayJobLabels", "podLabels", "podAnnotations", "securityContext")
"""Fields that are merged by key: the job's value of a key takes precedence."""
LISTS: Mapping[str, tuple[str, ...]] = {
    "imagePullSecrets": ("name",),
    "tolerations": (),
    "env": ("name",),
    "envFrom": (),
    "volumes": ("name", "mountPath"),
}
"""Lists that are joined, the profile's entries first. An entry of the profile is left out if one of the job has the
same value in one of these fields; without fields, if one of the job is equal to it.
"""
_IMAGE = ("image", "rayVersion")
_MOST_PROBLEMS = 5


def take_profile(admitted: Admitted, profile: Object | None) -> Admitted | Blocker:
    """Return the job with the values of its profile, or why they cannot be taken.

    Args:
        profile: the TenSafeClusterProfile that the job names; None if it does not exist.
    """
    job = admitted.job
    name = job.spec.cluster.profile_ref
    if name is None:
        return admitted
    if profile is None:
        missing = "it does not exist, or the operator may not read it"
        return Blocker(Reason.PROFILE_MISSING, f"{PROFILE_KIND} {name}", missing)
    spec = without_nulls(profile.get("spec") or {})
    try:
        ProfileSpec.model_validate(spec, by_alias=True, by_name=False)
    except ValidationError as error:
        return _invalid(name, _sentences(error))
    manifest = json.loads(dump_manifest(job, "json", defaults=False))
    storage = spec.pop("storage", {})
    given = manifest["spec"]
    changes = {"cluster": merge(given["cluster"], spec), "storage": {**storage, **given.get("storage", {})}}
    try:
        merged = parse_job({**manifest, "spec": {**given, **changes}})
    except ManifestError as error:
        return _invalid(name, [str(problem) for problem in error.problems])
    if problem := find_local_path(merged):
        return _invalid(name, [problem])
    return replace(admitted, job=merged)


def merge(given: Mapping[str, Any], profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `spec.cluster`, or of its head, from those of a job and of a profile.

    Args:
        given: the fields of the job that differ from their default.
    """
    # The image and its version of Ray belong together.
    has_image = any(name in given for name in _IMAGE)
    taken = {name: value for name, value in profile.items() if not (has_image and name in _IMAGE)}
    merged = {**taken, **given}
    for name in taken.keys() & given.keys():
        if name in MAPS:
            merged[name] = {**taken[name], **given[name]}
        elif name in LISTS:
            merged[name] = _joined(given[name], taken[name], LISTS[name])
        elif name == "head":
            merged[name] = merge(given[name], taken[name])
    return merged


def _joined(given: Sequence[Any], taken: Sequence[Any], fields: tuple[str, ...]) -> list[Any]:
    def replaces(own: Any, other: Any) -> bool:
        return any(own[field] == other[field] for field in fields) if fields else own == other

    return [*(other for other in taken if not any(replaces(own, other) for own in given)), *given]


def _invalid(name: str, problems: Sequence[str]) -> Blocker:
    return Blocker(Reason.PROFILE_INVALID, f"{PROFILE_KIND} {name}", "; ".join(problems[:_MOST_PROBLEMS]))


def _sentences(error: ValidationError) -> list[str]:
    """The problems of a profile that the API server accepted: of another release, or in a part without a schema."""
    details = error.errors(include_url=False, include_input=False)
    return [f"spec.{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in details]
