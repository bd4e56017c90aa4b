"""Mistakes in masks, in the order of charge and reveal, in the ledger, and in a resume."""

from __future__ import annotations

from mutations.mutation import AGGREGATION_TESTS, LEDGER_TESTS, TRAINER, TRAINING_TESTS, Edit, Mutation

_STEP = TRAINER + "training/step.py"
_FOLD = TRAINER + "ledger/fold.py"
_MASKS = TRAINER + "aggregation/masks.py"
_NEIGHBOURS = TRAINER + "aggregation/neighbours.py"
_FILE = TRAINER + "ledger/file.py"
_POD_TESTS = "tests/trainer_image/runners/pod/"
_NODES = TRAINER + "runners/nodes/"
_NODE_TESTS = "tests/trainer_image/runners/nodes/"
_KEY_TESTS = "tests/trainer_image/runners/local/test_job_key.py::"

PROTOCOL: tuple[Mutation, ...] = (
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
            AGGREGATION_TESTS + "test_whole_step.py::test_each_step_is_charged_before_it_is_revealed",
            AGGREGATION_TESTS + "test_whole_step.py::test_step_that_is_not_charged_is_not_revealed",
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
            LEDGER_TESTS + "test_contract.py::TestContract::test_repeated_steps_are_charged_again",
            LEDGER_TESTS + "test_contract.py::test_charged_steps_never_decrease_in_any_history",
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
        (LEDGER_TESTS + "test_file_holder.py::test_charge_is_on_the_disk_when_it_returns",),
    ),
    Mutation(
        "all steps use the same mask",
        (Edit(_MASKS, 'modes.CTR(step.to_bytes(8, "big") + bytes(8))', "modes.CTR(bytes(16))"),),
        (
            AGGREGATION_TESTS + "test_masks.py::test_mask_is_new_in_each_step_and_incarnation",
            AGGREGATION_TESTS + "test_masks.py::test_no_block_is_used_for_two_steps_pairs_or_incarnations",
        ),
    ),
    Mutation(
        "the last rank adds no mask",
        (Edit(_MASKS, "part -= _next_words(stream, len(part))", "_next_words(stream, len(part))"),),
        (AGGREGATION_TESTS + "test_masks.py::test_sum_of_every_proper_subset_is_uniform_and_full_sum_is_exact",),
    ),
    Mutation(
        "the graph of neighbours has too small a degree",
        (Edit(_NEIGHBOURS, "MAX_DEGREE = 32", "MAX_DEGREE = 28"),),
        (
            AGGREGATION_TESTS + "test_neighbours.py::test_groups_of_up_to_33_workers_mask_with_all_others",
            AGGREGATION_TESTS + "test_protocol.py::test_statement_names_the_graph_and_what_workers_learn_together",
        ),
    ),
    Mutation(
        "the graph of neighbours is the same in each incarnation",
        (
            Edit(
                TRAINER + "aggregation/pairwise_masks.py",
                'b"tensafe neighbours" + session.context()',
                'b"tensafe neighbours"',
            ),
        ),
        (AGGREGATION_TESTS + "test_protocol.py::test_large_group_masks_with_few_neighbours_and_sums_exactly",),
    ),
    Mutation(
        "the workers stand on the circle in the order of their numbers",
        (
            Edit(
                _NEIGHBOURS,
                "tuple(sorted(range(self.workers), key=lambda worker: tag(secret, number_bytes(worker))))",
                "tuple(range(self.workers))",
            ),
        ),
        (AGGREGATION_TESTS + "test_neighbours.py::test_order_is_that_of_tags_under_the_secret",),
    ),
    Mutation(
        "a worker masks with neighbours that do not mask with it",
        (Edit(_NEIGHBOURS, "range(-self._reach, self._reach + 1)", "range(2 * self._reach + 1)"),),
        (
            AGGREGATION_TESTS + "test_neighbours.py::test_each_worker_is_a_neighbour_of_its_neighbours",
            AGGREGATION_TESTS + "test_protocol.py::test_large_group_masks_with_few_neighbours_and_sums_exactly",
        ),
    ),
    Mutation(
        "a stop that only one worker has seen is ignored",
        (
            Edit(
                TRAINER + "aggregation/protocol.py",
                "if self._agreement.agree(header, stop):",
                "if self._agreement.agree(header, stop) and False:",
            ),
        ),
        (TRAINING_TESTS + "test_rank_faults.py::test_stop_during_gradients_reveals_nothing_of_that_step",),
    ),
    Mutation(
        "a step is revealed twice, with the same masks",
        (
            Edit(
                TRAINER + "aggregation/protocol.py",
                "if not self._next_step <= step < charged_through:",
                "if not step < charged_through:",
            ),
        ),
        (AGGREGATION_TESTS + "test_protocol.py::test_step_that_is_repeated_or_uncharged_is_not_revealed",),
    ),
    Mutation(
        "a step that is not charged is revealed",
        (
            Edit(
                TRAINER + "aggregation/protocol.py",
                "if not self._next_step <= step < charged_through:",
                "if not self._next_step <= step:",
            ),
        ),
        (AGGREGATION_TESTS + "test_protocol.py::test_step_that_is_repeated_or_uncharged_is_not_revealed",),
    ),
    Mutation(
        "tracebacks, which may quote records, outlive a run that is over",
        (
            Edit(
                TRAINER + "runners/local/private_folder.py",
                "            tracebacks.unlink(missing_ok=True)\n",
                "            pass\n",
            ),
        ),
        (_KEY_TESTS + "test_tracebacks_are_in_the_private_folder_until_the_run_is_over",),
    ),
    Mutation(
        "the job key outlives a run that is over",
        (
            Edit(
                TRAINER + "runners/local/driver.py",
                "elif self._is_over(ledger):",
                "elif False:",
            ),
        ),
        (
            _KEY_TESTS + "test_key_is_deleted_when_the_run_is_over",
            _KEY_TESTS + "test_membership_cannot_be_tested_from_what_a_run_publishes",
        ),
    ),
    Mutation(
        "the job key lies in the run's folder",
        (
            Edit(
                TRAINER + "runners/local/private_folder.py",
                "path = outermost.with_name(outermost.name + SUFFIX)",
                "path = outermost / SUFFIX",
            ),
        ),
        (_KEY_TESTS + "test_key_is_kept_outside_the_runs_folder_until_no_resume_needs_it",),
    ),
    Mutation(
        "a resume forgets the optimiser's state",
        (
            Edit(
                TRAINER + "training/checkpointing.py",
                "        load_optimizer(optimizer, files[OPTIMIZER])\n",
                "        pass\n",
            ),
        ),
        (
            TRAINING_TESTS + "test_resume.py::test_weights_and_optimizer_state_are_restored_bit_for_bit",
            TRAINING_TESTS + "test_resume.py::test_optimizer_state_counts_every_step_of_the_published_adapter",
        ),
    ),
    Mutation(
        "the processes of a pod write equal entries, and take each other's for their own",
        (
            Edit(
                TRAINER + "ledger/kubernetes.py",
                "self._writer = secrets.token_hex(16)",
                'self._writer = "0" * 32',
            ),
            Edit(TRAINER + "ledger/kubernetes.py", '"nonce": secrets.token_hex(16)', '"nonce": ""'),
        ),
        (
            LEDGER_TESTS + "test_concurrent_writers.py::test_two_processes_of_one_pod_never_hold_the_same_acquisition",
            LEDGER_TESTS + "test_concurrent_writers.py::test_equal_charge_of_another_process_does_not_pay_for_this_one",
        ),
    ),
    Mutation(
        "a charge counts as written when only its head is",
        (
            Edit(
                TRAINER + "ledger/kubernetes.py",
                "                self._check_same(state, tried[state.head])\n",
                "",
            ),
        ),
        (LEDGER_TESTS + "test_concurrent_writers.py::test_charge_whose_head_is_written_without_it_does_not_count",),
    ),
    Mutation(
        "what another process wrote as this pod is accepted",
        (
            Edit(
                TRAINER + "ledger/kubernetes.py",
                "            self._check_same(state, self._written)\n",
                "",
            ),
        ),
        (
            LEDGER_TESTS + "test_concurrent_writers.py::test_charge_that_only_its_head_shows_does_not_count",
            LEDGER_TESTS + "test_concurrent_writers.py::test_any_write_of_another_process_as_this_pod_ends_this_one",
        ),
    ),
    Mutation(
        "a step is revealed although the ledger lacks its charge",
        (
            Edit(
                TRAINER + "training/budget_gate.py",
                "        if state.steps_charged < self.steps_charged + steps:",
                "        if False:",
            ),
        ),
        (TRAINING_TESTS + "test_budget_gate.py::test_step_is_not_revealed_when_its_charge_is_not_in_the_ledger",),
    ),
    Mutation(
        "the job key travels through Ray",
        (
            Edit(
                TRAINER + "data/shards.py",
                "_split, tokenise=tokenise, key_file=key_file.absolute()",
                "split_by_unit, tokenise=tokenise, key=key_file.read_bytes()",
            ),
        ),
        (
            "tests/trainer_image/runners/local/test_data_preparation.py"
            "::test_ray_data_receives_the_path_of_the_job_key_and_not_its_bytes",
        ),
    ),
    Mutation(
        "figures are masked with the streams of the steps",
        (
            Edit(
                TRAINER + "aggregation/protocol.py",
                "FIGURES = 1 << 63",
                "FIGURES = 0",
            ),
        ),
        (AGGREGATION_TESTS + "test_figures.py::test_no_worker_sends_figures_in_the_clear_or_under_masks_of_a_step",),
    ),
    Mutation(
        "all sums of figures have the same masks",
        (
            Edit(
                TRAINER + "aggregation/protocol.py",
                "number, self._next_figures = self._next_figures, self._next_figures + 1",
                "number = self._next_figures",
            ),
        ),
        (AGGREGATION_TESTS + "test_figures.py::test_no_worker_sends_figures_in_the_clear_or_under_masks_of_a_step",),
    ),
    Mutation(
        "the sums of a private evaluation are sent in the clear",
        (
            Edit(
                TRAINER + "training/worker.py",
                'aggregator=self.private_step.aggregator if evaluation.visibility == "Private" else None,',
                "aggregator=None,",
            ),
        ),
        (TRAINING_TESTS + "test_job_variants.py::test_private_evaluation_sends_no_sum_in_the_clear",),
    ),
    Mutation(
        "a node may have a copy of the run's folder, with a ledger of its own",
        (Edit(_NODES + "checks.py", "return path.read_text() == content", "return True"),),
        (_NODE_TESTS + "test_checks.py::test_node_with_a_copy_of_the_folder_is_refused",),
    ),
    Mutation(
        "a rank trusts the folder of its node",
        (Edit(_NODES + "node_files.py", "(self.run / SALT_FILE).read_text() == self.salt", "True"),),
        (_NODE_TESTS + "test_node_files.py::test_folder_of_another_attempt_is_refused",),
    ),
    Mutation(
        "the keys of nodes are not compared",
        (Edit(_NODES + "checks.py", "if answer.key_digest != first:", "if not answer.key_digest:"),),
        (_NODE_TESTS + "test_checks.py::test_node_with_another_key_is_refused",),
    ),
    Mutation(
        "the lock of the run need not be seen by nodes",
        (Edit(_NODES + "checks.py", "if not answer.sees_lock:", "if False:"),),
        (_NODE_TESTS + "test_checks.py::test_node_that_does_not_see_the_lock_is_refused",),
    ),
)
