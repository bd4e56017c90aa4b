"""What went over a network, from tcpdump's capture: whole TCP streams, and which parts of them look random.

    capture ─► packets ─► one stream of bytes for each direction ─► blocks, each uniform or not

A block is uniform when a chi-square test of its bytes finds nothing. Masked vectors and TLS are; small integers, text
and floats are not.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import dpkt
import numpy as np

BLOCK = 2048
_FREEDOM = 255
_LIMIT = _FREEDOM + 6 * (2 * _FREEDOM) ** 0.5
"""Six standard deviations above the mean of chi-square: of a million random blocks none is beyond it."""


@dataclass(frozen=True)
class Direction:
    """Who sent to whom: addresses and TCP ports."""

    source: str
    source_port: int
    target: str
    target_port: int


def streams(capture: Path) -> dict[Direction, bytes]:
    """The bytes of every TCP stream in a capture, each once and in order. What was not captured is left out."""
    parts: dict[Direction, dict[int, bytes]] = {}
    with capture.open("rb") as file:
        for _, frame in dpkt.pcap.Reader(file):
            packet = dpkt.ethernet.Ethernet(frame).data
            if not isinstance(packet, dpkt.ip.IP) or not isinstance(packet.data, dpkt.tcp.TCP):
                continue
            segment = packet.data
            if not segment.data:
                continue
            ends = socket.inet_ntoa(packet.src), segment.sport, socket.inet_ntoa(packet.dst), segment.dport
            of_stream = parts.setdefault(Direction(*ends), {})
            if len(segment.data) > len(of_stream.get(segment.seq, b"")):
                of_stream[segment.seq] = bytes(segment.data)
    return {direction: _joined(found) for direction, found in parts.items()}


def uniform(stream: bytes) -> np.ndarray:
    """Of a stream's whole blocks of `BLOCK` bytes, which look random: bool [blocks]."""
    blocks = np.frombuffer(stream[: len(stream) // BLOCK * BLOCK], dtype=np.uint8).reshape(-1, BLOCK)
    counts = np.apply_along_axis(np.bincount, 1, blocks, minlength=256) if len(blocks) else np.empty((0, 256))
    expected = BLOCK / 256
    return np.asarray(((counts - expected) ** 2 / expected).sum(axis=1) < _LIMIT)


def _joined(parts: dict[int, bytes]) -> bytes:
    """Segments by their sequence numbers, without what was sent twice. The numbers wrap once at most."""
    first = min(parts)
    if max(parts) - first > 2**31:  # it has wrapped
        first = min(number for number in parts if number > 2**31)
    out, reached = [], 0
    for start, content in sorted(((number - first) % 2**32, content) for number, content in parts.items()):
        fresh = content[max(0, reached - start) :]
        out.append(fresh)
        reached = max(reached, start + len(content))
    return b"".join(out)
