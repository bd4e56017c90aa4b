"""A ledger's state in a `PrivacyLedger` object: what is written is read again, and what cannot be read is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from tensafe_api.resources.ledger import MAX_EVALUATIONS, MAX_STARTS, LedgerSpec
from tensafe_api.resources.status import EvaluationResult, Progress
from tensorguard.ledger.contract import Charge, LedgerCorrupt, LedgerState, PublishedCheckpoint
from tensorguard.ledger.fold import Entry, apply_entry, checkpoint_entry
from tensorguard.ledger.kubernetes_object import decode, encode, entry_hash, holder_of

WRITER = "0" * 31 + "1"
PUBLISHED = PublishedCheckpoint(4, 1, "s3://b/step-4", "sha256:" + "a" * 64, "sha256:" + "b" * 64, False)


@pytest.fixture
def empty(spec: LedgerSpec) -> dict[str, Any]:
    """The object of a new ledger."""
    owner = {"serviceAccountName": "trainer", "keySecretName": "key", "keyDigest": "0" * 64}
    fields = spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    return {"metadata": {"uid": "ledger-uid"}, "spec": fields | owner}


def claim(attempt: int, incarnation: int, *, step: int = 0, pod: str = "pod-1") -> Entry:
    holder = holder_of(pod, WRITER)
    return {"kind": "claim", "attempt": attempt, "incarnation": incarnation, "holder": holder, "fromStep": step}


def after(state: LedgerState, *entries: Entry) -> LedgerState:
    for entry in entries:
        state = apply_entry(state, entry, entry_hash(state.head, entry))
    return state


def written(state: LedgerState, before: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    return encode(state, before or {}, others.get("progress"), others.get("evaluations", ()))


def test_every_field_of_the_state_is_read_again(empty: dict[str, Any]) -> None:
    state = after(
        decode(empty),
        claim(1, 1),
        {"kind": "dataset", "digest": "sha256:" + "c" * 64},
        {"kind": "charge", "steps": 4},
        checkpoint_entry(PUBLISHED),
        {"kind": "charge", "steps": 3},
        claim(1, 2, step=4),
        {"kind": "charge", "steps": 2},
        claim(2, 1, step=4, pod="pod-2"),
        {"kind": "charge", "steps": 5},
        checkpoint_entry(replace(PUBLISHED, uri="s3://b/final", final=True)),
        {"kind": "outcome", "outcome": "Suspended"},
    )
    assert state.charges == (Charge(1, 9, 2, f"pod-1/{WRITER}"), Charge(2, 5, 1, f"pod-2/{WRITER}"))
    assert (state.steps_charged, state.steps_recharged, state.length) == (14, 5, 12)
    assert decode(empty | {"status": written(state)}) == state


def test_new_object_is_an_empty_ledger_of_its_uid(empty: dict[str, Any], spec: LedgerSpec) -> None:
    state = decode(empty)
    assert (state.steps_charged, state.length, state.spec) == (0, 1, spec)
    assert state.head == hashlib.sha256(b'["",{"kind":"open","uid":"ledger-uid"}]').hexdigest()
    other = empty | {"metadata": {"uid": "another"}}
    assert decode(other).head != state.head


def test_head_covers_the_entry_and_the_head_before_it() -> None:
    entry, other = {"kind": "charge", "steps": 1}, {"kind": "charge", "steps": 2}
    heads = {entry_hash("a", entry), entry_hash("b", entry), entry_hash("a", other)}
    assert len(heads) == 3 and all(len(head) == 64 for head in heads)
    assert entry_hash("a", entry) == hashlib.sha256(b'["a",{"kind":"charge","steps":1}]').hexdigest()
    assert entry_hash("a", {"steps": 1, "kind": "charge"}) == entry_hash("a", entry)


def test_holder_without_a_writer_is_the_pod(empty: dict[str, Any]) -> None:
    state = after(decode(empty), {**claim(1, 1), "holder": holder_of("pod-1", None)}, {"kind": "charge", "steps": 1})
    status = written(state)
    assert status["charges"][0].keys().isdisjoint({"writer"})
    assert decode(empty | {"status": status}).charges == (Charge(1, 1, 1, "pod-1"),)


def test_checkpoint_keeps_the_charged_steps_of_its_time(empty: dict[str, Any]) -> None:
    state = after(decode(empty), claim(1, 1), {"kind": "charge", "steps": 4}, checkpoint_entry(PUBLISHED))
    first = written(state)
    later = written(after(state, {"kind": "charge", "steps": 6}), first)
    assert [record["stepsCharged"] for record in later["releases"]] == [4]
    assert [charge["steps"] for charge in later["charges"]] == [10]


def test_progress_and_evaluations_stay_unless_there_are_new_ones(empty: dict[str, Any]) -> None:
    state = after(decode(empty), claim(1, 1))
    first = written(state, progress=Progress(step=3, total_steps=9), evaluations=[EvaluationResult(step=3, loss="0.7")])
    same = written(state, first)
    assert (same["progress"], same["evaluations"]) == (first["progress"], first["evaluations"])
    new = written(
        state,
        first,
        progress=Progress(step=5, total_steps=9),
        evaluations=[EvaluationResult(step=5, loss="0.5"), EvaluationResult(step=3, loss="0.6")],
    )
    assert new["progress"]["step"] == 5
    assert [(each["step"], each["loss"]) for each in new["evaluations"]] == [(3, "0.6"), (5, "0.5")]


def test_newest_evaluations_and_starts_are_kept(empty: dict[str, Any]) -> None:
    many = [EvaluationResult(step=step, loss="1") for step in range(1, MAX_EVALUATIONS + 3)]
    state = after(decode(empty), *(claim(1, number, step=number) for number in range(1, MAX_STARTS + 3)))
    status = written(state, evaluations=many)
    assert [each["step"] for each in status["evaluations"]] == list(range(3, MAX_EVALUATIONS + 3))
    assert status["starts"] == list(range(3, MAX_STARTS + 3))


@pytest.mark.parametrize("part", ["spec", "charge", "checkpoint"])
def test_claim_with_an_unknown_field_is_refused(part: str, empty: dict[str, Any]) -> None:
    """A newer release may count something there that this one would leave out of epsilon."""
    found = empty | {"status": written(after(decode(empty), claim(1, 1), checkpoint_entry(PUBLISHED)))}
    places = {
        "spec": found["spec"],
        "charge": found["status"]["charges"][0],
        "checkpoint": found["status"]["releases"][0],
    }
    places[part]["newer"] = 1
    with pytest.raises(LedgerCorrupt, match=r"(?s)this version of tensafe cannot read the ledger \(.*newer"):
        decode(found)


def test_other_fields_of_a_newer_release_are_kept(empty: dict[str, Any]) -> None:
    """A job whose author goes back to an older image continues, and the newer release finds its fields again."""
    before = written(after(decode(empty), claim(1, 1))) | {"newer": {"as": "it was"}}
    state = decode(empty | {"status": before})
    assert encode(state, before, None, ()) == before


def test_object_without_a_charge_of_its_attempt_is_refused(empty: dict[str, Any]) -> None:
    found = empty | {"status": written(after(decode(empty), claim(1, 1))) | {"attempt": 64}}
    with pytest.raises(LedgerCorrupt, match="has a charge"):
        decode(found)


@pytest.mark.parametrize(
    ("part", "field", "name"), [("spec", "keyDigest", "key_digest"), ("status", "chargedThrough", "charged_through")]
)
def test_fields_have_the_names_of_the_custom_resource_only(
    part: str, field: str, name: str, empty: dict[str, Any]
) -> None:
    found = empty | {"status": written(after(decode(empty), claim(1, 1)))}
    found[part][name] = found[part].pop(field)
    with pytest.raises(LedgerCorrupt, match="cannot read the ledger"):
        decode(found)
