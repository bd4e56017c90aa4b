"""`tensafe keygen`: make a key pair that signs checkpoints, and an age identity.

In: a folder. Out: a signing key pair and an age identity in it, as files. The private ones can be read by their owner
only. An existing file is never overwritten.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tensorguard.cli.arguments import Subparsers
from tensorguard.cli.exit_codes import FAILED, SUCCEEDED, CommandError

_EPILOG = """\
examples:
  tensafe keygen ~/keys                 a signing key pair and an age identity
  tensafe keygen ~/keys --only signing  the signing key pair alone
  tensafe run job.yaml --signing-key ~/keys/signing-key.pem
  tensafe verify runs/first/checkpoints/final --public-key ~/keys/signing-key.pub.pem
  tensafe decrypt runs/first/checkpoints/final --identity ~/keys/age-identity.txt --output adapter

What is written:
  signing-key.pem      the private signing key (EC P-256, PKCS#8). Mode 0600. Keep it secret: its holder can sign as you
  signing-key.pub.pem  the public key. Publish it where readers of your adapters trust it, not only beside an adapter
  age-identity.txt     the age identity, which decrypts. Mode 0600. Keep it secret, and keep a copy: without it, what
                       was encrypted is lost. Its recipient, which encrypts, is printed and is public: write it
                       into spec.checkpoint.encryption.recipients

The keys have no passphrase. Other tools make such keys as well: `openssl ecparam -name prime256v1 -genkey -noout`,
`age-keygen`. Keep a fingerprint that was printed: it names the key in statements and in a job's ledger.

Exit codes: 0 made; 1 one of the files exists, or the folder is not writable: nothing was written.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "keygen",
        help="make a signing key pair and an age identity",
        description="Make a key pair that signs checkpoints, and an age identity that decrypts them. Existing files "
        "are never overwritten.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "directory", metavar="DIR", type=Path, help="folder of the keys; created for you only if it does not exist"
    )
    parser.add_argument("--only", choices=("signing", "age"), help="make only this key (default: both)")
    parser.set_defaults(handler=_keygen)


def _keygen(arguments: argparse.Namespace) -> int:
    from tensorguard.signing import keys
    from tensorguard.signing.base import KeyUnusable

    directory: Path = arguments.directory
    files: dict[str, tuple[bytes, int]] = {}
    lines: list[str] = []
    if arguments.only != "age":
        private, public, fingerprint = keys.new_signing_key()
        files |= {keys.SIGNING_KEY: (private, 0o600), keys.PUBLIC_KEY: (public.encode(), 0o644)}
        lines += [
            f"signing key  {directory / keys.SIGNING_KEY} (secret)",
            f"public key   {directory / keys.PUBLIC_KEY}",
            f"fingerprint  {fingerprint}",
        ]
    if arguments.only != "signing":
        identity, recipient = keys.new_identity()
        files[keys.IDENTITY] = (identity, 0o600)
        lines += [f"identity     {directory / keys.IDENTITY} (secret)", f"recipient    {recipient}"]
    try:
        keys.write_new(directory, files)
    except KeyUnusable as error:
        raise CommandError(f"tensafe keygen: {error}", FAILED) from error
    print("\n".join(lines))
    return SUCCEEDED
