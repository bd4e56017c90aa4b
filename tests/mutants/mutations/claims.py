"""Mistakes in the figures that a job claims and in the words of its statement."""

from __future__ import annotations

from mutations.mutation import AGGREGATION_TESTS, API, OPERATOR, TRACKER_TESTS, TRAINER, TRAINING_TESTS, Edit, Mutation

_FIGURES = "tests/operator/decision/test_figures.py"
_OVERLAP = "tests/trainer_image/data/test_overlap.py"

CLAIMS: tuple[Mutation, ...] = (
    Mutation(
        "a callback that raises leaves steps unfinished that were charged",
        (
            Edit(
                TRAINER + "distributed/_dispatch.py",
                "self._stop.request(after_charged_steps=True)",
                "self._stop.request()",
            ),
        ),
        (
            "tests/trainer_image/distributed/test_callbacks.py::"
            "test_exception_lets_the_workers_finish_the_charged_steps",
        ),
    ),
    Mutation(
        "a stop after the charged steps comes in the middle of them",
        (
            Edit(
                TRAINER + "training/stop_signal.py",
                "        return self._is_set(STOP_FILE)\n",
                "        return self._is_set(STOP_FILE) or self._is_set(STOP_AFTER_CHARGED_FILE)\n",
            ),
        ),
        (TRAINING_TESTS + "test_resume.py::test_stop_after_the_charged_steps_loses_none_of_them",),
    ),
    Mutation(
        "runs in different folders share a private folder at the same time",
        (
            Edit(
                TRAINER + "runners/local/driver.py",
                "        self.locks.enter_context(lock_run_folder(self._private.path))\n",
                "",
            ),
        ),
        (
            "tests/trainer_image/runners/local/test_job_key.py::test_runs_that_share_a_private_folder_do_not_run_at_once",
            "tests/trainer_image/runners/local/test_job_key.py::test_run_holds_the_lock_of_its_private_folder",
        ),
    ),
    Mutation(
        "a resume verifies sums less than its statement says",
        (Edit(API + "resolve.py", "        verify=spec.aggregation.verify,\n", ""),),
        (
            "tests/trainer_image/runners/local/test_earlier_run.py::test_resume_with_another_privacy_value_names_the_field",
        ),
    ),
    Mutation(
        "the statement claims verification that is disabled",
        (
            Edit(
                TRAINER + "aggregation/pairwise_masks.py",
                'if self.verify_level == "Disabled":\n            network',
                "if False:\n            network",
            ),
        ),
        (AGGREGATION_TESTS + "test_protocol.py::test_statement_without_verification_claims_no_detection",),
    ),
    Mutation(
        "the statement claims that as many workers as there are neighbours learn only the sum",
        (Edit(TRAINER + "aggregation/pairwise_masks.py", "Up to {degree - 1} {learn}", "Up to {degree} {learn}"),),
        (AGGREGATION_TESTS + "test_protocol.py::test_statement_names_the_graph_and_what_workers_learn_together",),
    ),
    Mutation(
        "the claim covers only the charged steps of a run that stopped early",
        (
            Edit(
                API + "accounting.py",
                "return max(charged, possible)",
                "return charged",
            ),
        ),
        ("tests/api/test_statement.py::test_claim_covers_at_least_the_planned_steps",),
    ),
    Mutation(
        "a job whose records were counted claims AddOrRemoveOne",
        (
            Edit(
                API + "resolve.py",
                'adjacency="ZeroOut" if counted else "AddOrRemoveOne",',
                'adjacency="AddOrRemoveOne",',
            ),
        ),
        (
            "tests/api/test_resolve.py::test_job_whose_units_were_counted_claims_zero_out_adjacency",
            "tests/trainer_image/distributed/test_manifests.py"
            "::test_columns_and_length_of_the_data_set_are_used_with_a_warning",
        ),
    ),
    Mutation(
        "figures are rounded to the nearest",
        (Edit(API + "privacy_events.py", "rounding=ROUND_CEILING", 'rounding="ROUND_HALF_EVEN"'),),
        (
            "tests/api/test_privacy_events.py::test_rounding_up_is_never_below_and_at_most_one_unit_above",
            "tests/api/test_resolve.py::test_sample_rate_is_rounded_up",
        ),
    ),
    Mutation(
        "accounting ignores that the noise is discrete",
        (Edit(API + "accounting.py", "noise_multiplier * (1.0 - SIGMA_SHARE)", "noise_multiplier"),),
        ("tests/api/test_discrete_noise.py::test_every_epsilon_leaves_the_share_of_sigma_out",),
    ),
    Mutation(
        "noise of too few grid steps is accounted as if it were continuous",
        (
            Edit(API + "resolve.py", "* mechanism.grid < accounting.MIN_NOISE", "* mechanism.grid < 1"),
            Edit(API + "statement.py", '["gridBits"] < accounting.MIN_NOISE', '["gridBits"] < 1'),
        ),
        (
            "tests/api/test_resolve_noise.py::test_noise_of_too_few_grid_steps_is_refused",
            "tests/api/test_statement.py::test_epsilon_of_noise_of_too_few_grid_steps_is_not_recomputed",
        ),
    ),
    Mutation(
        "PLD ignores the rounding of its FFT",
        (Edit(API + "accounting.py", " - _PLD_ROUNDING - _PLD_ROUNDING_PER_STEP * steps", ""),),
        ("tests/api/test_accounting.py::test_pld_pays_for_the_rounding_of_many_steps",),
    ),
    Mutation(
        "PLD ignores that the rounding of its FFT grows with the number of steps",
        (Edit(API + "accounting.py", " - _PLD_ROUNDING_PER_STEP * steps", ""),),
        ("tests/api/test_accounting.py::test_pld_pays_for_the_rounding_of_many_steps",),
    ),
    Mutation(
        "a status shows the epsilon of fewer steps than were charged",
        (
            Edit(
                OPERATOR + "plan/figures.py",
                "first = -(-charged // spacing) * spacing",
                "first = charged // spacing * spacing",
            ),
        ),
        ("tests/operator/decision/test_figures.py::test_shown_epsilon_is_never_below_that_of_the_charged_steps",),
    ),
    Mutation(
        "a job claims no more than its plan although it was charged beyond it",
        (Edit(OPERATOR + "plan/figures.py", "if charged > steps:", "if False:"),),
        ("tests/operator/decision/test_figures.py::test_shown_epsilon_is_never_below_that_of_the_charged_steps",),
    ),
    Mutation(
        "new charges are shown with the old epsilon while the new one is computed",
        (
            Edit(
                API + "status_fold.py",
                "            if after is None:\n                return before\n            privacy = after\n",
                '            privacy = after or before.privacy.model_copy(update={"steps_charged": charged})\n',
            ),
        ),
        (f"{_FIGURES}::test_figures_of_a_running_job_stay_together_until_the_next_ones_are_there",),
    ),
    Mutation(
        "a checkpoint is shown with the epsilon of earlier steps while the new one is computed",
        (
            Edit(
                API + "status_fold.py",
                "            if after is None:\n                return before\n            privacy = after\n",
                "            privacy = after or before.privacy\n",
            ),
        ),
        (f"{_FIGURES}::test_status_shows_progress_and_model_with_the_epsilon_of_the_same_steps",),
    ),
    Mutation(
        "a job waits for the epsilon of its charged steps before its workers are stopped",
        (Edit(OPERATOR + "plan/retry.py", "if not (state.phase.final and runs):", "if True:"),),
        (f"{_FIGURES}::test_deadline_ends_a_job_that_charges_faster_than_its_epsilon_is_computed",),
    ),
    Mutation(
        "a job ends before its epsilon is known",
        (Edit(OPERATOR + "plan/__init__.py", "if not draft.has_all_figures:", "if False:"),),
        ("tests/operator/decision/test_figures.py::test_job_ends_with_the_epsilon_of_exactly_its_charged_steps",),
    ),
    Mutation(
        "a ledger opened with RDP is counted with PLD",
        (Edit(API + "resolve.py", "            accountant=ledger.accountant,\n", '            accountant="PLD",\n'),),
        ("tests/operator/decision/test_admission.py::test_ledger_opened_with_rdp_keeps_rdp",),
    ),
    Mutation(
        "calibration returns a noise multiplier whose last digit is too small",
        (Edit(API + "calibration.py", "(excess, low, high))", "(excess, low, high) - 1)"),),
        ("tests/api/test_accounting.py::test_calibrated_sigma_is_the_smallest_string_within_the_target",),
    ),
    Mutation(
        "the epsilon of a tracker counts the steps done instead of the charged ones",
        (
            Edit(
                TRAINER + "trackers/history.py",
                "self._privacy_figures(record.charged)",
                "self._privacy_figures(record.step)",
            ),
        ),
        (TRACKER_TESTS + "test_export.py::test_steps_that_ran_again_count_again_and_epsilon_rises",),
    ),
    Mutation(
        "the last epsilon of a tracker is that of the log instead of the ledger",
        (
            Edit(
                TRAINER + "trackers/history.py",
                "privacy_figures(Claim.of(ledger.spec), ledger.steps_charged)",
                "privacy_figures(Claim.of(ledger.spec), self._charged)",
            ),
        ),
        (TRACKER_TESTS + "test_export.py::test_last_epsilon_is_that_of_the_ledger",),
    ),
    Mutation(
        "a tracker receives the labels of the data set",
        (Edit(TRAINER + "trackers/figures.py", '"spec.model.task",', '"spec.model.labelNames",'),),
        (TRACKER_TESTS + "test_figures.py::test_configuration_has_only_public_fields",),
    ),
    Mutation(
        "a tracker receives any key",
        (Edit(TRAINER + "trackers/figures.py", "self.figures.keys() - KEYS.keys()", "set()"),),
        (TRACKER_TESTS + "test_figures.py::test_point_with_a_private_key_cannot_be_made",),
    ),
    Mutation(
        "a tracker receives the time of each step",
        (
            Edit(
                TRAINER + "trackers/figures.py",
                "return float(math.ceil(seconds / TIME_GRAIN_SECONDS) * TIME_GRAIN_SECONDS)",
                "return seconds",
            ),
        ),
        (TRACKER_TESTS + "test_export.py::test_times_of_points_hide_the_duration_of_steps",),
    ),
    Mutation(
        "a tracker receives the state of the optimiser",
        (
            Edit(
                TRAINER + "trackers/attachments.py",
                "for file in _FILES[kind] if file in found",
                "for file in found",
            ),
        ),
        (TRACKER_TESTS + "test_export.py::test_nothing_private_is_sent",),
    ),
    Mutation(
        "the losses of a job with hidden metrics are kept",
        (Edit(TRAINER + "training/setup.py", "keep_losses=private_metrics is not None", "keep_losses=True"),),
        (TRAINING_TESTS + "test_private_metrics.py::test_hidden_keeps_no_loss_and_no_norm",),
    ),
    Mutation(
        "private figures of a step are written before it is charged",
        (
            Edit(
                TRAINER + "training/step.py",
                "        allowed = self.budget_gate.ensure_charged(step, bool(self.stop))  # 5\n",
                "        if self.keep_private_metrics is not None:\n"
                "            self.keep_private_metrics(step + 1)\n"
                "        allowed = self.budget_gate.ensure_charged(step, bool(self.stop))  # 5\n",
            ),
        ),
        (
            TRAINING_TESTS
            + "test_private_metrics.py::test_line_of_a_step_is_written_after_its_charge_and_before_its_sum",
        ),
    ),
    Mutation(
        "private metrics reach callbacks that take any keyword",
        (
            Edit(
                TRAINER + "distributed/_hooks.py",
                "(argument == METRICS and inspect.Parameter.VAR_KEYWORD in kinds)",
                "inspect.Parameter.VAR_KEYWORD in kinds",
            ),
        ),
        (
            "tests/trainer_image/distributed/test_callbacks.py"
            "::test_private_metrics_reach_only_callbacks_that_name_them",
        ),
    ),
    Mutation(
        "the picture of a run leaves out a step that was charged and not taken",
        (
            Edit(
                TRAINER + "cli/report.py",
                "charged=states[-1].steps_charged",
                "charged=states[-2].steps_charged",
            ),
        ),
        ("tests/trainer_image/cli/test_report.py::test_step_that_was_charged_and_not_taken_is_in_the_picture",),
    ),
    Mutation(
        "a file with two links is read twice: each of its records is two units",
        (
            Edit(
                TRAINER + "data/addresses.py",
                'return [name, f"{stat.st_dev}/{stat.st_ino}"]',
                "return [name]",
            ),
        ),
        ("tests/trainer_image/data/test_listing.py::test_file_with_two_names_is_read_once",),
    ),
    Mutation(
        "a file beside its compressed copy is read twice: each of its records is two units",
        (
            Edit(
                TRAINER + "data/addresses.py",
                "name = path.removesuffix(PurePosixPath(path).suffix) if compression_of(path) else path",
                "name = path",
            ),
        ),
        ("tests/trainer_image/data/test_listing.py::test_file_with_two_names_is_read_once",),
    ),
    Mutation(
        "a compressed file with other records than the plain one is left out",
        (
            Edit(
                TRAINER + "data/addresses.py",
                "elif content(path) == content(first):",
                "elif True:",
            ),
        ),
        (
            "tests/trainer_image/data/test_listing.py"
            "::test_plain_and_compressed_file_of_one_name_with_different_records_are_refused",
        ),
    ),
    Mutation(
        "the files of a Delta table are read: those of a folder whose table is above it",
        (
            Edit(
                TRAINER + "data/lake_tables.py",
                "folders = [*([base] if base else []), *_parents(base), *holding]",
                "folders = [*([base] if base else []), *holding]",
            ),
        ),
        ("tests/trainer_image/data/test_lake_tables.py::test_table_is_refused_with_the_fix",),
    ),
    Mutation(
        "a copy of the training data is accepted as public",
        (
            Edit(
                TRAINER + "data/overlap.py",
                "2 * len(self.found) > len(self._contents)",
                "2 * len(self.found) > 2 * len(self._contents)",
            ),
        ),
        (
            _OVERLAP + "::test_copy_in_any_order_and_any_part_of_the_training_data_is_refused",
            "tests/trainer_image/runners/pod/test_worker.py"
            "::test_public_evaluation_set_may_not_be_a_copy_of_private_records",
        ),
    ),
    Mutation(
        "a refusal shows whether a single record is private",
        (Edit(TRAINER + "data/overlap.py", "MIN_RECORDS = 8", "MIN_RECORDS = 1"),),
        (_OVERLAP + "::test_few_records_are_not_compared_so_that_no_one_can_ask_for_a_single_record",),
    ),
    Mutation(
        "the statement takes a public evaluation set for a fact",
        (Edit(API + "statement.py", "            *_on_evaluation(inputs.evaluation),\n", ""),),
        ("tests/api/test_statement.py::test_publicness_of_the_evaluation_set_is_stated_as_the_word_of_the_author",),
    ),
)
