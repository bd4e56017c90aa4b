"""A decision under construction: the policies of `decision` read and change one draft.

A draft starts with the observed status. Policies set the new status, add actions, and register times at which to
reconcile again. `finish` returns the decision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tensafe_api.reasons import Phase
from tensafe_api.resources.status import Attempt, Status
from tensafe_operator import names
from tensafe_operator.children import Manifest
from tensafe_operator.decision.conditions import JobState, set_conditions
from tensafe_operator.decision.figures import AskedFigures, Figure
from tensafe_operator.decision.observation import Action, Create, Decision, Delete, Object, Observed
from tensafe_operator.job_tls import TlsMode
from tensafe_operator.settings import Settings

T = TypeVar("T")


@dataclass
class Draft:
    """The state that the policies share.

    Attributes:
        observed: what the reconcile observed; never changed.
        now: the time, in seconds since the epoch.
        status: the new status; it starts as the observed one. Its phase and its conditions change in `finish` only.
        state: the state of the job that they will show; None: they stay as they are.
        asked: the figures that the policies have asked for.
    """

    observed: Observed
    now: float
    settings: Settings
    status: Status = field(init=False)
    state: JobState | None = field(init=False, default=None)
    actions: list[Action] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    irreversible: bool = False
    asked: list[Figure[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.status = self._observed_status()
        self.status.observed_generation = int(self.observed.job["metadata"].get("generation") or 0)

    def set_state(self, state: JobState) -> None:
        """Set what the phase and the conditions of the new status will show."""
        self.state = state

    @property
    def ends_job(self) -> bool:
        """Whether the job ends with this decision."""
        ended = Phase(self.status.phase or Phase.PENDING).final
        return self.state is not None and self.state.phase.final and not ended

    def ask(self, figure: Figure[T]) -> T | None:
        """Return a figure; None while the accountant does not have it: the job is then decided on again.

        Raises:
            Exception: what the accountant failed with.
        """
        self.asked.append(figure)
        found = self.observed.figures.get(figure)
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def has_all_figures(self) -> bool:
        """Whether the accountant has all figures that were asked for."""
        return all(each in self.observed.figures for each in self.asked)

    def figures(self, *, exact: bool = False) -> AskedFigures:
        """Return the figures with which a status is computed."""
        return AskedFigures(self.ask, exact)

    def create(self, manifest: Manifest) -> None:
        """Create an object of an attempt."""
        self.actions.append(Create(manifest))

    def delete(self, found: Object) -> None:
        """Delete an object, unless its deletion has started; with a RayJob, the Secret of its attempt."""
        metadata = found["metadata"]
        if metadata.get("deletionTimestamp") is None:
            self.irreversible = True
            self.actions.append(Delete(found["kind"], metadata["name"], metadata["uid"]))
            if found["kind"] == "RayJob":
                self.delete_tls_secret(found)

    def delete_tls_secret(self, ray_job: Object) -> None:
        """Delete the Secret of an attempt that has ended.

        The RayJob names the Secret. Any user may edit that: a name that the operator does not give is not followed.
        """
        metadata = ray_job["metadata"]
        name = (metadata.get("annotations") or {}).get(names.TLS_SECRET, "")
        if names.is_tls_secret(name, metadata["name"]):
            self.delete_tls_secret_named(name)

    def delete_tls_secret_named(self, name: str) -> None:
        """Delete this Secret of an attempt, and what cert-manager made of its Certificate."""
        self.irreversible = True
        deletions = [Delete("Secret", name)]
        if self.settings.job_tls.mode is TlsMode.CERT_MANAGER:
            deletions += [Delete(kind, names.authority_name(name)) for kind in ("Certificate", "Secret")]
        self.actions += [each for each in deletions if each not in self.actions]

    def wake_at(self, *times: float) -> None:
        """Reconcile again at the earliest of these times, in seconds since the epoch."""
        self.wakes.extend(times)

    def record(self, attempt: Attempt) -> None:
        """Add the attempt to the status, or replace the entry of the same number."""
        others = [each for each in self.status.attempts if each.number != attempt.number]
        self.status.attempts = tuple(sorted([*others, attempt], key=lambda each: each.number))

    def ray_job_of(self, attempt: Attempt) -> Object | None:
        """Return the RayJob of an attempt, or None where none was observed."""
        ray_jobs = self.observed.ray_jobs
        return next((each for each in ray_jobs if each["metadata"]["name"] == attempt.ray_job_name), None)

    def finish(self) -> Decision:
        """Return the decision. A job of which nothing is to be reported yet keeps its status."""
        if self.state is not None:
            set_conditions(self.status, self.state, self.now)
        elif self.status.phase is None:
            self.status = self._observed_status()
        workers = self.status.workers
        if workers is not None and Phase(self.status.phase or Phase.PENDING).final:
            self.status.workers = workers.model_copy(update={"ready": 0})  # no pod is counted after the end
        ahead = [wake for wake in self.wakes if wake > self.now and math.isfinite(wake)]
        asked = tuple(dict.fromkeys(self.asked))
        return Decision(tuple(self.actions), self.status, min(ahead, default=None), self.irreversible, asked)

    def wait_for_figures(self) -> Decision:
        """Return the decision to change nothing until the accountant has the figures."""
        return Decision((), self._observed_status(), figures=tuple(dict.fromkeys(self.asked)))

    def _observed_status(self) -> Status:
        return Status.model_validate(self.observed.job.get("status") or {}, by_alias=True, by_name=False)
