"""A job that does not change is followed from bookmarks and lists: the API server forgets the job's own version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tensafe_kubectl import watching
from tensafe_kubectl.errors import GONE, CommandError, Refused, Request
from tensafe_kubectl.reading import JOBS
from tensafe_kubectl.watching import watch_job


def job(version: str, uid: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": "triage", "namespace": "clinic", "uid": uid, "resourceVersion": version}}


class ScriptedApi:
    """Answers each watch with the next script: events, or the refusal of a version that is too old."""

    server = "https://cluster"

    def __init__(self, *watches: list[tuple[str, Any]] | None, listed: tuple[Any, str] = (None, "")) -> None:
        self.watches, self.listed = list(watches), listed
        self.versions: list[str] = []

    def watch(self, resource: Any, namespace: str, name: str, version: str) -> Iterator[tuple[str, Any]]:
        self.versions.append(version)
        events = self.watches.pop(0)
        if events is None:
            raise Refused(Request("watch", resource, namespace), GONE, "too old resource version")
        yield from events

    def list_one(self, resource: Any, namespace: str, name: str) -> tuple[Any, str]:
        assert (resource, namespace, name) == (JOBS, "clinic", "triage")
        return self.listed


def followed(api: Any, count: int) -> list[Any]:
    states = watch_job(api, job("1"), pytest.fail)
    return [next(states) for _ in range(count)]


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FIRST_BACKOFF", 0.0)


def test_version_that_is_too_old_is_replaced_by_that_of_a_list() -> None:
    api = ScriptedApi(None, [("MODIFIED", job("9001"))], listed=(job("1"), "9000"))
    assert followed(api, 3) == [job("1"), job("1"), job("9001")]
    assert api.versions == ["1", "9000"]


def test_watch_is_opened_again_at_the_last_bookmark() -> None:
    bookmark = ("BOOKMARK", {"metadata": {"resourceVersion": "500"}})
    api = ScriptedApi([("MODIFIED", job("2")), bookmark], [("MODIFIED", job("501"))])
    assert followed(api, 3) == [job("1"), job("2"), job("501")]
    assert api.versions == ["1", "500"]


@pytest.mark.parametrize("found", [None, job("8000", uid="another")])
def test_job_that_was_deleted_while_nothing_was_watched_ends_it(found: Any) -> None:
    with pytest.raises(CommandError, match="the job triage in the namespace clinic was deleted"):
        followed(ScriptedApi(None, listed=(found, "9000")), 3)
