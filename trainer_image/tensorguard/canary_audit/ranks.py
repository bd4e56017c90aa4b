"""The work of one rank in an audit, with and without the records of the job.

Both run `training.step.PrivateStep` with the sampler, clipper, noise, masks, charges and decoding of training.

- Without records there is no model: the gradients of the canaries are all that the ranks add up, so the sum has one
  coordinate for each canary. Nothing private is read. The charges go to the ledger of a temporary folder.
- With records a `Worker` trains as in a run, and canaries are among its units. Its ledger is charged as that of any
  run. It writes no checkpoint, so no adapter leaves it.

Rank 0 writes the scores to the run's folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tensafe_api.reasons import Reason
from tensafe_api.resolve import resolve_job
from tensorguard.aggregation.channel import AggregationError, Channel, check_all_reduce_wraps
from tensorguard.aggregation.protocol import AggregationConfig
from tensorguard.aggregation.registry import create_aggregator
from tensorguard.aggregation.session import Session
from tensorguard.canary_audit.canaries import ScoreKeeper, attach_canaries
from tensorguard.ledger.file import FileLedger
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.budget_gate import BudgetGate, Verdict
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.config import WorkerConfig
from tensorguard.training.step import PrivateStep
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.worker import Worker, take_part

SCORES = "canary-scores.npz"
"""File of the scores in the run's folder."""


@dataclass(frozen=True)
class AuditSize:
    """How many canaries an audit has, and how many steps."""

    canaries: int
    steps: int


def audit_without_records(config: WorkerConfig, size: AuditSize, channel: Channel, device: torch.device) -> None:
    """Run the steps of an audit without records. Every rank calls this; the ledger must be new.

    Args:
        config: its job, ledger and key are used. It needs no shards.
    """
    torch.set_num_threads(config.threads)
    check_all_reduce_wraps(channel)
    job = config.parse_job()
    _, plan = resolve_job(job)
    mechanism = plan.mechanism
    ledger = FileLedger(config.directory) if channel.rank == 0 else None
    if ledger is not None:
        ledger.acquire(attempt=config.attempt, from_step=0)
    parameters = [torch.nn.Parameter(torch.zeros(size.canaries, device=device))]
    stream, stop = SecretStream(), StopSignal.of(config.directory)
    session = Session(config.job_uid, config.attempt, 1, channel.size)
    aggregation = AggregationConfig(
        channel, session, config.job_key(), mechanism.grid_bits, job.spec.aggregation.verify
    )
    step = PrivateStep(
        aggregator=create_aggregator(aggregation),
        budget_gate=BudgetGate(channel, plan, ledger, 0),
        sampler=PoissonSampler(0, mechanism.sample_rate, stream),
        gradients=_NoRecords(),
        clipper=GridClipper(size.canaries, mechanism.grid, float(mechanism.clip), device),
        noise=DiscreteGaussian(mechanism.share_sigma),
        noise_stream=stream.derive("noise"),
        parameters=parameters,
        optimizer=torch.optim.SGD(parameters, lr=0.0),
        learning_rate=lambda _: 0.0,
        gradient_per_grid_step=float(mechanism.clip) / (mechanism.grid * mechanism.expected_batch_size),
        stop=stop,
    )
    keeper = attach_canaries(step, size.canaries, mechanism, channel)
    try:
        for number in range(size.steps):
            if step.run(number) is not Verdict.CONTINUE:
                raise AggregationError(f"the audit was stopped before step {number + 1} of {size.steps}")
    finally:
        step.close()
        if ledger is not None:
            ledger.close()
    if channel.rank == 0:
        keeper.scores().save(config.directory / SCORES)


class _NoRecords:
    """The gradients of no records, until canaries take their place."""

    def add_to(self, clipper: GridClipper, units: Any, stop: StopSignal) -> bool:
        return True


class AuditWorker(Worker):
    """A worker that trains with canaries among its units, and writes neither a checkpoint nor an evaluation."""

    def __init__(self, config: WorkerConfig, size: AuditSize, channel: Channel, device: torch.device) -> None:
        super().__init__(config, channel, device)
        self._size = size
        self._keeper: ScoreKeeper | None = None

    def start(self) -> None:
        super().start()
        assert self.private_step is not None
        components = self.components
        if self._size.canaries > components.dimension:
            raise AttemptFailed(
                Reason.INVALID_MANIFEST,
                f"{self._size.canaries} canaries are more than the {components.dimension} trained parameters: lower "
                "--canaries",
            )
        self._keeper = attach_canaries(
            self.private_step,
            self._size.canaries,
            components.plan.mechanism,
            self._channel,
            records=len(components.shard),
            gradients=components.unit_gradients,
        )

    def _planned_steps(self) -> int:
        return self._size.steps

    def _complete(self, message: str) -> None:
        """Write the scores before the attempt ends."""
        assert self._keeper is not None
        if self._channel.rank == 0:
            self._keeper.scores().save(self.config.directory / SCORES)
        super()._complete(f"all {self._size.steps} steps of the audit are done")

    def _save(self, *, final: bool = False) -> None:
        """Write nothing: an audit leaves no adapter."""
        self._saved_step = self._step

    def _is_evaluated(self) -> bool:
        """An audit evaluates nothing."""
        return False


def run_rank_without_records(values: dict[str, Any], size: AuditSize) -> None:
    """`audit_without_records` as the function of a worker of Ray Train."""
    from ray.train.torch import get_device

    from tensorguard.aggregation.channel import ProcessGroupChannel

    device = get_device()
    audit_without_records(WorkerConfig.unpack(values), size, ProcessGroupChannel(device), device)


def run_rank_with_records(values: dict[str, Any], size: AuditSize) -> None:
    """An `AuditWorker` as the function of a worker of Ray Train."""
    from ray.train.torch import get_device

    from tensorguard.aggregation.channel import ProcessGroupChannel

    device = get_device()
    take_part(AuditWorker(WorkerConfig.unpack(values), size, ProcessGroupChannel(device), device))
