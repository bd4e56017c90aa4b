"""The packet analysis of the isolation scenario: streams are reassembled, and vectors without a mask are found."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from pathlib import Path

import dpkt
import numpy as np
import pytest

from tests.support.packet_capture import (
    Direction,
    check_encrypted,
    check_masked,
    gloo_messages,
    looks_random,
    tcp_streams,
)

WORKERS = ("10.85.0.2", "10.85.0.3")
STEPS, SIZE = 6, 27_000
SOURCE, TARGET = b"\x0a\x55\x00\x02", b"\x0a\x55\x00\x03"
DIRECTION = Direction("10.85.0.2", 1000, "10.85.0.3", 2000)


def capture(path: Path, segments: list[tuple[int, bytes]]) -> Path:
    with path.open("wb") as file:
        writer = dpkt.pcap.Writer(file)
        for number, content in segments:
            tcp = dpkt.tcp.TCP(sport=1000, dport=2000, seq=number % 2**32, data=content)
            ip = dpkt.ip.IP(src=SOURCE, dst=TARGET, p=dpkt.ip.IP_PROTO_TCP, data=tcp)
            ip.len = len(ip)
            writer.writepkt(bytes(dpkt.ethernet.Ethernet(data=ip)))
    return path


@pytest.mark.parametrize("first", [1, 2**32 - 700])
def test_stream_is_reassembled_from_packets_in_any_order(tmp_path: Path, first: int) -> None:
    whole = bytes(range(256)) * 8
    pieces = [(first + start, whole[start : start + 500]) for start in range(0, len(whole), 500)]
    for number, order in enumerate(itertools.permutations(pieces, len(pieces))):
        sent_twice = [*order, order[0], (order[1][0], order[1][1][:100])]
        assert tcp_streams(capture(tmp_path / f"{number}.pcap", sent_twice)) == {DIRECTION: whole}


def test_only_masked_bytes_look_random() -> None:
    random = np.random.default_rng(1)
    plain = random.normal(0, 2**20, SIZE).astype(np.int32)
    assert not looks_random(plain.tobytes())
    assert not looks_random(random.normal(size=SIZE).astype(np.float32).tobytes())
    assert not looks_random(b"the patient complains of pain in the chest " * 1000)
    assert not looks_random(b"")
    assert looks_random((plain.view(np.uint32) + random.integers(0, 2**32, SIZE, dtype=np.uint32)).tobytes())


class Ring:
    """The messages of two workers in gloo's ring. `leak` replaces the vectors that a step sends of a worker's own."""

    def __init__(self, leak: Callable[[int, np.ndarray, np.ndarray], list[np.ndarray]] | None = None) -> None:
        self._random = np.random.default_rng(2)
        self._leak = leak or (lambda step, plain, mask: [plain + mask])
        self.sent = [self._direction() for _ in WORKERS]

    def _direction(self) -> bytes:
        out = [struct.pack("<q", 1), frame(b"x" * 200)]
        for step in range(STEPS):
            plain = self._random.normal(0, 2**20, SIZE // 2).astype(np.int32).view(np.uint32)
            mask = self._random.integers(0, 2**32, SIZE // 2, dtype=np.uint32)
            total = self._random.normal(0, 2**21, SIZE // 2).astype(np.int32)
            for vector in (*self._leak(step, plain, mask), total):
                half = len(vector) // 2
                out += [frame(b""), frame(vector[:half].tobytes()), frame(vector[half:].tobytes())]
        return b"".join(out)

    def streams(self) -> dict[Direction, bytes]:
        directions = (Direction(*WORKERS[:1], 1, *WORKERS[1:], 2), Direction(*WORKERS[1:], 2, *WORKERS[:1], 1))
        return dict(zip(directions, self.sent))


def frame(payload: bytes) -> bytes:
    return struct.pack("<6Q", 48 + len(payload), 1, 0, 0, len(payload), 0) + payload


FIXED = np.random.default_rng(3).integers(0, 2**32, SIZE // 2, dtype=np.uint32)


def test_masked_vectors_are_accepted() -> None:
    check_masked(Ring().streams(), WORKERS, STEPS, SIZE * 4)


@pytest.mark.parametrize(
    "leak",
    [
        lambda step, plain, mask: [plain if step == 4 else plain + mask],
        lambda step, plain, mask: [np.concatenate([(plain + mask)[: SIZE * 9 // 20], plain[SIZE * 9 // 20 :]])],
        lambda step, plain, mask: [plain + mask, plain] if step == 2 else [plain + mask],
        lambda step, plain, mask: [plain + FIXED],
        lambda step, plain, mask: [plain],
        lambda step, plain, mask: [],
    ],
    ids=[
        "one step without mask",
        "last tenth without mask",
        "a copy without mask",
        "one mask for all steps",
        "no masks",
        "no vectors",
    ],
)
def test_leaks_are_found(leak: Callable[[int, np.ndarray, np.ndarray], list[np.ndarray]]) -> None:
    with pytest.raises(AssertionError):
        check_masked(Ring(leak).streams(), WORKERS, STEPS, SIZE * 4)


def test_other_streams_are_not_parsed_as_gloo() -> None:
    assert gloo_messages(b"GET /healthz HTTP/1.1\r\nHost: head\r\nAccept: everything\r\n" * 20) is None
    assert gloo_messages(Ring().sent[0][8:]) == gloo_messages(Ring().sent[0])


HEAD = "10.85.0.4"
TLS = b"\x16\x03\x01\x02\x00\x01"


def streams_with_the_head(content: bytes = TLS) -> dict[Direction, bytes]:
    """One connection of each worker with the head, in both directions; `content` is what the first worker sends."""
    streams = {Direction(HEAD, 6379, worker, 2000): TLS for worker in WORKERS}
    return {**streams, **{Direction(worker, 2000, HEAD, 6379): TLS for worker in WORKERS}} | {
        Direction(WORKERS[0], 2000, HEAD, 6379): content
    }


def test_messages_that_are_not_encrypted_are_found() -> None:
    workers = set(WORKERS)
    plain = {DIRECTION: b"masked", Direction("10.85.0.9", 3000, HEAD, 6379): b"PRI * HTTP/2.0"}
    check_encrypted(streams_with_the_head() | plain, HEAD, workers, set())
    with pytest.raises(AssertionError, match="not encrypted"):
        check_encrypted(
            streams_with_the_head(b"PRI * HTTP/2.0") | plain | {Direction(WORKERS[0], 2001, HEAD, 6379): TLS},
            HEAD,
            workers,
            set(),
        )
    with pytest.raises(AssertionError, match="not encrypted"):
        check_encrypted(streams_with_the_head() | {DIRECTION: b"PRI * HTTP/2.0"}, HEAD, workers, set())
    probe = {Direction(WORKERS[0], 2002, HEAD, 8265): b"POST /api/jobs/"}
    check_encrypted(streams_with_the_head() | probe, HEAD, workers, {8265})
    with pytest.raises(AssertionError, match="not encrypted"):
        check_encrypted(streams_with_the_head() | probe, HEAD, workers, set())


def test_capture_without_streams_of_a_pod_is_refused() -> None:
    with pytest.raises(AssertionError, match="no encrypted stream from each pod"):
        check_encrypted({}, HEAD, set(WORKERS), set())
    with pytest.raises(AssertionError, match="no encrypted stream from each pod"):
        check_encrypted(streams_with_the_head(), HEAD, {*WORKERS, "10.85.0.5"}, set())
