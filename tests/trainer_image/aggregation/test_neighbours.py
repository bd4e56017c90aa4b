"""The graph of neighbours: both ends agree, and fewer workers than neighbours never separate the others."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from itertools import combinations

import pytest

from tensafe_api.resources.numeric import MAX_WORKERS
from tensorguard.aggregation.neighbours import MAX_DEGREE, NeighbourGraph

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
    graph = NeighbourGraph.of(workers)
    edges = drawn(graph)
    for rank, near in enumerate(edges):
        assert len(near) == graph.degree
        assert rank not in near
        assert all(rank in edges[peer] for peer in near)
    assert are_connected(range(workers), edges)


def test_groups_of_up_to_33_workers_mask_with_all_others() -> None:
    for workers in range(1, MAX_WORKERS + 1):
        graph = NeighbourGraph.of(workers)
        assert graph.is_complete == (workers <= 33)
        assert graph.degree == min(workers - 1, MAX_DEGREE)


@pytest.mark.parametrize(("workers", "degree"), [(5, 2), (6, 4), (8, 2), (8, 4), (9, 6), (10, 4), (10, 6), (7, 6)])
def test_fewer_workers_than_neighbours_never_separate_the_others(workers: int, degree: int) -> None:
    """Over all sets of workers. As many as there are neighbours do, unless the graph is complete."""
    edges = drawn(NeighbourGraph(workers, degree))
    for removed in range(workers):
        rest = [set(range(workers)) - set(each) for each in combinations(range(workers), removed)]
        separated = sum(not are_connected(members, edges) for members in rest)
        assert removed >= degree or not separated
        assert removed != degree or degree == workers - 1 or separated


def test_order_is_that_of_tags_under_the_secret() -> None:
    """All workers compute the graph on their own, so two versions must not differ."""
    order = sorted(range(40), key=lambda rank: hmac.digest(SECRET, rank.to_bytes(8, "big"), "sha256"))
    near = drawn(NeighbourGraph(40, 2))
    assert all(near[rank] == {order[place - 1], order[(place + 1) % 40]} for place, rank in enumerate(order))
    assert drawn(NeighbourGraph(40, 2), bytes(32)) != near
