"""Verifies one published checkpoint: files, signature, claim, and ledger.

In: a folder or a URI, whom to trust, and a ledger where there is one. Out: a `Report` of what was checked and of what
was not, or `NotVerified` with the first thing that is wrong. A checkpoint without a signature is checked as far as that
goes, and the report says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensafe_api.statement.contents import STATEMENT_FILE, canonical_json, digest, render_markdown
from tensorguard.checkpoint.encryption import READABLE, DecryptionFailed, Identities, decrypt_files, is_encrypted
from tensorguard.checkpoint.layout import ADAPTER_WEIGHTS, ENCRYPTED, STATEMENT_PAGE
from tensorguard.checkpoint.store import (
    MANIFEST,
    CheckpointAbsent,
    CheckpointCorrupt,
    CheckpointError,
    CheckpointStore,
    checkpoint_at,
    manifest_of,
)
from tensorguard.checkpoint.trainer_state import TRAINER_STATE, TrainerState
from tensorguard.signing.signer import (
    ATTESTATION,
    SIGNATURE,
    SIGNATURE_FILES,
    Signature,
    SignatureInvalid,
    check_signature,
)
from tensorguard.signing.trust import Trust, TrustedIdentity
from tensorguard.storage import name_in
from tensorguard.verification.errors import NotVerified
from tensorguard.verification.ledgers import LedgerHistory, check_against_ledger
from tensorguard.verification.privacy_claim import check_claim

_OWN_NAME = re.compile(r"final|step-\d{6,}-a\d+i\d+")
"""The names that a job gives its checkpoints. A folder with any other name was renamed by a reader, who may."""
SIGNED_BY_UNKNOWN = (
    "who signed it: the signature holds for the key that lies beside it, which anyone could have made. Pass the "
    "signer's --public-key, a --certificate-chain that vouches for it, or its --certificate-identity"
)
UNSIGNED = (
    "who made it: it is not signed, so its files agree with each other, and anyone could have made them all. Ask for a "
    "signed one (`tensafe run --signing-key`)"
)
NO_LEDGER = (
    "that every charged step is counted, and that this is the newest checkpoint of its job: pass --ledger with the "
    "run's folder, or `kubernetes`"
)
ENCRYPTED_WEIGHTS = (
    f"that {STATEMENT_FILE} is about this adapter: its weights are encrypted. A recipient passes --identity"
)
OTHER_PAGE = (
    f"that {STATEMENT_PAGE} says what {STATEMENT_FILE} says: its text is not what this release writes. Read the output "
    "of `tensafe statement` in its place"
)
NO_OLD_HEADS = "the charges at the time of writing: a cluster's ledger keeps only its last head"


@dataclass
class Report:
    """A verified checkpoint.

    Attributes:
        uri: its address.
        name: the name under which it was published, as far as a signature shows it.
        digest: of its manifest.
        signer: fingerprint of the key that signed it; None: unsigned.
        trusted: whether the caller trusts this signer.
        statement: its privacy statement.
        files: the bytes that were verified, by file name: every file of the folder, as it is stored.
        checked: what was checked, in words.
        not_checked: what was not checked, and what to pass to check it.
    """

    uri: str
    name: str
    digest: str
    signer: str | None
    trusted: bool
    statement: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)


def verify_checkpoint(
    place: str,
    trust: Trust = None,
    find_ledger: Callable[[str], LedgerHistory] | None = None,
    identities: Identities | None = None,
) -> Report:
    """Verify the checkpoint at `place`.

    Args:
        place: its folder, as a path or a URI.
        trust: who must have signed it; None: it may be unsigned, or signed by anyone.
        find_ledger: from the UID of the job, its ledger; None: no ledger is compared.
        identities: decrypt encrypted weights, so that they are compared with the statement; None: they are not.

    Raises:
        NotVerified: a check failed.
        CheckpointError: the storage cannot be read.
    """
    store, name = checkpoint_at(place)
    files, digests = _read_files(store, name)
    manifest_digest = digests[MANIFEST]
    report = Report(store.uri(name), name, manifest_digest, None, trusted=False, statement={})
    report.checked.append(f"{len(files)} files have the digests of {MANIFEST}, and no other file lies beside them")
    signatures = store.read_beside(name, SIGNATURE_FILES)
    report.files = {**files, **signatures, MANIFEST: manifest_of(files)}
    statement = files[STATEMENT_FILE]
    if signatures or trust is not None:
        signature = _check_signature(digests, statement, signatures, trust, name)
        report.signer, report.name, report.trusted = signature.fingerprint, signature.name, trust is not None
        who = signature.fingerprint
        if isinstance(trust, TrustedIdentity):
            who = f"{trust.name} (by {trust.issuer}) with a key of its own, {who}"
        elif signature.subject is not None:
            who = f"{signature.subject} (by the certificate) with the key {who}"
        report.checked.append(f"{SIGNATURE} and {ATTESTATION} are signed by {who}, over every file")
    if is_encrypted(files) and identities is not None:
        files = _decrypt(files, identities, report.uri)
        report.checked.append(f"{identities.name} decrypts every encrypted file")
    document = _check_statement(files)
    report.statement = document
    count = len(document["events"])
    events = f"dp-accounting gives its ε from its {count} recorded privacy event{'s' if count != 1 else ''}"
    if ADAPTER_WEIGHTS in files:
        report.checked.append(f"{STATEMENT_FILE} is about this adapter, and {events}")
    else:
        report.checked.append(f"{STATEMENT_FILE}: {events}")
        report.not_checked.append(ENCRYPTED_WEIGHTS)
    if STATEMENT_PAGE in files and not _is_page_of(document, files[STATEMENT_PAGE]):
        report.not_checked.append(OTHER_PAGE)
    if not report.trusted:
        report.not_checked.append(SIGNED_BY_UNKNOWN if signatures else UNSIGNED)
    if find_ledger is None:
        report.not_checked.append(NO_LEDGER)
        return report
    ledger = find_ledger(str(document["job"]["uid"]))
    recorded = check_against_ledger(ledger, document, manifest_digest, digest(statement), report.signer)
    _check_name(ATTESTATION if signatures else MANIFEST, name_in(recorded.uri), name)
    report.checked.append(f"the ledger {ledger.name} records it, and its charges are those of the statement")
    if len(ledger.states) == 1:
        report.not_checked.append(NO_OLD_HEADS)
    return report


def _read_files(store: CheckpointStore, name: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """The files of a checkpoint, each compared with the manifest, and the digests of all, the manifest included."""
    entries = store.entries(name)
    _check_is_folder_of_files(entries, store.uri(name))
    try:
        digests = store.listing(name)
        files = store.read(name)
    except CheckpointAbsent as error:
        raise NotVerified(error.file, "is listed in the manifest and missing") from error
    except CheckpointCorrupt as error:
        raise NotVerified(_corrupt_file(store, name), "is not what the manifest lists") from error
    manifest = store.read_beside(name, (MANIFEST,))[MANIFEST]
    if digest(manifest) != digests[MANIFEST]:
        raise NotVerified(MANIFEST, "changed while it was read")
    if manifest_of(files) != manifest:
        raise NotVerified(MANIFEST, "is not what a job writes about these files")
    for path in sorted(entries.keys() - {*files, MANIFEST, *SIGNATURE_FILES}):
        raise NotVerified(path, "is in no manifest: it was added")
    _check_clear(files)
    _check_complete(files)
    return files, digests


def _check_is_folder_of_files(entries: Mapping[str, str], uri: str) -> None:
    """Refuse what is not a folder of files with a manifest. entries: from path to kind."""
    if MANIFEST not in entries:
        raise NotVerified(
            MANIFEST,
            f"is missing: {uri} is no checkpoint, or not a complete one: pass the folder with this file, "
            "such as runs/first/checkpoints/final",
        )
    for path, kind in sorted(entries.items()):
        if kind != "file" or "/" in path:
            raise NotVerified(path, f"is a {kind} that no manifest lists: a checkpoint is a folder of files")


def _check_complete(files: Mapping[str, bytes]) -> None:
    """Refuse a checkpoint without a file that each one has."""
    weights = ADAPTER_WEIGHTS + ENCRYPTED if is_encrypted(files) else ADAPTER_WEIGHTS
    for file in (weights, STATEMENT_FILE, TRAINER_STATE):
        if file not in files:
            raise NotVerified(file, "is missing")


def _check_clear(files: Mapping[str, bytes]) -> None:
    """Refuse an encrypted checkpoint in which a file is not encrypted that a job encrypts, or the other way round.

    A statement in both forms would show one claim to a recipient and another one to everyone else.
    """
    clear = [file for file in sorted(files) if not file.endswith(ENCRYPTED) and file not in READABLE]
    if is_encrypted(files) and clear:
        raise NotVerified(clear[0], "is not encrypted, and other files of this checkpoint are")
    for file in sorted(READABLE):
        if file + ENCRYPTED in files:
            raise NotVerified(file + ENCRYPTED, "is encrypted, and a job stores this file in clear")


def _decrypt(files: Mapping[str, bytes], identities: Identities, uri: str) -> dict[str, bytes]:
    """The files under their plain names."""
    plain: dict[str, bytes] = {}
    for file, content in files.items():
        try:
            plain |= decrypt_files({file: content}, identities, uri)
        except DecryptionFailed as error:
            raise NotVerified(file, f"is not decrypted by {identities.name} ({error.__cause__})") from error
    return plain


def _corrupt_file(store: CheckpointStore, name: str) -> str:
    """The first file that differs from the manifest; the manifest where it cannot be read."""
    try:
        listing = store.listing(name)
    except CheckpointError:
        return MANIFEST
    for file in sorted(listing.keys() - {MANIFEST}):
        if digest(store.read_beside(name, (file,)).get(file, b"")) != listing[file]:
            return file
    return MANIFEST


def _check_signature(
    digests: Mapping[str, str], statement: bytes, signatures: Mapping[str, bytes], trust: Trust, folder: str
) -> Signature:
    try:
        signature = check_signature(digests, statement, signatures, trust)
    except SignatureInvalid as error:
        raise NotVerified(error.file, error.problem) from error
    _check_name(ATTESTATION, signature.name, folder)
    return signature


def _check_name(file: str, published: str, folder: str) -> None:
    """Refuse a checkpoint in the place of another one of its job. A reader may give its folder any other name."""
    if folder != published and _OWN_NAME.fullmatch(folder):
        raise NotVerified(file, f"this is the checkpoint {published}, under the name {folder}")


def _is_page_of(document: Mapping[str, Any], page: bytes) -> bool:
    """Whether `page` is the statement as Markdown, in the words of this release."""
    try:
        return render_markdown(document).encode() == page
    except (ValueError, KeyError, TypeError):  # text that no UTF-8 encodes, or a part that only the page needs
        return False


def _check_statement(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Check that the statement is about the adapter beside it, unless that is encrypted, and that its figures hold."""
    try:
        document: dict[str, Any] = json.loads(files[STATEMENT_FILE])
        adapter, job, hashes = document["hashes"]["adapter"], document["job"], document["hashes"]
        own = (job["uid"], job["step"], job["attempt"], hashes["ledgerHead"], hashes["ledgerLength"])
        canonical = canonical_json(document)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotVerified(STATEMENT_FILE, "is no privacy statement") from error
    if canonical != files[STATEMENT_FILE]:  # such as a key that occurs twice, of which another reader takes the other
        raise NotVerified(STATEMENT_FILE, "is not canonical JSON: no job wrote it")
    if ADAPTER_WEIGHTS in files and adapter != digest(files[ADAPTER_WEIGHTS]):
        raise NotVerified(STATEMENT_FILE, f"is the statement of another adapter ({adapter})")
    try:
        state = TrainerState.parse(files[TRAINER_STATE])
    except (ValueError, TypeError, RecursionError) as error:
        raise NotVerified(TRAINER_STATE, "cannot be read") from error
    if (state.job_uid, state.step, state.attempt, state.ledger_head, state.ledger_length) != own:
        raise NotVerified(TRAINER_STATE, f"is of another job or step than {STATEMENT_FILE}")
    check_claim(document)
    return document
