"""Verify Ed25519 signatures in pure Python (RFC 8032), and read public keys.

Statement: `verifies` is true only if [S] B = R + [k] A in the group of the curve

    -x^2 + y^2 = 1 + d x^2 y^2   over the field of p = 2^255 - 19 elements,

with k = SHA-512(R, A, message) mod L, S < L, and A and R encoded in the only canonical way. Keys of small order,
for which one signature fits many messages, are refused. Nothing here is secret, so times may depend on the data.

Reference: Josefsson and Liusvaara, RFC 8032 (2017), sections 5.1.3 and 5.1.7.

Assumption: hashlib's SHA-512 is correct; the signature proves possession of the key, not who holds it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

from holdfast_check.errors import Rejected

P = 2**255 - 19  # The order of the field.
L = 2**252 + 27742317777372353535851937790883648493  # The order of the base point.
D = -121665 * pow(121666, P - 2, P) % P  # The constant d of the curve.
ROOT = pow(2, (P - 1) // 4, P)  # A square root of -1.
# A public key as DER (SubjectPublicKeyInfo) is these bytes and the 32 bytes of the key (RFC 8410).
DER_PREFIX = bytes.fromhex("302a300506032b6570032100")
PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----\s+([A-Za-z0-9+/=\s]+?)\s*-----END PUBLIC KEY-----\s*")
LARGEST_KEY = 2**16  # Bytes of the file of a key (chosen by hand).
# A point in extended coordinates (X, Y, Z, T): x = X / Z, y = Y / Z, x y = T / Z.
Point = tuple[int, int, int, int]
NEUTRAL = (0, 1, 1, 0)


@dataclass(frozen=True)
class VerificationKey:
    """An Ed25519 public key. `fingerprint` is the SHA-256 of its DER form, as `holdfast sign` prints it."""

    raw: bytes

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(DER_PREFIX + self.raw).hexdigest()

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` is a signature of `message` by this key."""
        return verifies(self.raw, signature, message)


def read_key(data: bytes) -> VerificationKey:
    """Read a public key in PEM form. Rejected if it is something else, or a key of another kind."""
    match = PEM.fullmatch(data) if len(data) <= LARGEST_KEY else None
    if match is None:
        raise Rejected("not a public key in PEM form (-----BEGIN PUBLIC KEY-----)")
    try:
        der = base64.b64decode(b"".join(match[1].split()), validate=True)
    except ValueError as error:
        raise Rejected(f"the public key is damaged ({error})") from error
    if not der.startswith(DER_PREFIX) or len(der) != len(DER_PREFIX) + 32:
        raise Rejected("not an Ed25519 key; 'holdfast verify-bundle' also knows ECDSA keys")
    return VerificationKey(der[len(DER_PREFIX) :])


def verifies(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` (64 bytes) is an Ed25519 signature of `message` by the key (32 bytes)."""
    if len(key) != 32 or len(signature) != 64:
        return False
    point = _decode_point(key)
    number = int.from_bytes(signature[32:], "little")
    if point is None or number >= L or _decode_point(signature[:32]) is None:
        return False
    if _equal(_times(8, point), NEUTRAL):
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
    negated = (P - point[0], point[1], point[2], P - point[3])
    return _encode_point(_sum(_times(number, BASE), _times(challenge, negated))) == signature[:32]


def _sum(a: Point, b: Point) -> Point:
    """The sum of two points (RFC 8032, section 5.1.4; complete for this curve)."""
    one, two = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    three, four = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = two - one, four - three, four + three, two + one
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def _times(number: int, point: Point) -> Point:
    """`number` times the point, by doubling."""
    total: Point = NEUTRAL
    while number:
        if number & 1:
            total = _sum(total, point)
        point = _sum(point, point)
        number >>= 1
    return total


def _equal(a: Point, b: Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % P == 0 and (a[1] * b[2] - b[1] * a[2]) % P == 0


def _encode_point(point: Point) -> bytes:
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return int(y | (x & 1) << 255).to_bytes(32, "little")


def _decode_point(data: bytes) -> Point | None:
    """The point of 32 bytes (RFC 8032, section 5.1.3); None if there is none, or if it has a shorter form."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    if y >= P:
        return None
    above, below = (y * y - 1) % P, (D * y * y + 1) % P
    x = above * pow(below, 3, P) * pow(above * pow(below, 7, P), (P - 5) // 8, P) % P
    if (below * x * x - above) % P != 0:
        x = x * ROOT % P
    if (below * x * x - above) % P != 0 or (x == 0 and sign):
        return None
    x = P - x if x & 1 != sign else x
    return (x, y, 1, x * y % P)


BASE = _decode_point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little")) or NEUTRAL
