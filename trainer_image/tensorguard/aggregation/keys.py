"""Pair keys: a key for each pair of workers, which only the two of them know.

Each worker creates an X25519 key for this incarnation of the group. It publishes the public key with a tag under the
job key, which only the job's workers have. Tag and derivation are bound to the session (job, attempt, incarnation,
number of workers) and to the ranks, so that nothing can be replayed from another attempt or between pairs. Private keys
are only in the memory of this process.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tensafe_api.resources.numeric import MAX_WORKERS
from tensafe_api.statement.contents import digest
from tensorguard.aggregation.channel import AggregationError, Channel
from tensorguard.aggregation.session import KEY_BYTES, Session, derive_key, number_bytes, tag


@dataclass(frozen=True)
class PairKey:
    """The secrets that two workers share: a key for masks and a key for tags."""

    mask: bytes
    tag: bytes


class PairKeys(dict[int, PairKey]):
    """The key shared with each other worker, by rank. `public_keys`: fingerprints of the workers' keys, by rank."""

    public_keys: tuple[str, ...] = ()


def agree_pair_keys(channel: Channel, session: Session, job_key: bytes) -> PairKeys:
    """Exchange public keys with every other worker.

    Args:
        channel: the group.
        session: the session of this worker. The tag of a peer with another session is not valid.
        job_key: 32 secret bytes that only the job's workers hold.

    Returns:
        The key shared with each other worker, by rank.

    Raises:
        AggregationError: if a peer's key is not authentic, or there are too many workers.
    """
    if channel.size != session.workers or channel.size > MAX_WORKERS:
        raise AggregationError(
            f"{channel.size} workers joined, {session.workers} were planned, and at most {MAX_WORKERS} are supported"
        )
    authentication_key = derive_key(job_key, b"tensafe key authentication")
    context = session.context()
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    pairs = PairKeys()
    messages = channel.all_gather(public + tag(authentication_key, context, number_bytes(channel.rank), public))
    for peer, message in enumerate(messages):
        theirs, their_tag = message[:KEY_BYTES], message[KEY_BYTES:]
        if not hmac.compare_digest(their_tag, tag(authentication_key, context, number_bytes(peer), theirs)):
            raise AggregationError(
                f"worker {peer} did not prove that it belongs to this attempt of the job; "
                "its job key is wrong or outdated"
            )
        if peer == channel.rank:
            continue
        shared = private.exchange(X25519PublicKey.from_public_bytes(theirs))
        pair = number_bytes(min(peer, channel.rank)) + number_bytes(max(peer, channel.rank))
        material = derive_key(shared, b"tensafe pair" + context + pair, 2 * KEY_BYTES)
        pairs[peer] = PairKey(mask=material[:KEY_BYTES], tag=material[KEY_BYTES:])
    pairs.public_keys = tuple(digest(message[:KEY_BYTES]) for message in messages)
    return pairs
