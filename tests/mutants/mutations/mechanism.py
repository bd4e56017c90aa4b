"""Mistakes in sampling, gradients, clipping, rounding and noise."""

from __future__ import annotations

from mutations.mutation import (
    AGGREGATION_TESTS,
    API,
    MODEL_TESTS,
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
_BIT_EQUALITY = TRAINER + "models/bit_equality.py"
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
                "return float(self.noise_multiplier) * self.grid / math.sqrt(self.workers - self.colluders)",
                "return 0.5 * float(self.noise_multiplier) * self.grid / math.sqrt(self.workers - self.colluders)",
            ),
        ),
        (
            *_NOISE_IN_SUMS,
            *_AUDIT,
            PRIVACY_TESTS + "test_noise.py::test_shares_add_up_to_the_accounted_noise",
            "tests/api/test_privacy_events.py::test_noise_shares_are_sized_for_colluding_workers",
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
        "noise shares ignore the colluders",
        (
            Edit(
                API + "privacy_events.py",
                "self.grid / math.sqrt(self.workers - self.colluders)",
                "self.grid / math.sqrt(self.workers)",
            ),
        ),
        (
            *_NOISE_IN_SUMS,
            PRIVACY_TESTS + "test_noise.py::test_shares_add_up_to_the_accounted_noise",
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
        "dropout is keyed by the slot in the micro-batch",
        (
            Edit(
                TRAINER + "training/unit_gradients.py",
                "seeds = dropout(batch.units, batch.records) + [0] * dummies",
                "seeds = list(range(len(batch.units))) + [0] * dummies",
            ),
        ),
        (TRAINING_TESTS + "test_sensitivity.py::test_sum_does_not_depend_on_the_order_of_the_batch",),
    ),
    Mutation(
        "the loss is the mean over the batch's tokens instead of each record's",
        (
            Edit(
                TRAINER + "models/losses.py",
                "learned.to(dtype) / learned.sum(dim=1, keepdim=True).clamp(min=1)",
                "learned.to(dtype) / learned.sum().clamp(min=1)",
            ),
        ),
        (
            "tests/trainer_image/models/test_losses.py"
            "::test_causal_loss_is_the_mean_over_the_records_own_learned_tokens",
            "tests/trainer_image/models/test_record_independence.py::test_hostile_record_changes_no_other_gradient",
        ),
    ),
    Mutation(
        "the loss in chunks is the mean over the batch's tokens instead of each record's",
        (
            Edit(
                TRAINER + "models/output_head.py",
                "weights = token_weights(labels, exact)",
                "weights = (labels >= 0).to(exact) / (labels >= 0).sum().clamp(min=1)",
            ),
        ),
        (
            "tests/trainer_image/models/test_output_head.py::test_losses_and_gradients_are_those_of_the_whole_logits",
            "tests/trainer_image/models/test_output_head.py::test_record_with_nan_changes_no_other_gradient",
        ),
    ),
    Mutation(
        "the loss is the mean over the batch's labelled words instead of each record's",
        (
            Edit(
                TRAINER + "models/losses.py",
                "return _mean_token_losses(logits, labels)\n",
                "share = (labels != IGNORE_INDEX).sum(dim=1) / (labels != IGNORE_INDEX).sum().clamp(min=1)\n"
                "    return _mean_token_losses(logits, labels) * share\n",
            ),
        ),
        (
            "tests/trainer_image/models/test_losses.py::test_tag_loss_depends_on_no_other_record",
            "tests/trainer_image/models/test_record_independence.py::test_no_bit_depends_on_slot_other_records_or_padding",
        ),
    ),
    Mutation(
        "a quantised layer rounds its inputs on a scale of the whole batch",
        (
            Edit(
                TRAINER + "models/quantized.py",
                "return functional.linear(input, decode(codes, scales), bias)",
                "scale = input.abs().amax().clamp(min=1e-6) / 127\n"
                "        return functional.linear((input / scale).round() * scale, decode(codes, scales), bias)",
            ),
        ),
        (
            MODEL_TESTS + "test_quantized.py::test_self_test_passes_bit_equal",
            MODEL_TESTS + "test_quantized.py::test_output_and_gradient_are_those_of_the_same_numbers",
        ),
    ),
    Mutation(
        "gradients that differ by rounding are accepted",
        (Edit(_BIT_EQUALITY, "if report.bit_equal:", "if report.neighbour_error < 5e-2:"),),
        (
            MODEL_TESTS + "test_bit_equality.py::test_kernel_that_rounds_by_slot_computes_one_record_at_a_time",
            TRAINING_TESTS + "test_inexact_kernels.py::test_kernel_that_rounds_by_slot_trains_one_record_at_a_time",
        ),
    ),
    Mutation(
        "steps compute more records at once than the self-test found to be exact",
        (
            Edit(
                _SET_UP,
                "micro_batch_size=at_once,",
                "micro_batch_size=spec.training.micro_batch_size,",
            ),
        ),
        (TRAINING_TESTS + "test_inexact_kernels.py::test_kernel_that_rounds_by_slot_trains_one_record_at_a_time",),
    ),
    Mutation(
        "only rank 0 tests its kernels",
        (
            Edit(
                _SET_UP,
                "on_all_ranks(lambda: _test_gradients(loaded, sharding, device))",
                "on_all_ranks(lambda: _test_gradients(loaded, sharding, device) if rank == 0 else (None, "
                "PerExampleGradients(loaded.model, trainable_parameters(loaded.model), "
                "record_loss(loaded.task, None)), 1))",
            ),
        ),
        (TRAINING_TESTS + "test_inexact_kernels.py::test_inexact_kernel_on_one_rank_ends_the_attempt_on_all",),
    ),
    Mutation(
        "only the first attempt tests its kernels",
        (
            Edit(
                _SET_UP,
                "on_all_ranks(lambda: _test_gradients(loaded, sharding, device))",
                "on_all_ranks(lambda: _test_gradients(loaded, sharding, device) if config.attempt == 1 else (None, "
                "PerExampleGradients(loaded.model, trainable_parameters(loaded.model), "
                "record_loss(loaded.task, None)), 1))",
            ),
        ),
        (
            TRAINING_TESTS
            + "test_inexact_kernels.py::test_later_attempt_on_a_machine_with_an_inexact_kernel_charges_nothing",
        ),
    ),
    Mutation(
        "the self-test compares gradients and not the integers that are added up",
        (Edit(TRAINER + "models/self_test.py", "if worst == 0.0 and not", "if False and not"),),
        (MODEL_TESTS + "test_self_test.py::test_finds_integers_that_depend_on_the_slot_although_gradients_do_not",),
    ),
    Mutation(
        "the rows of a linear layer may be other things than records",
        (Edit(TRAINER + "privacy/gradients.py", "self._check_rows(name, (inputs, outputs))", "pass"),),
        (PRIVACY_TESTS + "test_gradients.py::test_layer_with_some_rows_that_are_not_records_is_refused",),
    ),
    Mutation(
        "the rows of a layer with Opacus' hooks may be other things than records",
        (
            Edit(
                TRAINER + "privacy/gradients.py",
                "self._check_rows(self._names[module], (*activations, backprops))",
                "pass",
            ),
        ),
        (
            PRIVACY_TESTS + "test_gradients.py::test_layer_with_some_rows_that_are_not_records_is_refused",
            PRIVACY_TESTS + "test_gradients.py::test_layer_whose_rows_are_not_records_is_refused",
        ),
    ),
    Mutation(
        "the gradients of a linear layer mix records",
        (
            Edit(
                TRAINER + "privacy/record_linear.py",
                "return torch.bmm(outputs.transpose(1, 2), inputs)",
                "return torch.bmm(outputs.transpose(1, 2), inputs.roll(1, 0))",
            ),
        ),
        (PRIVACY_TESTS + "test_record_linear.py::test_gradients_are_those_of_each_record_alone",),
    ),
    Mutation(
        "a gradient that is left from a failed pass is added to the next one",
        (
            Edit(
                TRAINER + "privacy/gradients.py",
                'if hasattr(parameter, "_current_grad_sample"):',
                'if hasattr(parameter, "_any_grad_sample"):',
            ),
        ),
        (PRIVACY_TESTS + "test_gradients.py::test_gradient_of_a_failed_pass_is_not_added_to_the_next",),
    ),
    Mutation(
        "a tie of the noise sampler is decided by eight bits too many",
        (Edit(_NOISE, "stream.bytes(16)", "stream.bytes(17)"),),
        (PRIVACY_TESTS + "test_noise.py::test_draw_compares_with_the_threshold_and_ties_with_all_its_bits",),
    ),
)
