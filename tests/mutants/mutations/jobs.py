"""Mistakes in what the author of a job may choose: rights that are not theirs, or code that reads the records."""

from __future__ import annotations

from mutations.mutation import Edit, Mutation

_OPERATOR = "operator/tensafe_operator/"
_TESTS = "tests/operator/"
_ROOM = _TESTS + "plan/test_short_status.py::test_figures_are_stored_although_a_user_takes_all_room_that_is_left"
_FOREIGN = _TESTS + "plan/test_foreign_code.py::"

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
        "a job that was edited while it was suspended runs foreign code",
        (
            Edit(
                _OPERATOR + "plan/starting.py",
                "if problem := find_foreign_code(admitted.job.spec.cluster):",
                'if problem := "":',
            ),
        ),
        (_FOREIGN + "test_attempt_runs_to_its_end_and_the_next_one_waits_for_the_author",),
    ),
    Mutation(
        "a job names a kubeconfig, and so a server that invents its ledger",
        (Edit(_OPERATOR + "children/foreign_code.py", '    "KUBECONFIG",', '    "KUBECTL",'),),
        (_FOREIGN + "test_trainer_uses_no_kubeconfig_if_the_variable_is_empty",),
    ),
    Mutation(
        "a job names the API server with its ledger",
        (Edit(_OPERATOR + "plan/foreign_code.py", "    if servers:", "    if False:"),),
        (_FOREIGN + "test_other_api_server_for_the_ledger_is_found",),
    ),
    Mutation(
        "a volume replaces the file that names libraries of OpenSSL",
        (Edit(_OPERATOR + "plan/foreign_code.py", '"/etc/ssl/openssl.cnf", ', ""),),
        (_FOREIGN + "test_volume_over_code_is_found",),
    ),
    Mutation(
        "a Secret in the environment sets what Python imports",
        (Edit(_OPERATOR + "children/rayjob.py", "if cluster.env_from or job", "if False and job"),),
        (_FOREIGN + "test_secret_in_the_environment_sets_none_of_these_variables",),
    ),
    Mutation(
        "a volume replaces the file that names libraries of another OpenSSL",
        (Edit(_OPERATOR + "plan/foreign_code.py", '    "/opt/pyca",', '    "/opt/own",'),),
        (_FOREIGN + "test_volume_over_code_is_found",),
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
