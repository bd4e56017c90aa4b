"""Each event of kopf's streams touches the parent it affects."""

from __future__ import annotations

import asyncio
from typing import Any

from tensafe_operator.runtime import watch
from tensafe_operator.runtime.cache import Cache
from tensafe_operator.runtime.objects import Key, Kinds, Resource


def test_deletion_of_a_parent_touches_its_key() -> None:
    """Its metrics are removed then: without it, they stayed until the operator restarted."""
    kinds = Kinds(
        resources={}, parent="Parent", children=(), parent_uid=lambda kind, body: str(body["metadata"]["uid"])
    )
    touched: list[Key] = []
    handle = watch._handler("Parent", Cache[str](kinds), touched.append, lambda: None)
    body = {"metadata": {"namespace": "clinic", "name": "one", "uid": "u", "resourceVersion": "3"}}
    for event in ("ADDED", "DELETED", "DELETED"):
        asyncio.run(handle({"type": event, "object": body}))
    assert touched == [("clinic", "one")] * 2


def test_warning_is_forgotten_with_its_event() -> None:
    """The API server deletes an Event after an hour."""
    kinds = Kinds({}, "Parent", ("Pod",), lambda kind, body: "u", warned_kinds=frozenset({"Pod"}))
    cache, touched = Cache[str](kinds), list[Key]()
    for kind, uid in (("Parent", "u"), ("Pod", "p")):
        cache.put(kind, {"metadata": {"namespace": "clinic", "name": "one", "uid": uid, "resourceVersion": "3"}})
    handle = watch._warning_handler(cache, touched.append, lambda event: str(event["message"]))
    about = {"kind": "Pod", "name": "one", "uid": "p"}
    event: Any = {"metadata": {"namespace": "clinic"}, "involvedObject": about, "reason": "Full", "message": "no room"}
    kept = []
    for kind in ("ADDED", "DELETED"):
        asyncio.run(handle({"type": kind, "object": event}))
        snapshot = cache.snapshot(("clinic", "one"))
        kept.append(snapshot and snapshot.warnings)
    assert kept == [("no room",), ()]
    assert touched == [("clinic", "one")] * 2


def test_kopf_is_set_to_watch_without_writing() -> None:
    pod = Resource("", "v1", "pods")
    kinds = Kinds({"Pod": pod}, "Parent", ("Pod",), lambda kind, body: "", selectors={"Pod": "owner"})
    settings = watch.kopf_settings(kinds)
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert "owner" in str(settings.watching.label_selectors)
    assert settings.watching.field_selectors["events"] == "type=Warning", "a cluster has many more of type Normal"
    storage = settings.persistence.diffbase_storage
    body: Any = {"spec": {"x": 1}}
    assert not storage.build(body=body) and storage.fetch(body=body) is None
