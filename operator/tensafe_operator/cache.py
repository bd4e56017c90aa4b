"""What watching has shown, kept small: the newest body of each object of ours, without what no plan looks at.

`watch` puts objects in, by the events of kopf's streams; `reconcile` takes a job with everything of its own out. A body
that is late, missing or there twice is no error: what is grave is asked of the API server itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tensafe_operator import names
from tensafe_operator.plan.observed import Observed, Warned

Key = tuple[str, str]
"""Namespace and name."""
_TRIMMED = ("managedFields", "selfLink", "ownerReferences", "finalizers")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Cache:
    """Objects by kind, and those of a job by its UID."""

    def __init__(self) -> None:
        self._jobs: dict[Key, dict[str, Any]] = {}
        self._owned: dict[str, dict[str, dict[str, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
        """Kind → UID of the job → the object's own UID → the object."""
        self._names: dict[str, Key] = {}
        """UID of a job → its key, for events about its children."""
        self._warnings: dict[str, Warned] = {}
        """UID of an object → the last warning about it."""
        self.kuberay = False

    def put_job(self, body: Mapping[str, Any]) -> Key:
        metadata = body["metadata"]
        key = (str(metadata["namespace"]), str(metadata["name"]))
        self._jobs[key] = _trimmed(body, keep_applied=True)
        self._names[metadata["uid"]] = key
        return key

    def drop_job(self, body: Mapping[str, Any]) -> None:
        metadata = body["metadata"]
        key, uid = (str(metadata["namespace"]), str(metadata["name"])), metadata["uid"]
        if self._jobs.get(key, {}).get("metadata", {}).get("uid") == uid:
            del self._jobs[key]
        self._names.pop(uid, None)
        for kind in self._owned.values():
            kind.pop(uid, None)

    def put(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        """Keep a child, and say whose it is; None where it is nobody's that is known."""
        uid = _job_uid(body)
        if not uid:
            return None
        self._owned[kind][uid][body["metadata"]["uid"]] = _trimmed(body)
        return self._names.get(uid)

    def drop(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        uid = _job_uid(body)
        self._owned[kind][uid].pop(body["metadata"]["uid"], None)
        self._warnings.pop(body["metadata"]["uid"], None)
        return self._names.get(uid)

    def warn(self, about: str, warned: Warned) -> Key | None:
        """Keep the last warning about an object, given by its UID, and say whose it is."""
        for kind in ("RayJob", "Pod"):
            for uid, objects in self._owned[kind].items():
                if about in objects:
                    self._warnings[about] = warned
                    return self._names.get(uid)
        return None

    def known(self) -> list[Key]:
        """All jobs that were shown."""
        return list(self._jobs)

    def observed(self, key: Key) -> Observed | None:
        """A job and everything of its own, as far as it was shown."""
        job = self._jobs.get(key)
        if job is None or job["metadata"].get("deletionTimestamp"):
            return None
        uid = job["metadata"]["uid"]
        ledger = names.ledger_name(key[1], uid)
        ledgers = (each for each in self._owned["PrivacyLedger"][uid].values() if each["metadata"]["name"] == ledger)
        ray_jobs = tuple(self._owned["RayJob"][uid].values())
        pods = tuple(self._owned["Pod"][uid].values())
        mine = [each["metadata"]["uid"] for each in (*ray_jobs, *pods)]
        warnings = tuple(self._warnings[each] for each in mine if each in self._warnings)
        return Observed(job, next(ledgers, None), ray_jobs, pods, warnings, self.kuberay)


def _job_uid(body: Mapping[str, Any]) -> str:
    return str((body["metadata"].get("labels") or {}).get(names.JOB_UID) or "")


def _trimmed(body: Mapping[str, Any], *, keep_applied: bool = False) -> dict[str, Any]:
    """The body without what takes room and no plan looks at: who wrote which field, and a RayJob's pod templates."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in _TRIMMED}
    annotations = dict(metadata.pop("annotations", None) or {})
    if keep_applied and _LAST_APPLIED in annotations:
        metadata["annotations"] = {_LAST_APPLIED: annotations[_LAST_APPLIED]}
    kept = {name: body[name] for name in ("apiVersion", "kind", "spec", "status") if name in body}
    if body.get("kind") == "RayJob":
        kept["spec"] = {"suspend": (body.get("spec") or {}).get("suspend")}
    elif body.get("kind") == "Pod":
        kept.pop("spec", None)
    return {**kept, "metadata": metadata}
