"""Signatures of a bundle's statement, as a DSSE envelope (Dead Simple Signing Envelope, v1).

The signature covers the statement, not the zip file. The statement holds the digest of the manifest, and the
manifest holds the digest of every other file. So a bundle can carry its signatures, and receive further ones,
without any change to what was signed.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from holdfast.errors import BadInput
from holdfast.evidence.archive import pack, unpack
from holdfast.evidence.manifest import SIGNATURE, STATEMENT, as_bytes
from holdfast.files import explained_errors

if TYPE_CHECKING:
    from holdfast.evidence.keys import PublicKey, Signer

PAYLOAD = "application/vnd.in-toto+json"
MOST_SIGNATURES = 100  # Reject an envelope with more signatures than this (chosen by hand).


@dataclass(frozen=True)
class Signature:
    """One signature. `key_id` is the fingerprint of the public key as the signer stated it."""

    key_id: str
    signature: bytes


def pae(kind: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding of a payload and its type."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def read_signatures(path: Path, payload: bytes) -> list[Signature]:
    """Read the signatures of an envelope. UnreadableFile if it is damaged or its payload is not `payload`."""
    with explained_errors(
        path.name, "not an envelope of this bundle's statement", "Request the bundle again."
    ):
        told = json.loads(path.read_bytes())
        if told["payloadType"] != PAYLOAD or not 0 < len(told["signatures"]) <= MOST_SIGNATURES:
            raise ValueError("its payload has another type, or it has no signatures or too many")
        if base64.b64decode(told["payload"], validate=True) != payload:
            raise ValueError("it signs another statement")
        found = [
            Signature(str(one["keyid"]), base64.b64decode(one["sig"], validate=True))
            for one in told["signatures"]
        ]
        if path.read_bytes() != envelope(payload, found):
            raise ValueError("it has fields that bundles do not have")
        return found


def envelope(payload: bytes, signatures: Sequence[Signature]) -> bytes:
    """Serialize an envelope. Only the newest signature of each key is kept."""
    newest = {one.key_id: one for one in signatures}
    lines = [
        {"keyid": one.key_id, "sig": base64.b64encode(one.signature).decode()} for one in newest.values()
    ]
    return as_bytes(
        {"payloadType": PAYLOAD, "payload": base64.b64encode(payload).decode(), "signatures": lines}
    )


def sign_payload(payload: bytes, key: "PublicKey", sign: "Signer") -> Signature:
    """Sign a payload.

    BadInput if the signer's result is not a valid signature by `key`, so a bad signer is found at once.
    """
    told = pae(PAYLOAD, payload)
    made = sign(told)
    if not isinstance(made, bytes | bytearray) or not key.verifies(bytes(made), told):
        raise BadInput(
            f"what the signer returned is not a signature by the key {key.fingerprint} of the bytes that it "
            "received."
        )
    return Signature(key.fingerprint, bytes(made))


def sign(bundle: Path, target: Path, key: "PublicKey", signer: "Signer") -> Path:
    """Write a copy of the bundle with one more signature.

    UnreadableFile if the bundle is damaged or incomplete.
    """
    from holdfast.evidence.bundle_verification import check_intact

    with TemporaryDirectory(prefix="holdfast-sign-") as place:
        folder = Path(place)
        names = unpack(bundle, folder)
        check_intact(bundle, folder, names)
        payload = (folder / STATEMENT).read_bytes()
        before = read_signatures(folder / SIGNATURE, payload) if SIGNATURE in names else []
        (folder / SIGNATURE).write_bytes(envelope(payload, [*before, sign_payload(payload, key, signer)]))
        return pack(folder, target)
