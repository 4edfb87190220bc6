"""Keys: Ed25519 to sign with, and to check with any elliptic curve's too, which a signer of one's own may hold. Importing this asks for the
package cryptography."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import BadInput, MissingExtra, UnreadableFile
from holdfast.files import existing, in_words

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
        load_pem_public_key,
    )
except ImportError as error:
    raise MissingExtra(
        "Keys and signatures need the package cryptography: pip install 'holdfast[evidence]'."
    ) from error

LARGEST_KEY = 2**16
TOO_LARGE = "too large for a key."
Signer = Callable[[bytes], bytes]


@dataclass(frozen=True)
class PublicKey:
    """fingerprint: SHA-256 of the key as DER (SubjectPublicKeyInfo), as `openssl pkey -pubin -outform DER | sha256sum` prints it."""

    key: Ed25519PublicKey | EllipticCurvePublicKey
    fingerprint: str

    def holds(self, signature: bytes, signed: bytes) -> bool:
        """Is it a signature by this key of these bytes?"""
        try:
            if isinstance(self.key, Ed25519PublicKey):
                self.key.verify(signature, signed)
            else:
                self.key.verify(signature, signed, ECDSA(SHA256()))
            return True
        except InvalidSignature:
            return False


def made_keys(private: Path) -> tuple[Path, PublicKey]:
    """A new Ed25519 key, readable by its owner alone, and the public one beside it: name.pem and name.pub.pem."""
    public = private.with_name(f"{private.stem}.pub.pem")
    for path in (private, public):
        if path.exists():
            raise BadInput(
                f"{path} is there already. A key that is written over is lost: choose another name."
            )
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with in_words(private, "the key cannot be written", "Choose another place.", BadInput):
        private.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)
        public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return public, _with_fingerprint(key.public_key())


def public_key(path: Path) -> PublicKey:
    """A PEM file of an Ed25519 key, or of an elliptic curve."""
    text = existing(path, LARGEST_KEY, TOO_LARGE).read_bytes()
    with in_words(
        path,
        "not a public key",
        "Give the public key as PEM, as 'holdfast keygen' and 'openssl pkey -pubout' write it.",
    ):
        key = load_pem_public_key(text)
        if not isinstance(key, Ed25519PublicKey | EllipticCurvePublicKey):
            raise UnreadableFile(
                f"{path}: a key of another kind; bundles are signed with Ed25519, or ECDSA by a signer of your own."
            )
        return _with_fingerprint(key)


def private_key(path: Path, password: Callable[[], str]) -> tuple[PublicKey, Signer]:
    """The public part of an Ed25519 key, and who signs with it. password: asked only where the file is encrypted."""
    text = existing(path, LARGEST_KEY, TOO_LARGE).read_bytes()
    with in_words(path, "not a private key, or its password is another", "Make one with 'holdfast keygen'."):
        try:
            key = load_pem_private_key(text, None)
        except TypeError:  # it is encrypted
            key = load_pem_private_key(text, password().encode())
        if not isinstance(key, Ed25519PrivateKey):
            raise UnreadableFile(
                f"{path}: no Ed25519 key. Make one with 'holdfast keygen', or name a function that signs: --signer."
            )
        return _with_fingerprint(key.public_key()), key.sign


def _with_fingerprint(key: Ed25519PublicKey | EllipticCurvePublicKey) -> PublicKey:
    return PublicKey(
        key, hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    )
