"""What went over a network, from tcpdump's capture: whole TCP streams, gloo's messages in them, and which look random.

    capture ─► packets ─► one stream of bytes for each direction ─► gloo's messages ─► uniform or not

Bytes are uniform when a chi-square test finds nothing. Masked vectors and TLS are; small integers, text and floats are
not.
"""

from __future__ import annotations

import itertools
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

import dpkt
import numpy as np

_HEADER = struct.Struct("<6Q")
"""Of gloo's messages over TCP: bytes of the whole, opcode, slot, offset, bytes of the payload, offset there."""
_HANDSHAKES = (0, 8)
_OPCODES = 4
_SEGMENTS = 4
"""In its ring of two, each sends a sum's vector as two segments of its own half, then two of the half that it has
summed.
"""
_FREEDOM = 255
_LIMIT = _FREEDOM + 6 * (2 * _FREEDOM) ** 0.5
"""Six standard deviations above the mean of chi-square: of a million random messages none is beyond it."""


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


def messages(stream: bytes) -> list[bytes] | None:
    """The payloads of gloo's messages, in order; None where the stream is not gloo's."""
    for at in _HANDSHAKES:
        found = []
        while at + _HEADER.size <= len(stream):
            whole, opcode, _, _, length, _ = _HEADER.unpack_from(stream, at)
            if opcode >= _OPCODES or whole not in (_HEADER.size, _HEADER.size + length):
                break
            found.append(stream[at + _HEADER.size : at + whole])
            at += whole
        else:
            return [message for message in found if message]
    return None


def uniform(content: bytes) -> bool:
    """Whether bytes look random; too few of them do not."""
    counts = np.bincount(np.frombuffer(content, dtype=np.uint8), minlength=256)
    expected = len(content) / 256
    return expected >= 5 and bool(((counts - expected) ** 2 / expected).sum() < _LIMIT)


def check_masked(seen: dict[Direction, bytes], workers: tuple[str, str], steps: int, vector: int) -> None:
    """What two workers sent each other are masked vectors and their totals, and nothing else of that size.

    A total is what is released, so it may be seen. Of each worker's own vector each half is sent once a step: it must
    look random, and so must its difference from the step before, or a mask would have been used twice.

    Args:
        vector: bytes of a whole one.

    Raises:
        AssertionError: where that is not so.
    """
    segment = vector // _SEGMENTS
    for source, target in (workers, workers[::-1]):
        streams_there = [stream for way, stream in seen.items() if (way.source, way.target) == (source, target)]
        spoken = [found for stream in streams_there if (found := messages(stream)) is not None]
        large = [each for found in spoken for each in found if len(each) > segment // 2]
        told = f"{source} → {target}: {len(large)} large messages, {len(streams_there)} streams"
        assert len(large) == _SEGMENTS * steps, told
        own = [large[first : first + 2] for first in range(0, len(large), _SEGMENTS)]
        assert all(uniform(half) for halves in own for half in halves), f"{told}: a vector that is not masked"
        for before, after in itertools.pairwise(own):
            for one, other in zip(before, after):
                difference = np.frombuffer(other, dtype=np.uint32) - np.frombuffer(one, dtype=np.uint32)
                assert uniform(difference.tobytes()), f"{told}: a mask that was used twice"
        rest = sum(len(stream) for stream in streams_there) - sum(len(each) for each in large)
        assert rest < steps * vector // 2, f"{told}: {rest} bytes beside them"


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
