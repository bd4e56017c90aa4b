"""Mistakes in what the operator and the pods do for a claim: Secrets, certificates, the guard of ledgers, isolation."""

from __future__ import annotations

from mutations.mutation import OPERATOR, TRAINER, Edit, Mutation

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
                "operator/tensafe_operator/decision/cleanup.py",
                '        draft.actions.append(Delete("Secret", opened.key_secret_name))\n',
                "",
            ),
        ),
        ("tests/operator/decision/test_cleanup.py::test_key_is_deleted_once_when_the_job_has_ended",),
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
        ("tests/operator/decision/test_resolved_names.py::test_pod_that_does_not_hold_the_ledger_chooses_no_digest",),
    ),
    Mutation(
        "the Secret of an attempt outlives the attempt",
        (Edit(OPERATOR + "plan/retry.py", "        draft.delete_tls_secret(ray_job)\n", ""),),
        ("tests/operator/decision/test_cleanup.py::test_secret_of_an_attempt_is_deleted_when_the_attempt_has_ended",),
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
        (
            Edit(
                "operator/tensafe_operator/decision/starting.py",
                "any(matches(each, wanted) for each",
                "any(True for each",
            ),
        ),
        ("tests/operator/decision/test_starting.py::test_new_setting_of_the_networks_reaches_a_running_attempt",),
    ),
    Mutation(
        "older policies and CRDs count as those of this release",
        (
            Edit(
                OPERATOR + "gate.py", "if (version := guard_version(found)) < GUARD_VERSION:", "if (version := 0) > 0:"
            ),
        ),
        ("tests/operator/test_gate.py::test_missing_or_older_object_closes_the_gate",),
    ),
    Mutation(
        "jobs are decided on with copies that were read under older CRDs",
        (Edit(OPERATOR + "gate.py", "while not was_closed or self.problem:", "while True:"),),
        ("tests/operator/test_gate.py::test_everything_is_read_again_once_the_gate_was_closed_and_is_open_again",),
    ),
    Mutation(
        "a field that was added to a NetworkPolicy is not noticed",
        (Edit("operator/tensafe_operator/children/__init__.py", "{*found, *manifest} - ", "{*manifest} - "),),
        ("tests/operator/children/test_children.py::test_object_with_one_more_field_does_not_match",),
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
        "the status has what a container wrote before it ended",
        (
            Edit(
                "operator/tensafe_operator/decision/failed_pods.py",
                '_bounded(ended.get("message")) if _never_started(ended) else ""',
                '_bounded(ended.get("message"))',
            ),
        ),
        (
            "tests/operator/decision/test_failed_pods.py::test_text_of_a_container_that_ran_is_not_copied",
            "tests/operator/decision/test_failed_pods.py::test_cause_is_what_the_kubelet_or_the_scheduler_reports",
        ),
    ),
    Mutation(
        "the status has what a hook of a container wrote",
        (Edit("operator/tensafe_operator/decision/diagnosis.py", " and reason != _HOOK_FAILED", ""),),
        ("tests/operator/decision/test_diagnosis.py::test_output_of_a_hook_is_not_copied",),
    ),
    Mutation(
        "the operator deletes any Secret that a ledger names as its key",
        (
            Edit(
                "operator/tensafe_operator/decision/cleanup.py",
                'if opened.key_secret_name.startswith(names.key_prefix(metadata["name"], metadata["uid"])):',
                "if opened.key_secret_name:",
            ),
        ),
        ("tests/operator/decision/test_cleanup.py::test_no_secret_is_deleted_that_the_operator_did_not_name",),
    ),
)
