"""Mistakes in what is encrypted, for whom, and in what is checked of encrypted releases."""

from __future__ import annotations

from mutations.mutation import OPERATOR, TRAINER, TRAINING_TESTS, Edit, Mutation

_ENCRYPTION = TRAINER + "checkpoint/encryption.py"
_CHECKPOINTING = TRAINER + "training/checkpointing.py"
_ACQUISITION = TRAINER + "training/acquisition.py"
_VERIFY = TRAINER + "verification/checkpoint.py"
_DECRYPT = TRAINER + "cli/decrypt.py"
_RUN_TESTS = TRAINING_TESTS + "test_encrypted_checkpoints.py::"
_SAVING_TESTS = TRAINING_TESTS + "test_saving.py::"
_RELEASE_TESTS = "tests/trainer_image/verification/test_encrypted_release.py::"
_IN_CLEAR = (
    _RUN_TESTS + "test_nothing_readable_reaches_a_disk_during_a_whole_run",
    _SAVING_TESTS + "test_only_what_everyone_may_read_is_stored_in_clear",
)

ENCRYPTION: tuple[Mutation, ...] = (
    Mutation(
        "a recipient verifies another statement than the one that everyone else reads",
        (Edit(_VERIFY, "        if file + ENCRYPTED in files:\n", "        if file + ENCRYPTED == file:\n"),),
        (_RELEASE_TESTS + "test_recipient_and_stranger_verify_the_same_statement",),
    ),
    Mutation(
        "checkpoints are stored in clear",
        (
            Edit(
                _CHECKPOINTING,
                "        stored = files if self.recipients is None else self.recipients.encrypt(files)\n",
                "        stored = files\n",
            ),
        ),
        _IN_CLEAR,
    ),
    Mutation(
        "the optimiser's state is stored in clear",
        (
            Edit(
                _ENCRYPTION,
                "STATEMENT_PAGE, TRAINER_STATE})\n",
                'STATEMENT_PAGE, TRAINER_STATE, "optimizer.safetensors"})\n',
            ),
        ),
        _IN_CLEAR,
    ),
    Mutation(
        "the weights are stored in clear beside the encrypted ones",
        (
            Edit(
                _CHECKPOINTING,
                "self.recipients.encrypt(files)\n",
                "{**self.recipients.encrypt(files), ADAPTER_WEIGHTS: files[ADAPTER_WEIGHTS]}\n",
            ),
        ),
        _IN_CLEAR,
    ),
    Mutation(
        "the final checkpoint has the optimiser's state",
        (Edit(_CHECKPOINTING, "**({} if final else {OPTIMIZER:", "**({} if final and not final else {OPTIMIZER:"),),
        (
            _SAVING_TESTS + "test_final_checkpoint_has_no_optimizer_state",
            _RUN_TESTS + "test_released_weights_are_those_of_the_statement",
        ),
    ),
    Mutation(
        "files are encrypted for the first recipient only",
        (
            Edit(
                _ENCRYPTION,
                "    return Recipients(tuple(keys))\n",
                "    return Recipients(tuple(keys[:1]))\n",
            ),
        ),
        (
            "tests/trainer_image/checkpoint/test_encryption.py::test_recipients_are_read_as_by_age",
            _RUN_TESTS + "test_run_resumes_with_the_identity_of_any_recipient",
        ),
    ),
    Mutation(
        "a job without a usable recipient trains in clear",
        (
            Edit(
                _ENCRYPTION,
                "    if encryption is None:\n        return None\n    if encryption.recipients_config_map is None:\n",
                "    if encryption is None or not encryption.recipients:\n        return None\n"
                "    if encryption.recipients_config_map is None:\n",
            ),
        ),
        (
            "tests/trainer_image/runners/pod/test_worker.py::"
            "test_unusable_recipients_are_reported_before_the_data_is_read",
        ),
    ),
    Mutation(
        "a run that encrypts continues in clear",
        (
            Edit(
                _ACQUISITION,
                "    if components.job.spec.checkpoint.encryption is None:\n",
                "    if components.identities is None and components.job.spec.checkpoint.encryption is None:\n",
            ),
        ),
        (_RUN_TESTS + "test_run_that_encrypts_does_not_continue_in_clear",),
    ),
    Mutation(
        "a resume finds out after the ledger was acquired that it cannot decrypt",
        (
            Edit(
                _ACQUISITION,
                "    read_decrypted(store, name, components.identities, newest.digest, only=(ADAPTER_WEIGHTS,))\n",
                "",
            ),
        ),
        (
            _RUN_TESTS + "test_resume_without_an_identity_names_what_is_missing",
            _RUN_TESTS + "test_checkpoint_for_other_recipients_is_not_resumed",
        ),
    ),
    Mutation(
        "verify does not compare decrypted weights with the statement",
        (
            Edit(
                _VERIFY,
                "    if is_encrypted(files) and identities is not None:\n",
                "    if is_encrypted(files) and identities is not None and not files:\n",
            ),
        ),
        (
            _RELEASE_TESTS + "test_statement_of_another_adapter_is_noticed_by_a_recipient",
            _RELEASE_TESTS + "test_release_for_others_is_not_verified_with_our_identity",
        ),
    ),
    Mutation(
        "verify says that encrypted weights, which it did not decrypt, are those of the statement",
        (
            Edit(
                _VERIFY,
                "        report.not_checked.append(ENCRYPTED_WEIGHTS)\n",
                "        report.trusted = report.trusted and True\n",
            ),
        ),
        (_RELEASE_TESTS + "test_stranger_verifies_all_but_the_weights",),
    ),
    Mutation(
        "verify skips encrypted files",
        (
            Edit(
                TRAINER + "checkpoint/store.py",
                "            if digest(content) != listing[file]:\n",
                '            if digest(content) != listing[file] and not file.endswith(".age"):\n',
            ),
            Edit(
                _VERIFY,
                "    if manifest_of(files) != manifest:\n",
                "    if manifest_of(files) != manifest and not is_encrypted(files):\n",
            ),
        ),
        (_RELEASE_TESTS + "test_every_changed_byte_of_the_encrypted_weights_is_noticed",),
    ),
    Mutation(
        "verify accepts a file in clear in an encrypted checkpoint",
        (Edit(_VERIFY, "    if is_encrypted(files) and clear:\n", "    if is_encrypted(clear) and clear:\n"),),
        (
            _RELEASE_TESTS + "test_file_that_should_be_encrypted_is_named",
            _RELEASE_TESTS + "test_weights_in_both_forms_are_refused",
        ),
    ),
    Mutation(
        "decrypted weights are not compared with the statement",
        (
            Edit(
                _DECRYPT,
                '    if stated != digest(files.get(ADAPTER_WEIGHTS, b"")):\n',
                "    if not stated or not digest(files.get(ADAPTER_WEIGHTS, b'')):\n",
            ),
        ),
        (_RELEASE_TESTS + "test_changed_adapter_is_not_written",),
    ),
    Mutation(
        "others can read decrypted files",
        (Edit(_DECRYPT, "write_files(temporary, files, mode=0o600)", "write_files(temporary, files, mode=0o644)"),),
        (_RELEASE_TESTS + "test_decrypted_adapter_is_what_peft_reads",),
    ),
    Mutation(
        "decrypt overwrites what exists",
        (Edit(_DECRYPT, "    if os.path.lexists(output):\n", "    if output.is_file():\n"),),
        (_RELEASE_TESTS + "test_nothing_is_overwritten",),
    ),
    Mutation(
        "the state of the optimiser is decrypted to a disk",
        (Edit(_DECRYPT, "if file in {*READABLE, ADAPTER_WEIGHTS}}\n", "if file}\n"),),
        (_RELEASE_TESTS + "test_optimizer_state_is_not_decrypted_to_a_disk",),
    ),
    Mutation(
        "a secret in place of a recipient is quoted",
        (Edit(_ENCRYPTION, '_SECRETS = ("AGE-SECRET-KEY", ', '_SECRETS = ("AGE SECRET KEY", '),),
        (
            "tests/trainer_image/checkpoint/test_encryption.py::"
            "test_secret_in_place_of_a_recipient_is_refused_and_not_quoted",
        ),
    ),
    Mutation(
        "the head mounts the identity",
        (
            Edit(
                OPERATOR + "children/rayjob.py",
                "    own = [volumes.job_volume(parameters), *volumes.writable_volumes(settings)]\n",
                "    own = [\n"
                "        volumes.job_volume(parameters),\n"
                "        *volumes.writable_volumes(settings),\n"
                "        *(volume for volume, _ in volumes.encryption_volumes(job, ())),\n"
                "    ]\n",
            ),
        ),
        ("tests/operator/children/test_pods.py::test_every_worker_and_not_the_head_mounts_the_identity",),
    ),
    Mutation(
        "the signing key may be in the Secret of the identity, which every worker has",
        (
            Edit(
                OPERATOR + "plan/admission.py",
                "[encryption.identity_secret_name] if encryption else [],\n",
                "[],\n",
            ),
        ),
        ("tests/operator/decision/test_admission.py::test_signing_key_that_the_job_gives_to_every_worker_is_rejected",),
    ),
)
