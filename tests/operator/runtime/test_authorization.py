"""Who may read the metrics: the answers of the API server, and for how long they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable
from tensafe_operator.runtime.authorization import ALLOWED_SECONDS, DENIED_SECONDS, Authorizer

USERS = {
    "reader": {"username": "prometheus", "uid": "1", "groups": ["monitoring"], "extra": {"pod": ["p"]}},
    "other": {"username": "other"},
}


class Reviews:
    """An API server that knows two tokens, and lets the user of one read the metrics."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.failure: Exception | None = None
        self.now = 0.0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def review(self, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((kind, spec))
        await asyncio.sleep(0)
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        if kind == "TokenReview":
            user = USERS.get(spec["token"])
            return {"authenticated": True, "user": user} if user else {"error": "invalid bearer token"}
        return {"allowed": spec["user"] == "prometheus"}


@pytest.fixture
def reviews() -> Reviews:
    return Reviews()


@pytest.fixture
def authorizer(reviews: Reviews) -> Authorizer:
    server: Any = reviews
    return Authorizer(server, lambda: reviews.now)


def ask(authorizer: Authorizer, header: str) -> int:
    return asyncio.run(authorizer.status(header, "/metrics"))


@pytest.mark.parametrize("header", ["", "reader", "Basic cmVhZGVy", "Bearer", "Bearer  ", "Bearer reader\udcff"])
def test_request_without_a_bearer_token_is_refused_without_a_review(
    header: str, authorizer: Authorizer, reviews: Reviews
) -> None:
    assert ask(authorizer, header) == 401
    assert reviews.asked == []


def test_user_of_the_token_needs_the_right_to_get_the_path(authorizer: Authorizer, reviews: Reviews) -> None:
    assert ask(authorizer, "Bearer reader") == 200
    assert ask(authorizer, "bearer other") == 403
    assert ask(authorizer, "Bearer unknown") == 401
    kinds = [kind for kind, _ in reviews.asked]
    assert kinds == ["TokenReview", "SubjectAccessReview"] * 2 + ["TokenReview"]
    assert reviews.asked[1][1] == {
        "user": "prometheus",
        "uid": "1",
        "groups": ["monitoring"],
        "extra": {"pod": ["p"]},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }


@pytest.mark.parametrize(("token", "seconds"), [("reader", ALLOWED_SECONDS), ("other", DENIED_SECONDS)])
def test_answer_is_used_for_a_short_time(token: str, seconds: float, authorizer: Authorizer, reviews: Reviews) -> None:
    first = ask(authorizer, f"Bearer {token}")
    reviews.now = seconds - 1
    assert ask(authorizer, f"Bearer {token}") == first
    assert len(reviews.asked) == 2
    reviews.now = seconds
    assert ask(authorizer, f"Bearer {token}") == first
    assert len(reviews.asked) == 4


@pytest.mark.parametrize("failure", [ApiUnavailable("no answer"), ApiError(403, "may not create tokenreviews")])
def test_without_an_answer_nothing_is_served_and_nothing_is_kept(
    failure: Exception, authorizer: Authorizer, reviews: Reviews
) -> None:
    reviews.failure = failure
    assert ask(authorizer, "Bearer reader") == 503
    reviews.failure = None
    assert ask(authorizer, "Bearer reader") == 200


def test_requests_at_the_same_time_ask_once(authorizer: Authorizer, reviews: Reviews) -> None:
    async def run() -> list[int]:
        return await asyncio.gather(*(authorizer.status("Bearer reader", "/metrics") for _ in range(5)))

    assert asyncio.run(run()) == [200] * 5
    assert len(reviews.asked) == 2


def test_revoked_token_is_denied_and_no_longer_counts_as_allowed(authorizer: Authorizer, reviews: Reviews) -> None:
    assert ask(authorizer, "Bearer reader") == 200
    reviews.now = ALLOWED_SECONDS
    with pytest.MonkeyPatch.context() as revoked:
        revoked.delitem(USERS, "reader")
        assert ask(authorizer, "Bearer reader") == 401


def test_answers_that_are_over_are_forgotten_and_no_token_is_kept(authorizer: Authorizer, reviews: Reviews) -> None:
    for number in range(5):
        ask(authorizer, f"Bearer guess-{number}")
    assert "guess" not in repr(vars(authorizer))
    reviews.now = DENIED_SECONDS
    ask(authorizer, "Bearer reader")
    assert len(authorizer._answers) == 1
