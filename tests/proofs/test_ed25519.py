"""Signatures in pure Python: the vectors of RFC 8032, the package cryptography, and what must be refused."""

import random

import pytest

from holdfast_check.ed25519 import DER_PREFIX, L, P, VerificationKey, read_key, verifies
from holdfast_check.errors import Rejected

VECTORS = [  # RFC 8032, section 7.1: key, message, signature.
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("key", "message", "signature"), VECTORS)
def test_the_vectors_of_the_standard_verify_and_no_change_of_them_does(
    key: str, message: str, signature: str
) -> None:
    a, m, s = (bytes.fromhex(text) for text in (key, message, signature))
    assert verifies(a, s, m)
    assert not verifies(a, s, m + b"\0")
    draw = random.Random(0)
    for _ in range(6):
        bit = draw.randrange(512)
        changed = bytearray(s)
        changed[bit // 8] ^= 1 << bit % 8
        assert not verifies(a, bytes(changed), m)
    assert not verifies(a[:31], s, m)
    assert not verifies(a, s + b"\0", m)
    # S + L satisfies the same equation; only the smaller number is a signature.
    larger = int.from_bytes(s[32:], "little") + L
    assert not verifies(a, s[:32] + larger.to_bytes(32, "little"), m)


def test_keys_for_which_one_signature_fits_many_messages_are_refused() -> None:
    """Points of small order, and points that are not written in the canonical way."""
    neutral, two = (1).to_bytes(32, "little"), (P - 1).to_bytes(32, "little")
    other = (P + 1).to_bytes(32, "little")  # The neutral point again, with a number above the field's order.
    signature = neutral + bytes(32)  # R = neutral and S = 0 satisfy the equation for the neutral key.
    for key in (neutral, two, other, bytes(32)):
        assert not verifies(key, signature, b"anything")


def test_signatures_of_another_implementation_verify() -> None:
    pytest.importorskip("cryptography", reason="the package cryptography is not installed")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    draw = random.Random(3)
    for _ in range(3):
        private = Ed25519PrivateKey.from_private_bytes(draw.randbytes(32))
        public, message = private.public_key(), draw.randbytes(draw.randrange(200))
        key = read_key(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        assert key.raw == public.public_bytes(Encoding.Raw, PublicFormat.Raw)
        assert key.verifies(private.sign(message), message)
        assert not key.verifies(private.sign(message), message + b".")


@pytest.mark.parametrize(
    "text",
    [b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", b"ssh-ed25519 AAAA", b"\0" * 99],
)
def test_a_file_that_is_no_key_is_refused(text: bytes) -> None:
    with pytest.raises(Rejected, match="key"):
        read_key(text)
    assert VerificationKey(b"\1" * 32).fingerprint != VerificationKey(b"\2" * 32).fingerprint
    assert len(DER_PREFIX) == 12
