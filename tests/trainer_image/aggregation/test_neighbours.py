"""The graph of neighbours: both ends agree, and colluders cannot separate the other workers, or only by rare luck."""

from __future__ import annotations

import hmac
import math
from collections.abc import Collection, Sequence
from fractions import Fraction
from itertools import combinations

import pytest

from tensafe_api.resources.numeric import MAX_WORKERS
from tensorguard.aggregation.neighbours import MIN_DEGREE, NeighbourGraph

SECRET = bytes(range(32))


def drawn(graph: NeighbourGraph, secret: bytes = SECRET) -> list[set[int]]:
    """The neighbours of each worker, by rank."""
    circle = graph.circle(secret)
    return [set(graph.neighbours(rank, circle)) for rank in range(graph.workers)]


def are_connected(members: Collection[int], edges: Sequence[set[int]]) -> bool:
    """Whether the graph of these members alone is connected."""
    reached, found = set(), set(list(members)[:1])
    while found:
        reached |= found
        found = set().union(*(edges[each] for each in found)) & set(members) - reached
    return reached == set(members)


@pytest.mark.parametrize("workers", [1, 2, 3, 32, 33, 34, 35, 64, 256])
def test_each_worker_is_a_neighbour_of_its_neighbours(workers: int) -> None:
    graph = NeighbourGraph.of(workers, 0)
    edges = drawn(graph)
    for rank, near in enumerate(edges):
        assert len(near) == graph.degree
        assert rank not in near
        assert all(rank in edges[peer] for peer in near)
    assert are_connected(range(workers), edges)


def test_groups_of_up_to_33_workers_mask_with_all_others() -> None:
    for workers in range(1, MAX_WORKERS + 1):
        graph = NeighbourGraph.of(workers, 0)
        assert graph.is_complete == (workers <= 33)
        assert graph.degree == min(workers - 1, MIN_DEGREE)


def test_colluders_of_the_claim_never_separate_the_others() -> None:
    for workers in range(1, MAX_WORKERS + 1):
        for colluders in range(workers):
            graph = NeighbourGraph.of(workers, colluders)
            assert graph.degree > colluders or graph.is_complete
            assert graph.degree % 2 == 0 or graph.is_complete
            assert graph.degree <= max(MIN_DEGREE, colluders + 2), "more work than needed"
    for workers, colluders in ((34, 32), (64, 20), (64, 40), (256, 85)):
        assert NeighbourGraph.of(workers, colluders).separation_probability(colluders) == 0


@pytest.mark.parametrize(("workers", "degree"), [(5, 2), (6, 4), (8, 2), (8, 4), (9, 6), (10, 4), (10, 6), (7, 6)])
def test_separation_probability_counts_the_sets_that_separate(workers: int, degree: int) -> None:
    """Over all sets of colluders. Fewer of them than neighbours separate nothing."""
    graph = NeighbourGraph(workers, degree)
    edges, worst = drawn(graph), Fraction(0)
    for colluders in range(workers):
        sets = list(combinations(range(workers), colluders))
        separating = sum(not are_connected(set(range(workers)) - set(each), edges) for each in sets)
        worst = max(worst, Fraction(separating, len(sets)))
        assert graph.separation_probability(colluders) == worst
        assert not separating or colluders >= degree


def test_random_orders_separate_as_often_as_computed() -> None:
    """The colluders are fixed and the order is drawn, as in a job."""
    graph, colluders, draws = NeighbourGraph(12, 4), 6, 500
    others = range(colluders, graph.workers)
    separated = sum(not are_connected(others, drawn(graph, number.to_bytes(32, "big"))) for number in range(draws))
    chance = float(graph.separation_probability(colluders))
    assert 0.1 < chance < 0.9
    assert abs(separated - draws * chance) < 4 * math.sqrt(draws * chance * (1 - chance))


def test_third_of_the_workers_separates_the_others_with_at_most_two_to_the_minus_43() -> None:
    for workers in range(1, MAX_WORKERS + 1):
        assert NeighbourGraph.of(workers, 0).separation_probability(workers // 3) <= Fraction(1, 2**43)


def test_order_is_that_of_tags_under_the_secret() -> None:
    """All workers compute the graph on their own, so two versions must not differ."""
    order = sorted(range(40), key=lambda rank: hmac.digest(SECRET, rank.to_bytes(8, "big"), "sha256"))
    near = drawn(NeighbourGraph(40, 2))
    assert all(near[rank] == {order[place - 1], order[(place + 1) % 40]} for place, rank in enumerate(order))
    assert drawn(NeighbourGraph(40, 2), bytes(32)) != near
