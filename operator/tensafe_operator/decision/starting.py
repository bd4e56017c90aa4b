"""Starting: create what an attempt needs, its RayJob last, once nothing of an earlier attempt is left.

The NetworkPolicy is kept as it was created for as long as the attempt runs.
"""

from __future__ import annotations

from tensafe_api.reasons import Phase
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import parse_time
from tensafe_operator import names
from tensafe_operator.children import Manifest, access, configuration, matches, network, rayjob, tls
from tensafe_operator.decision.admission import Admitted
from tensafe_operator.decision.attempts import is_queued
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.conditions import blocked_state
from tensafe_operator.decision.diagnosis import POLL_SECONDS, find_unanswered, starting_state
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.observation import Object
from tensafe_operator.decision.parsing import are_all_ready, is_terminal
from tensafe_operator.decision.predecessors import find_predecessors, waiting_state
from tensafe_operator.decision.profile import take_profile

ANSWER_SECONDS = 2.0


def has_predecessors(draft: Draft, admitted: Admitted, attempt: Attempt) -> bool:
    """Return whether something of an earlier attempt is left: a RayJob, which is deleted, or pods. The job says so."""
    for ray_job in draft.observed.ray_jobs:
        # One that runs is not in the status, which a user has cleared. One that has ended keeps its pods for
        # podsTTLSeconds, and the operator may not delete its RayCluster alone.
        if not is_terminal(ray_job) or (admitted.job.spec.pods_ttl_seconds and _has_pods(draft, ray_job)):
            draft.delete(ray_job)
    predecessors = find_predecessors(draft.observed, attempt.number, draft.now)
    draft.wake_at(*predecessors.wakes)
    if predecessors.alive:
        unanswered = find_unanswered(draft)
        draft.set_state(blocked_state(unanswered, Phase.STARTING) if unanswered else waiting_state(draft, predecessors))
    return predecessors.alive


def start_attempt(draft: Draft, admitted: Admitted, attempt: Attempt) -> None:
    """Start an attempt that the status records and that has no RayJob yet, or wait until it may start."""
    if has_predecessors(draft, admitted, attempt):
        return  # the pods terminate, or a user deletes them
    if not draft.observed.kuberay:
        draft.set_state(starting_state(draft.observed, Phase.PENDING))
        draft.wake_at(draft.now + POLL_SECONDS)
        return  # the cluster administrator installs KubeRay
    taken = with_profile(draft, admitted)
    if taken is None:
        return  # the cluster administrator corrects the profile, or the author the manifest
    draft.irreversible |= attempt.number > 1  # the cache may not have the pods of the last attempt yet
    for manifest in children_of(draft, taken, attempt):
        draft.create(manifest)
    draft.set_state(starting_state(draft.observed, Phase.STARTING))
    # KubeRay creates the RayCluster.


def answer_due(ray_job: Object) -> float:
    """Return until when KubeRay's first status of a new RayJob is waited for, in seconds since the epoch. That of one
    in a queue is not.
    """
    if ray_job.get("status") or is_queued(ray_job):
        return 0.0
    return (parse_time(ray_job["metadata"].get("creationTimestamp")) or 0.0) + ANSWER_SECONDS


def _has_pods(draft: Draft, ray_job: Object) -> bool:
    number = names.attempt_named(draft.observed.job["metadata"]["name"], ray_job["metadata"]["name"])
    return any(names.attempt_of(pod) == number for pod in draft.observed.pods)


def with_profile(draft: Draft, admitted: Admitted) -> Admitted | None:
    """Return the job with the values of its profile. None where they cannot be taken: the job is then stalled.

    A cache has no profiles, so the decision is made on the API server's own answer.
    """
    draft.irreversible |= admitted.job.spec.cluster.profile_ref is not None
    taken = take_profile(admitted, draft.observed.profile)
    if isinstance(taken, Blocker):
        draft.set_state(blocked_state(taken, Phase.PENDING))
        draft.wake_at(draft.now + POLL_SECONDS)
        return None
    return taken


def correct_children(draft: Draft, admitted: Admitted) -> None:
    """Bring back the NetworkPolicy of a running attempt, where it is missing or was changed. Until its pods are ready,
    also the service account and the RoleBinding, which a user or the end of a namespace may have removed.
    """
    wanted = network.policy(admitted.job, draft.settings)
    if wanted is not None and not any(matches(each, wanted) for each in draft.observed.corrected):
        draft.create(wanted)
    if not are_all_ready(draft.observed):
        for manifest in _rights(draft, admitted):
            draft.create(manifest)


def children_of(draft: Draft, admitted: Admitted, attempt: Attempt) -> list[Manifest]:
    """Return the manifests of everything that an attempt needs, its RayJob last."""
    job, opened, status = admitted.job, admitted.opened, draft.status
    assert opened is not None, "an attempt is recorded after the ledger's UID"
    name, uid = status.ledger_name or "", status.ledger_uid or ""
    parameters = configuration.config_map(job, attempt.number, name, uid, opened.key_digest)
    key, account = opened.key_secret_name, opened.service_account_name
    ray_job = rayjob.ray_job(
        job, attempt.number, draft.settings, parameters=parameters, key_secret=key, account=account
    )
    secret = tls.attempt_secret(job, attempt.number, draft.settings)
    authority = tls.certificate(job, attempt.number, draft.settings)
    children = [*_rights(draft, admitted), network.policy(job, draft.settings), parameters, secret, authority, ray_job]
    return [each for each in children if each is not None]


def _rights(draft: Draft, admitted: Admitted) -> list[Manifest]:
    """The service account of the workers, unless the job names its own, and its RoleBinding."""
    assert admitted.opened is not None, "an attempt is recorded after the ledger's UID"
    account = access.account(admitted.job, draft.settings)
    binding = access.role_binding(admitted.job, admitted.opened.service_account_name)
    return [binding] if account is None else [account, binding]
