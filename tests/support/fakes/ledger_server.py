"""An API server in memory that stores one `PrivacyLedger`, for the tests of requests that fail or collide."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from kubernetes.client import ApiException
from urllib3.exceptions import ProtocolError

from tensorguard.ledger.kubernetes_object import decode
from tests.support.ledger_objects import SPEC


class LedgerServer:
    """One PrivacyLedger under optimistic concurrency, as the API server stores it.

    Attributes:
        before_write, after_write: what other processes do just before the next write is stored, and between the write
            and its answer. Each is called once.
        answers_lost: how many answers of writes are lost next.
        read_errors, write_errors: raised in place of the next reads and writes, which do not reach the server.
        requests: the keyword arguments of all requests, without the body.
    """

    def __init__(self) -> None:
        self.object: dict[str, Any] = {"metadata": {"uid": "ledger-uid", "resourceVersion": "1"}, "spec": SPEC}
        self.before_write: list[Callable[[], object]] = []
        self.after_write: list[Callable[[], object]] = []
        self.answers_lost = 0
        self.read_errors: list[Exception] = []
        self.write_errors: list[Exception] = []
        self.requests: list[dict[str, Any]] = []

    def get_namespaced_custom_object(self, **arguments: Any) -> dict[str, Any]:
        self.requests.append(arguments)
        if self.read_errors:
            raise self.read_errors.pop(0)
        return copy.deepcopy(self.object)

    def replace_namespaced_custom_object_status(self, body: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        self.requests.append(arguments)
        if self.write_errors:
            raise self.write_errors.pop(0)
        if self.before_write:
            self.before_write.pop()()
        version = self.object["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise ApiException(409, "Conflict")
        self.object = copy.deepcopy(body)
        self.object["metadata"]["resourceVersion"] = str(int(version) + 1)
        answer = copy.deepcopy(self.object)
        lost, self.answers_lost = self.answers_lost > 0, max(0, self.answers_lost - 1)
        if self.after_write:
            self.after_write.pop()()
        if lost:
            raise ProtocolError("connection reset before the answer was read")
        return answer

    @property
    def steps_charged(self) -> int:
        return decode(self.object).steps_charged
