"""Mistakes in the figures of a job that starts from the adapter of another one."""

from __future__ import annotations

from mutations.mutation import API, TRAINER, TRAINING_TESTS, Edit, Mutation

_EARLIER = "tests/api/test_earlier_steps.py"
_INITIAL = TRAINING_TESTS + "test_initial_adapter.py"

COMPOSITION: tuple[Mutation, ...] = (
    Mutation(
        "earlier steps of a stranger may take any memory",
        (Edit(API + "accounting.py", "> PLD_POINTS_LIMIT * ", "> math.inf * "),),
        (_EARLIER + "::test_pld_is_too_large_for_many_wide_kinds_of_steps_and_not_for_a_few",),
    ),
    Mutation(
        "earlier steps of a stranger with almost no loss decide the interval of all others",
        (Edit(API + "loss_intervals.py", "limited(max(spreads)) / 4", "0"),),
        (_EARLIER + "::test_step_with_almost_no_loss_adds_almost_nothing_and_never_less_than_nothing",),
    ),
    Mutation(
        "epsilon does not count the steps of the adapter that a job starts from",
        (
            Edit(
                API + "accounting.py",
                "    if earlier:\n        own =",
                "    if False:\n        own =",
            ),
        ),
        (
            _EARLIER + "::test_noise_is_found_for_the_sum_of_both_trainings",
            _EARLIER + "::test_job_without_a_step_has_spent_what_the_earlier_one_has",
        ),
    ),
    Mutation(
        "the budget allows as many steps as without the earlier training",
        (
            Edit(
                API + "resolve.py",
                "            earlier=self.mechanism.earlier_events,\n            at_most=",
                "            at_most=",
            ),
        ),
        (_EARLIER + "::test_fewer_steps_fit_the_budget_after_earlier_ones",),
    ),
    Mutation(
        "the noise leaves out what the earlier training has spent",
        (Edit(API + "resolve.py", "            earlier=events,\n", ""),),
        (_EARLIER + "::test_noise_is_found_for_the_sum_of_both_trainings",),
    ),
    Mutation(
        "the statement lists the privacy events of this job only",
        (Edit(API + "privacy_events.py", "return (*mechanism.earlier_events, own)", "return (own,)"),),
        (_INITIAL + "::test_every_epsilon_counts_the_earlier_steps",),
    ),
    Mutation(
        "a manifest may claim that the earlier training has spent less than its statement says",
        (
            Edit(
                TRAINER + "training/initial_adapter.py",
                "if spent != list(mechanism.earlier_steps):",
                "if not spent:",
            ),
        ),
        (_INITIAL + "::test_refusal_shows_the_steps_to_write",),
    ),
    Mutation(
        "δ does not pay for the noise samplers of the earlier trainings",
        (
            Edit(
                TRAINER + "training/setup.py",
                "draws * noise.total_variation + earlier_distance,",
                "draws * noise.total_variation,",
            ),
        ),
        (TRAINING_TESTS + "test_noise_sampler_check.py::test_share_of_delta_pays_for_the_draws_of_earlier_trainings",),
    ),
    Mutation(
        "a job starts from an adapter that protects other people than its users",
        (
            Edit(
                TRAINER + "training/initial_adapter.py",
                'if unit.kind == "User" and column != (init_from.unit_column or unit.column):',
                'if unit.kind == "User" and not column:',
            ),
        ),
        (_INITIAL + "::test_users_of_the_earlier_training_must_be_those_of_this_one",),
    ),
    Mutation(
        "a resumed job believes a checkpoint that its ledger does not know about what it started from",
        (
            Edit(
                TRAINER + "training/acquisition.py",
                "if started_from(json.loads(files[STATEMENT_FILE])) != initial.summary:",
                "if not started_from(json.loads(files[STATEMENT_FILE])):",
            ),
        ),
        (_INITIAL + "::test_forged_checkpoint_of_the_job_does_not_change_what_it_started_from",),
    ),
    Mutation(
        "an earlier training counts with the steps that ran, although its end may depend on its results",
        (
            Edit(
                TRAINER + "training/initial_adapter.py",
                'own["steps"] = max(own["steps"], self.claim.steps)',
                "pass",
            ),
        ),
        (_INITIAL + "::test_adapter_of_an_unfinished_job_counts_with_all_steps_that_it_claims",),
    ),
    Mutation(
        "the noise of trainings before the earlier one counts as exact where its statement leaves out the distance",
        (
            Edit(
                TRAINER + "training/initial_adapter.py",
                "    noise_distance: float = Field(ge=0)\n",
                "    noise_distance: float = Field(0.0, ge=0)\n",
            ),
        ),
        (_INITIAL + "::test_adapter_that_does_not_fit_is_refused_before_the_ledger_is_acquired",),
    ),
)
