"""Workers form a group, or report which rank could not reach which address. Ray's exchange of addresses is replaced."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tensafe_api.reasons import Reason
from tensafe_operator.children import rayjob
from tensorguard.runners import rendezvous
from tensorguard.runners.pod.pod_files import PodFiles
from tensorguard.runners.rendezvous import SIGNER_VARIABLE, RendezvousError, own_rank, process_group
from tensorguard.training.collective_errors import describe_error
from tests.support.programs.controlplane import free_ports


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


@pytest.mark.parametrize("pods", [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1]], ids=str)
@pytest.mark.parametrize("ranks_per_pod", [1, 2])
def test_pod_with_the_signing_key_has_rank_0(pods: list[int], ranks_per_pod: int) -> None:
    """Its first rank is rank 0, and the ranks of one pod stay consecutive."""
    store, size = dist.HashStore(), len(pods) * ranks_per_pod

    def join(rank: int) -> int:
        return own_rank(store, rank, size, str(pods[rank // ranks_per_pod]), ranks_per_pod)

    with ThreadPoolExecutor(size) as threads:
        ranks = list(threads.map(join, range(size)))
    assert sorted(ranks) == list(range(size))
    assert ranks[pods.index(1) * ranks_per_pod] == 0
    for first in range(0, size, ranks_per_pod):
        assert ranks[first : first + ranks_per_pod] == list(range(ranks[first], ranks[first] + ranks_per_pod))


def test_ranks_of_a_job_that_does_not_sign_are_those_of_ray() -> None:
    assert [own_rank(dist.HashStore(), rank, 3, None, 1) for rank in range(3)] == [0, 1, 2]


def test_group_forms_in_the_pod_that_signs(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ray(0, 1)
    monkeypatch.setenv(SIGNER_VARIABLE, "1")
    with process_group("gloo", 5):
        assert dist.get_rank() == 0


@pytest.mark.slow
def test_workers_do_not_start_where_no_pod_signs(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ray(0, 1)
    monkeypatch.setenv(SIGNER_VARIABLE, "0")
    with pytest.raises(RendezvousError), process_group("gloo", 1):
        pass


def test_operator_names_the_variable_and_the_folder_of_the_key_as_the_trainer_reads_them() -> None:
    assert rayjob.SIGNER_VARIABLE == SIGNER_VARIABLE
    assert str(PodFiles().signing_key_file) == f"{rayjob.SIGNING_PATH}/signing-key.pem"


@pytest.mark.slow
def test_rank_that_cannot_reach_rank_0_reports_it(ray: Any) -> None:
    (unused_port,) = free_ports(1)
    ray(1, 2, at=("127.0.0.1", unused_port))
    with pytest.raises(RendezvousError) as caught, process_group("gloo", 1):
        pass
    reason, sentence = describe_error(caught.value)
    assert reason is Reason.WORKER_LOST
    assert sentence.startswith(f"worker 1 of 2 could not join the others at 127.0.0.1:{unused_port}")


@pytest.mark.slow
def test_rank_0_stops_waiting_after_the_timeout(ray: Any) -> None:
    ray(0, 2)
    with pytest.raises(RendezvousError, match="worker 0 of 2 could not join"), process_group("gloo", 1):
        pass
    assert not dist.is_initialized()
