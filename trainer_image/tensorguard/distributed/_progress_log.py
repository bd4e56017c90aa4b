"""The logger `tensorguard.distributed`: the plan before a training starts, and each log record while it runs.

In come the plan and the run's log records; out go messages of Python's logging. The plan is at level INFO, everything
else at DEBUG. All of it is public. On a terminal and in a notebook the plan is also printed. Elsewhere it is written to
standard error if the program drops messages at level INFO: it would show nothing of the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensafe_api.accounting.composition import format_epsilon
from tensafe_api.resolve import Plan
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.distributed._config import TenSafeTrainingConfig
from tensorguard.training.run_log import LogRecord, Preparing

LOGGER = logging.getLogger("tensorguard.distributed")

Fact = tuple[str, str, str]
"""A name, a value, and how the value follows from the configuration."""


def report_plan(config: TenSafeTrainingConfig, job: TenSafeTrainingJob, plan: Plan) -> None:
    """Log the plan of the completed `job`, and print it unless the log shows it."""
    found = facts(config, job, plan)
    LOGGER.info("plan: %s", "; ".join(f"{name} {value} ({note})" for name, value, note in found))
    LOGGER.debug("job: %s", job.model_dump_json(by_alias=True, exclude_none=True))
    console = Console(highlight=False)
    if not (console.is_terminal or console.is_jupyter):
        if LOGGER.isEnabledFor(logging.INFO) and LOGGER.hasHandlers():
            return
        console = Console(highlight=False, stderr=True, width=160)
    grid = Table.grid(padding=(0, 2))
    for style in ("dim", "bold", "dim"):
        grid.add_column(style=style, overflow="fold")
    for fact in found:
        grid.add_row(*map(Text, fact))
    console.print(grid)


def log_record(record: LogRecord) -> None:
    """Log a record of the run log."""
    if isinstance(record, Preparing):
        LOGGER.debug("preparing: %s", record.what)
        return
    fields = {name: value for name, value in record.values().items() if name != "time"}
    LOGGER.debug("%s %s", record.kind, ", ".join(f"{name} {value}" for name, value in fields.items()))


@contextmanager
def visible_logs() -> Iterator[None]:
    """Write the logger's messages to standard error, if the program set its level and no handler receives them.

    Without a handler Python drops messages below WARNING, and `setLevel` alone would have no effect.
    """
    if LOGGER.level == logging.NOTSET or LOGGER.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)


def facts(config: TenSafeTrainingConfig, job: TenSafeTrainingJob, plan: Plan) -> list[Fact]:
    """The figures that a caller should know before the training starts."""
    mechanism, unit = plan.mechanism, job.spec.dataset.unit
    factors = (config.per_device_batch_size, config.gradient_accumulation_steps, config.num_workers)
    reserved = plan.steps + plan.reserve_steps
    claimed = plan.claimed_steps(0)
    return [
        (
            "expected batch",
            f"{mechanism.expected_batch_size:,}",
            "per_device_batch_size x gradient_accumulation_steps x num_workers = " + " x ".join(map(str, factors)),
        ),
        ("sampling rate", mechanism.sample_rate, f"of at least {unit.at_least:,} {_UNITS[mechanism.unit]}"),
        ("steps", f"{plan.steps:,}", f"{plan.steps_per_epoch:,} in each epoch"),
        (
            "noise multiplier",
            mechanism.noise_multiplier,
            f"calibrated for {reserved:,} steps" if config.dp_config.noise_multiplier is None else "as configured",
        ),
        (
            "ε",
            format_epsilon(plan.epsilon(claimed)),
            f"of {claimed:,} steps; target_epsilon is {plan.target_epsilon:g}",
        ),
        ("δ", plan.delta, "target_delta" if config.dp_config.target_delta else "1 / (10 x unit_at_least)"),
    ]


_UNITS = {"Example": "records", "User": "users"}
