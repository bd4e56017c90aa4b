"""Mistakes in sampling, clipping, rounding and noise, and in the step that they are parts of."""

from __future__ import annotations

from mutations.mutation import (
    AGGREGATION_TESTS,
    API,
    PRIVACY_TESTS,
    TRAINER,
    TRAINER_TESTS,
    TRAINING_TESTS,
    Edit,
    Mutation,
)

_STEP = TRAINER + "training/step.py"
_CLIPPING = TRAINER + "privacy/clipping.py"
_NOISE = TRAINER + "privacy/noise.py"
_SET_UP = TRAINER + "training/setup.py"
_SAMPLING = TRAINER + "privacy/sampling.py"
_NEIGHBOURS = (
    PRIVACY_TESTS + "test_clipping.py::test_neighbouring_sums_differ_by_at_most_the_grid",
    AGGREGATION_TESTS + "test_whole_step.py::test_one_more_unit_moves_the_revealed_sum_by_at_most_the_grid",
)
_NOISE_IN_SUMS = (
    AGGREGATION_TESTS + "test_whole_step.py::test_noise_of_all_ranks_is_in_every_sum_and_is_new_in_each_step",
)
_AUDIT = (TRAINER_TESTS + "cli/test_audit.py::test_audit_of_a_job_that_keeps_its_claim_exits_0",)
"""Under a mistake that spends more ε than is accounted, `tensafe audit` must exit with 1."""
_BATCH_SIZES = (PRIVACY_TESTS + "test_sampling.py::test_batch_sizes_are_binomial_and_include_empty_draws",)

MECHANISM: tuple[Mutation, ...] = (
    Mutation(
        "σ is halved in the noise shares",
        (
            Edit(
                API + "privacy_events.py",
                "return float(self.noise_multiplier) * self.grid / math.sqrt(self.workers)",
                "return 0.5 * float(self.noise_multiplier) * self.grid / math.sqrt(self.workers)",
            ),
        ),
        (
            *_NOISE_IN_SUMS,
            *_AUDIT,
            PRIVACY_TESTS + "test_noise.py::test_shares_add_up_to_the_accounted_noise",
            "tests/api/test_privacy_events.py::test_noise_shares_of_all_workers_add_up_to_the_noise_multiplier",
        ),
    ),
    Mutation(
        "σ is halved in the noise sampler",
        (Edit(_NOISE, "[_Table(Fraction(sigma) ** 2)]", "[_Table(Fraction(sigma) ** 2 / 4)]"),),
        (
            PRIVACY_TESTS + "test_noise.py::test_exact_distribution_of_a_table_is_within_its_bound",
            PRIVACY_TESTS + "test_noise.py::test_sampler_is_indistinguishable_from_the_exact_sampler",
        ),
    ),
    Mutation(
        "one rank adds no noise",
        (
            Edit(
                _STEP,
                "self.noise.draw(self._dimension, self.noise_stream)",
                "self.noise.draw(self._dimension, self.noise_stream) * (self.aggregator.channel.rank != 1)",
            ),
        ),
        (*_NOISE_IN_SUMS, *_AUDIT),
    ),
    Mutation(
        "noise is reused: every step reads the same stream",
        (
            Edit(
                _STEP,
                "self.noise.draw(self._dimension, self.noise_stream)",
                'self.noise.draw(self._dimension, self.noise_stream.derive("again"))',
            ),
        ),
        _NOISE_IN_SUMS,
    ),
    Mutation(
        "noise is reused after a restart: streams have a fixed key",
        (
            Edit(
                TRAINER + "privacy/stream.py",
                "self._key = os.urandom(32) if key is None else key",
                "self._key = bytes(32) if key is None else key",
            ),
        ),
        (
            PRIVACY_TESTS + "test_noise.py::test_resumed_run_draws_new_noise",
            PRIVACY_TESTS + "test_sampling.py::test_workers_with_equal_global_seeds_draw_independently",
            AGGREGATION_TESTS + "test_whole_step.py::test_restart_draws_new_noise",
        ),
    ),
    Mutation(
        "the clip bound is doubled",
        (
            Edit(_CLIPPING, "torch.clamp(self.clip / norms, max=1.0)", "torch.clamp(2 * self.clip / norms, max=2.0)"),
            Edit(_CLIPPING, "self.grid = grid\n", "self.grid = 2 * grid\n"),
        ),
        _NEIGHBOURS,
    ),
    Mutation(
        "the integer norm check is left out",
        (
            Edit(
                _CLIPPING,
                "return whole, bounded & (pieces.sum(dim=0) <= self.grid**2)",
                "return whole, torch.isfinite(rounded).all(dim=1)",
            ),
        ),
        (
            PRIVACY_TESTS + "test_clipping.py::test_norm_check_is_exact_at_its_bound",
            PRIVACY_TESTS + "test_clipping.py::test_unit_whose_norm_stays_too_large_is_dropped",
            PRIVACY_TESTS + "test_clipping.py::test_unit_whose_norm_rounding_made_too_large_is_rounded_toward_zero",
        ),
    ),
    Mutation(
        "the batch is clipped instead of its units",
        (
            Edit(
                _CLIPPING,
                "norms = torch.stack([_norm(row) for row in rows])",
                "norms = _norm(rows).expand(len(rows))",
            ),
        ),
        _NEIGHBOURS,
    ),
    Mutation(
        "rounding is keyed by the position in the batch",
        (
            Edit(
                _CLIPPING,
                "uniforms(seeds, rows.shape[1], rows.device)",
                "uniforms(list(range(len(seeds))), rows.shape[1], rows.device)",
            ),
        ),
        (PRIVACY_TESTS + "test_clipping.py::test_integers_of_a_unit_do_not_depend_on_its_neighbours",),
    ),
    Mutation(
        "a sum that lacks gradients is revealed",
        (Edit(_STEP, "stop=bool(self.stop) or not complete", "stop=bool(self.stop)"),),
        (TRAINING_TESTS + "test_private_step.py::test_sum_that_lacks_a_gradient_is_not_revealed",),
    ),
    Mutation(
        "the step skips empty draws",
        (
            Edit(
                _STEP,
                "        complete = self.gradients",
                "        if not len(units):\n            return Verdict.CONTINUE\n        complete = self.gradients",
            ),
        ),
        (AGGREGATION_TESTS + "test_whole_step.py::test_step_with_an_empty_draw_is_taken_noised_and_charged",),
    ),
    Mutation(
        "the sampler repeats empty draws",
        (
            Edit(
                _SAMPLING,
                "return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)",
                "return np.concatenate(chosen) if any(map(len, chosen)) else self.draw()",
            ),
        ),
        _BATCH_SIZES,
    ),
    Mutation(
        "ranks sample from a shared seed",
        (
            Edit(
                _SAMPLING,
                "self._stream.uint64(min(_WORDS_AT_ONCE, self._units - start))",
                "np.random.randint(0, 2**64, min(_WORDS_AT_ONCE, self._units - start), dtype=np.uint64)",
            ),
        ),
        (PRIVACY_TESTS + "test_sampling.py::test_workers_with_equal_global_seeds_draw_independently",),
    ),
    Mutation(
        "batches of a fixed size are accounted as Poisson",
        (
            Edit(
                _SAMPLING,
                "return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)",
                "size = round(self._units * self._threshold / 2**64)\n"
                "        return np.sort(np.argsort(self._stream.uint64(self._units))[:size])",
            ),
        ),
        _BATCH_SIZES,
    ),
    Mutation(
        "the mean is over the drawn batch size",
        (
            Edit(
                _STEP,
                "self._apply(total, ",
                "self._apply(total / max(1, len(units)), ",
            ),
        ),
        (AGGREGATION_TESTS + "test_whole_step.py::test_mean_is_over_the_public_batch_size_not_the_drawn_one",),
    ),
    Mutation(
        "records are clipped when the unit is a user",
        (
            Edit(
                TRAINER + "training/unit_gradients.py",
                "if open_unit is not None and open_unit[0] == unit:",
                "if open_unit is not None and open_unit is None:",
            ),
        ),
        (
            TRAINING_TESTS + "test_unit_gradients.py::test_user_is_clipped_once_for_all_records",
            TRAINING_TESTS + "test_sensitivity.py::test_one_user_changes_the_sum_by_at_most_one_clip_norm",
        ),
    ),
    Mutation(
        "the next micro-batch overwrites the sum of a user that is not complete",
        (
            Edit(
                TRAINER + "training/unit_gradients.py",
                "(open_unit[0], open_unit[1].clone()) if open_unit is not None else None",
                "open_unit",
            ),
        ),
        (TRAINING_TESTS + "test_unit_gradients.py::test_rows_of_a_unit_are_added_in_order_across_micro_batches",),
    ),
    Mutation(
        "records are sampled when the unit is a user: a user joins when any record is drawn",
        (
            Edit(
                _SET_UP,
                'sampler=PoissonSampler(len(shard), mechanism.sample_rate, stream.derive("sampling")),',
                "sampler=type(\n"
                '            "RecordSampler",\n'
                "            (PoissonSampler,),\n"
                '            {"draw": lambda s: np.unique('
                'np.searchsorted(shard._units, PoissonSampler.draw(s), "right") - 1)},\n'
                '        )(int(shard._units[-1]), mechanism.sample_rate, stream.derive("sampling")),',
            ),
        ),
        (TRAINING_TESTS + "test_job_variants.py::test_users_are_sampled_not_their_records",),
    ),
    Mutation(
        "a tie of the noise sampler is decided by eight bits too many",
        (Edit(_NOISE, "stream.bytes(16)", "stream.bytes(17)"),),
        (PRIVACY_TESTS + "test_noise.py::test_draw_compares_with_the_threshold_and_ties_with_all_its_bits",),
    ),
)
