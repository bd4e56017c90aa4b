"""The ledger as a Kubernetes object, for jobs in a cluster: a `PrivacyLedger`, written by rank 0 from its own pod.

Every write replaces the status under the resourceVersion that was read. Of two concurrent writers one fails and reads
again. The API server enforces what must hold for every writer: charges only grow, a lower attempt is fenced, and only
the pod to which the token is bound writes under its acquisition (`tensafe_api.resources.ledger`,
`tensafe_api.schema.admission_policy`). `kubernetes_object` translates between objects and ledger states.

While the API server is unavailable a call waits, for longer than any restart of the API server takes. Nothing runs that
was not charged. A write whose answer was lost is not repeated: the hash of the entry shows whether the write succeeded.

A user who may create tokens of the pod's service account can write as this pod. The API server then still refuses to
lower a charge, and this process ends: it compares each state that it reads with the one that it wrote last. Each entry
has a new random number, so its hash cannot be guessed. No other process can write a head that this one takes for its
own while its charge is missing.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, cast

from kubernetes import client
from urllib3.exceptions import HTTPError

from tensafe_api.resources.job import GROUP, VERSION
from tensafe_api.resources.ledger import MAX_PUBLISHED_CHECKPOINTS
from tensafe_api.resources.status import EvaluationResult, Progress
from tensorguard.backoff import RETRY_SECONDS, retry_delays
from tensorguard.ledger.contract import (
    Fenced,
    LedgerCorrupt,
    LedgerForbidden,
    LedgerMissing,
    LedgerState,
    LedgerUnreachable,
)
from tensorguard.ledger.fold import Entry, apply_entry
from tensorguard.ledger.kubernetes_object import decode, encode, entry_hash, holder_of
from tensorguard.ledger.writer import LedgerWriter

PLURAL = "privacyledgers"
REQUEST_SECONDS = 10.0
STARTING_SECONDS = 20.0
"""How long an API server may take, from its first answer, to load every role."""
_CONFLICT, _TOO_MANY, _NOT_FOUND = 409, 429, 404
_STARTING = (401, 403)
_BY_POLICY = re.compile("denied (the )?request")
"""The start of the message with which an admission policy or webhook refuses a request."""

log = logging.getLogger(__name__)


class KubernetesLedger(LedgerWriter):
    """One job's ledger in a namespace. `acquire` fences the previous holder; there is no lock to wait for."""

    max_checkpoints: int | None = MAX_PUBLISHED_CHECKPOINTS

    def __init__(
        self,
        api: client.CustomObjectsApi,
        *,
        namespace: str,
        name: str,
        uid: str,
        pod_uid: str,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Refer to a ledger object, without reading it.

        Args:
            api: a client of the API server.
            namespace: of the object.
            name: of the object.
            uid: of the ledger that the job was admitted with. A later object of the same name is another ledger.
            pod_uid: of this pod, to which its service account token is bound.
            retry_seconds: how long a request is retried.
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
        self._writer = secrets.token_hex(16)
        """Identifies this process among all that may write to the ledger, also in the same pod."""
        self._holder = holder_of(pod_uid, self._writer)
        self._retry_seconds = retry_seconds
        self._held_as: tuple[int, int] | None = None
        """The attempt and incarnation as which this process acquired the ledger."""
        self._max_length = 0
        """The greatest length that this object has read. A shorter ledger was restored from a copy."""
        self._written: LedgerState | None = None
        """The state after the last write of this process, while it holds the ledger."""
        self._progress: Progress | None = None
        self._evaluations: list[EvaluationResult] = []

    def read(self) -> LedgerState:
        return self._state(self._get(_Call(self._retry_seconds)))

    def extends(self, head: str, length: int) -> bool:
        state = self.read()
        return 0 < length < state.length or (length, head) == (state.length, state.head)

    def acquire(self, *, attempt: int, from_step: int) -> LedgerState:
        def entry(state: LedgerState) -> Entry:
            if attempt < state.attempt:
                raise Fenced(f"attempt {attempt} is fenced: attempt {state.attempt} has acquired the ledger")
            incarnation = state.incarnation + 1 if attempt == state.attempt else 1
            return {
                "kind": "claim",
                "attempt": attempt,
                "incarnation": incarnation,
                "holder": self._holder,
                "fromStep": from_step,
            }

        self._held_as = self._written = None
        state = self._write(entry)
        self._held_as = (attempt, state.incarnation)
        return state

    def set_progress(self, progress: Progress, evaluation: EvaluationResult | None = None) -> None:
        self._progress = progress
        if evaluation is not None:
            self._evaluations.append(evaluation)

    def wait_until_free(self) -> None:
        """Returns immediately: `acquire` fences the holder."""

    def close(self) -> None:
        self._held_as = self._written = None

    def _record(self, entry: Entry) -> LedgerState:
        if self._held_as is None:
            raise Fenced("only the incarnation that has acquired a ledger may write to it")
        held_as = self._held_as

        def checked(state: LedgerState) -> Entry:
            holder = next((charge.holder for charge in state.charges if charge.attempt == state.attempt), None)
            if (state.attempt, state.incarnation) != held_as or holder != self._holder:
                raise Fenced(
                    f"attempt {held_as[0]}, incarnation {held_as[1]} is fenced: attempt {state.attempt}, "
                    f"incarnation {state.incarnation} has acquired the ledger from another process"
                )
            self._check_same(state, self._written)
            return entry

        return self._write(checked)

    def _write(self, entry_for: Callable[[LedgerState], Entry]) -> LedgerState:
        """Add the entry that `entry_for` gives for the current state, and return the new state. Reads again after each
        conflict.
        """
        tried: dict[str, LedgerState] = {}
        """What we tried to write, by head: one write may have succeeded although its answer was lost."""
        call = _Call(self._retry_seconds)
        for wait in retry_delays():
            found = self._get(call)
            state = self._state(found)
            if state.head in tried:
                self._check_same(state, tried[state.head])
                self._written = state
                return state
            entry = {**entry_for(state), "writer": self._writer, "nonce": secrets.token_hex(16)}
            head = entry_hash(state.head, entry)
            new = apply_entry(state, entry, head)
            status = encode(new, found.get("status", {}), self._progress, self._evaluations)
            document = {**found, "status": status}
            tried[head] = expected = decode(document)
            try:
                written = self._put(document, call)
            except _ReadAgain as unknown:
                if call.is_over():
                    raise LedgerUnreachable(
                        f"no write has succeeded for {self._retry_seconds:.0f} seconds"
                    ) from unknown
                time.sleep(wait)
                continue
            self._evaluations.clear()
            self._check_same(self._state(written), expected)
            self._written = expected
            return expected
        raise AssertionError("waits never end")

    def _get(self, call: _Call) -> dict[str, Any]:
        """The current object. Waits while the API server is unavailable."""
        for wait in retry_delays():
            try:
                found: Any = self._api.get_namespaced_custom_object(**self._where, _request_timeout=REQUEST_SECONDS)
            except client.ApiException as error:
                if error.status == _NOT_FOUND and _names_object(error):
                    raise LedgerMissing(f"there is no ledger {self._name}: it was deleted") from error
                if error.status != _NOT_FOUND and not call.may_change(error):
                    raise LedgerForbidden(f"{self._name} cannot be read: {_server_message(error)}") from error
                log.warning("the API server answers %s %s; retrying", error.status, error.reason)
            except (HTTPError, OSError) as error:
                log.warning("the API server does not answer (%s); retrying", type(error).__name__)
            else:
                return self._checked_uid(found)
            if call.is_over():
                raise LedgerUnreachable(f"the API server has not answered for {self._retry_seconds:.0f} seconds")
            time.sleep(wait)
        raise AssertionError("waits never end")

    def _put(self, document: dict[str, Any], call: _Call) -> dict[str, Any]:
        """Replace the status.

        Raises:
            _ReadAgain: if another process wrote first, or if it is unknown whether this write succeeded.
            Fenced: if the API server refuses writes of this pod.
        """
        try:
            written: Any = self._api.replace_namespaced_custom_object_status(
                **self._where, body=document, _request_timeout=REQUEST_SECONDS
            )
        except client.ApiException as error:
            if error.status in (_CONFLICT, _NOT_FOUND) or call.may_change(error):
                raise _ReadAgain from error
            raise Fenced(f"the API server refuses this write to {self._name}: {_server_message(error)}") from error
        except (HTTPError, OSError) as error:
            raise _ReadAgain from error
        return cast(dict[str, Any], written)

    def _checked_uid(self, found: dict[str, Any]) -> dict[str, Any]:
        if found["metadata"]["uid"] != self._uid:
            raise LedgerCorrupt(f"{self._name} is not the ledger that this job was admitted with, which was deleted")
        return found

    def _check_same(self, found: LedgerState, expected: LedgerState | None) -> None:
        """Refuse a state that is not what this process wrote. Raises LedgerCorrupt."""
        if found != expected:
            raise LedgerCorrupt(_foreign_write(self._name))

    def _state(self, found: dict[str, Any]) -> LedgerState:
        state = decode(found)
        if state.length < self._max_length:
            raise LedgerCorrupt(
                f"{self._name} has {state.length} entries and had {self._max_length}: it was restored from a copy; "
                "charged steps stay charged"
            )
        self._max_length = state.length
        return state

    @property
    def _name(self) -> str:
        return f"{PLURAL}/{self._where['name']} in {self._where['namespace']}"


class _ReadAgain(Exception):
    """The write failed, or its result is unknown. Only another read can show it."""


class _Call:
    """The deadline of one call, which may need several requests."""

    def __init__(self, retry_seconds: float) -> None:
        self._deadline = time.monotonic() + retry_seconds
        self._first_refusal: float | None = None

    def is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def may_change(self, error: client.ApiException) -> bool:
        """Whether the API server may answer differently in a moment.

        An API server that has just started refuses requests that it accepts later: it answers before it has read all
        roles, accounts and policies. Only the refusal of a policy is final immediately.
        """
        if error.status in (0, _TOO_MANY) or error.status >= 500:
            return True
        if error.status not in _STARTING or _BY_POLICY.search(_server_message(error)):
            return False
        now = time.monotonic()
        self._first_refusal = now if self._first_refusal is None else self._first_refusal
        return now < self._first_refusal + STARTING_SECONDS


def _names_object(error: client.ApiException) -> bool:
    """Whether an answer is about an object, and not about a kind that the API server does not serve."""
    try:
        return bool(json.loads(error.body or "")["details"]["name"])
    except (ValueError, KeyError, TypeError):
        return False


def _foreign_write(name: str) -> str:
    return (
        f"{name} is not what this process wrote: another process has written to it as this pod; see who may create "
        "tokens of the job's service account"
    )


def _server_message(error: client.ApiException) -> str:
    """The message of the API server."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"
