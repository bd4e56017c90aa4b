"""The noise sampler against the discrete Gaussian: exact probabilities, an exact reference sampler, and moments."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from tensafe_api.resources.mechanism import Mechanism
from tensorguard.privacy import noise
from tensorguard.privacy.noise import MAX_TOTAL_VARIATION, DiscreteGaussian, convolution_distance
from tensorguard.privacy.stream import SecretStream

HEIGHT = 1 << 112


def stream(number: int) -> SecretStream:
    return SecretStream(number.to_bytes(32, "big"))


class ScriptedStream(SecretStream):
    """A stream of given values: words for one draw, then bytes that decide ties."""

    def __init__(self, words: list[int], ties: list[int]) -> None:
        self._words = words
        self._ties = iter(ties)

    def uint64(self, count: int) -> np.ndarray:
        assert count == len(self._words)
        return np.array(self._words, dtype=np.uint64)

    def bytes(self, count: int) -> bytearray:
        assert count == 16
        return bytearray(next(self._ties).to_bytes(count, "little"))


@pytest.fixture
def shared_noise_tables() -> None:
    """Replaces the fixture that shares tables among tests: these tests change how they are built."""


def masses_of(table: noise._Table) -> tuple[dict[int, int], int]:
    """The probability of each value in the alias table, as integers, and their total."""
    masses: dict[int, int] = {}
    for column, (own, alias) in enumerate(zip(table._threshold, table._alias.tolist())):
        for value, part in ((column, own), (alias, HEIGHT - own)):
            if part:
                masses[value - table._offset] = masses.get(value - table._offset, 0) + part
    return masses, HEIGHT << table._bits


def total_variation(masses: dict[int, int], total: int, variance: Fraction) -> mpmath.mpf:
    """Half the sum of |p(x) - q(x)| over all integers, where q is N_Z(0, variance), with 80 digits."""
    with mpmath.workdps(80):
        double = 2 * mpmath.mpf(variance.numerator) / variance.denominator
        # The probability beyond 20σ is below 10^-86. Poisson summation gives the constant without a sum over weights.
        reach = 20 * math.isqrt(int(variance) + 1)
        constant = mpmath.sqrt(mpmath.pi * double) * (
            1 + 2 * sum(mpmath.exp(-(mpmath.pi**2) * double * i * i) for i in (1, 2, 3))
        )
        distance = mpmath.mpf(0)
        for x in range(reach + 1):
            exact = mpmath.exp(-(x * x) / double) / constant
            for value in {x, -x}:
                distance += abs(exact - mpmath.mpf(masses.get(value, 0)) / total)
        return distance / 2


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1.0, 1.3, 1.37, 3.0, 64.0, 333.3])
def test_exact_distribution_of_a_table_is_within_its_bound(sigma: float) -> None:
    """A table of 1.3 has 33 values: one more than fit 32 columns."""
    sampler = DiscreteGaussian(sigma)
    (table,) = sampler._tables
    masses, total = masses_of(table)
    assert sum(masses.values()) == total
    assert all(masses[x] == masses[-x] for x in masses if x)
    distance = total_variation(masses, total, Fraction(sigma) ** 2)
    assert distance <= sampler.total_variation <= 2.0**-100
    assert masses_of(noise._Table(Fraction(sigma * 1.0001) ** 2))[0] != masses


@pytest.mark.parametrize("variance", [Fraction(1), Fraction(3, 2) ** 2, Fraction(10_001, 10)])
def test_weights_are_within_their_error(variance: Fraction) -> None:
    """2·reach² units of the last fixed-point place, on which the bound of the distance rests."""
    reach = math.ceil(12 * math.sqrt(variance))
    weights = noise._weights(variance, reach)
    assert len(weights) == reach + 1
    with mpmath.workdps(100):
        double = 2 * mpmath.mpf(variance.numerator) / variance.denominator
        for x, weight in enumerate(weights):
            assert abs(weight - mpmath.exp(-(x * x) / double) * 2**192) <= 2 * reach**2


def test_bound_of_the_distance_covers_each_of_its_parts() -> None:
    """The cut tails, errors of the weights, and masses that are not in proportion to the weights."""
    table, unit = noise._Table(Fraction(1)), 1 << 192

    def bound(masses: list[int], reach: int) -> float:
        return table._distance([unit // 4] * 4, masses, Fraction(1), reach)

    tail = 2 * stats.norm.sf(3)
    assert tail <= bound([1] * 4, 3) <= 10 * tail
    # Each of four weights is wrong by 2·reach²: two are too large, two too small. The tail beyond 50σ is below 1e-500.
    wrong = [unit // 4 + sign * 2 * 50**2 for sign in (1, 1, -1, -1)]
    moved = float(sum(abs(Fraction(weight, sum(wrong)) - Fraction(1, 4)) for weight in wrong) / 2)
    assert 2 * moved <= bound([1] * 4, 50) <= 5 * moved
    assert bound([3, 1, 2, 2], 50) == pytest.approx(1 / 8)


def test_reference_detects_a_wrong_table() -> None:
    masses, total = masses_of(DiscreteGaussian(3.0)._tables[0])
    masses[0] += total >> 70
    masses[1] -= total >> 70
    assert total_variation(masses, total, Fraction(9)) > 2.0**-72


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1.0, 3.0, 2896.0])
def test_draw_compares_with_the_threshold_and_ties_with_all_its_bits(sigma: float) -> None:
    """A column returns its own value exactly below its threshold: checked above, below, and with equal first bits.

    2,896 is the σ of a table with 2^17 columns, where more than 64 bits remain to decide a tie.
    """
    table = noise._Table(Fraction(sigma) ** 2)
    own_bits, rest_bits = 64 - table._bits, table._rest_bits
    assert rest_bits == 112 - own_bits
    columns = [c for c in range(1 << table._bits) if 0 < table._threshold[c] < HEIGHT][:: 1 if sigma < 100 else 997]
    for column in columns:
        first, rest = divmod(table._threshold[column], 1 << rest_bits)
        alias = int(table._alias[column]) - table._offset
        below, same, above = ((top << table._bits) | column for top in (first - 1, first, first + 1))

        def drawn(word: int, tie: int = 0, rest_bits: int = rest_bits) -> int:
            return int(table.draw(1, ScriptedStream([word], [tie << (128 - rest_bits)]))[0])

        if first:
            assert drawn(below) == column - table._offset
        if first + 1 < 1 << own_bits:
            assert drawn(above) == alias
        if rest:
            assert drawn(same, rest - 1) == column - table._offset
        assert drawn(same, rest) == alias


def test_full_column_never_returns_its_alias() -> None:
    table = noise._Table(Fraction(1))
    full = [c for c in range(1 << table._bits) if table._threshold[c] == HEIGHT]
    assert full
    top = ((1 << (64 - table._bits)) - 1) << table._bits
    assert table.draw(len(full), ScriptedStream([top | c for c in full], [])).tolist() == [
        c - table._offset for c in full
    ]


@pytest.mark.slow
def test_exact_distribution_of_two_tables_is_within_their_bound() -> None:
    sigma = 1025.0
    sampler = DiscreteGaussian(sigma)
    fine, coarse = sampler._tables
    (fine_masses, fine_total), (coarse_masses, coarse_total) = masses_of(fine), masses_of(coarse)
    masses: dict[int, int] = {}
    for high, weight in coarse_masses.items():
        for low, other in fine_masses.items():
            value = low + sampler._stretch * high
            masses[value] = masses.get(value, 0) + weight * other
    distance = total_variation(masses, fine_total * coarse_total, Fraction(sigma) ** 2)
    assert distance <= sampler.total_variation <= 2.0**-100
    assert sampler.total_variation > fine.total_variation + coarse.total_variation, "the convolution costs more"


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1024.5, 1_600_000.0, 4_200_000.0, 4_200_001.7])
def test_variances_of_two_tables_add_up_to_the_total(sigma: float) -> None:
    sampler = DiscreteGaussian(sigma)
    fine = Fraction(2 * sampler._stretch) ** 2
    coarse = (Fraction(sigma) ** 2 - fine) / sampler._stretch**2
    for table, variance in zip(sampler._tables, (fine, coarse)):
        masses, total = masses_of(table)
        second = Fraction(sum(x * x * mass for x, mass in masses.items()), total)
        assert abs(second / variance - 1) < 1e-25
    assert sampler.total_variation <= MAX_TOTAL_VARIATION


@pytest.mark.parametrize(
    ("sigma", "stretch", "fine"), [(1025, 22, Fraction(44) ** 2), (100, 10, Fraction(10)), (1000, 20, Fraction(45))]
)
def test_convolution_bound_is_that_of_its_series(sigma: int, stretch: int, fine: Fraction) -> None:
    """The probabilities are within a factor of (1+ε)/(1−ε), where ε is a series. It is 10^-34, 0.3 and 0.2 here."""
    coarse = (Fraction(sigma) ** 2 - fine) / stretch**2
    with mpmath.workdps(60):
        ratio = mpmath.mpf((fine * coarse).numerator) / (fine * coarse).denominator / sigma**2
        epsilon = 2 * mpmath.nsum(lambda i: mpmath.exp(-2 * mpmath.pi**2 * ratio * i * i), [1, 12])
        exact = (1 + epsilon) / (1 - epsilon) - 1
        assert exact <= convolution_distance(fine, coarse, stretch) <= exact * (1 + 1e-7)


class Reference:
    """The exact sampler of Canonne, Kamath and Steinke (2020), algorithms 1 to 3, over rationals."""

    def __init__(self, sigma: Fraction, stream: SecretStream) -> None:
        self._variance = sigma**2
        self._scale = math.floor(sigma) + 1
        self._stream = stream

    def below(self, bound: int) -> int:
        bits = bound.bit_length()
        while True:
            value = int.from_bytes(self._stream.bytes((bits + 7) // 8), "little") >> (-bits % 8)
            if value < bound:
                return value

    def bernoulli(self, p: Fraction) -> bool:
        return self.below(p.denominator) < p.numerator

    def bernoulli_exp(self, gamma: Fraction) -> bool:
        """True with probability e^-gamma."""
        while gamma > 1:
            if not self.bernoulli_exp(Fraction(1)):
                return False
            gamma -= 1
        return next(k for k in itertools.count(1) if not self.bernoulli(gamma / k)) % 2 == 1

    def laplace(self) -> int:
        """P[x] proportional to e^{-|x|/scale}."""
        while True:
            u = self.below(self._scale)
            if not self.bernoulli_exp(Fraction(u, self._scale)):
                continue
            whole = next(v for v in itertools.count() if not self.bernoulli_exp(Fraction(1)))
            magnitude, negative = u + self._scale * whole, self.below(2)
            if magnitude or not negative:
                return -magnitude if negative else magnitude

    def gaussian(self) -> int:
        while True:
            y = self.laplace()
            distance = abs(y) - self._variance / self._scale
            if self.bernoulli_exp(distance * distance / (2 * self._variance)):
                return y


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "bins"), [(3.0, range(-9, 10)), (64.0, range(-160, 161, 8))])
def test_sampler_is_indistinguishable_from_the_exact_sampler(sigma: float, bins: range) -> None:
    reference = Reference(Fraction(sigma), stream(1))
    exact = np.array([reference.gaussian() for _ in range(8000)])
    ours = DiscreteGaussian(sigma).draw(200_000, stream(2))
    table = [np.bincount(np.digitize(sample, bins), minlength=len(bins) + 1) for sample in (exact, ours)]
    assert stats.chi2_contingency(table).pvalue > 1e-6
    wrong = [table[0], np.bincount(np.digitize(ours * 1.1, bins), minlength=len(bins) + 1)]
    assert stats.chi2_contingency(wrong).pvalue < 1e-6


@pytest.mark.parametrize("sigma", [1.0, 64.0, 1500.0, 1_600_000.0])
def test_moments_and_low_bits(sigma: float) -> None:
    count = 400_000
    drawn = DiscreteGaussian(sigma).draw(count, stream(3))
    assert drawn.dtype == np.int64
    assert abs(drawn.mean()) < 5 * sigma / math.sqrt(count)
    # The variance of N_Z(0, 1) is 1 to 10^-7; that of the larger ones is σ² to more digits than a float has.
    statistic = (drawn.astype(float) ** 2).sum() / sigma**2
    assert 1e-6 < stats.norm(count, math.sqrt(2 * count)).sf(statistic) < 1 - 1e-6
    if sigma >= 64:
        for modulus in (2, 3, 22, 27, 256 if sigma > 1000 else 5):
            assert stats.chisquare(np.bincount(drawn % modulus, minlength=modulus)).pvalue > 1e-6


def test_draws_from_one_stream_are_different_and_uncorrelated() -> None:
    sampler, one = DiscreteGaussian(1500.0), stream(4)
    steps = [sampler.draw(50_000, one) for _ in range(3)]
    for first, second in itertools.combinations(steps, 2):
        assert (first != second).any()
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(50_000)


def test_resumed_run_draws_new_noise() -> None:
    """A resumed worker has a new stream: its noise differs from the earlier noise and from that of other workers."""
    sampler = DiscreteGaussian(1500.0)
    runs = [sampler.draw(20_000, SecretStream().derive("noise")) for _ in range(3)]
    for first, second in itertools.combinations(runs, 2):
        assert (first == second).mean() < 0.01
        assert abs(np.corrcoef(first, second)[0, 1]) < 6 / math.sqrt(20_000)


@pytest.mark.parametrize("workers", [1, 2, 4, 5])
def test_shares_add_up_to_the_accounted_noise(workers: int) -> None:
    """All shares together have the variance σ²·S²."""
    mechanism = Mechanism(
        sample_rate="0.01",
        noise_multiplier="0.8",
        clip="1.0",
        unit="Example",
        workers=workers,
        grid_bits=14,
        expected_batch_size=100,
    )
    count = 100_000
    sampler = DiscreteGaussian(mechanism.share_sigma)
    shares = [sampler.draw(count, stream(10 + rank)) for rank in range(workers)]
    total = np.sum(shares, axis=0).astype(float)
    statistic = (total**2).sum() / (float(mechanism.noise_multiplier) * mechanism.grid) ** 2
    assert 1e-6 < stats.chi2(count).sf(statistic) < 1 - 1e-6
    for first, second in itertools.combinations(shares, 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(count)


@pytest.mark.parametrize("sigma", [0.99, 0.0, -1.0, float("nan")])
def test_sigma_below_one_grid_step_is_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match="at least one grid step"):
        DiscreteGaussian(sigma)


def test_sampler_too_far_from_the_discrete_gaussian_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_TAIL", 6)
    with pytest.raises(ValueError, match="too far from the discrete Gaussian"):
        DiscreteGaussian(64.0)


@pytest.mark.parametrize("sigma", [30.0, 9_000.0])
def test_draws_in_parts_are_the_draws_of_the_parts(monkeypatch, sigma):
    monkeypatch.setattr(noise, "_PART", 100)
    sampler = DiscreteGaussian(sigma)
    together, apart = (SecretStream(bytes(32)) for _ in range(2))
    parts = [sampler.draw(count, apart) for count in (100, 100, 57)]
    assert sampler.draw(257, together).tolist() == np.concatenate(parts).tolist()
    assert len(set(np.concatenate(parts).tolist())) > 20
    assert together.bytes(8) == apart.bytes(8)
