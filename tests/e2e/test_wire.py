"""The eyes of the isolation scenario: streams are put together again, and masked vectors are told from plain ones."""

from __future__ import annotations

import itertools
from pathlib import Path

import dpkt
import numpy as np
import pytest
from wire import BLOCK, Direction, streams, uniform

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
def test_a_stream_is_put_together_whatever_order_its_packets_came_in(tmp_path: Path, first: int) -> None:
    whole = bytes(range(256)) * 8
    pieces = [(first + start, whole[start : start + 500]) for start in range(0, len(whole), 500)]
    for number, order in enumerate(itertools.permutations(pieces, len(pieces))):
        sent_twice = [*order, order[0], (order[1][0], order[1][1][:100])]
        assert streams(capture(tmp_path / f"{number}.pcap", sent_twice)) == {DIRECTION: whole}


def test_masked_vectors_look_random_and_plain_ones_do_not() -> None:
    random = np.random.default_rng(1)
    size = 50 * BLOCK // 4
    plain = random.normal(0, 2**20, size).astype(np.int32)
    mask = random.integers(0, 2**32, size, dtype=np.uint32)
    masked = plain.view(np.uint32) + mask
    assert not uniform(plain.tobytes()).any()
    assert not uniform(random.normal(size=size).astype(np.float32).tobytes()).any()
    assert not uniform(b"the patient complains of pain in the chest " * 1000).any()
    assert uniform(masked.tobytes()).all()
    assert not uniform(b"").any()
