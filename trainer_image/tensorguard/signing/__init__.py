"""Signs the files of a checkpoint, and checks such signatures.

In: the digests of files, and a key. Out: two small files that lie beside them. The modules, from the bottom up:

- `trust` names whom a check trusts.
- `keys` makes and reads keys. `pkcs11` uses one that stays in a token, `sigstore` gets a new one for each checkpoint;
  both sign statements with `token_signer`.
- `model_signature` is the signature over all files in the format of OpenSSF model-signing, so that its own command
  checks it.
- `envelope` is a signed in-toto statement (DSSE): the privacy claim about the same files.
- `signer` puts both together: what is written beside the files of one checkpoint, and how it is checked.

Nothing here reads the files of a checkpoint. Where they are encrypted, that happens before: the signatures cover the
bytes that are stored, and stay readable. The libraries are imported when a function needs them, since most commands
sign nothing.
"""
