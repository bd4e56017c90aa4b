"""The ledger as a Kubernetes object, for jobs in a cluster: a `PrivacyLedger`, written by rank 0 from its own pod.

Every write is a new status under the resourceVersion of the one before, so of two writers one loses and looks again.
The API server holds what must hold whoever writes: charges only grow, a lower attempt is fenced, and only the pod whose
bound token this is writes under its claim (`tensafe_api.resources.ledger`, `tensafe_api.admission_policy`).

While the API server is away a call waits, for longer than any restart of it takes; nothing is run that was not charged.
An answer that was lost on the way is not asked for twice: the hash of the entry tells whether it was taken in.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any, cast

from kubernetes import client
from urllib3.exceptions import HTTPError

from tensafe_api.resources.job import GROUP, VERSION
from tensafe_api.resources.ledger import (
    MAX_EVALUATIONS,
    MAX_PUBLISHED_CHECKPOINTS,
    MAX_STARTS,
    ChargeRecord,
    LedgerSpec,
    LedgerStatus,
    PrivacyLedgerSpec,
    PublishedCheckpointRecord,
)
from tensafe_api.resources.status import EvaluationResult, Progress
from tensorguard.backoff import RETRY_SECONDS, retry_delays
from tensorguard.ledger.contract import (
    Charge,
    Fenced,
    LedgerCorrupt,
    LedgerForbidden,
    LedgerMissing,
    LedgerState,
    LedgerUnreachable,
    PublishedCheckpoint,
)
from tensorguard.ledger.fold import Entry, apply_entry, new_state
from tensorguard.ledger.writer import LedgerWriter

PLURAL = "privacyledgers"
REQUEST_SECONDS = 10.0
STARTING_SECONDS = 20.0
"""How long an API server may take, from its first answer, until it knows every role."""
_CONFLICT, _TOO_MANY, _NOT_FOUND = 409, 429, 404
_STARTING = (401, 403)
_BY_POLICY = re.compile("denied (the )?request")
"""How an admission policy or webhook begins its refusal."""

log = logging.getLogger(__name__)


class KubernetesLedger(LedgerWriter):
    """One job's ledger in a namespace. `claim` fences whoever held it before; there is no lock to wait for."""

    max_checkpoints: int | None = MAX_PUBLISHED_CHECKPOINTS

    def __init__(
        self,
        api: client.CustomObjectsApi,
        *,
        namespace: str,
        name: str,
        uid: str,
        pod_uid: str,
        patience_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Args: uid: of the ledger that the job was admitted with, since one of the same name made later is another's;
        pod_uid: of this pod, as its service account token is bound to it.
        """
        self._api = api
        self._where: dict[str, Any] = {
            "group": GROUP,
            "version": VERSION,
            "namespace": namespace,
            "plural": PLURAL,
            "name": name,
        }
        self._uid = uid
        self._pod_uid = pod_uid
        self._patience = patience_seconds
        self._claimed: tuple[int, int] | None = None
        self._longest = 0
        """The greatest length that this handle has seen: a shorter ledger was restored from a copy."""
        self._progress: Progress | None = None
        self._evaluations: list[EvaluationResult] = []

    def read(self) -> LedgerState:
        return self._state(self._get(_Call(self._patience)))

    def extends(self, head: str, length: int) -> bool:
        state = self.read()
        return 0 < length < state.length or (length, head) == (state.length, state.head)

    def acquire(self, *, attempt: int, from_step: int) -> LedgerState:
        def entry(state: LedgerState) -> Entry:
            if attempt < state.attempt:
                raise Fenced(f"attempt {attempt} comes too late: attempt {state.attempt} has claimed the ledger")
            incarnation = state.incarnation + 1 if attempt == state.attempt else 1
            return {
                "kind": "claim",
                "attempt": attempt,
                "incarnation": incarnation,
                "holder": self._pod_uid,
                "fromStep": from_step,
            }

        self._claimed = None
        state = self._write(entry)
        self._claimed = (attempt, state.incarnation)
        return state

    def set_progress(self, progress: Progress, evaluation: EvaluationResult | None = None) -> None:
        self._progress = progress
        if evaluation is not None:
            self._evaluations.append(evaluation)

    def wait_until_free(self) -> None:
        """At once: a claim fences whoever holds it."""

    def close(self) -> None:
        self._claimed = None

    def _record(self, entry: Entry) -> LedgerState:
        if self._claimed is None:
            raise Fenced("only the incarnation that has claimed a ledger may write to it")
        claimed = self._claimed

        def checked(state: LedgerState) -> Entry:
            holder = next((charge.holder for charge in state.charges if charge.attempt == state.attempt), None)
            if (state.attempt, state.incarnation) != claimed or holder != self._pod_uid:
                raise Fenced(
                    f"attempt {claimed[0]}, incarnation {claimed[1]} is fenced: attempt {state.attempt}, "
                    f"incarnation {state.incarnation} has claimed the ledger"
                )
            return entry

        return self._write(checked)

    def _write(self, entry_for: Callable[[LedgerState], Entry]) -> LedgerState:
        """Add the entry that suits the state, and return the state after it. Looks again after each conflict."""
        heads: set[str] = set()  # of what we have tried: one of them may have been taken in without our hearing of it
        call = _Call(self._patience)
        for wait in retry_delays():
            found = self._get(call)
            state = self._state(found)
            if state.head in heads:
                return state
            entry = entry_for(state)
            head = _hash(state.head, entry)
            heads.add(head)
            new = apply_entry(state, entry, head)
            status = self._encode(new, found.get("status", {}))
            try:
                written = self._put({**found, "status": status}, call)
            except _LookAgain as unknown:
                if call.is_over():
                    raise LedgerUnreachable(f"no write has got through for {self._patience:.0f} seconds") from unknown
                time.sleep(wait)
                continue
            self._evaluations.clear()
            return self._state(written)
        raise AssertionError("waits never end")

    def _get(self, call: _Call) -> dict[str, Any]:
        """The object as it is. Waits while the API server is away."""
        for wait in retry_delays():
            try:
                found: Any = self._api.get_namespaced_custom_object(**self._where, _request_timeout=REQUEST_SECONDS)
            except client.ApiException as error:
                if error.status == _NOT_FOUND:
                    raise LedgerMissing(f"there is no ledger {self._name}: it was deleted") from error
                if not call.may_change(error):
                    raise LedgerForbidden(f"{self._name} cannot be read: {_words(error)}") from error
                log.warning("the API server answers %s %s; waiting", error.status, error.reason)
            except (HTTPError, OSError) as error:
                log.warning("the API server does not answer (%s); waiting", type(error).__name__)
            else:
                return self._ours(found)
            if call.is_over():
                raise LedgerUnreachable(f"the API server has not answered for {self._patience:.0f} seconds")
            time.sleep(wait)
        raise AssertionError("waits never end")

    def _put(self, document: dict[str, Any], call: _Call) -> dict[str, Any]:
        """Replace the status.

        Raises:
            _LookAgain: where somebody else wrote first, or nobody knows whether this was written.
            Fenced: where the API server says that this pod may not write.
        """
        try:
            written: Any = self._api.replace_namespaced_custom_object_status(
                **self._where, body=document, _request_timeout=REQUEST_SECONDS
            )
        except client.ApiException as error:
            if error.status in (_CONFLICT, _NOT_FOUND) or call.may_change(error):
                raise _LookAgain from error
            raise Fenced(f"the API server refuses this write to {self._name}: {_words(error)}") from error
        except (HTTPError, OSError) as error:
            raise _LookAgain from error
        return cast(dict[str, Any], written)

    def _ours(self, found: dict[str, Any]) -> dict[str, Any]:
        if found["metadata"]["uid"] != self._uid:
            raise LedgerCorrupt(f"{self._name} is another ledger than the job's own, which was deleted")
        return found

    def _state(self, found: dict[str, Any]) -> LedgerState:
        state = decode(found)
        if state.length < self._longest:
            raise LedgerCorrupt(
                f"{self._name} has {state.length} entries and had {self._longest}: it was restored from a copy; "
                "what was spent stays spent"
            )
        self._longest = state.length
        return state

    def _encode(self, state: LedgerState, before: dict[str, Any]) -> dict[str, Any]:
        """The status that says `state`; what the state knows nothing of stays, or becomes what was noted."""
        known = {record["uri"]: record for record in before.get("releases", ())}
        releases = tuple(
            PublishedCheckpointRecord.model_validate(known[release.uri])
            if release.uri in known
            else _record(release, state)
            for release in state.checkpoints
        )
        evaluations = {
            record["step"]: EvaluationResult.model_validate(record) for record in before.get("evaluations", ())
        }
        evaluations |= {evaluation.step: evaluation for evaluation in self._evaluations}
        progress = self._progress or Progress.model_validate(before.get("progress", {}))
        status = LedgerStatus(
            attempt=state.attempt,
            charges=tuple(
                ChargeRecord(
                    attempt=charge.attempt, steps=charge.steps, incarnation=charge.incarnation, pod_uid=charge.holder
                )
                for charge in state.charges
            ),
            charged_through=state.charged_through,
            starts=state.start_steps[-MAX_STARTS:],
            steps_recharged=state.steps_recharged,
            releases=releases,
            dataset_digest=state.dataset_digest,
            outcome=state.outcome,
            progress=progress,
            evaluations=tuple(evaluations[step] for step in sorted(evaluations))[-MAX_EVALUATIONS:],
            length=state.length,
            head=state.head,
        )
        return status.model_dump(by_alias=True, mode="json", exclude_none=True)

    @property
    def _name(self) -> str:
        return f"{PLURAL}/{self._where['name']} in {self._where['namespace']}"


def decode(found: dict[str, Any]) -> LedgerState:
    """The state that a PrivacyLedger object says.

    Raises:
        LedgerCorrupt: where it is not one of this version.
    """
    try:
        spec = PrivacyLedgerSpec.model_validate(found["spec"], by_alias=True, by_name=False)
        frozen = LedgerSpec.model_validate({name: getattr(spec, name) for name in LedgerSpec.model_fields})
        empty = new_state(frozen, _hash("", {"kind": "open", "uid": found["metadata"]["uid"]}))
        if "status" not in found:
            return empty
        status = LedgerStatus.model_validate(found["status"], by_alias=True, by_name=False)
    except (ValueError, KeyError) as error:
        raise LedgerCorrupt(f"a ledger that this version of tensafe cannot read: {error}") from error
    charges = tuple(
        Charge(record.attempt, record.steps, record.incarnation, record.pod_uid) for record in status.charges
    )
    return LedgerState(
        spec=frozen,
        attempt=status.attempt,
        incarnation=next(charge.incarnation for charge in charges if charge.attempt == status.attempt),
        charges=charges,
        checkpoints=tuple(
            PublishedCheckpoint(
                step=record.step,
                attempt=record.attempt,
                uri=record.uri,
                digest=record.digest,
                statement_digest=record.statement_digest,
                final=record.final,
            )
            for record in status.releases
        ),
        steps_recharged=status.steps_recharged,
        start_steps=status.starts,
        charged_through=status.charged_through,
        outcome=status.outcome,
        dataset_digest=status.dataset_digest,
        head=status.head,
        length=status.length,
    )


class _LookAgain(Exception):
    """The write was not taken in, or nobody knows: only a new look can tell."""


def _record(release: PublishedCheckpoint, state: LedgerState) -> PublishedCheckpointRecord:
    return PublishedCheckpointRecord(
        uri=release.uri,
        step=release.step,
        attempt=release.attempt,
        digest=release.digest,
        statement_digest=release.statement_digest,
        final=release.final,
        steps_charged=state.steps_charged,
    )


def _hash(previous: str, entry: Entry) -> str:
    text = json.dumps([previous, entry], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class _Call:
    """The patience of one call, which may need several requests."""

    def __init__(self, patience: float) -> None:
        self._deadline = time.monotonic() + patience
        self._refused: float | None = None

    def is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def may_change(self, error: client.ApiException) -> bool:
        """Whether the API server may answer otherwise in a moment.

        One that has just started refuses whom it then lets in: it answers before it has read all roles, accounts and
        policies. Only a policy's own words are final at once.
        """
        if error.status in (0, _TOO_MANY) or error.status >= 500:
            return True
        if error.status not in _STARTING or _BY_POLICY.search(_words(error)):
            return False
        now = time.monotonic()
        self._refused = now if self._refused is None else self._refused
        return now < self._refused + STARTING_SECONDS


def _words(error: client.ApiException) -> str:
    """The API server's own sentence."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"
