"""What watching has shown, kept small: the newest body of each object of ours, without what no plan looks at.

`watch` puts objects in, by the events of kopf's streams; `reconcile` takes a job with everything of its own out. A body
that is late, missing or there twice is no error: what is grave is asked of the API server itself.

Bodies are kept as JSON text and read when a job is looked at: as dictionaries they would take eight times the room.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tensafe_operator import names
from tensafe_operator.plan.observed import Observed, Warned

Key = tuple[str, str]
"""Namespace and name."""
_WARNED_OF = ("RayJob", "Pod")
_TRIMMED = ("managedFields", "selfLink", "ownerReferences", "finalizers")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Cache:
    """Objects by kind, and those of a job by its UID."""

    def __init__(self) -> None:
        self._jobs: dict[Key, tuple[str, bytes]] = {}
        """UID of the job, and the job."""
        self._owned: dict[str, dict[str, dict[str, bytes]]] = defaultdict(lambda: defaultdict(dict))
        """Kind → UID of the job → the object's own UID → the object."""
        self._names: dict[str, Key] = {}
        """UID of a job → its key, for events about its children."""
        self._owners: dict[str, str] = {}
        """UID of a RayJob or a pod → UID of the job: a cluster warns of much that is nobody's here."""
        self._versions: dict[str, int] = {}
        """UID of an object → its version, which grows."""
        self._echoes: dict[str, int] = {}
        """UID of an object → the version that our own last write gave it."""
        self._warnings: dict[str, Warned] = {}
        """UID of an object → the last warning about it."""
        self.kuberay = False

    def put_job(self, body: Mapping[str, Any]) -> Key | None:
        """Keep a job, and say whose news it is; None where it is the echo of our own write."""
        metadata = body["metadata"]
        key, uid = (str(metadata["namespace"]), str(metadata["name"])), str(metadata["uid"])
        if self._is_news(uid, body):
            self._jobs[key] = (uid, _kept(body, keep_applied=True))
            self._names[uid] = key
        return None if self._is_echo(uid, body) else key

    def learn(self, document: Mapping[str, Any]) -> None:
        """Keep what the API server has answered to a write: the event that tells of it later is an echo."""
        kind, uid = str(document["kind"]), str(document["metadata"]["uid"])
        watched = kind in ("TenSafeTrainingJob", "RayJob", "PrivacyLedger")
        if not watched or (uid if kind == "TenSafeTrainingJob" else _job_uid(document)) not in self._names:
            return  # nobody will tell of it, or its job has been deleted meanwhile
        self._echoes[uid] = _version(document)
        if kind == "TenSafeTrainingJob":
            self.put_job(document)
        else:
            self.put(kind, document)

    def drop_job(self, body: Mapping[str, Any]) -> None:
        metadata = body["metadata"]
        key, uid = (str(metadata["namespace"]), str(metadata["name"])), metadata["uid"]
        if key in self._jobs and self._jobs[key][0] == uid:
            del self._jobs[key]
        self._names.pop(uid, None)
        self._versions.pop(uid, None)
        self._echoes.pop(uid, None)
        for kind in self._owned.values():
            for each in kind.pop(uid, {}):
                self._owners.pop(each, None)
                self._warnings.pop(each, None)
                self._versions.pop(each, None)
                self._echoes.pop(each, None)

    def put(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        """Keep a child, and say whose it is; None where it is nobody's that is known, or the echo of our own write."""
        uid = _job_uid(body)
        if not uid:
            return None
        if self._is_news(body["metadata"]["uid"], body):
            self._owned[kind][uid][body["metadata"]["uid"]] = _kept(body)
        if kind in _WARNED_OF:
            self._owners[body["metadata"]["uid"]] = uid
        return None if self._is_echo(body["metadata"]["uid"], body) else self._names.get(uid)

    def drop(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        uid = _job_uid(body)
        self._owned[kind].get(uid, {}).pop(body["metadata"]["uid"], None)
        self._owners.pop(body["metadata"]["uid"], None)
        self._warnings.pop(body["metadata"]["uid"], None)
        self._versions.pop(body["metadata"]["uid"], None)
        self._echoes.pop(body["metadata"]["uid"], None)
        return self._names.get(uid)

    def warn(self, about: str, warned: Warned) -> Key | None:
        """Keep the last warning about an object, given by its UID, and say whose it is."""
        uid = self._owners.get(about)
        if uid is None:
            return None
        self._warnings[about] = warned
        return self._names.get(uid)

    def known(self) -> list[Key]:
        """All jobs that were shown."""
        return list(self._jobs)

    def observed(self, key: Key) -> Observed | None:
        """A job and everything of its own, as far as it was shown."""
        if key not in self._jobs:
            return None
        uid, kept = self._jobs[key]
        job = json.loads(kept)
        if job["metadata"].get("deletionTimestamp"):
            return None
        name = names.ledger_name(key[1], uid)
        ledgers = (each for each in self._of("PrivacyLedger", uid) if each["metadata"]["name"] == name)
        ray_jobs, pods = self._of("RayJob", uid), self._of("Pod", uid)
        mine = [each["metadata"]["uid"] for each in (*ray_jobs, *pods)]
        warnings = tuple(self._warnings[each] for each in mine if each in self._warnings)
        return Observed(job, next(ledgers, None), ray_jobs, pods, warnings, self.kuberay)

    def _is_news(self, uid: str, body: Mapping[str, Any]) -> bool:
        """Whether this body is not older than what was shown of the object: an answer may be before its event."""
        version = _version(body)
        if version < self._versions.get(uid, 0):
            return False
        self._versions[uid] = version
        return True

    def _is_echo(self, uid: str, body: Mapping[str, Any]) -> bool:
        return self._echoes.get(uid) == _version(body)

    def _of(self, kind: str, uid: str) -> tuple[dict[str, Any], ...]:
        return tuple(json.loads(kept) for kept in self._owned[kind].get(uid, {}).values())


def _version(body: Mapping[str, Any]) -> int:
    return int(body["metadata"].get("resourceVersion") or 0)


def _job_uid(body: Mapping[str, Any]) -> str:
    return str((body["metadata"].get("labels") or {}).get(names.JOB_UID) or "")


def _kept(body: Mapping[str, Any], *, keep_applied: bool = False) -> bytes:
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
    return json.dumps({**kept, "metadata": metadata}, separators=(",", ":")).encode()
