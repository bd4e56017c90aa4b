"""Mistakes in what the operator and the pods do for a claim: Secrets, certificates, the guard of ledgers, isolation."""

from __future__ import annotations

from mutations.mutation import API, OPERATOR, TRAINER, Edit, Mutation

_POD_TESTS = "tests/trainer_image/runners/pod/"

CLUSTER: tuple[Mutation, ...] = (
    Mutation(
        "a worker pod sends a digest of its own shard",
        (
            Edit(
                TRAINER + "data/partition.py",
                "        record_keys.append(keys.record_key(key, content))\n        if rank in (None, worker):\n",
                "        if rank in (None, worker):\n            record_keys.append(keys.record_key(key, content))\n",
            ),
        ),
        ("tests/trainer_image/runners/pod/test_worker.py::test_no_rank_sends_a_digest_of_its_own_shard",),
    ),
    Mutation(
        "the Secret with the job key outlives a job that has ended",
        (
            Edit(
                "operator/tensafe_operator/plan/cleanup.py",
                '        draft.actions.append(Delete("Secret", opened.key_secret_name))\n',
                "",
            ),
        ),
        ("tests/operator/plan/test_cleanup.py::test_key_is_deleted_once_when_the_job_has_ended",),
    ),
    Mutation(
        "a pod with the labels of a worker chooses the image that a statement names",
        (
            Edit(
                OPERATOR + "plan/resolved.py",
                "if not any(_image_ids(pod) for pod in own if _holds_ledger(pod, attempt, record)):",
                "if False:",
            ),
        ),
        ("tests/operator/plan/test_resolved.py::test_pod_that_does_not_hold_the_ledger_chooses_no_digest",),
    ),
    Mutation(
        "a pod that stays keeps the rights on the ledger of an ended job for ever",
        (
            Edit(
                OPERATOR + "plan/cleanup.py",
                "if draft.observed.pods and draft.now < due:",
                "if draft.observed.pods:",
            ),
        ),
        ("tests/operator/plan/test_cleanup.py::test_pod_that_stays_keeps_the_rights_of_an_ended_job_for_five_minutes",),
    ),
    Mutation(
        "the Secret of an attempt outlives the attempt",
        (Edit(OPERATOR + "plan/retry.py", "        draft.delete_tls_secret(ray_job)\n", ""),),
        ("tests/operator/plan/test_cleanup.py::test_secret_of_an_attempt_is_deleted_when_the_attempt_has_ended",),
    ),
    Mutation(
        "Ray's processes can issue certificates",
        (
            Edit(
                OPERATOR + "children/tls.py",
                '        _secret_variable("RAY_AUTH_TOKEN", secret_name(job, attempt), RAY_TOKEN),\n',
                '        _secret_variable("RAY_AUTH_TOKEN", secret_name(job, attempt), RAY_TOKEN),\n'
                "        *_authority_variables(job, attempt, settings),\n",
            ),
        ),
        (
            "tests/operator/children/test_tls.py"
            "::test_only_the_container_that_issues_certificates_gets_the_key_of_the_authority",
        ),
    ),
    Mutation(
        "KubeRay sends the token of Ray's nodes",
        (Edit(OPERATOR + "children/tls.py", '"disabled" if settings.job_tls.enabled else "token"', '"token"'),),
        ("tests/operator/children/test_tls.py::test_kuberay_needs_no_token_and_reaches_only_the_gate",),
    ),
    Mutation(
        "pods accept any key of an authority",
        (
            Edit(
                TRAINER + "runners/pod/certificate.py",
                " or hashlib.sha256(secret.encode()).hexdigest() != expected",
                "",
            ),
        ),
        (_POD_TESTS + "test_certificate.py::test_pod_without_the_right_authority_does_not_start",),
    ),
    Mutation(
        "the gate submits any entrypoint",
        (
            Edit(
                TRAINER + "runners/pod/gate.py",
                "all(request.get(name) == value for name, value in submission.items())",
                'request.get("submission_id") == submission["submission_id"]',
            ),
        ),
        (_POD_TESTS + "test_gate.py::test_no_other_submission_reaches_ray",),
    ),
    Mutation(
        "the statement claims TLS that is disabled",
        (Edit(TRAINER + "runners/pod/pod_files.py", 'os.environ.get(TLS_VARIABLE) == "1"', "TLS_VARIABLE"),),
        (_POD_TESTS + "test_pod_files.py::test_statement_states_whether_ray_encrypts_its_messages",),
    ),
    Mutation(
        "a NetworkPolicy that was opened while a job trains stays open",
        (Edit("operator/tensafe_operator/plan/starting.py", " or not matches(present, manifest)", ""),),
        ("tests/operator/plan/test_starting.py::test_new_setting_of_the_networks_reaches_a_running_attempt",),
    ),
    Mutation(
        "a field that was added to a NetworkPolicy is not noticed",
        (Edit("operator/tensafe_operator/children/__init__.py", "{*found, *manifest} - ", "{*manifest} - "),),
        ("tests/operator/children/test_children.py::test_object_with_one_more_field_does_not_match",),
    ),
    Mutation(
        "a job opens its ledger although nothing protects it",
        (Edit("operator/tensafe_operator/plan/ledger.py", "if not draft.observed.guarded:", "if False:"),),
        (
            "tests/operator/plan/test_starting.py::test_nothing_is_begun_while_the_policies_that_protect_ledgers_are_missing",
        ),
    ),
    Mutation(
        "jobs are read although the API server drops their fields",
        (
            Edit(
                "operator/tensafe_operator/ledger_guard.py",
                "if self._why_dropped:\n            r",
                "if False:\n            r",
            ),
        ),
        ("tests/operator/test_ledger_guard.py::test_crds_that_lack_a_field_are_older_and_no_job_is_read_with_them",),
    ),
    Mutation(
        "a smaller epsilon is written without a look at the CRDs",
        (Edit("operator/tensafe_operator/reconcile.py", "fallen = has_fallen(observed", "fallen = not (observed"),),
        ("tests/operator/test_dropped_fields.py::test_figure_that_falls_for_another_reason_waits_for_the_crds",),
    ),
    Mutation(
        "a ledger that has lost its earlier steps is counted",
        (Edit("operator/tensafe_operator/plan/ledger.py", "if has_lost_fields(found):", "if False:"),),
        ("tests/operator/test_dropped_fields.py::test_ledger_that_was_stored_under_older_crds_is_never_counted",),
    ),
    Mutation(
        "a new ledger is used although it has lost fields at its creation",
        (
            Edit(
                "operator/tensafe_operator/reconcile.py",
                "                        if ledger_is_shortened(observed):\n",
                "                        if False:\n",
            ),
        ),
        ("tests/operator/test_dropped_fields.py::test_new_ledger_without_its_fields_starts_no_job",),
    ),
    Mutation(
        "a status is written although that deletes fields of its job",
        (
            Edit(
                "operator/tensafe_operator/runtime/api_client.py",
                'operations += [("/spec", document["spec"]), ("/status", status)]',
                'operations += [("/status", status)]',
            ),
        ),
        (
            "tests/operator/runtime/test_api_client.py::test_status_is_written_with_the_spec_whose_fields_the_crd_must_know",
        ),
    ),
    Mutation(
        "an attempt is decided on by a job that was read without its fields",
        (Edit("operator/tensafe_operator/reconcile.py", "        _check_spec(cached.job, again.job)\n", ""),),
        ("tests/operator/test_dropped_fields.py::test_no_attempt_ends_by_a_job_that_was_read_without_its_fields",),
    ),
    Mutation(
        "jobs are decided on with copies that were read under older CRDs",
        (Edit("operator/tensafe_operator/ledger_guard.py", "self._reads_again |= bool(self._why_dropped)", "pass"),),
        (
            "tests/operator/test_ledger_guard.py::test_crds_that_lack_a_field_are_older_and_no_job_is_read_with_them",
            "tests/operator/test_ledger_guard.py::test_everything_is_read_again_once_the_crds_are_back_for_some_seconds",
        ),
    ),
    Mutation(
        "a field that has its default again counts as never changed",
        (
            Edit(
                API + "spec_digest.py",
                'fields = spec.model_dump(by_alias=True, mode="json", exclude_defaults=True)',
                'fields = spec.model_dump(by_alias=True, include={"mechanism"}, mode="json", exclude_defaults=True)',
            ),
        ),
        ("tests/api/test_spec_digest.py::test_lost_field_is_noticed_also_when_it_has_its_default_again",),
    ),
    Mutation(
        "a trainer acquires a ledger that has lost fields of its spec",
        (Edit(TRAINER + "ledger/kubernetes.py", "if has_lost_fields(found):", "if False:"),),
        (
            "tests/trainer_image/ledger/test_concurrent_writers.py::test_ledger_that_has_lost_fields_of_its_spec_is_not_acquired",
        ),
    ),
    Mutation(
        "figures are computed from a ledger that has lost fields of its spec",
        (
            Edit("operator/tensafe_kubectl/figures.py", "if has_lost_fields(ledger):", "if False:"),
            Edit(TRAINER + "verification/ledgers.py", "if has_lost_fields(ours[0]):", "if False:"),
        ),
        (
            "tests/kubectl/test_figures.py::test_plugin_computes_nothing_from_a_ledger_that_has_lost_fields",
            "tests/kubectl/test_figures.py::test_no_statement_is_verified_with_a_ledger_that_has_lost_fields",
        ),
    ),
    Mutation(
        "ledgers that the API server does not serve count as deleted",
        (
            Edit(
                "operator/tensafe_operator/runtime/api_errors.py",
                "if status == NOT_FOUND and not (document",
                "if False and not (document",
            ),
            Edit(TRAINER + "ledger/kubernetes.py", "_NOT_FOUND and _names_object(error)", "_NOT_FOUND"),
        ),
        (
            "tests/operator/runtime/test_api_client.py::test_object_of_a_kind_that_is_not_served_is_not_missing",
            "tests/trainer_image/ledger/test_kubernetes_requests.py::test_kind_that_is_not_served_is_no_missing_ledger",
        ),
    ),
    Mutation(
        "a trainer believes an answer that is not what it wrote",
        (Edit(TRAINER + "ledger/kubernetes.py", "self._check_same(self._state(written), expected)", "pass"),),
        (
            "tests/trainer_image/ledger/test_concurrent_writers.py::test_answer_to_a_charge_that_lacks_a_field_pays_for_no_step",
        ),
    ),
    Mutation(
        "a ledger is opened under CRDs that have just become older",
        (Edit("operator/tensafe_operator/reconcile.py", " or _opens_ledger(decision)", ""),),
        ("tests/operator/test_dropped_fields.py::test_ledger_is_opened_only_soon_after_the_crds_were_read",),
    ),
    Mutation(
        "a CRD of ledgers that has lost its rules counts as their guard",
        (Edit("operator/tensafe_operator/served_rules.py", "return list(dict.fromkeys(lost))", "return []"),),
        (
            "tests/operator/test_served_rules.py::test_crd_that_accepts_more_has_lost_rules",
            "tests/operator/test_ledger_guard.py::test_crd_of_ledgers_without_its_rules_is_no_guard",
        ),
    ),
    Mutation(
        "a stored version of a CRD that drops fields is not noticed",
        (
            Edit(
                "operator/tensafe_operator/served_fields.py",
                'if each["storage"] or (each["name"] == VERSION and each["served"])',
                'if each["name"] == VERSION and each["served"]',
            ),
        ),
        ("tests/operator/test_ledger_guard.py::test_version_in_which_objects_are_stored_keeps_every_field",),
    ),
    Mutation(
        "a ledger that has lost its status counts as one that was never acquired",
        (
            Edit(
                "operator/tensafe_operator/plan/ledger.py",
                'if is_known and not found.get("status") and',
                "if False and",
            ),
        ),
        ("tests/operator/test_dropped_fields.py::test_ledger_that_has_lost_its_charges_is_never_counted",),
    ),
    Mutation(
        "an older CRD of ledgers counts as their guard",
        (Edit("operator/tensafe_operator/served_rules.py", "version < GUARD_VERSION", "version < 0"),),
        ("tests/operator/test_served_rules.py::test_crd_that_accepts_more_has_lost_rules",),
    ),
    Mutation(
        "jobs start although the CRD of ledgers has lost its rules",
        (Edit("operator/tensafe_operator/ledger_guard.py", "not missing and not lost", "not missing"),),
        ("tests/operator/test_ledger_guard.py::test_crd_of_ledgers_without_its_rules_is_no_guard",),
    ),
    Mutation(
        "a policy with weaker rules counts as the guard of ledgers",
        (
            Edit(
                "crds/tensafe_api/admission_policy.py",
                'return matched["resourceRules"] == rules and ',
                "return ",
            ),
        ),
        ("tests/api/test_admission_policy.py::test_weakened_policy_is_not_enforced",),
    ),
    Mutation(
        "the status has what a container wrote before it ended",
        (
            Edit(
                "operator/tensafe_operator/plan/failed_pods.py",
                '_bounded(ended.get("message")) if _never_started(ended) else ""',
                '_bounded(ended.get("message"))',
            ),
        ),
        (
            "tests/operator/plan/test_failed_pods.py::test_text_of_a_container_that_ran_is_not_copied",
            "tests/operator/plan/test_failed_pods.py::test_cause_is_what_the_kubelet_or_the_scheduler_reports",
        ),
    ),
    Mutation(
        "the status has what a hook of a container wrote",
        (Edit("operator/tensafe_operator/plan/diagnosis.py", " and reason != _HOOK_FAILED", ""),),
        ("tests/operator/plan/test_diagnosis.py::test_output_of_a_hook_is_not_copied",),
    ),
    Mutation(
        "the operator deletes any Secret that a ledger names as its key",
        (
            Edit(
                "operator/tensafe_operator/plan/cleanup.py",
                'if opened.key_secret_name.startswith(names.key_prefix(metadata["name"], metadata["uid"])):',
                "if opened.key_secret_name:",
            ),
        ),
        ("tests/operator/plan/test_cleanup.py::test_no_secret_is_deleted_that_the_operator_did_not_name",),
    ),
)
