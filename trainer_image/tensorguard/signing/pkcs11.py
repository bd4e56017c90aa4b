"""A signing key in a PKCS #11 token, such as a hardware security module (HSM) or a smart card.

In: a URI of RFC 7512, which names the token and the key, the token's library, and the file of the PIN:

    pkcs11:token=release;object=adapters?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/pin

Out: the public key, and signatures. The private key never leaves the token. model-signing signs the files of a
checkpoint in the token; the privacy claim is signed here, by the same key.

Each use opens the token, logs in and closes it again, so a token that was absent for a while does not end a training
of days. The PIN is read from its file each time. It is in no URI, message or log: a URI that contains one is refused.
PyKCS11, which talks to the token, is an optional package: `pip install 'tensafe[pkcs11]'`.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from tensorguard.signing.base import CURVES, PKCS11_SCHEME, FixedKey, KeyUnavailable, KeyUnusable, OpenKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import Certificate
    from model_signing.signing import Config
    from securesystemslib.signer import Signer

_TOKEN = {"token": "label", "serial": "serialNumber", "model": "model", "manufacturer": "manufacturerID"}
"""Attributes of a URI that name the token, and what PyKCS11 calls them."""
_KEY = ("object", "id")
_PATH = (*_TOKEN, "slot-id", *_KEY, "type")
_QUERY = ("module-path", "module-name", "pin-source")
_MODULE_FOLDERS = ("/usr/lib64/pkcs11", "/usr/lib/pkcs11", "/usr/lib/*/pkcs11")
"""Where `module-name` is looked for: as distributions install modules."""
_EXAMPLE = "pkcs11:token=NAME;object=KEY?module-path=/path/of/module.so&pin-source=file:/path/of/pin"


def refuse_pin(uri: str) -> None:
    """Raise KeyUnusable, which quotes nothing of it, if a PIN is in a URI: other processes can read arguments."""
    if "pin-value" in uri:
        raise KeyUnusable(
            "the URI of the signing key contains a PIN (pin-value), which other users of the machine could read: write "
            "the PIN into a file that only you can read, and name it with pin-source=file:/path"
        )


@dataclass(frozen=True)
class TokenURI:
    """What a URI says, decoded.

    Attributes:
        name: the URI as far as messages quote it.
        path: which token and key, by attribute.
        query: how to reach them.
    """

    name: str
    path: dict[str, str]
    query: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> TokenURI:
        """Raises KeyUnusable, also where the URI has attributes that would be ignored."""
        refuse_pin(text)
        path, _, query = text.removeprefix(PKCS11_SCHEME).partition("?")
        name = PKCS11_SCHEME + path
        parts = {
            "path": _attributes(path, ";", _PATH, name),
            "query": _attributes(query, "&", _QUERY, name),
        }
        uri = cls(name, **parts)
        if not {*_TOKEN, "slot-id"} & uri.path.keys() or not {*_KEY} & uri.path.keys():
            raise KeyUnusable(f"{name}: a token and a key must be named: {_EXAMPLE}")
        if uri.path.get("type", "private") != "private":
            raise KeyUnusable(f"{name}: only a private key signs: write type=private, or leave type out")
        if not {"module-path", "module-name"} & uri.query.keys():
            raise KeyUnusable(f"{name}: the library of the token must be named: {_EXAMPLE}")
        if not uri.path.get("object", "").isascii():
            raise KeyUnusable(f"{name}: model-signing finds no key by a name outside ASCII: name it by its id")
        return uri

    def module(self) -> str:
        """The path of the token's library. Raises KeyUnusable."""
        given = self.query.get("module-path")
        if given is not None:
            if not Path(given).is_file() or not Path(given).is_absolute():
                raise KeyUnusable(f"{self.name}: module-path {given} is not the absolute path of a file")
            return given
        name, root = self.query["module-name"], Path("/")
        patterns = [f"{folder[1:]}/{glob.escape(name)}.so" for folder in _MODULE_FOLDERS]
        found = [path for pattern in patterns for path in sorted(root.glob(pattern))]
        if not found:
            raise KeyUnusable(f"{self.name}: no module {name}.so in {', '.join(_MODULE_FOLDERS)}: give its module-path")
        return str(found[0])

    def pin(self) -> str | None:
        """The PIN in the file of `pin-source`, without a newline at its end; None without one. Raises KeyUnusable."""
        source = self.query.get("pin-source")
        if source is None:
            return None
        path = Path(source.removeprefix("file://") if source.startswith("file://") else source.removeprefix("file:"))
        if not path.is_absolute():
            raise KeyUnusable(f"{self.name}: pin-source names the file of the PIN: write file:/absolute/path")
        try:
            pin = path.read_bytes().rstrip(b"\r\n").decode()
        except OSError as error:
            raise KeyUnusable(
                f"{path} cannot be read ({error.strerror}): pin-source names the file of the PIN"
            ) from None
        except UnicodeDecodeError:
            pin = ""
        if not pin:
            raise KeyUnusable(f"{path} has no PIN: write it into the file, as text")
        return pin


@dataclass(frozen=True)
class TokenKey(FixedKey):
    """A private key in a token."""

    uri: TokenURI
    in_token: EllipticCurvePublicKey

    @property
    def public(self) -> EllipticCurvePublicKey:
        return self.in_token

    @contextmanager
    def opened(self) -> Iterator[OpenKey]:
        with _open(self.uri) as key:
            if key.public != self.in_token:
                raise KeyUnusable(f"{self.uri.name}: the token has another key now than when the run started")
            key.certificates_der = self.certificates_der
            yield key


def read_token_key(text: str, certificates: tuple[Certificate, ...] = ()) -> TokenKey:
    """The key that a PKCS #11 URI names, after it has signed a few bytes. Raises KeyUnusable."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    uri, probe = TokenURI.parse(text), b"tensafe: can this key sign?"
    with _open(uri) as key:
        signature = key.sign(probe)
        try:
            key.public.verify(signature, probe, ECDSA(_hash_for(key.public)))
        except InvalidSignature:
            raise KeyUnusable(
                f"{uri.name}: the private and the public key of this name are not a pair: name the key by its id"
            ) from None
        return TokenKey(certificates, uri, key.public)


class _OpenTokenKey:
    """A key in a session that has logged in."""

    def __init__(self, uri: str, session: Any, private: Any, public: EllipticCurvePublicKey) -> None:
        self._uri, self._session, self._private, self.public = uri, session, private, public
        self.certificates_der: tuple[bytes, ...] = ()

    def sign(self, payload: bytes) -> bytes:
        """The signature of `payload` (ECDSA, as DER)."""
        import PyKCS11
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

        digest = hashlib.new(_hash_for(self.public).name, payload).digest()
        both = bytes(self._session.sign(self._private, digest, PyKCS11.Mechanism(PyKCS11.CKM_ECDSA, None)))
        half = len(both) // 2
        return encode_dss_signature(int.from_bytes(both[:half], "big"), int.from_bytes(both[half:], "big"))

    @property
    def statement_signer(self) -> Signer:
        from tensorguard.signing.token_signer import TokenSigner

        return TokenSigner(self.public, self.sign)

    def use_in(self, config: Config) -> None:
        # Its session needs no PIN: where one session of a process has logged in, all have.
        config.use_pkcs11_signer(pkcs11_uri=self._uri)


@contextmanager
def _open(uri: TokenURI) -> Iterator[_OpenTokenKey]:
    """Open the token, log in, find the key, and close the token after the block."""
    try:
        import PyKCS11
    except ImportError:
        raise KeyUnusable(
            f"{uri.name}: keys in PKCS #11 tokens need the package PyKCS11: pip install 'tensafe[pkcs11]'"
        ) from None
    module, pin = uri.module(), uri.pin()
    library = PyKCS11.PyKCS11Lib()
    try:
        try:
            library.load(module)
        except PyKCS11.PyKCS11Error:
            raise KeyUnavailable(f"{uri.name}: {module} cannot be loaded as a PKCS #11 module") from None
        slot = _slot(library, uri)
        session = library.openSession(slot)
        try:
            if pin is not None:
                session.login(pin)
            elif library.getTokenInfo(slot).flags & PyKCS11.CKF_LOGIN_REQUIRED:
                raise KeyUnusable(f"{uri.name}: the token asks for a PIN: add pin-source=file:/path to the URI")
            private, public = _key_pair(session, uri)
            plain = f"pkcs11:slot-id={slot};{_key_attributes(uri)}?module-path={_escaped(module)}"
            yield _OpenTokenKey(plain, session, private, public)
        finally:
            session.closeSession()
    except PyKCS11.PyKCS11Error as error:
        raise _describe(error, uri) from None
    finally:
        library.unload()


def _slot(library: Any, uri: TokenURI) -> int:
    """The slot of the one token that has all attributes of the URI."""
    found = []
    for slot in library.getSlotList(tokenPresent=True):
        info = library.getTokenInfo(slot)
        wanted = {part: value for part, value in uri.path.items() if part in _TOKEN}
        same = all(getattr(info, _TOKEN[part]).rstrip() == value for part, value in wanted.items())
        if same and uri.path.get("slot-id") in (None, str(slot)):
            found.append(int(slot))
    if not found:
        raise KeyUnavailable(f"{uri.name}: there is no such token: connect it, or correct the URI")
    if len(found) > 1:
        raise KeyUnusable(f"{uri.name}: {len(found)} tokens have these attributes: add the serial of one to the URI")
    return found[0]


def _key_pair(session: Any, uri: TokenURI) -> tuple[Any, EllipticCurvePublicKey]:
    """The handle of the private key, and the public key."""
    import PyKCS11
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key
    from model_signing._signing.sign_pkcs11 import encode_ec_public_key

    wanted: list[tuple[int, Any]] = []
    if "object" in uri.path:
        wanted.append((PyKCS11.CKA_LABEL, uri.path["object"]))
    if "id" in uri.path:
        wanted.append((PyKCS11.CKA_ID, tuple(uri.path["id"].encode("latin-1"))))
    private, public = (
        session.findObjects([(PyKCS11.CKA_CLASS, kind), *wanted])
        for kind in (PyKCS11.CKO_PRIVATE_KEY, PyKCS11.CKO_PUBLIC_KEY)
    )
    for keys, kind in ((private, "private"), (public, "public")):
        if not keys:
            raise KeyUnusable(
                f"{uri.name}: the token has no {kind} key of this name: list its keys with pkcs11-tool -O"
            )
        if len(keys) > 1:
            raise KeyUnusable(f"{uri.name}: the token has {len(keys)} {kind} keys of this name: add the id to the URI")
    if session.getAttributeValue(private[0], [PyKCS11.CKA_KEY_TYPE]) == [PyKCS11.CKK_EC]:
        try:
            key = load_der_public_key(encode_ec_public_key(public[0]))
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if isinstance(key, EllipticCurvePublicKey) and key.curve.name in CURVES:
            return private[0], key
    raise KeyUnusable(f"{uri.name}: only elliptic-curve keys on P-256, P-384 or P-521 can sign: generate such a key")


def _describe(error: Any, uri: TokenURI) -> KeyUnusable:
    """What an error of the token means."""
    import PyKCS11

    if error.value in (PyKCS11.CKR_PIN_INCORRECT, PyKCS11.CKR_PIN_INVALID, PyKCS11.CKR_PIN_LEN_RANGE):
        return KeyUnusable(
            f"{uri.name}: the token refuses the PIN: correct the file of pin-source; a token is locked after a few "
            "wrong PINs"
        )
    if error.value == PyKCS11.CKR_PIN_LOCKED:
        return KeyUnusable(f"{uri.name}: the PIN is locked: its security officer unlocks it")
    if error.value in (PyKCS11.CKR_KEY_FUNCTION_NOT_PERMITTED, PyKCS11.CKR_KEY_TYPE_INCONSISTENT):
        return KeyUnusable(f"{uri.name}: the key may not sign: generate one whose usage is sign")
    return KeyUnavailable(f"{uri.name}: the token does not sign ({error}): check it with pkcs11-tool -O")


def _hash_for(key: EllipticCurvePublicKey) -> Any:
    """The hash that model-signing and DSSE use with the key's curve."""
    from cryptography.hazmat.primitives import hashes

    return {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}[key.curve.key_size]


def _key_attributes(uri: TokenURI) -> str:
    encodings = {part: "latin-1" if part == "id" else "utf-8" for part in _KEY if part in uri.path}
    return ";".join(f"{part}={_escaped(uri.path[part], encoding)}" for part, encoding in encodings.items())


def _escaped(text: str, encoding: str = "utf-8") -> str:
    """`text` with each byte as %XX."""
    return "".join(f"%{byte:02X}" for byte in text.encode(encoding))


def _attributes(text: str, separator: str, known: Sequence[str], name: str) -> dict[str, str]:
    """The attributes in one part of a URI. The bytes of `id` become characters of the same numbers (Latin-1)."""
    found: dict[str, str] = {}
    for each in text.split(separator) if text else ():
        attribute, equals, value = each.partition("=")
        if not equals or attribute not in known or attribute in found:
            raise KeyUnusable(
                f"{name}: attribute {attribute} is unknown, repeated or has no value: these can be used: "
                f"{', '.join((*_PATH, *_QUERY))}"
            )
        try:
            found[attribute] = unquote_to_bytes(value).decode("latin-1" if attribute == "id" else "utf-8")
        except UnicodeDecodeError:
            raise KeyUnusable(f"{name}: attribute {attribute} is not UTF-8") from None
    return found
