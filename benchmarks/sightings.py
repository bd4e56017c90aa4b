"""When a watch told of what: job, RayJob, RayCluster, and how far a job's status is behind its ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from benchmarks.apiserver import Object, key_of
from benchmarks.fake_kuberay import Key
from tensafe_operator.names import JOB


class Sightings:
    """When the watch told of what first, by namespace and job (monotonic seconds), and how often it was made."""

    def __init__(self) -> None:
        self.jobs: dict[Key, float] = {}
        self.generations: dict[Key, set[int]] = defaultdict(set)
        self.ray_jobs: dict[Key, list[float]] = defaultdict(list)
        self.ray_clusters: dict[Key, float] = {}
        self.charged: dict[Key, int] = defaultdict(int)
        """Steps charged, as the job's status tells."""
        self.owed: dict[Key, list[tuple[int, float]]] = defaultdict(list)
        """Charges that the status does not tell of yet: steps, and when the watch told of the ledger."""
        self.behind: list[float] = []
        """How long each charge took to be in the status."""
        self.phases: dict[Key, str] = {}

    def job(self, event: str, body: Object, now: float) -> None:
        key, status = key_of(body), body.get("status") or {}
        self.jobs.setdefault(key, now)
        self.generations[key].add(body["metadata"]["generation"])
        self.phases[key] = status.get("phase", "")
        self.charged[key] = (status.get("privacy") or {}).get("stepsCharged") or 0
        owed = self.owed[key]
        while owed and owed[0][0] <= self.charged[key]:
            self.behind.append(now - owed.pop(0)[1])

    def ledger(self, event: str, body: Object, now: float) -> None:
        steps = (body.get("status") or {}).get("chargedThrough", 0)
        key = body["metadata"]["namespace"], body["spec"]["jobName"]
        if steps > self.charged[key]:
            self.owed[key].append((steps, now))
        elif steps:
            self.behind.append(0.0)  # the other watch was quicker

    def ray_job(self, event: str, body: Object, now: float) -> None:
        if event == "ADDED":
            self.ray_jobs[body["metadata"]["namespace"], body["metadata"]["labels"][JOB]].append(now)

    def ray_cluster(self, event: str, body: Object, now: float) -> None:
        owner = body["metadata"]["ownerReferences"][0]["name"]
        self.ray_clusters.setdefault((body["metadata"]["namespace"], owner.removesuffix("-a1")), now)

    def begun(self, keys: Iterable[Key]) -> bool:
        return all(key in self.ray_jobs for key in keys)


def quantile(seconds: list[float], share: float) -> float:
    """The smallest of these that so many are not above; endless where there are none."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")
