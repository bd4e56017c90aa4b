"""The graph of neighbours: which pairs of workers share a mask.

In: the number of workers, how many of them may collude, and a secret that all workers hold. Out: the neighbours of each
worker, the same on all. In a group of up to 33 workers all pairs share a mask. In a larger group each worker has 32
neighbours, so that the work of one worker does not grow with the group.

Workers that collude can remove their own masks. What remains hides all but one sum for each connected component of the
graph without them. So the graph must stay connected when the colluders are removed. It is a Harary graph in a random
order, as in Bell, Bonawitz, Gascón, Lepoint and Raykova (2020), "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead": the workers stand on a circle, and each has the `degree / 2` nearest workers on either side
as neighbours. Colluders separate the others only if they occupy two runs of `degree / 2` places in a row, with others
between them.

- Fewer colluders than `degree` never do, however they were chosen. Thus the degree is above the number of colluders in
  the privacy claim.
- More colluders do with `separation_probability`, if they were chosen without knowledge of the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb

from tensorguard.aggregation.session import number_bytes, tag

MIN_DEGREE = 32
"""With it, a third of up to 256 workers separates the others with a probability of at most 2^-43."""


@dataclass(frozen=True)
class NeighbourGraph:
    """The graph of one group. `degree` is the number of neighbours of each worker: even, or all other workers."""

    workers: int
    degree: int

    @classmethod
    def of(cls, workers: int, colluders: int) -> NeighbourGraph:
        """The graph that `colluders` cannot separate."""
        return cls(workers, min(workers - 1, max(MIN_DEGREE, 2 * (colluders // 2 + 1))))

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

    def separation_probability(self, colluders: int) -> Fraction:
        """The probability that colluders separate the others: the largest for any number of them up to `colluders`.

        It is exact, over a uniform order on the circle.
        """
        return max(self._separation_by(count) for count in range(colluders + 1))

    def _separation_by(self, colluders: int) -> Fraction:
        """The probability that two or more gaps between the others have `_reach` or more places.

        From one of the others on, the sizes of the gaps are uniform over all ways to write `colluders` as a sum of as
        many numbers as there are others. Inclusion and exclusion counts the ways with at least two large gaps.
        """
        others = self.workers - colluders
        ways = sum(
            (-1) ** large * (large - 1) * comb(others, large) * comb(self.workers - 1 - large * self._reach, others - 1)
            for large in range(2, others + 1)
            if large * self._reach <= colluders
        )
        return Fraction(ways, comb(self.workers - 1, others - 1))

    @property
    def _reach(self) -> int:
        """How many places away the last neighbour on either side is. In a complete graph it may be the same worker."""
        return (self.degree + 1) // 2
