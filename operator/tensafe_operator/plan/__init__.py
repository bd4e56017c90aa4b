"""What should be done for a job now: pure, from what was seen and the time to actions, a status, and the next look.

    final already? ─► ledger lost? ─► accepted? ─► a ledger of its own? ─► the open attempt, if there is one ─► the next

Each step returns with a sentence about who acts next, or goes on. What cannot be undone is marked `grave`, and done
only on what the API server itself says. The invariants that hold whatever was seen, in whatever order:

- at most one attempt is open, and none is begun while a pod of an earlier one is left;
- an attempt stands in the status, and the ledger's UID before it, before its RayJob is made;
- a final phase stays, and ε never falls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tensafe_api.reasons import ConditionType, Phase, Reason
from tensafe_api.resolve import Claim
from tensafe_api.resources.ledger import MAX_ATTEMPTS, LedgerStatus
from tensafe_api.resources.status import Attempt, Status, WorkerCount
from tensafe_api.timestamps import format_time, parse_time
from tensafe_operator import names
from tensafe_operator.children import Manifest, access, configuration, ledger, network, rayjob
from tensafe_operator.plan.admission import Admitted, Refused, admit, frozen
from tensafe_operator.plan.attempts import State, Verdict, judge
from tensafe_operator.plan.blockers import obstacle, ready
from tensafe_operator.plan.conditions import set_conditions
from tensafe_operator.plan.observed import Action, Create, Decision, DeleteRayJob, Object, Observed
from tensafe_operator.plan.parsing import has_ended, ledger_spec, ledger_status, terminal
from tensafe_operator.plan.privacy_status import fold_ledger
from tensafe_operator.settings import Settings

SUSPEND_SECONDS = 120
"""How long the trainer may take to seal a checkpoint before its RayJob is removed all the same."""
KEPT_SECONDS = 600
"""How long the RayJob of an attempt that is over stays for its logs, at least."""
FORGOTTEN_SECONDS = 300
"""A pod that was told to go so long ago, and whose node no longer answers, blocks nobody: the ledger fences it."""
LOOK_SECONDS = 10.0
"""How often what nobody tells of is looked for."""
_LONGEST_BACKOFF = 300.0
_LONGEST_NAME = 253
_PHASES = {State.QUEUED: Phase.QUEUED, State.STARTING: Phase.STARTING, State.RUNNING: Phase.RUNNING}
_UNCOUNTED = (Reason.INTERRUPTED.value, Reason.COMPLETED.value)
"""How an attempt may end without having failed."""


def decide(seen: Observed, now: float, settings: Settings) -> Decision:
    """What follows from `seen` at `now` (seconds since the epoch)."""
    return _Reconcile(seen, now, settings).run()


@dataclass
class _Reconcile:
    """One pass. `status` begins as it was and becomes what it is to be."""

    seen: Observed
    now: float
    settings: Settings
    status: Status = field(init=False)
    actions: list[Action] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    irreversible: bool = False

    def __post_init__(self) -> None:
        before = self.seen.job.get("status") or {}
        self.status = Status.model_validate(before, by_alias=True, by_name=False)

    def run(self) -> Decision:
        self.status.observed_generation = int(self.seen.job["metadata"].get("generation") or 0)
        if _over_for_good(self.status):
            self._clean_up()
            return self._done()  # nothing is ever done for it again
        known, made = self.status.ledger_uid, self.seen.ledger
        if known is not None and (made is None or made["metadata"]["uid"] != known):
            return self._lost()
        found = admit(self.seen.job, ledger_spec(made) if known is not None else None)
        if isinstance(found, Refused):
            return self._refused(found)
        return self._with_ledger(found)

    def _refused(self, refused: Refused) -> Decision:
        """Nothing is begun for this manifest. What was begun goes on being counted: the operator may be of a newer
        release, which no longer takes what an older one took.
        """
        phase = Phase.PENDING
        opened, record = ledger_spec(self.seen.ledger), ledger_status(self.seen.ledger)
        if self.status.ledger_uid is not None and opened is not None:
            self.status = fold_ledger(self.status, Claim.of(opened), record)
            if record is not None and has_ended(record):
                return self._ended(record)
            phase = Phase(self.status.phase or phase)
        self._say(phase, refused.reason, refused.message, accepted=False, stalled=True)
        return self._done()  # the author changes the manifest

    def _with_ledger(self, admitted: Admitted) -> Decision:
        """A job has one ledger for its life: made once, and known by its UID before anything is spent."""
        name = names.ledger_name(admitted.job.metadata.name, admitted.job.metadata.uid or "")
        made, known = self.seen.ledger, self.status.ledger_uid
        if made is None:
            self.status = fold_ledger(self.status, admitted.plan, None)
            if self._suspended(admitted):
                return self._done()  # its author lets it begin
            # Not grave: its name is the job's own, and one that is there already stays as it is.
            key = access.job_key(admitted.job)
            self.actions += [Create(key), Create(ledger.ledger(admitted.job, admitted.plan, key))]
            self._starting(Phase.PENDING)
            return self._done()  # the API server tells of the new ledger
        spec = ledger_spec(made)
        if spec is None:
            message = f"PrivacyLedger {name} is of another release: run the release of the operator that made it"
            self._say(Phase(self.status.phase or Phase.PENDING), Reason.INTERNAL_ERROR, message, stalled=True)
            return self._done()  # somebody installs that release
        if spec.job_uid != admitted.job.metadata.uid:
            self._say(Phase.PENDING, Reason.NAME_TAKEN, f"PrivacyLedger {name} is of another job", stalled=True)
            return self._done()  # somebody removes what stands in the way
        record = ledger_status(made)
        if known is None and record is None and Claim.of(spec) != admitted.plan.claim:
            message = f"PrivacyLedger {name} was made by somebody else, with other figures than the job's"
            self._say(Phase.PENDING, Reason.NAME_TAKEN, message, stalled=True)
            return self._done()  # somebody removes it
        admitted = frozen(admitted, spec)
        self.status.ledger_name, self.status.ledger_uid = name, made["metadata"]["uid"]
        self.status = fold_ledger(self.status, admitted.plan, record)
        self.status.workers = WorkerCount(
            desired=admitted.job.spec.cluster.workers,
            ready=min(ready(self.seen.pods), admitted.job.spec.cluster.workers),
        )
        if known is None and not self.status.attempts and not self._suspended(admitted):
            return self._next(admitted, record, None)  # what is recorded now is acted on once it is stored
        return self._with_attempt(admitted, record)

    def _with_attempt(self, admitted: Admitted, record: LedgerStatus | None) -> Decision:
        self._clean_up()
        attempt = self.status.attempts[-1] if self.status.attempts else None
        if attempt is None or attempt.end_time is not None:
            return self._next(admitted, record, attempt)
        ray_job = self._ray_job(attempt.ray_job_name)
        if ray_job is None and attempt.start_time is None:
            return self._begin(admitted, attempt)
        if ray_job is None:
            gone = Verdict(State.FAILED, Reason.WORKER_LOST, "its RayJob was deleted")
            return self._over(admitted, record, attempt, self._pardoned(gone))
        return self._watch(admitted, record, attempt, ray_job)

    def _begin(self, admitted: Admitted, attempt: Attempt) -> Decision:
        """Make the attempt that the status has recorded: what it needs, then its RayJob."""
        if self._suspended(admitted):
            return self._done()
        for ray_job in self.seen.ray_jobs:
            if not terminal(ray_job):
                self._delete(ray_job)  # the status does not know it any more: somebody has cleared it
        if self._in_the_way(attempt.number):
            self._say(Phase.STARTING, Reason.RETRYING, "waiting until the pods of the last attempt are gone")
            return self._done()  # the pods' end wakes us
        stands = obstacle(self.seen)
        if stands is not None and stands.reason is Reason.KUBERAY_MISSING:
            self._say(Phase.PENDING, stands.reason, f"{stands.message} {stands.reason.fix}", stalled=True)
            self.wakes.append(self.now + LOOK_SECONDS)
            return self._done()  # somebody installs KubeRay
        for manifest in self._needed(admitted, attempt.number):
            self._create(Create(manifest))
        self._starting(Phase.STARTING)
        return self._done()  # KubeRay makes the cluster

    def _needed(self, admitted: Admitted, number: int) -> list[Manifest]:
        """Everything that an attempt needs, its RayJob last."""
        job, opened = admitted.job, admitted.opened
        assert opened is not None, "an attempt is recorded after the ledger's UID"
        name, uid = self.status.ledger_name or "", self.status.ledger_uid or ""
        told = configuration.config_map(job, number, name, uid, opened.key_digest)
        digest = configuration.digest(told)
        ray_job = rayjob.ray_job(job, number, self.settings, job_digest=digest, key_secret=opened.key_secret_name)
        own = [access.account(job), access.role_binding(job), network.policy(job, self.settings), told, ray_job]
        return [each for each in own if each is not None]

    def _watch(self, admitted: Admitted, record: LedgerStatus | None, attempt: Attempt, ray_job: Object) -> Decision:
        """An attempt that has a RayJob: see how it stands."""
        status = ray_job.get("status") or {}
        began = ray_job["metadata"].get("creationTimestamp") or format_time(self.now)
        changes = {"start_time": attempt.start_time or began, "restarts": self._restarts(record, attempt.number)}
        if cluster := status.get("rayClusterName"):
            changes["ray_cluster_name"] = cluster[:_LONGEST_NAME]
        attempt = attempt.model_copy(update=changes)
        self._record(attempt)
        verdict = judge(ray_job, record, attempt.number, self.now, self.settings.stall_seconds)
        if ray_job["metadata"].get("deletionTimestamp"):
            verdict = self._pardoned(verdict)
        if not verdict.state.over and (late := self._deadline(admitted)):
            verdict = late
        if verdict.state.over:
            return self._over(admitted, record, attempt, verdict)
        if verdict.wake is not None:
            self.wakes.append(verdict.wake)
        if admitted.job.spec.suspend:
            return self._suspending(ray_job, verdict)
        if verdict.state is State.STARTING or (verdict.state is State.RUNNING and self._hindered()):
            self._starting(Phase.STARTING)
        else:
            self._say(_PHASES[verdict.state], verdict.reason, verdict.message)
        return self._done()  # the trainer, through the ledger, or KubeRay

    def _suspending(self, ray_job: Object, verdict: Verdict) -> Decision:
        """The trainer reads `suspend` at each charge. Who does not is stopped after a while; who has charged nothing is
        stopped at once, since there is nothing to seal.
        """
        asked = self._asked_to_stop() or self.now
        self._say(Phase.STARTING, Reason.SUSPENDING, "")
        if verdict.state is not State.RUNNING or self.now >= asked + SUSPEND_SECONDS:
            self._delete(ray_job)
        else:
            self.wakes.append(asked + SUSPEND_SECONDS)
        return self._done()

    def _asked_to_stop(self) -> float | None:
        """Since when the workers are asked to seal a checkpoint and stop; None where they are not."""
        running = next((each for each in self.status.conditions if each.type == ConditionType.RUNNING.value), None)
        if running is None or running.reason != Reason.SUSPENDING.value:
            return None
        return parse_time(running.last_transition_time)

    def _pardoned(self, verdict: Verdict) -> Verdict:
        """An attempt that was removed because its author suspended it has not failed."""
        if verdict.state is State.FAILED and self._asked_to_stop() is not None:
            return Verdict(State.SUSPENDED, Reason.INTERRUPTED, "it was suspended before it had sealed a checkpoint")
        return verdict

    def _over(self, admitted: Admitted, record: LedgerStatus | None, attempt: Attempt, verdict: Verdict) -> Decision:
        """An attempt is over: write down how, and see what that means for the job."""
        self.irreversible = True
        ended = {
            "end_time": format_time(self.now),
            "reason": verdict.reason.value,
            "message": verdict.message or verdict.reason.sentence,
            "exit_code": verdict.exit_code,
        }
        attempt = attempt.model_copy(update=ended)
        self._record(attempt)
        ray_job = self._ray_job(attempt.ray_job_name)
        if ray_job is not None and not terminal(ray_job):
            self._delete(ray_job)
        match verdict.state:
            case State.SUCCEEDED:
                self._say(Phase.SUCCEEDED, Reason.COMPLETED, "")
            case State.EXHAUSTED:
                self._say(Phase.BUDGET_EXHAUSTED, Reason.BUDGET_EXHAUSTED, "")
            case State.SUSPENDED if admitted.job.spec.suspend:
                self._say(Phase.SUSPENDED, Reason.SUSPENDED, "")
            case State.SUSPENDED:
                self._say(Phase.STARTING, Reason.RETRYING, "")
            case _:
                self._failed(admitted, verdict)
        return self._done()

    def _failed(self, admitted: Admitted, verdict: Verdict) -> None:
        message = f"attempt {self.status.attempts[-1].number}: {verdict.message or verdict.reason.sentence}"
        most = admitted.job.spec.retry.max_attempts
        if verdict.reason in (Reason.DEADLINE_EXCEEDED,) or verdict.reason.permanent:
            self._say(Phase.FAILED, verdict.reason, f"{message} {verdict.reason.fix}")
        elif self._failures() >= most:
            self._say(Phase.FAILED, Reason.ATTEMPTS_EXHAUSTED, f"{message} (the last of {most})")
        else:
            self._say(Phase.STARTING, Reason.RETRYING, message)

    def _next(self, admitted: Admitted, record: LedgerStatus | None, last: Attempt | None) -> Decision:
        """No attempt is open: record the next one, once it may be."""
        if record is not None and has_ended(record):
            return self._ended(record)
        if self._suspended(admitted):
            return self._done()
        if last is not None and (left := self._backoff(last)) > self.now:
            self._say(Phase.STARTING, Reason.RETRYING, last.message or "")
            self.wakes.append(left)
            return self._done()  # time passes
        self._say(Phase.STARTING, Reason.STARTING, "")
        self._open(record)
        return self._done()  # acted on once it is stored

    def _ended(self, record: LedgerStatus) -> Decision:
        """The ledger tells of a final release, which the status has forgotten or the driver did not live to tell."""
        self.irreversible = True
        if record.outcome == Reason.BUDGET_EXHAUSTED.value:
            self._say(Phase.BUDGET_EXHAUSTED, Reason.BUDGET_EXHAUSTED, "")
        else:
            self._say(Phase.SUCCEEDED, Reason.COMPLETED, "")
        return self._done()

    def _open(self, record: LedgerStatus | None) -> None:
        known = [attempt.number for attempt in self.status.attempts]
        name = self.seen.job["metadata"]["name"]
        seen = [names.attempt_named(name, each["metadata"]["name"]) for each in self.seen.ray_jobs]
        number = 1 + max([0, *known, *seen, record.attempt if record is not None else 0])
        self.irreversible = True
        if number > MAX_ATTEMPTS:
            message = f"{MAX_ATTEMPTS} attempts were made, suspended ones among them"
            self._say(Phase.FAILED, Reason.ATTEMPTS_EXHAUSTED, message)
            return
        self._record(Attempt(number=number, ray_job_name=names.ray_job_name(name, number)))

    def _lost(self) -> Decision:
        """What was spent is not known any more: nothing may be added to it."""
        self.irreversible = True
        name = self.status.ledger_name
        for ray_job in self.seen.ray_jobs:
            if not terminal(ray_job):
                self._delete(ray_job)
        mend = Reason.LEDGER_LOST.fix
        self._say(Phase.FAILED, Reason.LEDGER_LOST, f"PrivacyLedger {name}: {Reason.LEDGER_LOST.sentence} {mend}")
        return self._done()

    def _suspended(self, admitted: Admitted) -> bool:
        if admitted.job.spec.suspend:
            self._say(Phase.SUSPENDED, Reason.SUSPENDED, "")
        return admitted.job.spec.suspend

    def _clean_up(self) -> None:
        """Remove the RayJobs of attempts that are over, after a while: their logs go with them."""
        open_name = next((each.ray_job_name for each in self.status.attempts if each.end_time is None), None)
        final = _over_for_good(self.status)
        keep = float(self.seen.job["spec"].get("childrenTTLSeconds", 3600)) if final else float(KEPT_SECONDS)
        ends = {each.ray_job_name: parse_time(each.end_time) for each in self.status.attempts}
        failed = {each.ray_job_name for each in self.status.attempts if each.reason not in _UNCOUNTED}
        for ray_job in self.seen.ray_jobs:
            name = ray_job["metadata"]["name"]
            ended = ends.get(name)
            if name == open_name or ended is None:
                continue
            due = ended + (max(keep, KEPT_SECONDS) if name in failed else keep)
            if not terminal(ray_job) or due <= self.now:
                self._delete(ray_job)
            else:
                self.wakes.append(due)

    def _in_the_way(self, number: int) -> bool:
        """Whether a RayJob goes on, or a pod is left of an earlier attempt, or of this one's RayJob that was deleted
        before it was seen.
        """
        if any(not terminal(each) for each in self.seen.ray_jobs):
            return True
        for pod in self.seen.pods:
            of = names.attempt_of(pod)
            going = parse_time(pod["metadata"].get("deletionTimestamp"))
            if going is not None:
                self.wakes.append(going + FORGOTTEN_SECONDS)
            forgotten = going is not None and self.now >= going + FORGOTTEN_SECONDS
            over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if of is not None and of <= number and not over and not forgotten:
                return True
        return False

    def _deadline(self, admitted: Admitted) -> Verdict | None:
        limit = admitted.job.spec.active_deadline_seconds
        if limit is None:
            return None
        spent = sum(
            (parse_time(each.end_time) or self.now) - (parse_time(each.start_time) or self.now)
            for each in self.status.attempts
        )
        if spent >= limit:
            return Verdict(State.FAILED, Reason.DEADLINE_EXCEEDED, f"all attempts together took {limit} s")
        self.wakes.append(self.now + limit - spent)
        return None

    def _backoff(self, last: Attempt) -> float:
        failures = self._failures()
        wait = 0.0 if last.reason in _UNCOUNTED else min(_LONGEST_BACKOFF, 10.0 * 2 ** max(0, failures - 1))
        return (parse_time(last.end_time) or 0.0) + wait

    def _failures(self) -> int:
        return sum(each.end_time is not None and each.reason not in _UNCOUNTED for each in self.status.attempts)

    def _restarts(self, record: LedgerStatus | None, number: int) -> int:
        charges = record.charges if record is not None else ()
        return next((charge.incarnation - 1 for charge in charges if charge.attempt == number), 0)

    def _ray_job(self, name: str | None) -> Object | None:
        return next((each for each in self.seen.ray_jobs if each["metadata"]["name"] == name), None)

    def _record(self, attempt: Attempt) -> None:
        others = [each for each in self.status.attempts if each.number != attempt.number]
        self.status.attempts = tuple(sorted([*others, attempt], key=lambda each: each.number))

    def _create(self, action: Create) -> None:
        self.irreversible = True
        self.actions.append(action)

    def _delete(self, ray_job: Object) -> None:
        metadata = ray_job["metadata"]
        if metadata.get("deletionTimestamp") is None:
            self.irreversible = True
            self.actions.append(DeleteRayJob(metadata["name"], metadata["uid"]))

    def _hindered(self) -> bool:
        """Whether workers that were there are not, and something keeps them from coming back."""
        workers = self.status.workers
        return workers is not None and workers.ready < workers.desired and obstacle(self.seen) is not None

    def _starting(self, phase: Phase) -> None:
        """It begins, unless something stands in the way."""
        stands = obstacle(self.seen)
        if stands is not None:
            self._say(phase, stands.reason, f"{stands.message.rstrip('.')}: {stands.reason.fix}", stalled=True)
        else:
            self._say(phase, Reason.STARTING, "")

    def _say(self, phase: Phase, reason: Reason, message: str, *, accepted: bool = True, stalled: bool = False) -> None:
        set_conditions(self.status, phase, reason, message, self.now, accepted=accepted, stalled=stalled)

    def _done(self) -> Decision:
        ahead = [wake for wake in self.wakes if wake > self.now and math.isfinite(wake)]
        return Decision(tuple(self.actions), self.status, min(ahead, default=None), self.irreversible)


def _over_for_good(status: Status) -> bool:
    """Whether the job has come to an end: from then on nothing is done for it but cleaning up."""
    return Phase(status.phase or Phase.PENDING).final
