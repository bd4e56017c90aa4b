"""Whether the bearer token of an HTTP request may read a path: the API server decides, as for its own paths.

TokenReview finds the user of the token. SubjectAccessReview finds whether RBAC allows the user to `get` the path, as a
rule with `nonResourceURLs`. Answers are kept for a short time, because Prometheus asks with each scrape. Tokens are not
kept, only their digests.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable

from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable

ALLOWED_SECONDS, DENIED_SECONDS = 60.0, 10.0
"""For how long an answer is used. A token that was revoked, and a right that was removed, still count for that long."""
_SCHEME = "bearer "
OK, UNAUTHENTICATED, NOT_ALLOWED, UNAVAILABLE = 200, 401, 403, 503


class Authorizer:
    """Answers for the tokens of the last requests.

    Args:
        api: must be allowed to create TokenReviews and SubjectAccessReviews, also while this process does not lead.
        clock: a time in seconds that never goes back.
    """

    def __init__(self, api: ApiClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._clock = api, clock
        self._answers: dict[bytes, tuple[int, float]] = {}
        """Digest of a token and a path → the answer, and until when it is used."""
        self._asking = asyncio.Lock()

    async def status(self, header: str, path: str) -> int:
        """The HTTP status for a request: 200, or 401 (no valid token), 403 (not allowed) or 503 (not known).

        Requests with new tokens wait for each other, and never delay those with known ones.

        Args:
            header: the request's header Authorization; empty if it has none.
        """
        if not header.lower().startswith(_SCHEME) or not (token := header[len(_SCHEME) :].strip()):
            return UNAUTHENTICATED
        try:
            digest = hashlib.sha256(f"{path}\0{token}".encode()).digest()
        except UnicodeEncodeError:  # a byte that is no UTF-8
            return UNAUTHENTICATED
        if (known := self._known(digest)) is not None:
            return known
        async with self._asking:
            if (known := self._known(digest)) is not None:
                return known
            try:
                answer = await self._ask(token, path)
            except (ApiUnavailable, ApiError):
                return UNAVAILABLE
            self._keep(digest, answer)
            return answer

    def _known(self, digest: bytes) -> int | None:
        """The answer that is still used, if there is one."""
        answer, until = self._answers.get(digest, (UNAVAILABLE, 0.0))
        return answer if self._clock() < until else None

    def _keep(self, digest: bytes, answer: int) -> None:
        now = self._clock()
        self._answers = {each: kept for each, kept in self._answers.items() if kept[1] > now}
        self._answers[digest] = (answer, now + (ALLOWED_SECONDS if answer == OK else DENIED_SECONDS))

    async def _ask(self, token: str, path: str) -> int:
        found = await self._api.review("TokenReview", {"token": token})
        if not found.get("authenticated"):
            return UNAUTHENTICATED
        user = found.get("user") or {}
        subject = {
            "user": user.get("username"),
            "uid": user.get("uid"),
            "groups": user.get("groups"),
            "extra": user.get("extra"),
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        allowed = await self._api.review("SubjectAccessReview", {k: v for k, v in subject.items() if v})
        return OK if allowed.get("allowed") else NOT_ALLOWED
