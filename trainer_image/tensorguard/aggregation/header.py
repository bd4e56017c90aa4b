"""The header of a step: facts on which all workers must agree before the sum is revealed.

An all-reduce checks nothing: it hangs when lengths differ, and adds vectors of different steps without an error. So
each worker first publishes a header, and the step is revealed only if all headers match. The header includes the
ledger's head, so no worker contributes to a reveal that was not charged. Only the stop flag may differ: if it is true
on one worker, all workers stop, at the same step.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, fields

from tensorguard.aggregation.channel import AggregationError, Channel
from tensorguard.aggregation.session import TAG_BYTES, Session, derive_key, number_bytes, tag

_LAYOUT = struct.Struct(">32s5Q32s")
CARRIER_BITS = 32
"""Number of bits of the integers that are summed."""


@dataclass(frozen=True)
class Header:
    """The facts of one step. `ledger_head` is the hash (32 bytes, hex) of the ledger entry that charges the step."""

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
        session, step, charged_through, grid_bits, dimension, carrier_bits, head = _LAYOUT.unpack(message)
        return cls(session.hex(), step, charged_through, grid_bits, dimension, carrier_bits, head.hex())


class HeaderAgreement:
    """Publishes this worker's header and compares it with those of all workers. A tag from the job key authenticates
    each header.
    """

    def __init__(self, channel: Channel, session: Session, job_key: bytes) -> None:
        self._channel = channel
        self._key = derive_key(job_key, b"tensafe header" + session.context())
        self.session = hashlib.sha256(session.context()).hexdigest()

    def agree(self, header: Header, stop: bool) -> bool:
        """Compare headers, and return whether any worker wants to stop.

        Raises:
            AggregationError: names a worker whose header was changed in transit, or the first fact on which a worker
                differs.
        """
        body = header.pack() + bytes([stop])
        any_stop = False
        for peer, message in enumerate(
            self._channel.all_gather(body + tag(self._key, number_bytes(self._channel.rank), body))
        ):
            theirs, their_tag = message[:-TAG_BYTES], message[-TAG_BYTES:]
            if not hmac.compare_digest(their_tag, tag(self._key, number_bytes(peer), theirs)):
                raise AggregationError(f"the header of worker {peer} was changed in transit")
            self._compare(header, Header.unpack(theirs[:-1]), peer)
            any_stop = any_stop or bool(theirs[-1])
        return any_stop

    @staticmethod
    def _compare(mine: Header, theirs: Header, peer: int) -> None:
        for field in fields(Header):
            here, there = getattr(mine, field.name), getattr(theirs, field.name)
            if here != there:
                raise AggregationError(
                    f"worker {peer} differs on {field.name.replace('_', ' ')}: it has {there}, this worker has {here}"
                )
