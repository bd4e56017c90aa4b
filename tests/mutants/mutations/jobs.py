"""Mistakes in what the author of a job may choose: rights that are not theirs, or room that the status needs."""

from __future__ import annotations

from mutations.mutation import Edit, Mutation

_OPERATOR = "operator/tensafe_operator/"
_TESTS = "tests/operator/"
_ROOM = _TESTS + "plan/test_short_status.py::test_figures_are_stored_although_a_user_takes_all_room_that_is_left"

JOBS = (
    Mutation(
        "the author of a job chooses the name of its account",
        (Edit(_OPERATOR + "children/access.py", "or made", "or job.metadata.name"),),
        (
            _TESTS + "children/test_children.py::test_account_of_a_job_has_a_name_that_no_user_can_know_before",
            _TESTS + "plan/test_starting.py::test_every_attempt_has_the_account_that_the_ledger_names",
        ),
    ),
    Mutation(
        "a user who fills a job keeps its charges out of the status",
        (Edit(_OPERATOR + "apply.py", "stored, status = await _store_shortened(api, job, status, now)", "raise"),),
        (_TESTS + "plan/test_short_status.py::test_every_privacy_figure_is_stored_although_there_is_no_room_for_more",),
    ),
    Mutation(
        "a user who takes the room of a short status keeps longer figures out of it",
        (Edit(_OPERATOR + "plan/short_status.py", "ROOM_FOR_FIGURES = 128", "ROOM_FOR_FIGURES = 0"),),
        (_ROOM,),
    ),
    Mutation(
        "the end of an attempt keeps the figures of a job without room as they were",
        (Edit(_OPERATOR + "plan/short_status.py", 'update={"privacy": status.privacy})', "update={})"),),
        (_ROOM,),
    ),
    Mutation(
        "a time in the ledger keeps its charges out of the status",
        (Edit("crds/tensafe_api/timestamps.py", ".astimezone(UTC).timestamp() if", ".timestamp() if"),),
        (_TESTS + "plan/test_privacy_status.py::test_charges_count_whatever_the_time_of_the_last_step_is",),
    ),
    Mutation(
        "an operator that fails on the rest of a ledger does not count its charges",
        (
            Edit(
                _OPERATOR + "plan/ledger.py",
                "return status if record is None else with_charges(status, *record)",
                "return status",
            ),
        ),
        (_TESTS + "plan/test_privacy_status.py::test_charges_count_where_the_rest_of_the_ledger_cannot_be_shown",),
    ),
    Mutation(
        "epsilon falls when an older ledger is read",
        (Edit("crds/tensafe_api/status_fold.py", "max(before.steps_charged or 0, charged)", "charged"),),
        (_TESTS + "plan/test_privacy_status.py::test_epsilon_does_not_fall_when_an_older_ledger_is_observed",),
    ),
    Mutation(
        "a deleted job that a finalizer keeps trains, and its status shows too few charges",
        (
            Edit(
                _OPERATOR + "plan/__init__.py",
                "    if is_being_deleted(draft.observed.job):\n        count_charges(draft)\n",
                "    if is_being_deleted(draft.observed.job):\n",
            ),
        ),
        (_TESTS + "plan/test_deletion.py::test_training_ends_and_its_last_charges_are_counted",),
    ),
)
