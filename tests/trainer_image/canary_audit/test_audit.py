"""Audits of the real pipeline, whose ranks are threads: what keeps its claim is not refuted, what breaks it is.

Sampling, clipping, noise, charges, masks, verification and decoding are those of training; the ledger is a file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensafe_api.manifest.text import load_manifest
from tensafe_api.resolve import resolve_job
from tensorguard.canary_audit.job_audit import Audit, AuditResult, claimed_steps
from tensorguard.canary_audit.lower_bound import GuessPlan
from tensorguard.canary_audit.ranks import AuditSize
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.budget_gate import BudgetGate
from tests.support.trainer.audits import MANIFEST

RunAudit = Callable[..., AuditResult]
SIGMA = 'spec.privacy.noiseMultiplier="1.4"'
LARGE: dict[str, Any] = {"canaries": 30_000, "guesses": GuessPlan(500, 500)}
"""So many canaries let guesses alone refute half of this noise: the claim is 2.98, and for a bound above it 965 guesses
must be correct. 984 are, with a standard deviation of 3.9."""

draw = DiscreteGaussian.draw


def halve_the_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DiscreteGaussian, "draw", lambda noise, count, stream: draw(noise, count, stream) // 2)


def silence_one_rank(patch: pytest.MonkeyPatch) -> None:
    """The rank that draws first has no noise: its stream gives zeros."""
    first: list[SecretStream] = []
    lock = threading.Lock()

    def drawing(noise: DiscreteGaussian, count: int, stream: SecretStream) -> np.ndarray:
        with lock:
            first.append(stream)
        return draw(noise, count, stream) * (stream is not first[0])

    patch.setattr(DiscreteGaussian, "draw", drawing)


@pytest.mark.slow
def test_audit_of_one_gaussian_step_reaches_a_third_of_its_epsilon(audited: RunAudit) -> None:
    """q = 1, σ = 1, 5,000 canaries; the number of guesses is fixed by the claim, before the step runs."""
    result = audited()
    assert result.claimed.sample_rate == 1 and result.claimed.noise_multiplier == 1 and result.claimed.steps == 1
    assert result.claimed.epsilon == pytest.approx(4.377, abs=1e-3)  # exact: Balle, Wang 2018, at δ = 1e-5
    assert 0.3 * result.claimed.epsilon < result.one_run < result.claimed.epsilon
    assert not result.refuted


@pytest.mark.slow
def test_sampled_steps_are_not_refuted_and_their_bounds_are_as_expected(audited: RunAudit) -> None:
    """The bound varies by 0.1: with so many guesses, an audit in which all of them are right does not occur."""
    job = ("spec.training.steps=20", "spec.training.expectedBatchSize=128")
    result = audited(*job, canaries=8000, guesses=GuessPlan(1000, 0))
    assert result.claimed.sample_rate == 0.25
    assert not result.refuted
    expected = result.expectation
    assert expected.low - 0.3 < result.one_run < expected.high + 0.3
    assert 0.8 * result.claimed.epsilon < result.noise_bound <= result.claimed.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_claim_holds_for_any_number_of_workers(workers: int, audited: RunAudit) -> None:
    assert not audited(f"spec.cluster.workers={workers}", canaries=3000).refuted


@pytest.mark.slow
def test_half_of_the_noise_is_refuted(audited: RunAudit, monkeypatch: pytest.MonkeyPatch) -> None:
    halve_the_noise(monkeypatch)
    result = audited(canaries=12_000)
    assert result.refuted_by_noise and result.refuted
    assert result.noise_bound > 2 * result.claimed.epsilon  # the bound of σ is 0.523, and varies by 0.005


@pytest.mark.slow
def test_half_of_the_noise_is_refuted_by_guesses_alone(audited: RunAudit, monkeypatch: pytest.MonkeyPatch) -> None:
    halve_the_noise(monkeypatch)
    result = audited(SIGMA, **LARGE)
    assert result.refuted_by_guesses
    assert result.one_run > result.claimed.epsilon


@pytest.mark.slow
def test_one_rank_without_noise_is_refuted(audited: RunAudit, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two equal shares is left. With so many canaries the bound of σ is 4.6 % above σ, and varies by 0.9 %."""
    silence_one_rank(monkeypatch)
    result = audited(canaries=12_000)
    assert result.refuted
    assert result.sigma_at_most == pytest.approx(0.5**0.5, rel=0.1)


@pytest.mark.slow
def test_one_of_four_ranks_without_noise_is_refuted(audited: RunAudit, monkeypatch: pytest.MonkeyPatch) -> None:
    silence_one_rank(monkeypatch)
    assert audited("spec.cluster.workers=4", canaries=8000).refuted


@pytest.mark.slow
def test_no_noise_at_all_is_refuted(audited: RunAudit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiscreteGaussian, "draw", lambda _noise, count, _stream: np.zeros(count, dtype=np.int64))
    result = audited()
    assert result.guesses.correct == result.guesses.guesses
    assert result.refuted_by_guesses and result.refuted_by_noise


@pytest.mark.slow
def test_doubled_clip_bound_is_refuted_by_guesses(audited: RunAudit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is as claimed, so the noise bound cannot see it; a canary is twice as far out as any record may be."""
    to_grid = GridClipper.to_grid
    monkeypatch.setattr(GridClipper, "to_grid", lambda clipper, rows, seeds: 2 * to_grid(clipper, rows, seeds))
    result = audited(SIGMA, **LARGE)
    assert result.refuted_by_guesses and not result.refuted_by_noise


@pytest.mark.slow
def test_canaries_that_join_each_step_instead_of_few_are_refuted(
    audited: RunAudit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling with probability 1 where a sixteenth is accounted."""
    monkeypatch.setattr(PoissonSampler, "draw", lambda sampler: np.arange(sampler._units))
    job = ("spec.training.expectedBatchSize=32", "spec.training.steps=4")
    result = audited(*job, 'spec.privacy.noiseMultiplier="0.8"')
    assert result.refuted_by_guesses


@pytest.mark.slow
def test_every_step_is_charged_before_it_is_revealed(audited: RunAudit, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[int] = []
    charge = BudgetGate._charge

    def recording(gate: BudgetGate, step: int, stop: bool) -> object:
        allowance = charge(gate, step, stop)
        charged.append(allowance.charged_through)
        return allowance

    monkeypatch.setattr(BudgetGate, "_charge", recording)
    result = audited("spec.training.steps=3", "spec.training.expectedBatchSize=128", canaries=500)
    assert charged[-1] == 3 == result.scores.steps


def test_steps_of_an_earlier_training_are_not_under_audit() -> None:
    """They spent ε, but this audit cannot see them: the claim to compare with is that of the audited steps alone."""
    earlier = 'spec.lora.initFrom={uri: "earlier", earlierSteps: [{sampleRate: "1", noiseMultiplier: "1", steps: 9}]}'
    (_, alone), (_, continued) = (
        resolve_job(load_manifest(MANIFEST, changes)) for changes in ((), (earlier, 'spec.privacy.targetEpsilon="99"'))
    )
    assert continued.epsilon(1) > 2 * alone.epsilon(1)
    assert claimed_steps(continued, 1).epsilon == pytest.approx(alone.epsilon(1), rel=0.1)


@pytest.mark.slow
def test_fewer_steps_than_planned_have_a_smaller_claim() -> None:
    changes = ("spec.training.steps=10", "spec.training.expectedBatchSize=64")
    _, plan = resolve_job(load_manifest(MANIFEST, changes))
    some, all_steps = (Audit.of(plan, AuditSize(500, steps), 0.05).claimed for steps in (3, 10))
    assert some.epsilon < all_steps.epsilon == pytest.approx(plan.epsilon(10))
