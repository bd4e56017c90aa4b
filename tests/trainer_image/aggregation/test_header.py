"""The header: workers with different headers reveal nothing, and one worker that wants to stop stops all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from tensorguard.aggregation.channel import AggregationError
from tensorguard.aggregation.header import CARRIER_BITS, Header, HeaderAgreement
from tensorguard.aggregation.session import Session

Run = Callable[[int, Callable[[Any], Any]], list[Any]]
JOB_KEY = bytes(range(32))
SESSION = Session(job="j", attempt=1, incarnation=2, workers=3)
HEADER = Header(
    session="ab" * 32,
    step=7,
    charged_through=10,
    grid_bits=21,
    dimension=1000,
    carrier_bits=CARRIER_BITS,
    ledger_head="cd" * 32,
)
OTHER = {"session": "ac" * 32, "ledger_head": "ce" * 32}


def test_header_survives_packing() -> None:
    assert Header.unpack(HEADER.pack()) == HEADER
    largest = replace(HEADER, step=2**63, charged_through=2**64 - 1)
    assert Header.unpack(largest.pack()) == largest


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("stopping", [set(), {0}, {"last"}, {0, "last"}])
def test_stop_of_one_worker_stops_all(size: int, stopping: set[Any], workers: Run) -> None:
    session = replace(SESSION, workers=size)

    def work(channel: Any) -> bool:
        stop = channel.rank in stopping or (channel.rank == size - 1 and "last" in stopping)
        return HeaderAgreement(channel, session, JOB_KEY).agree(HEADER, stop)

    assert workers(size, work) == [bool(stopping)] * size


@pytest.mark.parametrize("name", [field.name for field in fields(Header)])
def test_each_difference_between_headers_is_named(name: str, outcomes: Run) -> None:
    strange = replace(HEADER, **{name: OTHER.get(name, getattr(HEADER, name)) if name in OTHER else 99})

    def work(channel: Any) -> bool:
        return HeaderAgreement(channel, SESSION, JOB_KEY).agree(strange if channel.rank == 1 else HEADER, False)

    results = outcomes(3, work)
    assert all(isinstance(result, AggregationError) for result in results)
    assert f"worker 1 differs on {name.replace('_', ' ')}" in str(results[0])
    assert f"worker 0 differs on {name.replace('_', ' ')}" in str(results[1])


@pytest.mark.parametrize("byte", [0, 39, 71, 103, 104, 105, -1])
def test_header_that_was_changed_in_transit_is_refused(byte: int, outcomes: Run) -> None:
    """The tag covers the stop flag (byte 104) as well: an adversary on the network cannot set or clear it."""

    def work(channel: Any) -> bool:
        def flip(sender: int, message: bytes) -> bytes:
            changed = bytearray(message)
            changed[byte] ^= 1
            return bytes(changed) if sender == 2 and channel.rank != 2 else message

        channel.on_message = flip
        return HeaderAgreement(channel, SESSION, JOB_KEY).agree(HEADER, False)

    results = outcomes(3, work)
    assert [str(result) for result in results[:2]] == ["the header of worker 2 was changed in transit"] * 2


def test_header_of_another_rank_session_or_key_is_refused(outcomes: Run) -> None:
    def swapped(channel: Any) -> bool:
        seen: dict[int, bytes] = {}

        def swap(sender: int, message: bytes) -> bytes:
            seen[sender] = message
            return seen[max(0, sender - 1)]

        channel.on_message = swap
        return HeaderAgreement(channel, SESSION, JOB_KEY).agree(HEADER, False)

    assert "the header of worker 1 was changed" in str(outcomes(3, swapped)[0])
    for session, key in ((replace(SESSION, incarnation=1), JOB_KEY), (SESSION, bytes(32))):

        def work(channel: Any, session: Session = session, key: bytes = key) -> bool:
            stale = channel.rank == 2
            agreement = HeaderAgreement(channel, session if stale else SESSION, key if stale else JOB_KEY)
            return agreement.agree(HEADER, False)

        assert "the header of worker 2 was changed" in str(outcomes(3, work)[0])


def test_each_session_has_its_own_identifier(workers: Run) -> None:
    names = {
        workers(1, lambda channel, session=session: HeaderAgreement(channel, session, JOB_KEY).session)[0]
        for session in (SESSION, replace(SESSION, incarnation=3), replace(SESSION, attempt=2))
    }
    assert len(names) == 3
    assert all(len(name) == 64 for name in names)
