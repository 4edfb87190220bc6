"""Keys: Ed25519 to sign and to verify, and ECDSA keys to verify only (for signers that the user provides).

This module needs the package cryptography.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import BadInput, MissingExtra, UnreadableFile
from holdfast.files import explained_errors, require_file

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

LARGEST_KEY = 2**16  # Bytes: limit for the file of a key (chosen by hand).
TOO_LARGE = "too large for a key."
Signer = Callable[[bytes], bytes]


@dataclass(frozen=True)
class PublicKey:
    """A public key. `fingerprint` is the SHA-256 of its DER form (SubjectPublicKeyInfo).

    `openssl pkey -pubin -outform DER | sha256sum` prints the same fingerprint.
    """

    key: Ed25519PublicKey | EllipticCurvePublicKey
    fingerprint: str

    def verifies(self, signature: bytes, signed: bytes) -> bool:
        """Return whether `signature` is a signature of the bytes `signed` by this key."""
        try:
            if isinstance(self.key, Ed25519PublicKey):
                self.key.verify(signature, signed)
            else:
                self.key.verify(signature, signed, ECDSA(SHA256()))
            return True
        except InvalidSignature:
            return False


def create_keys(private: Path) -> tuple[Path, PublicKey]:
    """Create an Ed25519 key pair: name.pem, readable by its owner alone, and name.pub.pem.

    Return the public part.
    """
    public = private.with_name(f"{private.stem}.pub.pem")
    for path in (private, public):
        if path.exists():
            raise BadInput(f"{path} exists already, and an overwritten key is lost. Choose another name.")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with explained_errors(private, "the key cannot be written", "Choose another place.", BadInput):
        private.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)
        public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return public, _with_fingerprint(key.public_key())


def read_public_key(path: Path) -> PublicKey:
    """Read an Ed25519 or elliptic-curve public key from a PEM file."""
    text = require_file(path, LARGEST_KEY, TOO_LARGE).read_bytes()
    with explained_errors(
        path,
        "not a public key",
        "Give the public key as PEM, as 'holdfast keygen' and 'openssl pkey -pubout' write it.",
    ):
        key = load_pem_public_key(text)
        if not isinstance(key, Ed25519PublicKey | EllipticCurvePublicKey):
            raise UnreadableFile(
                f"{path}: this kind of key is not supported. Use Ed25519, or ECDSA with a signer of your own."
            )
        return _with_fingerprint(key)


def read_private_key(path: Path, password: Callable[[], str]) -> tuple[PublicKey, Signer]:
    """Read an Ed25519 private key: its public part and its signing function.

    `password` is called if it is encrypted.
    """
    text = require_file(path, LARGEST_KEY, TOO_LARGE).read_bytes()
    with explained_errors(
        path, "not a private key, or the password is wrong", "Make one with 'holdfast keygen'."
    ):
        try:
            key = load_pem_private_key(text, None)
        except TypeError:  # it is encrypted
            key = load_pem_private_key(text, password().encode())
        if not isinstance(key, Ed25519PrivateKey):
            raise UnreadableFile(
                f"{path}: not an Ed25519 key. Make one with 'holdfast keygen', or name a function that "
                "signs: --signer."
            )
        return _with_fingerprint(key.public_key()), key.sign


def _with_fingerprint(key: Ed25519PublicKey | EllipticCurvePublicKey) -> PublicKey:
    return PublicKey(
        key, hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    )
