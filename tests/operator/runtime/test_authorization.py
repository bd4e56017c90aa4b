"""Who may read the metrics: the answers of the API server, and for how long they are used."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tensafe_operator.runtime import authorization
from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable
from tensafe_operator.runtime.authorization import ALLOWED_SECONDS, DENIED_SECONDS, MAX_ANSWERS, MAX_WAITING, Authorizer

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


def test_answers_are_bounded_and_hold_no_token(authorizer: Authorizer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ANSWERS <= 1000
    monkeypatch.setattr(authorization, "MAX_ANSWERS", 3)
    for number in range(5):
        ask(authorizer, f"Bearer guess-{number}")
        monkeypatch.setitem(USERS, f"good-{number}", USERS["reader"])
        ask(authorizer, f"Bearer good-{number}")
    assert len(authorizer._allowed) == len(authorizer._denied) == 3
    assert not {"guess", "good"} & set(re.findall("[a-z]+", repr(vars(authorizer))))


def test_guesses_do_not_replace_the_answer_for_a_token_that_is_allowed(
    authorizer: Authorizer, reviews: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "MAX_ANSWERS", 3)
    assert ask(authorizer, "Bearer reader") == 200
    for number in range(5):
        assert ask(authorizer, f"Bearer guess-{number}") == 401
    asked = len(reviews.asked)
    assert ask(authorizer, "Bearer reader") == 200
    assert len(reviews.asked) == asked


def test_revoked_token_is_denied_and_no_longer_counts_as_allowed(authorizer: Authorizer, reviews: Reviews) -> None:
    assert ask(authorizer, "Bearer reader") == 200
    reviews.now = ALLOWED_SECONDS
    with pytest.MonkeyPatch.context() as revoked:
        revoked.delitem(USERS, "reader")
        assert ask(authorizer, "Bearer reader") == 401
    assert authorizer._allowed == {}


def test_new_tokens_are_refused_at_once_while_too_many_wait(authorizer: Authorizer, reviews: Reviews) -> None:
    """The token that was allowed before is never among those that are refused so, though its answer is too old."""

    async def run() -> None:
        assert await authorizer.status("Bearer reader", "/metrics") == 200
        reviews.now = ALLOWED_SECONDS
        reviews.may_answer.clear()
        asked = len(reviews.asked)
        guesses = [asyncio.create_task(authorizer.status(f"Bearer guess-{n}", "/metrics")) for n in range(100)]
        await asyncio.wait(guesses, return_when=asyncio.FIRST_COMPLETED)
        refused = [each for each in guesses if each.done()]
        assert [each.result() for each in refused] == [503] * (100 - 1 - MAX_WAITING)
        reader = asyncio.create_task(authorizer.status("Bearer reader", "/metrics"))
        reviews.may_answer.set()
        waited = [each for each in guesses if each not in refused]
        assert await asyncio.gather(*waited) == [401] * (1 + MAX_WAITING)
        assert await reader == 200
        assert len(reviews.asked) == asked + 1 + MAX_WAITING + 2
        assert await authorizer.status("Bearer guess-99", "/metrics") == 401, "there is room again"

    assert MAX_WAITING <= 20
    asyncio.run(run())
