"""Mistakes in signatures, in what they cover, and in what `tensafe verify` computes again."""

from __future__ import annotations

from mutations.mutation import API, OPERATOR, TRAINER, TRAINING_TESTS, Edit, Mutation

_MODEL_SIGNATURE = TRAINER + "signing/model_signature.py"
_PKCS11 = TRAINER + "signing/pkcs11.py"
_SIGNER = TRAINER + "signing/signer.py"
_VERIFY = TRAINER + "verification/checkpoint.py"
_FIGURES = API + "statement_figures.py"
_COPY = TRAINER + "verification/verified_copy.py"
_VERIFY_VERB = TRAINER + "cli/verify.py"
_READ = "operator/tensafe_kubectl/statement.py"
_SIGNING_TESTS = "tests/trainer_image/signing/test_signer.py::"
_CLAIM_TESTS = "tests/trainer_image/verification/test_verified_claim.py::"
_VERIFY_TESTS = "tests/trainer_image/verification/test_verify.py::"
_COPY_TESTS = "tests/trainer_image/verification/test_verified_copy.py::"

SIGNING: tuple[Mutation, ...] = (
    Mutation(
        "a copy in the place is trusted by the names of its files alone",
        (
            Edit(
                _COPY,
                "    return all(path.read_bytes() == files[path.name] for path in found)\n",
                "    return all(path.name in files for path in found)\n",
            ),
        ),
        (_COPY_TESTS + "test_folder_with_other_content_is_not_overwritten",),
    ),
    Mutation(
        "a statement with two claims, of which a reader may take either, is verified",
        (Edit(_VERIFY, "    if canonical != files[STATEMENT_FILE]:", "    if not canonical:"),),
        (_CLAIM_TESTS + "test_statement_that_readers_could_read_in_two_ways_is_refused",),
    ),
    Mutation(
        "a certificate that no authority vouches for names the signer",
        (
            Edit(
                _SIGNER,
                "subject_of(certificates[0]) if isinstance(trust, TrustedCertificates) else None",
                "subject_of(certificates[0]) if certificates else None",
            ),
        ),
        (_SIGNING_TESTS + "test_subject_of_a_certificate_is_not_believed_without_its_authority",),
    ),
    Mutation(
        "a claim about fewer steps than the adapter has is verified",
        (
            Edit(
                API + "statement_document.py",
                "    if step > charged:\n",
                "    if step < 0:\n",
            ),
        ),
        (
            _CLAIM_TESTS + "test_adapter_with_more_steps_than_were_charged_is_refused",
            "tests/trainer_image/statements/test_report.py"
            "::test_figure_that_does_not_follow_from_the_mechanism_is_refused",
        ),
    ),
    Mutation(
        "a claim of fewer planned steps than ran is verified",
        (Edit(API + "statement_document.py", "    if once > spent.steps_planned:\n", "    if once < 0:\n"),),
        (
            "tests/trainer_image/statements/test_report.py"
            "::test_figure_that_does_not_follow_from_the_mechanism_is_refused",
        ),
    ),
    Mutation(
        "a claim whose noise samplers cost more than their share of δ is verified",
        (Edit(API + "statement_figures.py", "        _check_samplers(document)\n", ""),),
        (
            "tests/trainer_image/statements/test_report.py"
            "::test_figure_that_does_not_follow_from_the_mechanism_is_refused",
        ),
    ),
    Mutation(
        "a claim that leaves out the training before it is verified",
        (
            Edit(
                API + "statement_document.py",
                "    if document.started_from is not None and not document.mechanism.earlier_steps:\n",
                "    if document.started_from == {}:\n",
            ),
        ),
        (_CLAIM_TESTS + "test_start_from_an_adapter_that_no_event_counts_is_refused",),
    ),
    Mutation(
        "a file that the kernel refused is left in the place of the copy",
        (Edit(_COPY, "        shutil.rmtree(temporary, ignore_errors=True)\n", "        temporary.exists()\n"),),
        (_COPY_TESTS + "test_nothing_is_left_where_the_disk_is_full",),
    ),
    Mutation(
        "another checkpoint of the signer is accepted in the place of the one that --digest names",
        (Edit(_VERIFY_VERB, "    if report.digest != expected:\n", "    if not report.digest:\n"),),
        (_COPY_TESTS + "test_another_checkpoint_of_the_same_signer_is_refused_by_its_digest",),
    ),
    Mutation(
        "the copy has the files that are in the place at its end, not those that were verified",
        (
            Edit(
                _VERIFY,
                '    ledger = find_ledger(str(document["job"]["uid"]))\n',
                '    ledger = find_ledger(str(document["job"]["uid"]))\n'
                "    report.files = store.read_beside(name, list(report.files))\n",
            ),
        ),
        (_COPY_TESTS + "test_place_that_changes_after_it_was_read_does_not_change_the_copy",),
    ),
    Mutation(
        "a PIN in the URI of a signing key is accepted, and so in the arguments and in the printed command",
        (Edit(_PKCS11, '    if "pin-value" in uri:\n', '    if "pin-value" in uri and not uri:\n'),),
        (
            "tests/trainer_image/signing/test_pkcs11.py::TestURI::test_pin_in_a_uri_is_refused_and_not_quoted",
            "tests/trainer_image/cli/test_command.py"
            "::test_pin_in_the_uri_of_the_signing_key_is_refused_before_anything_starts",
        ),
    ),
    Mutation(
        "the signature over the files is not checked",
        (
            Edit(
                _SIGNER,
                "        verify_with_key(signature, key, signed)\n    except",
                "        certificates_in(signature)\n    except",
            ),
        ),
        (
            _SIGNING_TESTS + "test_other_files_are_refused_and_named",
            _SIGNING_TESTS + "test_missing_file_is_refused_and_named",
            _VERIFY_TESTS + "test_every_byte_of_a_signature_file_counts",
        ),
    ),
    Mutation(
        "the signature of the privacy claim is not checked",
        (
            Edit(
                _SIGNER,
                "        verify_statement(attestation, key)\n",
                "        statement_in(attestation)\n",
            ),
        ),
        (_VERIFY_TESTS + "test_claim_that_our_key_did_not_sign_is_refused",),
    ),
    Mutation(
        "a claim about other files or another statement is accepted",
        (Edit(_SIGNER, "    if attested != expected:\n", "    if not attested:\n"),),
        (
            _SIGNING_TESTS + "test_claim_about_another_statement_is_refused",
            _SIGNING_TESTS + "test_exchanged_certificates_are_refused",
        ),
    ),
    Mutation(
        "the key that lies beside the files is trusted in place of the given one",
        (
            Edit(
                _SIGNER,
                "    if isinstance(trust, TrustedKey) and fingerprint_of(key) != fingerprint_of(trust.key):\n",
                "    if isinstance(trust, TrustedKey) and fingerprint_of(key) != fingerprint_of(key):\n",
            ),
        ),
        (
            _SIGNING_TESTS + "test_key_that_signed_is_trusted_and_no_other",
            _VERIFY_TESTS + "test_checkpoint_signed_with_another_key_is_refused",
            TRAINING_TESTS + "test_signing.py::test_checkpoint_signed_by_another_key_is_refused",
        ),
    ),
    Mutation(
        "a certificate is not checked against the trusted authority",
        (
            Edit(
                _SIGNER,
                "    if isinstance(trust, TrustedCertificates | TrustedIdentity):\n",
                "    if isinstance(trust, TrustedCertificates | TrustedIdentity) and not certificates:\n",
            ),
        ),
        (_SIGNING_TESTS + "test_certificate_is_trusted_through_its_authority",),
    ),
    Mutation(
        "bytes that no signature covers are accepted in a signature file",
        (
            Edit(
                _MODEL_SIGNATURE,
                "    if canonical_json(expected) != content:\n",
                "    if not expected:\n",
            ),
        ),
        (_VERIFY_TESTS + "test_every_byte_of_a_signature_file_counts",),
    ),
    Mutation(
        "one file is left out of the signature",
        (
            Edit(
                TRAINER + "checkpoint/store.py",
                "digests = {MANIFEST: digest(manifest), **_listing(manifest)}",
                "digests = {MANIFEST: digest(manifest), **dict([*_listing(manifest).items()][1:])}",
            ),
        ),
        (
            TRAINING_TESTS + "test_signing.py::test_command_of_model_signing_verifies_a_checkpoint",
            _VERIFY_TESTS + "test_signed_checkpoint_is_verified",
        ),
    ),
    Mutation(
        "the manifest is left out of the signature",
        (
            Edit(
                TRAINER + "checkpoint/store.py",
                "        digests = {MANIFEST: digest(manifest), **",
                "        digests = {**",
            ),
        ),
        (TRAINING_TESTS + "test_signing.py::test_command_of_model_signing_verifies_a_checkpoint",),
    ),
    Mutation(
        "a file that no manifest lists is accepted",
        (
            Edit(
                _VERIFY,
                "    for path in sorted(entries.keys() - {*files, MANIFEST, *SIGNATURE_FILES}):\n",
                "    for path in sorted(entries.keys() - entries.keys()):\n",
            ),
        ),
        (_VERIFY_TESTS + "test_added_file_is_noticed",),
    ),
    Mutation(
        "the statement is not compared with the adapter",
        (
            Edit(
                _VERIFY,
                "    if ADAPTER_WEIGHTS in files and adapter != digest(files[ADAPTER_WEIGHTS]):\n",
                "    if not adapter:\n",
            ),
        ),
        (
            _CLAIM_TESTS + "test_statement_of_another_adapter_is_refused",
            _CLAIM_TESTS + "test_statement_of_another_adapter_is_refused_without_a_signature",
        ),
    ),
    Mutation(
        "ε is not computed again",
        (Edit(_VERIFY, "    check_claim(document)\n    return document", "    return document"),),
        (_CLAIM_TESTS + "test_figure_that_does_not_follow_is_refused",),
    ),
    Mutation(
        "the claimed ε is not computed again",
        (
            Edit(
                _FIGURES,
                '        _compare("claim.epsilon", claim.epsilon, accounting.format_epsilon(claimed))\n',
                "",
            ),
        ),
        (_CLAIM_TESTS + "test_figure_that_does_not_follow_is_refused",),
    ),
    Mutation(
        "an older checkpoint is accepted under the name of a newer one",
        (
            Edit(
                _VERIFY,
                "    if folder != published and _OWN_NAME.fullmatch(folder):\n",
                "    if folder != published and not folder:\n",
            ),
        ),
        (
            _VERIFY_TESTS + "test_older_checkpoint_under_a_newer_name_is_refused",
            _VERIFY_TESTS + "test_older_checkpoint_under_a_newer_name_shows_in_the_ledger",
        ),
    ),
    Mutation(
        "a removed signature is not compared with the ledger",
        (
            Edit(
                TRAINER + "verification/ledgers.py",
                "    if recorded.signer != signer:\n",
                "    if signer and recorded.signer != signer:\n",
            ),
        ),
        (_VERIFY_TESTS + "test_removed_signature_shows_in_the_ledger",),
    ),
    Mutation(
        "a statement of another mechanism than the ledger's is verified",
        (
            Edit(
                TRAINER + "verification/ledgers.py",
                "        if getattr(mechanism, name) != getattr(spec.mechanism, name)\n",
                '        if name == "clip"\n',
            ),
        ),
        (_VERIFY_TESTS + "test_statement_with_other_facts_than_the_ledger_is_refused",),
    ),
    Mutation(
        "a claim about another unit in words is verified",
        (
            Edit(
                _FIGURES,
                "    if claim.unit_definition not in UNIT_DEFINITIONS[mechanism.unit]:\n"
                '        _compare("claim.unitDefinition", claim.unit_definition, '
                "UNIT_DEFINITIONS[mechanism.unit][0])\n",
                "",
            ),
        ),
        ("tests/kubectl/test_statement.py::test_what_is_no_statement_is_refused_in_one_sentence",),
    ),
    Mutation(
        "a resume accepts a checkpoint that its key did not sign",
        (
            Edit(
                TRAINER + "training/acquisition.py",
                "    if newest is not None and signing_key is not None:\n",
                "    if newest is not None and signing_key is not None and not newest:\n",
            ),
        ),
        (
            TRAINING_TESTS + "test_signing.py::test_checkpoint_without_a_signature_is_refused",
            TRAINING_TESTS + "test_signing.py::test_checkpoint_signed_by_another_key_is_refused",
            TRAINING_TESTS + "test_signing.py::test_unsigned_checkpoint_is_refused_where_the_run_signs",
        ),
    ),
    Mutation(
        "the status says that every checkpoint is signed",
        (
            Edit(
                TRAINER + "runners/local/status.py",
                "signer=signers.get((each.uri, each.digest))",
                'signer="sha256:0"',
            ),
        ),
        (TRAINING_TESTS + "test_signing.py::test_run_without_a_key_signs_nothing_and_says_so",),
    ),
    Mutation(
        "the operator's status says that no checkpoint is signed",
        (
            Edit(
                OPERATOR + "plan/privacy_status.py",
                "signer=each.signer",
                "signer=None",
            ),
        ),
        ("tests/operator/decision/test_privacy_status.py::test_status_says_which_checkpoints_are_signed",),
    ),
    Mutation(
        "every worker mounts the signing key",
        (
            Edit(
                OPERATOR + "children/rayjob.py",
                "    if signer and signing is not None:\n",
                "    if signing is not None:\n",
            ),
        ),
        ("tests/operator/children/test_pods.py::test_only_one_worker_and_not_the_head_mounts_the_signing_key",),
    ),
    Mutation(
        "tensafe verify reports an adapter as verified that no trusted key has signed",
        (Edit(_VERIFY_VERB, "{'verified' if report.trusted else _NO_TRUST}: ", "verified: "),),
        (
            _VERIFY_TESTS + "test_without_a_key_the_signer_is_reported_as_not_checked",
            _VERIFY_TESTS + "test_unsigned_checkpoint_is_verified_as_far_as_possible",
        ),
    ),
    Mutation(
        "a worker without the signing key is rank 0",
        (
            Edit(
                TRAINER + "runners/rendezvous.py",
                "    return (rank - int(store.get(_FIRST))) % size\n",
                "    return rank\n",
            ),
        ),
        ("tests/trainer_image/runners/test_rendezvous.py::test_pod_with_the_signing_key_has_rank_0",),
    ),
    Mutation(
        "a job may give its signing key to every worker",
        (
            Edit(
                OPERATOR + "plan/admission.py",
                "if problem := _find_shared_signing_key(spec) or local:",
                "if problem := local:",
            ),
        ),
        ("tests/operator/decision/test_admission.py::test_signing_key_that_the_job_gives_to_every_worker_is_rejected",),
    ),
    Mutation(
        "kubectl tensafe shows a claim that does not follow from the mechanism as checked",
        (Edit(_READ, "        check_claim(document)\n", ""),),
        ("tests/kubectl/test_statement.py::test_what_is_no_statement_is_refused_in_one_sentence",),
    ),
)
