"""`tensafe decrypt`: write the adapter of an encrypted checkpoint in clear, for a recipient.

In: a folder or URI, and an identity. Out: a new folder that peft loads, which only its owner can read. Nothing in it is
written before everything was decrypted and compared with the statement.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tensorguard.cli.arguments import Subparsers, identity_file
from tensorguard.cli.exit_codes import FAILED, INVALID, SUCCEEDED, CommandError
from tensorguard.cli.signals import StopOnSignal
from tensorguard.signing.keys import IDENTITY_VARIABLE

_EPILOG = """\
examples:
  tensafe decrypt s3://models/claims/final --identity ~/keys/age-identity.txt --output adapter
  TENSAFE_IDENTITY=~/.ssh/id_ed25519 tensafe decrypt runs/first/checkpoints/final --output adapter

What is written: the adapter as peft loads it, its model card and its privacy statement. The folder has the mode 0700
and its files 0600. The state of the optimiser is private to the run, and is not written. Neither is the signature: it
covers the encrypted files. So check these before: `tensafe verify DIR --public-key FILE --identity FILE`.

Each file is compared with the digest in the manifest, and the weights with that in the statement. age does not show
who encrypted a file, so without `tensafe verify --public-key` anyone who may write to the storage may have made it.

Exit codes: 0 written; 1 the identity decrypts nothing here, a file was changed, or the output exists or cannot be
written; 2 there is no such checkpoint, or the identity cannot be read.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "decrypt",
        help="decrypt an adapter that was encrypted for you",
        description="Decrypt the adapter of a checkpoint into a new folder.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "place", metavar="DIR|URI", help="the folder of the checkpoint, such as s3://models/claims/final"
    )
    parser.add_argument(
        "--identity",
        metavar="FILE",
        type=Path,
        help="an age identity (`tensafe keygen`), or a private SSH key without a passphrase (default: "
        f"{IDENTITY_VARIABLE})",
    )
    parser.add_argument(
        "--output", metavar="DIR", type=Path, required=True, help="a folder that does not exist: it is created for you"
    )
    parser.set_defaults(handler=_decrypt)


def _decrypt(arguments: argparse.Namespace) -> int:
    from tensorguard.checkpoint.encryption import DecryptionFailed
    from tensorguard.checkpoint.store import CheckpointAbsent, CheckpointCorrupt, CheckpointError
    from tensorguard.signing.base import KeyUnusable
    from tensorguard.storage import without_a_job

    identity = identity_file(arguments)
    if identity is None:
        raise CommandError(f"tensafe decrypt: no identity: pass --identity FILE, or set {IDENTITY_VARIABLE}")
    output: Path = arguments.output
    if os.path.lexists(output):
        raise CommandError(f"tensafe decrypt: {output} exists, and nothing is overwritten: choose another", FAILED)
    if "://" not in arguments.place and output.absolute().is_relative_to(Path(arguments.place).absolute()):
        raise CommandError(f"tensafe decrypt: {output} is in the encrypted checkpoint: choose another folder", FAILED)
    try:
        files = _decrypted(arguments.place, identity)
        with StopOnSignal().installed():  # SIGTERM must leave no weights in clear in a hidden folder
            write_for_owner(output, files)
    except CheckpointAbsent as error:
        raise _failure(
            f"{arguments.place} is no complete checkpoint: it has no {error.file}: pass the folder of a checkpoint, "
            "such as runs/first/checkpoints/final",
            INVALID,
        ) from error
    except CheckpointCorrupt as error:
        raise _failure(str(error).partition("; ")[0], FAILED) from error
    except DecryptionFailed as error:
        raise _failure(str(error), FAILED) from error
    except OSError as error:
        raise CommandError(f"tensafe decrypt: {output} cannot be written ({error.strerror})", FAILED) from error
    except (CheckpointError, KeyUnusable, ImportError, ValueError) as error:
        raise _failure(without_a_job(error), INVALID) from error
    print(f"decrypted to {output}: {', '.join(sorted(files))}")
    return SUCCEEDED


def _failure(problem: str, exit_code: int) -> CommandError:
    """The error of a checkpoint that cannot be decrypted. A stranger may have written a part of `problem`."""
    from tensafe_api.sanitize import clean

    return CommandError(clean(f"tensafe decrypt: {problem}"), exit_code)


def _decrypted(place: str, identity: Path) -> dict[str, bytes]:
    """The files of a checkpoint in clear, without its optimiser state. Raises CheckpointError, or KeyUnusable."""
    from tensafe_api.statement.contents import digest
    from tensorguard.checkpoint.encryption import READABLE, is_encrypted, read_decrypted, read_identities
    from tensorguard.checkpoint.layout import ADAPTER_WEIGHTS, STATEMENT_FILE
    from tensorguard.checkpoint.store import CheckpointCorrupt, checkpoint_at

    identities = read_identities(identity)
    store, name = checkpoint_at(place)
    if not is_encrypted(store.listing(name)):
        raise CheckpointCorrupt(f"{store.uri(name)} is not encrypted: copy its folder")
    found = read_decrypted(store, name, identities)
    files = {file: content for file, content in found.items() if file in {*READABLE, ADAPTER_WEIGHTS}}
    try:
        stated = json.loads(files[STATEMENT_FILE])["hashes"]["adapter"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointCorrupt(f"{store.uri(name)} has no readable {STATEMENT_FILE}") from error
    if stated != digest(files.get(ADAPTER_WEIGHTS, b"")):
        raise CheckpointCorrupt(
            f"{store.uri(name)}: {STATEMENT_FILE} is that of another adapter: do not use it, and ask its publisher"
        )
    return files


def write_for_owner(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a new folder that only its owner can read: all of them, or none.

    Raises:
        OSError: the folder exists, or cannot be written.
    """
    from tensorguard.storage import write_files

    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))  # mode 0700
    try:
        write_files(temporary, files, mode=0o600)
        directory.mkdir(mode=0o700)  # fails if it exists; a rename replaces an empty folder only
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
