"""The picture of an audit: the scores of its canaries, and its bounds beside the claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tensorguard.cli.pictures import FAINT, INK, LIMIT, PRIVACY, QUALITY, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tensorguard.canary_audit.job_audit import AuditResult

_BINS = 60


def draw_audit(path: Path, name: str, result: AuditResult) -> None:
    """Write the picture of an audit to `path`, as PNG."""
    figure, (scores, bounds) = new_figure(7.5, 5.6, panels=2, shared=False, heights=(3, 2))
    _draw_scores(scores, result)
    _draw_bounds(bounds, result)
    scores.set_title(
        f"{name}: {len(result.scores.scores):,} canaries, {result.claimed.steps:,} steps", loc="left", color=INK
    )
    figure.savefig(path, format="png")


def _draw_scores(panel: Axes, result: AuditResult) -> None:
    """Histograms of the scores, and where the attack guesses."""
    scores, included = result.scores.scores, result.scores.included
    edges = np.linspace(scores.min(), scores.max(), _BINS).tolist()
    panel.hist(scores[~included], edges, color=FAINT, alpha=0.75, label="canary is out")
    panel.hist(scores[included], edges, color=PRIVACY, alpha=0.6, label="canary is in")
    ordered, plan = np.sort(scores), result.plan
    if plan.highest:
        _mark_guesses(panel, float(ordered[-plan.highest]), ' guess "in"', "left")
    if plan.lowest:
        _mark_guesses(panel, float(ordered[plan.lowest - 1]), 'guess "out" ', "right")
    panel.set_xlabel("score, in clip norms")
    panel.set_ylabel("canaries")
    panel.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    style(panel)


def _mark_guesses(panel: Axes, score: float, text: str, align: str) -> None:
    """Draw the score beyond which the attack guesses."""
    panel.axvline(score, color=INK, linewidth=1, linestyle="--")
    panel.text(score, 0.97, text, transform=panel.get_xaxis_transform(), ha=align, va="top", color=INK, fontsize=8.5)


def _draw_bounds(panel: Axes, result: AuditResult) -> None:
    """The two lower bounds as bars, what to expect of the first, and the claim as a line."""
    claim, expected = result.claimed.epsilon, result.expectation
    shown = [result.one_run, min(result.noise_bound, 3 * claim)]
    panel.barh([1, 0], shown, height=0.45, color=[PRIVACY, QUALITY])
    panel.plot([expected.low, expected.high], [1.36, 1.36], color=INK, linewidth=2.5, solid_capstyle="butt")
    panel.text(expected.high, 1.36, "  to expect", va="center", fontsize=8.5, color=INK)
    panel.axvline(claim, color=LIMIT, linewidth=1.5)
    panel.text(claim, 1.02, f"claimed ε = {claim:.2f}", transform=panel.get_xaxis_transform(), ha="center", color=LIMIT)
    for at, value, bound in zip((1, 0), shown, (result.one_run, result.noise_bound)):
        panel.text(value, at, f" {bound:.2f}", va="center", fontsize=9, color=INK)
    panel.set_yticks([1, 0], ["ε at least,\nby guesses", "ε at least,\nby noise"])
    panel.set_xlim(0, 1.15 * max(claim, *shown, expected.high))
    panel.set_ylim(-0.4, 1.6)
    panel.set_xlabel("ε")
    style(panel)
