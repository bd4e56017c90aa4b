"""Workers form a group, or report which rank could not reach which address. Ray's exchange of addresses is replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from e2e.platform.controlplane import free_ports
from tensafe_api.reasons import Reason
from tensorguard.runners import rendezvous
from tensorguard.runners.rendezvous import RendezvousError, process_group
from tensorguard.training.collective_errors import describe_error


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this process one rank of a group, which meets at rank 0's address or at an address of the test."""

    def rank(number: int, size: int, at: tuple[str, int] | None = None) -> None:
        context = SimpleNamespace(get_world_rank=lambda: number, get_world_size=lambda: size)
        monkeypatch.setattr(rendezvous, "get_context", lambda: context)
        monkeypatch.setattr(rendezvous, "get_device", lambda: torch.device("cpu"))
        monkeypatch.setattr(rendezvous, "get_node_ip_address", lambda: "127.0.0.1")
        monkeypatch.setattr(rendezvous, "broadcast_from_rank_zero", lambda own: at or own)
        monkeypatch.setattr(rendezvous, "barrier", lambda: None)

    return rank


def test_process_group_exists_only_inside_the_block(ray: Any) -> None:
    ray(0, 1)
    with process_group("gloo", 5):
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    assert not dist.is_initialized()


def test_rank_that_cannot_reach_rank_0_reports_it(ray: Any) -> None:
    (unused_port,) = free_ports(1)
    ray(1, 2, at=("127.0.0.1", unused_port))
    with pytest.raises(RendezvousError) as caught, process_group("gloo", 1):
        pass
    reason, sentence = describe_error(caught.value)
    assert reason is Reason.WORKER_LOST
    assert sentence.startswith(f"worker 1 of 2 could not join the others at 127.0.0.1:{unused_port}")


def test_rank_0_stops_waiting_after_the_timeout(ray: Any) -> None:
    ray(0, 2)
    with pytest.raises(RendezvousError, match="worker 0 of 2 could not join"), process_group("gloo", 1):
        pass
    assert not dist.is_initialized()
