"""Times at which a watch reported jobs, RayJobs and RayClusters, and the delay between a ledger and its job's status.

Watch events come in, with the time at which each arrived (monotonic seconds).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tensafe_operator.names import JOB
from tests.support.programs.api_server import Key, Object, key_of


class WatchTimes:
    """Times of the first event of each object, by the job's namespace and name, and counts of creations."""

    def __init__(self) -> None:
        self.jobs: dict[Key, float] = {}
        self.generations: dict[Key, set[int]] = defaultdict(set)
        self.ray_jobs: dict[Key, list[float]] = defaultdict(list)
        self.ray_clusters: dict[Key, float] = {}
        self.charged: dict[Key, int] = defaultdict(int)
        """Steps charged, as the job's status has them."""
        self.pending: dict[Key, list[tuple[int, float]]] = defaultdict(list)
        """Charges that the status does not show yet: steps, and the time of the ledger's event."""
        self.delays: list[float] = []
        """Seconds from each charge's event to that of the status that shows it."""
        self.phases: dict[Key, str] = {}

    def on_job(self, event: str, body: Object, now: float) -> None:
        key, status = key_of(body), body.get("status") or {}
        self.jobs.setdefault(key, now)
        self.generations[key].add(body["metadata"]["generation"])
        self.phases[key] = status.get("phase", "")
        self.charged[key] = (status.get("privacy") or {}).get("stepsCharged") or 0
        pending = self.pending[key]
        while pending and pending[0][0] <= self.charged[key]:
            self.delays.append(now - pending.pop(0)[1])

    def on_ledger(self, event: str, body: Object, now: float) -> None:
        steps = (body.get("status") or {}).get("chargedThrough", 0)
        key = body["metadata"]["namespace"], body["spec"]["jobName"]
        if steps > self.charged[key]:
            self.pending[key].append((steps, now))
        elif steps:
            self.delays.append(0.0)  # the watch on jobs was faster

    def on_ray_job(self, event: str, body: Object, now: float) -> None:
        if event == "ADDED":
            self.ray_jobs[body["metadata"]["namespace"], body["metadata"]["labels"][JOB]].append(now)

    def on_ray_cluster(self, event: str, body: Object, now: float) -> None:
        owner = body["metadata"]["ownerReferences"][0]["name"]
        self.ray_clusters.setdefault((body["metadata"]["namespace"], owner.removesuffix("-a1")), now)

    def all_have_ray_jobs(self, keys: Iterable[Key]) -> bool:
        return all(key in self.ray_jobs for key in keys)


def quantile(seconds: list[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed; infinite where there are no values."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")
