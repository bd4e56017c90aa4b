"""`report.png`: the ε and the evaluation of a run, over its steps.

In: the run's plan, its ledger, and its log, which survives crashes and resumes. Out: two panels over the charged steps:
ε with its target, and the public evaluation. The ledger gives the charged steps and the restarts: a step may be charged
and, after a crash, never appear in the log. Steps that ran again after a restart count again, as they do in ε. Every
figure is public.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensafe_api.accounting.composition import format_epsilon
from tensafe_api.resolve import Plan
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.cli.pictures import FAINT, INK, LIMIT, PRIVACY, QUALITY, new_figure, style
from tensorguard.cli.progress import PLD_FIGURES
from tensorguard.cli.wording import steps_text
from tensorguard.ledger.contract import LedgerError, LedgerMissing, LedgerState
from tensorguard.ledger.file import FileLedger
from tensorguard.training.config import RUN_LOG
from tensorguard.training.run_log import Evaluated, LogRecord, RunLogReader, Stepped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "report.png"
_RDP_FIGURES = 200
_LAST: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 9, "fontweight": "bold"}
"""The style of the figure at the end of a line."""


@dataclass
class History:
    """A run on the axis of charged steps.

    Attributes:
        charged: steps charged over all attempts.
        restarts: the positions at which the workers were restarted, each with its label.
        evaluations: each evaluation with its position.
    """

    charged: int = 0
    restarts: list[tuple[int, str]] = field(default_factory=list)
    evaluations: list[tuple[int, Evaluated]] = field(default_factory=list)

    @classmethod
    def of(cls, states: Sequence[LedgerState], records: Iterable[LogRecord]) -> History:
        """The history of a run from the states of its ledger and from its log records, both in their order."""
        history = cls(charged=states[-1].steps_charged)
        for before, now in pairwise(states):
            if before.attempt and (now.attempt, now.incarnation) != (before.attempt, before.incarnation):
                label = "restarted" if now.attempt == before.attempt else f"attempt {now.attempt}"
                history.restarts.append((before.steps_charged, label))
        position = 0
        for record in records:
            match record:
                case Stepped():
                    position = max(position, record.charged)
                case Evaluated():
                    history.evaluations.append((position, record))
        return history


def write_report(output_dir: Path, plan: Plan, job: TenSafeTrainingJob) -> Path | None:
    """Draw the run in `output_dir`, and return the picture; None if no step was charged or it cannot be written."""
    path = output_dir / NAME
    try:
        history = History.of(FileLedger(output_dir).history(), RunLogReader(output_dir / RUN_LOG).read())
        if not history.charged:
            return None
        draw_report(history, plan, job.metadata.name, path)
    except LedgerMissing:  # the run ended before its first step
        return None
    except (LedgerError, OSError) as error:
        print(f"warning: no picture of the run: {error}", file=sys.stderr)
        return None
    return path


def draw_report(history: History, plan: Plan, name: str, path: Path) -> None:
    """Write the picture of `history` to `path`. Raises OSError if it cannot be written."""
    from matplotlib.ticker import MaxNLocator

    panels = 2 if history.evaluations else 1
    figure, axes = new_figure(8, 1.2 + 2.8 * panels, panels)
    _draw_spending(axes[0], history, plan)
    if history.evaluations:
        _draw_evaluations(axes[1], history)
    for panel in axes:
        _style_panel(panel, history)
    again = " (steps that ran again count again)" if history.restarts else ""
    axes[-1].set_xlabel(f"steps charged{again}")
    axes[-1].set_xlim(0, max(plan.steps, history.charged))
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    run = plan.mechanism
    figures = (
        f"σ {run.noise_multiplier}   q {run.sample_rate}   δ {plan.delta}   {plan.accountant}   {run.workers} workers"
    )
    axes[0].set_title(name, loc="left", pad=22, fontsize=14, fontweight="bold", color=INK)
    axes[0].annotate(
        figures, (0, 1), (0, 7), xycoords="axes fraction", textcoords="offset points", fontsize=8.5, color=FAINT
    )
    figure.savefig(path)


def _draw_spending(panel: Axes, history: History, plan: Plan) -> None:
    spent = _curve(plan, 0, history.charged)
    epsilon = spent[-1][1]
    panel.plot(*zip(*spent), color=PRIVACY, linewidth=2.2, zorder=3)
    steps, epsilons = zip(*spent)
    panel.fill_between(steps, epsilons, color=PRIVACY, alpha=0.10, linewidth=0)
    if history.charged < plan.steps:
        panel.plot(
            *zip(*_curve(plan, history.charged, plan.steps)), color=PRIVACY, linewidth=1.2, linestyle=":", alpha=0.7
        )
    panel.plot(history.charged, epsilon, "o", color=PRIVACY, markersize=6, clip_on=False, zorder=4)
    panel.axhline(plan.target_epsilon, color=LIMIT, linestyle="--", linewidth=1.4)
    top = max(plan.target_epsilon, epsilon) * 1.15
    panel.set_ylim(0, top)
    panel.annotate(
        f"target {plan.target_epsilon:g}",
        (0, plan.target_epsilon),
        (6, 4),
        textcoords="offset points",
        color=LIMIT,
        fontsize=9,
    )
    before = plan.mechanism.steps_before
    figures = [f"ε {format_epsilon(epsilon)} spent, of {steps_text(history.charged, 'charged', before)}"]
    if (claimed := plan.claimed_steps(history.charged)) > history.charged:
        figures.append(f"ε {format_epsilon(plan.epsilon(claimed))} claimed, of {steps_text(claimed, before=before)}")
    # The curve is above its chord, so this corner is free.
    panel.annotate("\n".join(figures), (1, 0), (-8, 10), xycoords="axes fraction", color=PRIVACY, **_LAST)
    panel.set_ylabel("ε spent")


def _curve(plan: Plan, first: int, last: int) -> list[tuple[int, float]]:
    """ε at steps from `first` to `last`, more of them at the start, where it rises fast."""
    count = _RDP_FIGURES if plan.accountant == "RDP" else PLD_FIGURES
    steps = sorted({first + round((last - first) * (number / count) ** 2) for number in range(count + 1)})
    return [(step, plan.epsilon(step)) for step in steps]


def _draw_evaluations(panel: Axes, history: History) -> None:
    main = [evaluation.main_metric for _, evaluation in history.evaluations]
    measured = [metric for metric in main if metric is not None]
    by_metric = len(measured) == len(main) and len({title for title, _ in measured}) == 1
    values = [v for _, v in measured] if by_metric else [evaluation.loss for _, evaluation in history.evaluations]
    positions = [position for position, _ in history.evaluations]
    panel.plot(
        positions,
        values,
        "o-",
        color=QUALITY,
        linewidth=1.8,
        markersize=5,
        markeredgecolor="white",
        markeredgewidth=0.8,
        clip_on=False,
        zorder=3,
    )
    below = -15 if values[-1] < values[0] else 8
    panel.annotate(f"{values[-1]:.3f}", (positions[-1], values[-1]), (-2, below), color=QUALITY, **_LAST)
    panel.margins(y=0.2)
    panel.set_ylabel(f"evaluation {measured[0][0]}" if by_metric else "evaluation loss")


def _style_panel(panel: Axes, history: History) -> None:
    for position, label in history.restarts:
        panel.axvline(position, color=FAINT, linestyle=(0, (2, 2)), linewidth=1.1)
        anchor: dict[str, Any] = {"xycoords": panel.get_xaxis_transform(), "textcoords": "offset points"}
        panel.annotate(label, (position, 0.02), (3, 0), **anchor, rotation=90, fontsize=7.5, color=FAINT, va="bottom")
    style(panel)
