"""Pair keys: two workers share one, no third worker knows it, and messages from elsewhere or earlier are refused."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tensorguard.aggregation import keys as module
from tensorguard.aggregation.channel import AggregationError
from tensorguard.aggregation.keys import PairKey, agree_pair_keys
from tensorguard.aggregation.session import Session, derive_key, tag

Run = Callable[[int, Callable[[Any], Any]], list[Any]]
JOB_KEY = bytes(range(32))
SESSION = Session(job="claims-triage", attempt=1, incarnation=1, workers=3)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_each_pair_shares_its_own_keys(size: int, workers: Run) -> None:
    session = replace(SESSION, workers=size)
    pairs: list[dict[int, PairKey]] = workers(size, lambda channel: agree_pair_keys(channel, session, JOB_KEY))
    for rank, mine in enumerate(pairs):
        assert sorted(mine) == [peer for peer in range(size) if peer != rank]
        assert all(pairs[peer][rank] == key for peer, key in mine.items())
    keys = [pairs[low][high] for low, high in combinations(range(size), 2)]
    both = [key for pair in keys for key in (pair.mask, pair.tag)]
    assert len(set(both)) == len(both) == 2 * len(keys)
    assert all(len(key) == 32 for key in both)


def test_keys_are_bound_to_the_session_and_to_the_pair(workers: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if all workers had the same private key in all sessions."""
    fixed = X25519PrivateKey.from_private_bytes(bytes(range(32)))
    monkeypatch.setattr(module.X25519PrivateKey, "generate", lambda: fixed)
    masks = []
    for incarnation in (1, 2):
        session = replace(SESSION, incarnation=incarnation)
        pairs = workers(3, lambda channel, session=session: agree_pair_keys(channel, session, JOB_KEY))
        masks += [pairs[low][high].mask for low, high in combinations(range(3), 2)]
    assert len(set(masks)) == 6


def test_keys_are_new_even_for_the_same_session(workers: Run) -> None:
    drawn = {
        workers(
            2, lambda channel: agree_pair_keys(channel, replace(SESSION, workers=2), JOB_KEY)[1 - channel.rank].mask
        )[0]
        for _ in range(3)
    }
    assert len(drawn) == 3


@pytest.mark.parametrize(
    "changes",
    [{"job": "claims-triagf"}, {"attempt": 2}, {"incarnation": 2}, {"workers": 4}],
    ids=lambda changes: next(iter(changes)),
)
def test_worker_of_another_session_is_refused(changes: dict[str, Any], outcomes: Run) -> None:
    results = outcomes(
        3, lambda channel: agree_pair_keys(channel, replace(SESSION, **(changes if channel.rank == 1 else {})), JOB_KEY)
    )
    assert all(isinstance(result, AggregationError) for result in (results[0], results[2])) or "workers" in changes
    assert isinstance(results[1], AggregationError)
    if "workers" in changes:
        assert "3 workers joined, 4 were planned" in str(results[1])
        return
    assert "worker 1 did not prove" in str(results[0]) and "worker 0 did not prove" in str(results[1])


def test_worker_without_the_job_key_is_refused(outcomes: Run) -> None:
    results = outcomes(
        3, lambda channel: agree_pair_keys(channel, SESSION, JOB_KEY if channel.rank != 2 else bytes(32))
    )
    assert [str(result)[:23] for result in results[:2]] == ["worker 2 did not prove "] * 2
    assert "worker 0 did not prove" in str(results[2])


@pytest.mark.parametrize("bit", [0, 100, 255, 256, 511])
def test_public_key_that_was_changed_in_transit_is_refused(bit: int, outcomes: Run) -> None:
    def work(channel: Any) -> Any:
        def flip(sender: int, message: bytes) -> bytes:
            changed = bytearray(message)
            changed[bit // 8] ^= 1 << bit % 8
            return bytes(changed) if sender == 1 and channel.rank == 0 else message

        channel.on_message = flip
        return agree_pair_keys(channel, SESSION, JOB_KEY)

    assert "worker 1 did not prove" in str(outcomes(3, work)[0])


def recorded(workers: Run, session: Session) -> list[bytes]:
    """What the workers of a session sent."""
    sent: list[bytes] = [b""] * session.workers

    def work(channel: Any) -> Any:
        def note(sender: int, message: bytes) -> bytes:
            sent[sender] = message
            return message

        channel.on_message = note
        return agree_pair_keys(channel, session, JOB_KEY)

    workers(session.workers, work)
    return sent


def test_message_of_an_earlier_incarnation_is_refused(workers: Run, outcomes: Run) -> None:
    old = recorded(workers, SESSION)

    def work(channel: Any) -> Any:
        channel.on_message = lambda sender, message: old[1] if sender == 1 and channel.rank != 1 else message
        return agree_pair_keys(channel, replace(SESSION, incarnation=2), JOB_KEY)

    assert "worker 1 did not prove" in str(outcomes(3, work)[0])


def test_message_of_one_rank_is_not_accepted_from_another(outcomes: Run) -> None:
    def work(channel: Any) -> Any:
        seen: dict[int, bytes] = {}

        def swap(sender: int, message: bytes) -> bytes:
            seen[sender] = message
            return seen[1] if sender == 2 and channel.rank == 0 else message

        channel.on_message = swap
        return agree_pair_keys(channel, SESSION, JOB_KEY)

    assert "worker 2 did not prove" in str(outcomes(3, work)[0])


@pytest.mark.parametrize(("joined", "planned"), [(2, 3), (3, 2), (257, 257)])
def test_wrong_number_of_workers_is_refused(joined: int, planned: int) -> None:
    """It is refused before anything is sent."""
    channel: Any = SimpleNamespace(size=joined)
    with pytest.raises(AggregationError) as refusal:
        agree_pair_keys(channel, replace(SESSION, workers=planned), JOB_KEY)
    assert str(refusal.value) == f"{joined} workers joined, {planned} were planned, and at most 256 are supported"


def test_largest_group_exchanges_keys() -> None:
    def all_gather(_: bytes) -> list[bytes]:
        raise InterruptedError

    channel: Any = SimpleNamespace(size=256, rank=0, all_gather=all_gather)
    with pytest.raises(InterruptedError):
        agree_pair_keys(channel, replace(SESSION, workers=256), JOB_KEY)


sessions = st.builds(
    Session,
    job=st.text(max_size=6),
    attempt=st.integers(0, 300),
    incarnation=st.integers(0, 300),
    workers=st.integers(1, 256),
)


@given(sessions, sessions)
def test_encoding_of_a_session_is_unique(one: Session, other: Session) -> None:
    assert (one.context() == other.context()) == (one == other)


def test_known_answers() -> None:
    """The derivations are part of the protocol: workers of two versions must not disagree in silence."""
    assert SESSION.context() == (
        b"tensafe/1" + b"".join(n.to_bytes(8, "big") for n in (13, 1, 1, 3)) + b"claims-triage"
    )
    pseudorandom = hmac.digest(bytes(32), JOB_KEY, "sha256")  # HKDF's two steps (RFC 5869), by hand
    assert derive_key(JOB_KEY, b"purpose") == hmac.digest(pseudorandom, b"purpose\x01", "sha256")
    assert derive_key(JOB_KEY, b"purpose").hex() == "c938f7c9c926b1456b39fd3811e7b2d8beccd709fed368d133553b438fb89d0b"
    assert len(derive_key(JOB_KEY, b"purpose", 64)) == 64
    block = bytes(byte ^ 0x5C for byte in JOB_KEY.ljust(64, b"\0"))
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in JOB_KEY.ljust(64, b"\0")) + b"one" + b"two").digest()
    assert tag(JOB_KEY, b"one", b"two") == hashlib.sha256(block + inner).digest()
    assert tag(JOB_KEY, b"one", b"two").hex() == "d6347af4ff8b077922cdd2b8ecd2dde02a45723b9bbbdfe57a683f64d435d395"
