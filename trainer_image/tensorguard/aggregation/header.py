"""What all workers must agree on before a step's sum is revealed.

An all-reduce checks nothing: different lengths hang it, different steps add up to nonsense. So each worker first
publishes the same few facts, and a step is revealed only if they match, the ledger's head among them: no worker
contributes to a reveal that was not charged. The stop flag alone may differ; it is true for all as soon as it is true
for one, which stops every rank at the same step.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, fields

from tensorguard.aggregation.channel import AggregationError, Channel
from tensorguard.aggregation.keys import TAG_BYTES, Session, derive_key, tag

_LAYOUT = struct.Struct(">32s5Q32s")
CARRIER_BITS = 32
"""Bits of the integers that are summed."""


@dataclass(frozen=True)
class Header:
    """The facts of one step. `ledger_head` is the hash (32 bytes, hex) of the ledger's last entry, under which the step
    is charged.
    """

    session: str
    step: int
    charged_through: int
    grid_bits: int
    dimension: int
    carrier_bits: int
    ledger_head: str

    def pack(self) -> bytes:
        return _LAYOUT.pack(
            bytes.fromhex(self.session),
            self.step,
            self.charged_through,
            self.grid_bits,
            self.dimension,
            self.carrier_bits,
            bytes.fromhex(self.ledger_head),
        )

    @classmethod
    def unpack(cls, message: bytes) -> Header:
        session, *numbers, head = _LAYOUT.unpack(message)
        return cls(session.hex(), *numbers, head.hex())


class HeaderAgreement:
    """Publishes this worker's header and compares it with everyone's, under a tag of the job key."""

    def __init__(self, channel: Channel, session: Session, job_key: bytes) -> None:
        self._channel = channel
        self._key = derive_key(job_key, b"tensafe header" + session.context())
        self.session = hashlib.sha256(session.context()).hexdigest()

    def agree(self, header: Header, stop: bool) -> bool:
        """Whether any worker wants to stop.

        Raises:
            AggregationError: naming the worker and the first fact on which it differs, or whose header was changed on
            the way.
        """
        body = header.pack() + bytes([stop])
        anyone = False
        for peer, message in enumerate(
            self._channel.all_gather(body + tag(self._key, peer_bytes(self._channel.rank), body))
        ):
            theirs, their_tag = message[:-TAG_BYTES], message[-TAG_BYTES:]
            if not hmac.compare_digest(their_tag, tag(self._key, peer_bytes(peer), theirs)):
                raise AggregationError(f"worker {peer}'s header was changed on its way")
            self._compare(header, Header.unpack(theirs[:-1]), peer)
            anyone = anyone or bool(theirs[-1])
        return anyone

    @staticmethod
    def _compare(mine: Header, theirs: Header, peer: int) -> None:
        for field in fields(Header):
            here, there = getattr(mine, field.name), getattr(theirs, field.name)
            if here != there:
                raise AggregationError(
                    f"worker {peer} differs on {field.name.replace('_', ' ')}: {there} there, {here} here"
                )


def peer_bytes(rank: int) -> bytes:
    """A rank in eight bytes."""
    return rank.to_bytes(8, "big")
