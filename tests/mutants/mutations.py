"""Mistakes that would make a privacy claim false, each as a change of the source, with the tests that must fail.

A mutation is one or several exact replacements. `run.py` applies them in a copy of the source tree, one mutation at a
time. `test_mutations.py` checks that the texts and the names of the tests are current. A new mutation is one more
entry in `MUTATIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """In `file` (relative to the root of the project), replaces `old`, which occurs exactly once, by `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A mistake, and the tests (pytest node ids) that must fail. Each of them must fail by itself."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


_TRAINER = "trainer_image/tensorguard/"
_API = "crds/tensafe_api/"
_STEP, _CLIPPING, _NOISE = (
    _TRAINER + "training/step.py",
    _TRAINER + "privacy/clipping.py",
    _TRAINER + "privacy/noise.py",
)
_SAMPLING, _FOLD = _TRAINER + "privacy/sampling.py", _TRAINER + "ledger/fold.py"
_MASKS, _FILE = _TRAINER + "aggregation/masks.py", _TRAINER + "ledger/file.py"

_PRIVACY_TESTS = "tests/trainer_image/privacy/"
_AGGREGATION_TESTS = "tests/trainer_image/aggregation/"
_LEDGER_TESTS = "tests/trainer_image/ledger/"
_TRAINING_TESTS = "tests/trainer_image/training/"
_NEIGHBOURS = (
    _PRIVACY_TESTS + "test_clipping.py::test_neighbouring_sums_differ_by_at_most_the_grid",
    _AGGREGATION_TESTS + "test_whole_step.py::test_one_more_unit_moves_the_revealed_sum_by_at_most_the_grid",
)
_NOISE_IN_SUMS = (
    _AGGREGATION_TESTS + "test_whole_step.py::test_noise_of_all_ranks_is_in_every_sum_and_is_new_in_each_step",
)
_BATCH_SIZES = (_PRIVACY_TESTS + "test_sampling.py::test_batch_sizes_are_binomial_and_include_empty_draws",)

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "σ is halved in the noise shares",
        (
            Edit(
                _API + "privacy_events.py",
                "return float(self.noise_multiplier) * self.grid / math.sqrt(self.workers - self.colluders)",
                "return 0.5 * float(self.noise_multiplier) * self.grid / math.sqrt(self.workers - self.colluders)",
            ),
        ),
        (
            *_NOISE_IN_SUMS,
            _PRIVACY_TESTS + "test_noise.py::test_shares_add_up_to_the_accounted_noise",
            "tests/api/test_privacy_events.py::test_noise_shares_are_sized_for_colluding_workers",
        ),
    ),
    Mutation(
        "σ is halved in the noise sampler",
        (Edit(_NOISE, "[_Table(Fraction(sigma) ** 2)]", "[_Table(Fraction(sigma) ** 2 / 4)]"),),
        (
            _PRIVACY_TESTS + "test_noise.py::test_exact_distribution_of_a_table_is_within_its_bound",
            _PRIVACY_TESTS + "test_noise.py::test_sampler_is_indistinguishable_from_the_exact_sampler",
        ),
    ),
    Mutation(
        "noise shares ignore the colluders",
        (
            Edit(
                _API + "privacy_events.py",
                "self.grid / math.sqrt(self.workers - self.colluders)",
                "self.grid / math.sqrt(self.workers)",
            ),
        ),
        (
            *_NOISE_IN_SUMS,
            _PRIVACY_TESTS + "test_noise.py::test_shares_add_up_to_the_accounted_noise",
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
        _NOISE_IN_SUMS,
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
                _TRAINER + "privacy/stream.py",
                "self._key = os.urandom(32) if key is None else key",
                "self._key = bytes(32) if key is None else key",
            ),
        ),
        (
            _PRIVACY_TESTS + "test_noise.py::test_resumed_run_draws_new_noise",
            _PRIVACY_TESTS + "test_sampling.py::test_workers_with_equal_global_seeds_draw_independently",
            _AGGREGATION_TESTS + "test_whole_step.py::test_restart_draws_new_noise",
        ),
    ),
    Mutation(
        "the clip bound is doubled",
        (
            Edit(_CLIPPING, "torch.clamp(self.clip / norms, max=1.0)", "torch.clamp(2 * self.clip / norms, max=2.0)"),
            Edit(_CLIPPING, "self._grid = grid\n", "self._grid = 2 * grid\n"),
        ),
        _NEIGHBOURS,
    ),
    Mutation(
        "the integer norm check is left out",
        (
            Edit(
                _CLIPPING,
                "return whole, bounded & (pieces.sum(dim=0) <= self._grid**2)",
                "return whole, torch.isfinite(rounded).all(dim=1)",
            ),
        ),
        (
            _PRIVACY_TESTS + "test_clipping.py::test_norm_check_is_exact_at_its_bound",
            _PRIVACY_TESTS + "test_clipping.py::test_unit_whose_norm_stays_too_large_is_dropped",
            _PRIVACY_TESTS + "test_clipping.py::test_unit_whose_norm_rounding_made_too_large_is_rounded_toward_zero",
        ),
    ),
    Mutation(
        "the batch is clipped instead of its units",
        (
            Edit(
                _CLIPPING,
                "norms = torch.stack([row.sum() for row in squares]).sqrt()",
                "norms = squares.sum().sqrt().expand(len(rows))",
            ),
        ),
        _NEIGHBOURS,
    ),
    Mutation(
        "rounding is keyed by the position in the batch",
        (
            Edit(
                _CLIPPING,
                "torch.floor(rows + uniforms(seeds, rows.shape[1], rows.device))",
                "torch.floor(rows + uniforms(list(range(len(seeds))), rows.shape[1], rows.device))",
            ),
        ),
        (_PRIVACY_TESTS + "test_clipping.py::test_integers_of_a_unit_do_not_depend_on_its_neighbours",),
    ),
    Mutation(
        "the step skips empty draws",
        (
            Edit(
                _STEP,
                "        self.gradients.add_to(",
                "        if not len(units):\n            return Verdict.CONTINUE\n        self.gradients.add_to(",
            ),
        ),
        (_AGGREGATION_TESTS + "test_whole_step.py::test_step_with_an_empty_draw_is_taken_noised_and_charged",),
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
        (_PRIVACY_TESTS + "test_sampling.py::test_workers_with_equal_global_seeds_draw_independently",),
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
        (_AGGREGATION_TESTS + "test_whole_step.py::test_mean_is_over_the_public_batch_size_not_the_drawn_one",),
    ),
    Mutation(
        "the charge comes after the reveal",
        (
            Edit(
                _STEP,
                "allowed = self.budget_gate.ensure_charged(step, bool(self.stop))  # 5",
                "allowed = self.budget_gate.allowance",
            ),
            Edit(
                _STEP,
                "        return Verdict.CONTINUE\n\n    def close",
                "        return self.budget_gate.ensure_charged(step, bool(self.stop)).verdict\n\n    def close",
            ),
        ),
        (
            _AGGREGATION_TESTS + "test_whole_step.py::test_each_step_is_charged_before_it_is_revealed",
            _AGGREGATION_TESTS + "test_whole_step.py::test_step_that_is_not_charged_is_not_revealed",
        ),
    ),
    Mutation(
        "ε comes from the checkpoint: a resume forgets the later steps",
        (
            Edit(
                _FOLD,
                '"charges": _with(state, Charge(attempt, before, entry["incarnation"], entry["holder"])),',
                '"charges": _with(state, Charge(attempt, from_step, entry["incarnation"], entry["holder"])),',
            ),
        ),
        (
            _LEDGER_TESTS + "test_contract.py::TestContract::test_repeated_steps_are_charged_again",
            _LEDGER_TESTS + "test_contract.py::test_charged_steps_never_decrease_in_any_history",
        ),
    ),
    Mutation(
        "a charge returns before it is on the disk",
        (
            Edit(
                _FILE,
                'raise OSError("only a part of the entry was written")\n            os.fsync(self._lock)',
                'raise OSError("only a part of the entry was written")',
            ),
        ),
        (_LEDGER_TESTS + "test_file.py::test_charge_is_on_the_disk_when_it_returns",),
    ),
    Mutation(
        "all steps use the same mask",
        (Edit(_MASKS, 'modes.CTR(step.to_bytes(8, "big") + bytes(8))', "modes.CTR(bytes(16))"),),
        (
            _AGGREGATION_TESTS + "test_masks.py::test_mask_is_new_in_each_step_and_incarnation",
            _AGGREGATION_TESTS + "test_masks.py::test_no_block_is_used_for_two_steps_pairs_or_incarnations",
        ),
    ),
    Mutation(
        "the last rank adds no mask",
        (Edit(_MASKS, "            total -= stream", "            pass"),),
        (_AGGREGATION_TESTS + "test_masks.py::test_sum_of_every_proper_subset_is_uniform_and_full_sum_is_exact",),
    ),
    Mutation(
        "records are clipped when the unit is a user",
        (
            Edit(
                _TRAINER + "training/unit_gradients.py",
                "if open_unit is not None and open_unit[0] == unit:",
                "if open_unit is not None and open_unit is None:",
            ),
        ),
        (
            _TRAINING_TESTS + "test_unit_gradients.py::test_user_is_clipped_once_for_all_records",
            _TRAINING_TESTS + "test_sensitivity.py::test_one_user_changes_the_sum_by_at_most_one_clip_norm",
        ),
    ),
    Mutation(
        "records are sampled when the unit is a user: a user joins when any record is drawn",
        (
            Edit(
                _TRAINER + "training/setup.py",
                'sampler=PoissonSampler(len(shard), mechanism.sample_rate, stream.derive("sampling")),',
                "sampler=type(\n"
                '            "RecordSampler",\n'
                "            (PoissonSampler,),\n"
                '            {"draw": lambda s: np.unique('
                'np.searchsorted(shard._units, PoissonSampler.draw(s), "right") - 1)},\n'
                '        )(int(shard._units[-1]), mechanism.sample_rate, stream.derive("sampling")),',
            ),
        ),
        (_TRAINING_TESTS + "test_job_variants.py::test_users_are_sampled_not_their_records",),
    ),
    Mutation(
        "dropout is keyed by the slot in the micro-batch",
        (
            Edit(
                _TRAINER + "training/unit_gradients.py",
                "seeds = dropout(batch.units, batch.records) + [0] * dummies",
                "seeds = list(range(len(batch.units))) + [0] * dummies",
            ),
        ),
        (_TRAINING_TESTS + "test_sensitivity.py::test_sum_does_not_depend_on_the_order_of_the_batch",),
    ),
    Mutation(
        "a stop that only one worker has seen is ignored",
        (
            Edit(
                _TRAINER + "aggregation/protocol.py",
                "if self._agreement.agree(header, stop):",
                "if self._agreement.agree(header, stop) and False:",
            ),
        ),
        (_TRAINING_TESTS + "test_rank_faults.py::test_stop_during_gradients_reveals_nothing_of_that_step",),
    ),
    Mutation(
        "a step is revealed twice, with the same masks",
        (
            Edit(
                _TRAINER + "aggregation/protocol.py",
                "if not self._next_step <= step < charged_through:",
                "if not step < charged_through:",
            ),
        ),
        (_AGGREGATION_TESTS + "test_protocol.py::test_step_that_is_repeated_or_uncharged_is_not_revealed",),
    ),
    Mutation(
        "a step that is not charged is revealed",
        (
            Edit(
                _TRAINER + "aggregation/protocol.py",
                "if not self._next_step <= step < charged_through:",
                "if not self._next_step <= step:",
            ),
        ),
        (_AGGREGATION_TESTS + "test_protocol.py::test_step_that_is_repeated_or_uncharged_is_not_revealed",),
    ),
    Mutation(
        "the statement claims verification that is disabled",
        (
            Edit(
                _TRAINER + "aggregation/pairwise_masks.py",
                """a change on the way is detected."
                if self.verify_level != "Disabled"
""",
                """a change on the way is detected."
                if True
""",
            ),
        ),
        (_AGGREGATION_TESTS + "test_protocol.py::test_statement_without_verification_claims_no_detection",),
    ),
    Mutation(
        "a resume forgets the optimiser's state",
        (
            Edit(
                _TRAINER + "training/checkpointing.py",
                "    load_optimizer(optimizer, files[OPTIMIZER])\n",
                "",
            ),
        ),
        (
            _TRAINING_TESTS + "test_resume.py::test_weights_and_optimizer_state_are_restored_bit_for_bit",
            _TRAINING_TESTS + "test_resume.py::test_optimizer_state_counts_every_step_of_the_published_adapter",
        ),
    ),
    Mutation(
        "the loss is the mean over the batch's tokens instead of each record's",
        (
            Edit(
                _TRAINER + "models/losses.py",
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
        "the loss is the mean over the batch's labelled words instead of each record's",
        (
            Edit(
                _TRAINER + "models/losses.py",
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
        "the claim covers only the charged steps of a run that stopped early",
        (
            Edit(
                _API + "accounting.py",
                "return max(charged, possible)",
                "return charged",
            ),
        ),
        ("tests/api/test_statement.py::test_claim_covers_at_least_the_planned_steps",),
    ),
    Mutation(
        "figures are rounded to the nearest",
        (Edit(_API + "privacy_events.py", "rounding=ROUND_CEILING", 'rounding="ROUND_HALF_EVEN"'),),
        (
            "tests/api/test_privacy_events.py::test_rounding_up_is_never_below_and_at_most_one_unit_above",
            "tests/api/test_resolve.py::test_sample_rate_is_rounded_up",
        ),
    ),
    Mutation(
        "calibration returns a noise multiplier whose last digit is too small",
        (Edit(_API + "accounting.py", "return _sigma(smallest)", "return _sigma(smallest - 1)"),),
        ("tests/api/test_accounting.py::test_calibrated_sigma_is_the_smallest_string_within_the_target",),
    ),
)
