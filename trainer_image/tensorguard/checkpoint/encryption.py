"""Encrypts the files of a checkpoint with age before they are stored, and decrypts them where they are read.

In: named files as bytes, and recipients. Out: the same files, in which weights and optimiser state are encrypted and
have a name that ends in `.age`. Statement, card, config and trainer state stay readable, because people and programs
without an identity check them. Every file that is not in `READABLE` is encrypted, so a new file is encrypted unless
its author decides otherwise.

Nothing is written to a disk here. age encrypts and protects against changes, but does not show who encrypted a file:
signatures over the encrypted bytes do that (`tensorguard.signing`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.checkpoint.layout import ADAPTER_CONFIG, ENCRYPTED, MODEL_CARD, STATEMENT_FILE, STATEMENT_PAGE
from tensorguard.checkpoint.store import CheckpointError, CheckpointStore
from tensorguard.checkpoint.trainer_state import TRAINER_STATE
from tensorguard.signing.base import KeyUnusable
from tensorguard.signing.keys import IDENTITY

READABLE = frozenset({ADAPTER_CONFIG, MODEL_CARD, STATEMENT_FILE, STATEMENT_PAGE, TRAINER_STATE})
"""The files that are stored as they are."""
RECIPIENTS_FIELD = "spec.checkpoint.encryption.recipients"
_LONGEST_QUOTED = 80
_SECRETS = ("AGE-SECRET-KEY", "AGE-PLUGIN", "PRIVATE KEY")


class RecipientInvalid(ValueError):
    """A recipient cannot be used. `str()` names where it was found, and the fix; it quotes no secret."""

    reason: ClassVar[Reason] = Reason.INVALID_MANIFEST


class DecryptionFailed(CheckpointError):
    """No identity decrypts a checkpoint, or there is none. `str()` is a sentence with the fix."""

    reason: ClassVar[Reason] = Reason.DECRYPTION_FAILED


@dataclass(frozen=True)
class Recipients:
    """For whom files are encrypted: at least one."""

    keys: tuple[Any, ...] = field(repr=False)

    def encrypt(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """The files as they are stored. Each one that is not in `READABLE` is encrypted, and renamed."""
        import pyrage

        return {
            **{name: content for name, content in files.items() if name in READABLE},
            **{
                name + ENCRYPTED: pyrage.encrypt(content, self.keys)
                for name, content in files.items()
                if name not in READABLE
            },
        }

    def include(self, identities: Identities) -> bool:
        """Whether these identities decrypt what is encrypted for these recipients."""
        import pyrage

        try:
            pyrage.decrypt(pyrage.encrypt(b"", self.keys), identities.keys)
        except pyrage.DecryptError:
            return False
        return True


@dataclass(frozen=True)
class Identities:
    """What decrypts: at least one age identity, or an SSH key without a passphrase. name: of their file."""

    keys: tuple[Any, ...] = field(repr=False)
    name: str


def parse_recipients(lines: Iterable[str], where: str) -> Recipients:
    """The recipients in `lines`, as in a recipients file of age: one a line, without empty lines and comments (#).

    Args:
        where: the field or the file, for messages.

    Raises:
        RecipientInvalid: there is none, or one cannot be used.
    """
    keys = [_recipient(text, where) for line in lines if (text := line.strip()) and not text.startswith("#")]
    if not keys:
        raise RecipientInvalid(f"{where}: has no recipient: write at least one, such as the age1... of tensafe keygen")
    return Recipients(tuple(keys))


def _recipient(text: str, where: str) -> Any:
    import pyrage

    if any(secret in text.upper() for secret in _SECRETS):
        raise RecipientInvalid(
            f"{where}: has a secret identity in place of a recipient: write its public key, and make a new identity, "
            "since this one was shown to others"
        )
    try:
        if text.startswith("ssh-"):
            return pyrage.ssh.Recipient.from_str(text)
        return pyrage.x25519.Recipient.from_str(text)
    except pyrage.RecipientError as error:
        quoted = text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}..."
        raise RecipientInvalid(
            f"{where}: {quoted} is not a recipient of age: copy the whole age1..., ssh-ed25519 or ssh-rsa public key "
            "again"
        ) from error


def recipients_of(job: TenSafeTrainingJob, file: Path | None = None) -> Recipients | None:
    """For whom a job encrypts its checkpoints; None where it does not.

    Args:
        file: the recipients of the ConfigMap, where the job names one.

    Raises:
        RecipientInvalid: names the field and the fix.
    """
    encryption = job.spec.checkpoint.encryption
    if encryption is None:
        return None
    if encryption.recipients_config_map is None:
        return parse_recipients(encryption.recipients, RECIPIENTS_FIELD)
    where = f"spec.checkpoint.encryption.recipientsConfigMap: {encryption.recipients_config_map}"
    try:
        lines = file.read_text().splitlines() if file is not None else []
    except (OSError, UnicodeDecodeError) as error:
        raise RecipientInvalid(f"{where}: its key recipients cannot be read: write it again, as text") from error
    return parse_recipients(lines, where)


def read_identities(path: Path) -> Identities:
    """The identities in a file: of age, one a line, with comments (#); or one private SSH key.

    Raises:
        KeyUnusable: there is none; the message quotes nothing of the file.
    """
    import pyrage

    try:
        content = path.read_bytes()
    except OSError as error:
        raise KeyUnusable(f"{path} cannot be read ({error.strerror}): pass the file of an identity") from error
    try:
        if b"PRIVATE KEY" in content:
            return Identities((pyrage.ssh.Identity.from_buffer(content),), str(path))
        lines = [line.strip() for line in content.decode().splitlines()]
        keys = [pyrage.x25519.Identity.from_str(line) for line in lines if line and not line.startswith("#")]
    except (pyrage.IdentityError, UnicodeDecodeError):
        raise KeyUnusable(f"{path} has no identity of age: pass the {IDENTITY} of `tensafe keygen`") from None
    if not keys:
        raise KeyUnusable(f"{path} has no identity of age: pass the {IDENTITY} of `tensafe keygen`")
    return Identities(tuple(keys), str(path))


def check_identity(job: TenSafeTrainingJob, recipients: Recipients, identities: Identities | None) -> None:
    """Refuse identities with which no later attempt of the job could resume.

    A job that starts from an encrypted adapter may have an identity for that one alone.

    Raises:
        KeyUnusable: they decrypt nothing that is encrypted for `recipients`.
    """
    if identities is None or job.spec.lora.init_from is not None or recipients.include(identities):
        return
    raise KeyUnusable(
        f"{identities.name} has no identity of the recipients in spec.checkpoint.encryption, so no attempt could "
        "resume: add its recipient, or leave the identity out"
    )


def is_encrypted(files: Iterable[str]) -> bool:
    """Whether a checkpoint with these file names has encrypted files."""
    return any(file.endswith(ENCRYPTED) for file in files)


def decrypt_files(files: Mapping[str, bytes], identities: Identities | None, uri: str) -> dict[str, bytes]:
    """The files of a checkpoint under their plain names.

    Args:
        files: as they are stored. They were compared with the manifest, so only the identity can be wrong.
        identities: None: there is none, which is right for a checkpoint that is not encrypted.
        uri: of the checkpoint, for messages.

    Raises:
        DecryptionFailed: a file is encrypted for others, or damaged.
    """
    import pyrage

    if not is_encrypted(files):
        return dict(files)
    if identities is None:
        raise DecryptionFailed(
            f"{uri} is encrypted, and there is no identity: pass --identity FILE or set TENSAFE_IDENTITY; in a "
            "cluster, spec.checkpoint.encryption.identitySecretName names the Secret"
        )
    plain: dict[str, bytes] = {}
    for name, content in files.items():
        if not name.endswith(ENCRYPTED):
            plain[name] = content
            continue
        if name.removesuffix(ENCRYPTED) in files:
            raise DecryptionFailed(f"{uri} has {name} and the same file in clear: restore the checkpoint")
        try:
            plain[name.removesuffix(ENCRYPTED)] = pyrage.decrypt(content, identities.keys)
        except pyrage.DecryptError as error:
            raise DecryptionFailed(
                f"{uri}: {identities.name} does not decrypt {name} ({error}): pass an identity of one of its recipients"
            ) from error
    return plain


def read_decrypted(
    store: CheckpointStore,
    name: str,
    identities: Identities | None,
    expected: str | None = None,
    only: Collection[str] | None = None,
) -> dict[str, bytes]:
    """A checkpoint's files (or `only` some of them, by their plain names), checked as they are stored, and decrypted.

    Raises:
        DecryptionFailed: a file is encrypted, and no identity decrypts it.
        CheckpointError: as `CheckpointStore.read`.
    """
    if only is not None:
        listed = store.listing(name)
        only = [file + ENCRYPTED if file + ENCRYPTED in listed else file for file in only]
    return decrypt_files(store.read(name, expected, only), identities, store.uri(name))
