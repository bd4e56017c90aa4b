"""The cache keeps the newest body of each object, whatever the order in which lists, events and answers arrive."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

from tensafe_operator.runtime.cache import Cache
from tensafe_operator.runtime.objects import Kinds, Manifest

KEY = ("clinic", "one")


def parent_uid(kind: str, body: Any) -> str:
    return str(body["metadata"]["uid"] if kind == "Parent" else body["metadata"].get("labels", {}).get("parent", ""))


KINDS = Kinds(
    resources={}, parent="Parent", children=("Child", "Other"), parent_uid=parent_uid, warned_kinds=frozenset({"Child"})
)


def parent(version: int, uid: str = "uid-one", **status: str) -> Manifest:
    metadata = {"name": "one", "namespace": "clinic", "uid": uid, "resourceVersion": str(version)}
    return {"kind": "Parent", "metadata": metadata, "status": status}


def child(name: str, version: int, kind: str = "Child", uid: str = "uid-one", namespace: str = "clinic") -> Manifest:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": kind, "metadata": {**metadata, "labels": {"parent": uid}}}


def phase(cache: Cache[str]) -> str | None:
    snapshot = cache.snapshot(KEY)
    assert snapshot is not None
    found: str | None = snapshot.parent["status"].get("phase")
    return found


def children(cache: Cache[str]) -> list[str]:
    snapshot = cache.snapshot(KEY)
    assert snapshot is not None
    return [each["metadata"]["name"] for each in snapshot.children["Child"]]


def warnings(cache: Cache[str]) -> tuple[str, ...]:
    snapshot = cache.snapshot(KEY)
    assert snapshot is not None
    return snapshot.warnings


def test_older_body_does_not_replace_a_newer_one() -> None:
    cache = Cache[str](KINDS)
    cache.put("Parent", parent(12, phase="Running"))
    cache.put("Parent", parent(9, phase="Starting"))
    assert phase(cache) == "Running"


def test_event_of_an_own_write_touches_nothing_but_other_writes_do() -> None:
    cache = Cache[str](KINDS)
    assert cache.put("Parent", parent(3)) == KEY
    cache.learn(parent(5, phase="Starting"))
    assert phase(cache) == "Starting", "known before the watch event"
    assert cache.put("Parent", parent(5, phase="Starting")) is None
    assert cache.put("Parent", parent(6)) == KEY
    cache.learn(child("a", 7))
    assert cache.put("Child", child("a", 7)) is None
    assert cache.put("Child", child("a", 8)) == KEY


def test_answer_about_a_deleted_parent_does_not_bring_it_back() -> None:
    cache = Cache[str](KINDS)
    cache.put("Parent", parent(3))
    cache.drop("Parent", parent(3))
    cache.learn(parent(5))
    assert cache.snapshot(KEY) is None
    assert cache.known_keys() == []


def test_child_with_another_parent_leaves_the_first_one() -> None:
    """It stayed there as it was, and the first parent never learned what became of it."""
    cache = Cache[str](KINDS)
    other = {**parent(4, uid="uid-two"), "metadata": {**parent(4, uid="uid-two")["metadata"], "name": "two"}}
    cache.put("Parent", parent(3))
    cache.put("Parent", other)
    for kind in ("Child", "Other"):
        cache.put(kind, child(kind, 5, kind))
        assert cache.put(kind, child(kind, 6, kind, uid="uid-two")) == KEY, "the parent that loses it is touched"
        assert cache.put(kind, child(kind, 5, kind)) is None, "an older body does not bring it back"
        first, second = cache.snapshot(KEY), cache.snapshot(("clinic", "two"))
        assert first is not None and first.children[kind] == ()
        assert second is not None and len(second.children[kind]) == 1
        assert cache.drop(kind, child(kind, 7, kind, uid="")) == ("clinic", "two")


def test_child_with_an_unknown_parent_leaves_the_first_one() -> None:
    cache = Cache[str](KINDS)
    cache.put("Parent", parent(3))
    cache.put("Child", child("a", 4))
    cache.drop_orphans()
    assert cache.put("Child", child("a", 5, uid="uid-none")) == KEY
    assert children(cache) == []
    assert cache.warn("clinic", "Child", "a", "uid-a", "topic", "a warning") is None


def test_child_whose_label_was_removed_still_belongs_to_its_parent() -> None:
    cache = Cache[str](KINDS)
    cache.put("Parent", parent(3))
    cache.put("Child", child("a", 4))
    assert cache.put("Child", child("a", 5, uid="")) == KEY
    assert cache.drop("Child", child("a", 6, uid="")) == KEY
    assert children(cache) == []


def test_warnings_are_kept_only_for_children_of_the_warned_kinds() -> None:
    cache = Cache[str](KINDS)
    cache.put("Parent", parent(3))
    cache.put("Child", child("a", 4))
    cache.put("Other", child("b", 5, "Other"))
    assert cache.warn("clinic", "Child", "a", "uid-a", "Failed", "no space left") == KEY
    assert cache.warn("clinic", "Other", "b", "uid-b", "Failed", "ignored") is None
    assert warnings(cache) == ("no space left",)


def test_last_warning_of_each_topic_is_kept_the_newest_first() -> None:
    """A list of Events is in the order of their names, so one that is over may arrive last."""
    cache = Cache[str](KINDS)
    cache.put("Parent", parent(3))
    cache.put("Child", child("a", 4))
    for topic, warning in (("NoPod", "quota"), ("NoVolume", "secret"), ("NoPod", "account")):
        cache.warn("clinic", "Child", "a", "uid-a", topic, warning)
    assert warnings(cache) == ("account", "secret")


def test_warning_that_the_api_server_has_deleted_is_forgotten_unless_a_newer_one_has_replaced_it() -> None:
    cache = Cache[str](KINDS)
    cache.put("Parent", parent(3))
    cache.put("Child", child("a", 4))
    cache.warn("clinic", "Child", "a", "uid-a", "NoPod", "account")
    assert cache.forget_warning("clinic", "Child", "a", "uid-a", "NoPod", "quota") is None
    assert warnings(cache) == ("account",)
    assert cache.forget_warning("clinic", "Child", "a", "uid-a", "NoPod", "account") == KEY
    assert cache.forget_warning("other", "Child", "a", "uid-a", "NoPod", "account") is None
    assert warnings(cache) == ()


def test_objects_missing_from_a_newer_list_are_dropped_and_younger_objects_are_kept() -> None:
    cache = Cache[str](KINDS)
    cache.put("Parent", parent(3))
    cache.put("Child", child("missing", 5))
    cache.put("Child", child("listed", 5))
    cache.put("Child", child("younger", 12))
    cache.keep_only("Child", {"uid-listed"}, 10, "another-namespace")
    cache.keep_only("Other", set(), 10, None)
    assert len(children(cache)) == 3
    cache.keep_only("Child", {"uid-listed"}, 10, "clinic")
    assert children(cache) == ["listed", "younger"]
    cache.keep_only("Parent", {"uid-one"}, 10, None)
    assert cache.known_keys() == [KEY]
    cache.keep_only("Parent", set(), 10, None)
    assert cache.known_keys() == []


def test_children_without_a_parent_take_no_memory() -> None:
    """Ten thousand records of deleted jobs are listed at the start, and watched afterwards."""
    cache = Cache[str](KINDS)
    for number in range(10_000):
        cache.put("Child", child(f"old-{number}", number + 1, uid=f"deleted-{number}"))
    cache.put("Child", child("a", 10_001))
    cache.put("Parent", parent(10_002))
    cache.drop_orphans()
    for number in range(10_000):
        assert cache.put("Child", child(f"old-{number}", 20_000 + number, uid=f"deleted-{number}")) is None
    assert children(cache) == ["a"]
    assert len(pickle.dumps(cache._children)) + len(pickle.dumps(cache._versions)) < 2000
    assert cache.put("Child", child("b", 40_000)) == KEY


def test_object_of_another_namespace_is_no_child_although_it_names_the_parent() -> None:
    cache = Cache[str](KINDS)
    cache.put("Child", child("early", 1, namespace="other"))
    cache.put("Parent", parent(2))
    assert cache.put("Child", child("late", 3, namespace="other")) is None
    cache.learn(child("learned", 4, namespace="other"))
    cache.drop_orphans()
    assert cache.put("Child", child("own", 5)) == KEY
    assert cache.drop("Child", child("early", 6, namespace="other")) is None
    assert children(cache) == ["own"]


def test_warning_of_another_namespace_is_ignored_although_it_names_the_child() -> None:
    cache = Cache[str](replace(KINDS, warning_source=lambda kind, body: ("Owner", "owner-of-a")))
    cache.put("Parent", parent(1))
    cache.put("Child", child("a", 2))
    assert cache.warn("other", "Child", "a", "uid-a", "Failed", "call this number") is None
    assert cache.warn("other", "Owner", "owner-of-a", "unknown", "Failed", "call this number") is None
    assert cache.warn("clinic", "Owner", "owner-of-a", "unknown", "Failed", "quota exceeded") == KEY
    assert warnings(cache) == ("quota exceeded",)


def test_child_that_is_gone_leaves_the_warnings_of_an_object_to_another_child() -> None:
    cache = Cache[str](replace(KINDS, warning_source=lambda kind, body: ("Owner", "owner")))
    cache.put("Parent", parent(1))
    cache.put("Child", child("a", 2))
    cache.put("Child", child("b", 3))
    cache.drop("Child", child("a", 4))
    assert cache.warn("clinic", "Owner", "owner", "unknown", "Failed", "quota exceeded") == KEY
    cache.drop("Child", child("b", 5))
    assert cache.warn("clinic", "Owner", "owner", "unknown", "Failed", "quota exceeded") is None


def test_child_gets_the_warnings_of_the_last_object_that_it_names() -> None:
    """KubeRay makes a RayCluster of another name when a RayJob is suspended and resumed."""
    cache = Cache[str](replace(KINDS, warning_source=lambda kind, body: ("Owner", body["metadata"]["resourceVersion"])))
    cache.put("Parent", parent(1))
    for version in range(2, 1_000):
        cache.put("Child", child("a", version))
    assert cache.warn("clinic", "Owner", "998", "unknown", "Failed", "of an earlier one") is None
    assert cache.warn("clinic", "Owner", "999", "unknown", "Failed", "quota exceeded") == KEY
    assert len(cache._warning_sources) == 1
    cache.drop("Parent", parent(1_000))
    assert not cache._warning_sources and not cache._sources
