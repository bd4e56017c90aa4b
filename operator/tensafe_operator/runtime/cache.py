"""What watching has shown, kept small: the newest body of each object of ours, without what no plan looks at.

`watch` puts objects in, by the events of kopf's streams; `reconcile` takes a job with everything of its own out. A body
that is late, missing or there twice is no error: what is grave is asked of the API server itself. So is whether KubeRay
is there, which no event tells.

Bodies are kept as JSON text and read when a job is looked at: as dictionaries they would take eight times the room.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from tensafe_api.resources.ledger import COUNTED_ANNOTATION
from tensafe_operator import names
from tensafe_operator.plan.observed import ClusterWarning, Observed

Key = tuple[str, str]
"""Namespace and name."""
_WARNED_OF = ("RayJob", "Pod")
_ANSWERED = ("TenSafeTrainingJob", "RayJob", "PrivacyLedger")
_TRIMMED = ("managedFields", "selfLink", "finalizers")
_READ = ("kubectl.kubernetes.io/last-applied-configuration", COUNTED_ANNOTATION)


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
        self._clusters: dict[str, str] = {}
        """Name of a RayCluster → UID of its RayJob. (A name ends in five random letters.)"""
        self._warnings: dict[str, ClusterWarning] = {}
        """UID of an object → the last warning about it."""

    def put_job(self, body: Mapping[str, Any]) -> Key | None:
        """Keep a job, and say which one; None where nothing of it is new."""
        metadata = body["metadata"]
        key, uid = (str(metadata["namespace"]), str(metadata["name"])), str(metadata["uid"])
        if not self._is_news(uid, body):
            return None
        self._jobs[key] = (uid, _kept(body, keep_applied=True))
        self._names[uid] = key
        return key

    def learn(self, document: Mapping[str, Any]) -> None:
        """Keep what the API server has answered to a write: the event that tells of it later is no news."""
        kind = str(document["kind"])
        if kind not in _ANSWERED or names.job_uid_of(kind, document) not in self._names:
            return  # nobody will tell of it, or its job has been deleted meanwhile
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
        for kind in self._owned.values():
            for each in kind.pop(uid, {}):
                self._owners.pop(each, None)
                self._warnings.pop(each, None)
                self._versions.pop(each, None)

    def put(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        """Keep a child, and say whose it is; None where it is nobody's that is known, or nothing of it is new."""
        uid = names.job_uid_of(kind, body) or self._owners.get(body["metadata"]["uid"], "")
        if not uid or not self._is_news(body["metadata"]["uid"], body):
            return None
        self._owned[kind][uid][body["metadata"]["uid"]] = _kept(body)
        if kind in _WARNED_OF:
            self._owners[body["metadata"]["uid"]] = uid
        if cluster := (body.get("status") or {}).get("rayClusterName") if kind == "RayJob" else None:
            self._clusters[cluster] = body["metadata"]["uid"]
        return self._names.get(uid)

    def keep_only(self, kind: str, there: Collection[str], version: int, namespace: str | None) -> None:
        """Forget the objects of a kind that a list of this version does not have, given by their UIDs.

        Args:
            namespace: of the list; None: all namespaces.
        """
        for key, (uid, kept) in list(self._jobs.items()) if kind == "TenSafeTrainingJob" else ():
            if uid not in there and self._versions.get(uid, 0) <= version and namespace in (None, key[0]):
                self.drop_job(json.loads(kept))
        for owned in list(self._owned[kind].values()) if kind in self._owned else ():
            for uid, kept in list(owned.items()):
                if uid not in there and self._versions.get(uid, 0) <= version:
                    body = json.loads(kept)
                    if namespace in (None, body["metadata"]["namespace"]):
                        self.drop(kind, body)

    def drop(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        uid = names.job_uid_of(kind, body) or self._owners.get(body["metadata"]["uid"], "")
        self._clusters.pop((body.get("status") or {}).get("rayClusterName") or "", None)
        self._owned[kind].get(uid, {}).pop(body["metadata"]["uid"], None)
        self._owners.pop(body["metadata"]["uid"], None)
        self._warnings.pop(body["metadata"]["uid"], None)
        self._versions.pop(body["metadata"]["uid"], None)
        return self._names.get(uid)

    def warn(self, about: str, warned: ClusterWarning) -> Key | None:
        """Keep the last warning about an object, given by its UID, and say whose it is. What a RayCluster is warned of,
        such as pods that cannot be made, is its RayJob's.
        """
        if warned.kind == "RayCluster":
            about = self._clusters.get(warned.name, about)
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
        return Observed(job, next(ledgers, None), ray_jobs, pods, warnings)

    def _is_news(self, uid: str, body: Mapping[str, Any]) -> bool:
        """Whether this body is newer than what is known of the object: lists, events and the answers to our own writes
        come in any order.
        """
        version = _version(body)
        if version <= self._versions.get(uid, -1):
            return False
        self._versions[uid] = version
        return True

    def _of(self, kind: str, uid: str) -> tuple[dict[str, Any], ...]:
        return tuple(json.loads(kept) for kept in self._owned[kind].get(uid, {}).values())


def _version(body: Mapping[str, Any]) -> int:
    return int(body["metadata"].get("resourceVersion") or 0)


def _kept(body: Mapping[str, Any], *, keep_applied: bool = False) -> bytes:
    """The body without what takes room and no plan looks at: who wrote which field, and a RayJob's pod templates."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in _TRIMMED}
    annotations = dict(metadata.pop("annotations", None) or {})
    if keep_applied and (told := {name: annotations[name] for name in _READ if name in annotations}):
        metadata["annotations"] = told
    kept = {name: body[name] for name in ("apiVersion", "kind", "spec", "status") if name in body}
    if body.get("kind") == "RayJob":
        kept["spec"] = {"suspend": (body.get("spec") or {}).get("suspend")}
    elif body.get("kind") == "Pod":
        kept.pop("spec", None)
        metadata.pop("ownerReferences", None)
    return json.dumps({**kept, "metadata": metadata}, separators=(",", ":")).encode()
