"""The aggregation protocols, by name.

The manifest has no field for the protocol, because only one is shipped. A second protocol adds its class to
`PROTOCOLS`, and a field to `spec.aggregation` and to the ledger's spec (docs/extending/aggregation-protocol.md).
"""

from __future__ import annotations

from tensorguard.aggregation.pairwise_masks import PairwiseMasks
from tensorguard.aggregation.protocol import AggregationConfig, SecureAggregator

PROTOCOLS: dict[str, type[SecureAggregator]] = {PairwiseMasks.name: PairwiseMasks}
DEFAULT_PROTOCOL = PairwiseMasks.name


def create_aggregator(config: AggregationConfig, protocol: str = DEFAULT_PROTOCOL) -> SecureAggregator:
    """Start `protocol` on this worker. Every worker of the group calls this at the same point.

    Raises:
        ValueError: when no protocol has this name.
        AggregationError: when the workers cannot agree on keys.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"no aggregation protocol is named {protocol!r}; choose one of {', '.join(sorted(PROTOCOLS))}")
    return PROTOCOLS[protocol](config)
