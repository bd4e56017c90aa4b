"""The interface of aggregation protocols, with the toy protocol of docs/extending as the second implementation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensafe_api.resources.mechanism import charged_events
from tensafe_api.statement.contents import AggregationStatement, StatementInputs, build_statement, render_markdown
from tensorguard.aggregation import pairwise_masks
from tensorguard.aggregation.channel import AggregationError
from tensorguard.aggregation.keys import PairKeys
from tensorguard.aggregation.pairwise_masks import PairwiseMasks
from tensorguard.aggregation.protocol import AggregationConfig, SecureAggregator
from tensorguard.aggregation.registry import DEFAULT_PROTOCOL, PROTOCOLS, create_aggregator
from tensorguard.aggregation.session import Session
from tensorguard.aggregation.verify import CHALLENGES
from tensorguard.training.budget_gate import Verdict
from tests.support.trainer.private_steps import JOB_KEY, example_mechanism, take_steps

Run = Callable[[int, Callable[[Any], Any]], list[Any]]
PAGE = Path(__file__).parents[3] / "docs" / "extending" / "aggregation-protocol.md"
CHARGED = {"charged_through": 1, "ledger_head": "0" * 64}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> type[SecureAggregator]:
    """The protocol of the page, registered as the page asks."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    namespace: dict[str, Any] = {"__name__": "clear_sum"}
    exec(compile(code, str(PAGE), "exec"), namespace)
    protocol: type[SecureAggregator] = namespace["ClearSum"]
    monkeypatch.setitem(PROTOCOLS, protocol.name, protocol)
    return protocol


def config(channel: Any, grid_bits: int = 14, incarnation: int = 1) -> AggregationConfig:
    session = Session(job="j", attempt=1, incarnation=incarnation, workers=channel.size)
    return AggregationConfig(channel, session, JOB_KEY, grid_bits=grid_bits, verify="Standard")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_protocol_of_the_page_sums_like_pairwise_masks(size: int, toy: type[SecureAggregator], workers: Run) -> None:
    """With equal noise and records, whole private steps reveal the same integers under both protocols."""

    def revealed(protocol: str) -> list[list[np.ndarray]]:
        def work(channel: Any) -> list[np.ndarray]:
            shard = {channel.rank: [0.1] * 30}
            results = take_steps(channel, example_mechanism(size), shard, 3, 30, keys=5, protocol=protocol)
            assert results.verdicts == [Verdict.CONTINUE] * 3
            return results.sums

        return workers(size, work)

    assert np.array_equal(revealed(toy.name), revealed(DEFAULT_PROTOCOL))


def test_protocol_of_the_page_contributes_to_the_statement(toy: type[SecureAggregator], workers: Run) -> None:
    (part,) = workers(1, lambda channel: create_aggregator(config(channel), toy.name).statement())
    document = build_statement(statement_inputs(part))
    assert document["mechanism"]["run"].endswith(", a sum without masks")
    assert document["assumed"][-1].startswith("The network is trusted")
    assert document["notCovered"][-1] == "An adversary who reads the messages between the workers."
    assert "masks do not protect" not in render_markdown(document)


def test_pairwise_masks_contribute_to_the_statement(workers: Run) -> None:
    (part,) = workers(1, lambda channel: create_aggregator(config(channel)).statement())
    document = build_statement(statement_inputs(part))
    assert document["mechanism"]["run"].endswith(", discrete Gaussian shares, pairwise masks")
    assert any(sentence.startswith("The network may read everything") for sentence in document["assumed"])
    assert any(sentence.startswith("Malicious workers") for sentence in document["notCovered"])


@pytest.mark.parametrize(
    ("size", "run", "sentence"),
    [
        (1, "pairwise masks", None),
        (
            33,
            "pairwise masks",
            "Each worker shares masks with all others. Any workers that combine what they see learn only the sum of "
            "the other workers' vectors.",
        ),
        (
            34,
            "pairwise masks with 32 neighbours",
            "Each worker shares masks with 32 of the 33 others, in a random graph that is new at each start of the "
            "workers. Up to 31 workers that combine what they see learn only the sum of the other workers' vectors.",
        ),
        (
            256,
            "pairwise masks with 32 neighbours",
            "Each worker shares masks with 32 of the 255 others, in a random graph that is new at each start of the "
            "workers. Up to 31 workers that combine what they see learn only the sum of the other workers' vectors.",
        ),
    ],
)
def test_statement_names_the_graph_and_what_workers_learn_together(
    size: int, run: str, sentence: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairwise_masks, "agree_pair_keys", lambda *_: PairKeys())
    channel: Any = SimpleNamespace(size=size, rank=0)
    part = PairwiseMasks(config(channel)).statement()
    assert part.protocol == run
    assert [each for each in part.assumed if each.startswith("Each worker shares")] == ([sentence] if sentence else [])


@pytest.mark.parametrize("size", [36, pytest.param(256, marks=pytest.mark.slow)])
def test_large_group_masks_with_few_neighbours_and_sums_exactly(
    workers: Run, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have 32 neighbours each, which are others in the next incarnation. The sum is verified."""

    def work(channel: Any) -> tuple[list[int], tuple[int, ...]]:
        masks = PairwiseMasks(config(channel))
        values = np.array([channel.rank, -1, 2**31 - 1 if channel.rank % 2 else 1 - 2**31], dtype=np.int64)
        total = masks.sum(0, values, np.ones(3, dtype=np.int64), **CHARGED, stop=False)
        assert total is not None
        return total.tolist(), masks.neighbours

    results = workers(size, work)
    assert all(total == [sum(range(size)) + size, 0, size] for total, _ in results)

    monkeypatch.setattr(pairwise_masks, "agree_pair_keys", lambda *_: PairKeys())
    channels: list[Any] = [SimpleNamespace(size=size, rank=rank) for rank in range(size)]
    later = [PairwiseMasks(config(channel, incarnation=2)).neighbours for channel in channels]
    assert {len(near) for _, near in results} == {len(near) for near in later} == {32}
    assert sum(before != after for (_, before), after in zip(results, later)) > 0.8 * size


def test_statement_without_verification_claims_no_detection(workers: Run) -> None:
    def parts(channel: Any) -> list[AggregationStatement]:
        return [create_aggregator(replace(config(channel), verify=level)).statement() for level in CHALLENGES]

    (found,) = workers(1, parts)
    for level, part in zip(CHALLENGES, found):
        verified = (
            "The network may read everything that passes; a change on the way is detected.",
            "Malicious workers: verification finds only faults in transit and in libraries.",
        )
        not_verified = (
            "The network may read everything that passes, but changes nothing: `aggregation.verify` is Disabled, so a "
            "change on the way is not detected.",
            "Malicious workers, and faults in transit and in libraries: sums are not verified.",
        )
        assert (*part.assumed, *part.not_covered) == (not_verified if level == "Disabled" else verified)


@pytest.mark.parametrize("protocol", [DEFAULT_PROTOCOL, "ClearSum"])
def test_workers_that_differ_on_the_header_reveal_nothing(
    protocol: str, toy: type[SecureAggregator], outcomes: Run
) -> None:
    summed: list[int] = []

    def work(channel: Any) -> Any:
        aggregator = create_aggregator(config(channel, grid_bits=14 if channel.rank else 13), protocol)
        channel.on_vector = lambda sender, vector: summed.append(sender) or vector
        zeros = np.zeros(4, dtype=np.int64)
        return aggregator.sum(0, zeros, zeros, **CHARGED, stop=False)

    for result in outcomes(3, work):
        assert isinstance(result, AggregationError)
        assert "differs on grid bits" in str(result)
    assert not summed


@pytest.mark.parametrize("protocol", [DEFAULT_PROTOCOL, "ClearSum"])
def test_stop_of_one_worker_prevents_the_reveal(protocol: str, toy: type[SecureAggregator], workers: Run) -> None:
    def work(channel: Any) -> Any:
        aggregator = create_aggregator(config(channel), protocol)
        zeros = np.zeros(4, dtype=np.int64)
        return aggregator.sum(0, zeros, zeros, **CHARGED, stop=channel.rank == 1)

    assert workers(3, work) == [None] * 3


def test_masks_that_were_not_prepared_are_made_when_needed(workers: Run) -> None:
    def work(channel: Any) -> list[int]:
        aggregator = create_aggregator(config(channel))
        if channel.rank == 0:
            aggregator.prepare(0, 3)
        values = np.array([1, -2, 2**40], dtype=np.int64)
        total = aggregator.sum(0, values, np.zeros(3, dtype=np.int64), **CHARGED, stop=False)
        assert total is not None and total.dtype == np.int32
        return total.tolist()

    assert workers(2, work) == [[2, -4, -2]] * 2  # two saturated values wrap: 2·(2^31 − 1) ≡ −2


@pytest.mark.parametrize(("first", "second", "charged"), [(0, 0, 9), (5, 4, 9), (0, 3, 3)])
def test_step_that_is_repeated_or_uncharged_is_not_revealed(
    first: int, second: int, charged: int, workers: Run
) -> None:
    """A mask that is used for two sums reveals their difference."""

    def work(channel: Any) -> None:
        aggregator = create_aggregator(config(channel))
        zeros = np.zeros(3, dtype=np.int64)
        aggregator.sum(first, zeros, zeros, charged_through=charged, ledger_head="0" * 64, stop=False)
        with pytest.raises(ValueError, match=f"step {second} cannot be revealed: the next step is {first + 1}"):
            aggregator.sum(second, zeros, zeros, charged_through=charged, ledger_head="0" * 64, stop=False)

    workers(2, work)


def test_protocol_cannot_override_the_checks_of_a_step() -> None:
    with pytest.raises(TypeError, match="Unchecked overrides `sum`, which checks each step: override `reveal` instead"):

        class Unchecked(PairwiseMasks):
            def sum(self, step: int, local_sum: np.ndarray, noise: np.ndarray, **_: Any) -> np.ndarray:  # type: ignore[misc]
                return local_sum


@pytest.mark.parametrize("wrong", [np.zeros(1, dtype=np.int32), np.zeros(3, dtype=np.int64)])
def test_sum_of_another_shape_or_type_is_refused(wrong: np.ndarray, workers: Run) -> None:
    class Wrong(PairwiseMasks):
        def reveal(self, step: int, local_sum: np.ndarray, noise: np.ndarray) -> np.ndarray:
            return wrong

    def work(channel: Any) -> None:
        zeros = np.zeros(3, dtype=np.int64)
        with pytest.raises(TypeError, match=r"PairwiseMasks revealed .*, not int32 \(3,\)"):
            Wrong(config(channel)).sum(0, zeros, zeros, **CHARGED, stop=False)

    workers(1, work)


def test_unknown_protocol_is_refused(workers: Run) -> None:
    def work(channel: Any) -> None:
        with pytest.raises(ValueError, match=r"no aggregation protocol is named 'Sum'; choose one of .*PairwiseMasks"):
            create_aggregator(config(channel), "Sum")

    workers(1, work)


def statement_inputs(part: AggregationStatement) -> StatementInputs:
    mechanism = example_mechanism(2)
    return StatementInputs(
        job_name="j",
        job_uid="1",
        attempt=1,
        place="OneMachine",
        mechanism=mechanism,
        unit_at_least=5000,
        planned_steps=10,
        target_epsilon="8",
        delta="0.00001",
        accountant="RDP",
        steps_charged=10,
        steps_recharged=0,
        step=10,
        events=charged_events(mechanism, 10),
        dimension=30,
        noise_distance=2.0**-102,
        aggregation=part,
        adapter_digest="sha256:0",
        ledger_head="0" * 64,
        ledger_length=3,
    )
