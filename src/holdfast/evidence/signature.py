"""Who stands for a bundle: signatures of its statement, as a DSSE envelope (Dead Simple Signing Envelope, v1).

Signed is not the zip but the statement, which names the digest of the manifest, which names that of every other file: so a bundle carries
its signatures, and may get another one, without anything changing that was signed.
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
from holdfast.files import in_words

if TYPE_CHECKING:
    from holdfast.evidence.keys import PublicKey, Signer

PAYLOAD = "application/vnd.in-toto+json"
MOST = 100  # signatures of one bundle


@dataclass(frozen=True)
class Signature:
    """key_id: the fingerprint of the public key, as the signer said it."""

    key_id: str
    signature: bytes


def pae(kind: str, payload: bytes) -> bytes:
    """What is signed: DSSE's pre-authentication encoding of a payload and its kind."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def read_signatures(path: Path, payload: bytes) -> list[Signature]:
    """The signatures of an envelope. UnreadableFile where it is none, or holds another statement than `payload`."""
    with in_words(path.name, "not an envelope of this bundle's statement", "Ask for the bundle again."):
        told = json.loads(path.read_bytes())
        if told["payloadType"] != PAYLOAD or not 0 < len(told["signatures"]) <= MOST:
            raise ValueError("its payload is of another kind, or its signatures are none or too many")
        if base64.b64decode(told["payload"], validate=True) != payload:
            raise ValueError("what was signed is another statement")
        found = [
            Signature(str(one["keyid"]), base64.b64decode(one["sig"], validate=True))
            for one in told["signatures"]
        ]
        if path.read_bytes() != envelope(payload, found):
            raise ValueError("it says more than bundles say")
        return found


def envelope(payload: bytes, signatures: Sequence[Signature]) -> bytes:
    """A key signs once: its newest signature counts."""
    newest = {one.key_id: one for one in signatures}
    lines = [
        {"keyid": one.key_id, "sig": base64.b64encode(one.signature).decode()} for one in newest.values()
    ]
    return as_bytes(
        {"payloadType": PAYLOAD, "payload": base64.b64encode(payload).decode(), "signatures": lines}
    )


def sign_payload(payload: bytes, key: "PublicKey", sign: "Signer") -> Signature:
    """BadInput where what the signer gives is no signature of this key: found now, not by whoever gets the bundle."""
    told = pae(PAYLOAD, payload)
    made = sign(told)
    if not isinstance(made, bytes | bytearray) or not key.holds(bytes(made), told):
        raise BadInput(
            f"what the signer gave is no signature, by the key {key.fingerprint}, of the bytes that it was given."
        )
    return Signature(key.fingerprint, bytes(made))


def sign(bundle: Path, target: Path, key: "PublicKey", signer: "Signer") -> Path:
    """The bundle with one signature more. UnreadableFile where it is not whole: nobody should stand for what cannot be checked."""
    from holdfast.evidence.bundle_verification import is_whole

    with TemporaryDirectory(prefix="holdfast-sign-") as place:
        folder = Path(place)
        names = unpack(bundle, folder)
        is_whole(bundle, folder, names)
        payload = (folder / STATEMENT).read_bytes()
        before = read_signatures(folder / SIGNATURE, payload) if SIGNATURE in names else []
        (folder / SIGNATURE).write_bytes(envelope(payload, [*before, sign_payload(payload, key, signer)]))
        return pack(folder, target)
