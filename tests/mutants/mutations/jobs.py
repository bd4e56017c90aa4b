"""Mistakes in what the author of a job may choose: rights that are not theirs, or room that the status needs."""

from __future__ import annotations

from mutations.mutation import Edit, Mutation

_OPERATOR = "operator/tensafe_operator/"
_TESTS = "tests/operator/"
_ROOM = _TESTS + "plan/test_short_status.py::test_figures_are_stored_although_a_user_takes_all_room_that_is_left"

JOBS = (
    Mutation(
        "a time in the ledger keeps its charges out of the status",
        (Edit("crds/tensafe_api/timestamps.py", ".astimezone(UTC).timestamp() if", ".timestamp() if"),),
        (_TESTS + "plan/test_privacy_status.py::test_charges_count_whatever_the_time_of_the_last_step_is",),
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
