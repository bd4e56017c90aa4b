"""The graph of neighbours: which pairs of workers share a mask.

In: the number of workers, and a secret that all workers hold. Out: the neighbours of each worker, the same on all. In a
group of up to 33 workers all pairs share a mask. In a larger group each worker has 32 neighbours, so that the work of
one worker does not grow with the group.

Workers that combine what they see can remove their own masks. What remains hides all but one sum for each connected
component of the graph without them. The graph is a Harary graph in a random order, as in Bell, Bonawitz, Gascón,
Lepoint and Raykova (2020), "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead": the workers stand on a
circle, and each has the `degree / 2` nearest workers on either side as neighbours. It stays connected unless two runs
of `degree / 2` places in a row are removed, with others between them. So fewer workers than `degree` never separate the
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorguard.aggregation.session import number_bytes, tag

MAX_DEGREE = 32


@dataclass(frozen=True)
class NeighbourGraph:
    """The graph of one group. `degree` is the number of neighbours of each worker: even, or all other workers."""

    workers: int
    degree: int

    @classmethod
    def of(cls, workers: int) -> NeighbourGraph:
        """The graph of a group of `workers`."""
        return cls(workers, min(workers - 1, MAX_DEGREE))

    @property
    def is_complete(self) -> bool:
        """Whether each worker shares masks with all others."""
        return self.degree == self.workers - 1

    def circle(self, secret: bytes) -> tuple[int, ...]:
        """The workers in their order on the circle, which is uniform to everyone who does not know `secret`."""
        return tuple(sorted(range(self.workers), key=lambda worker: tag(secret, number_bytes(worker))))

    def neighbours(self, rank: int, circle: Sequence[int]) -> tuple[int, ...]:
        """The workers with which worker `rank` shares a mask, in ascending order."""
        place = circle.index(rank)
        near = {circle[(place + step) % self.workers] for step in range(-self._reach, self._reach + 1)}
        return tuple(sorted(near - {rank}))

    @property
    def _reach(self) -> int:
        """How many places away the last neighbour on either side is. In a complete graph it may be the same worker."""
        return (self.degree + 1) // 2
