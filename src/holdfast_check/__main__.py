"""holdfast-check: verify the claims of a bundle, or of proof and witness files about a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast_check.bundle import CheckLine, check_bundle
from holdfast_check.ed25519 import VerificationKey, read_key
from holdfast_check.errors import Rejected
from holdfast_check.limits import time_limit
from holdfast_check.proof import Model, ProofVerdict, check

REJECTED, UNREADABLE, OPEN = 1, 2, 3  # Exit codes.
MOST_DETAILS = 20  # Details of a line that are printed (chosen by hand); --json has all of them.


def main(arguments: Sequence[str] | None = None) -> int:
    """Check everything and return the exit code. 0: all accepted. 1: something was rejected or differs. 2: the
    model or a key cannot be read. 3: nothing differs, but not all could be checked.
    """
    import holdfast_check

    parser = argparse.ArgumentParser(
        prog="holdfast-check",
        description="Accepts or rejects the certificates that 'holdfast prove' wrote, in a bundle or as files, without "
        "holdfast's engine. Not the same: 'holdfast check' recomputes the results of a run folder, 'holdfast "
        "verify-bundle' also asks your own model, 'holdfast verify' answers a VNN-LIB query.",
    )
    parser.add_argument(
        "model",
        help="a bundle (.zip); or the .onnx file, or the .safetensors file written next to the proofs",
    )
    parser.add_argument(
        "proofs", nargs="*", metavar="proof", help=".proof and .witness files; none with a bundle"
    )
    parser.add_argument(
        "--public-key",
        action="append",
        default=[],
        metavar="FILE",
        help="with a bundle: an Ed25519 key that must have signed it (.pem); may be repeated",
    )
    parser.add_argument(
        "--model",
        dest="models",
        action="append",
        default=[],
        metavar="FILE",
        help="with a bundle: the model of the certificates, or a folder of models; may be repeated",
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="also recompute each proof in rational arithmetic, if it is small and of ReLU-like functions; takes "
        "minutes",
    )
    parser.add_argument("--seconds", type=float, metavar="NUMBER", help="stop after this many seconds")
    parser.add_argument(
        "--json", metavar="FILE", help="write all findings and claims in numbers to this file"
    )
    parser.add_argument("--version", action="version", version=f"holdfast-check {holdfast_check.__version__}")
    given = parser.parse_args(arguments)
    if given.seconds is not None and not given.seconds > 0:
        parser.error("--seconds: give a number above 0")
    if _is_bundle(given.model):
        if given.proofs:
            parser.error(
                "a bundle holds its certificates: leave the other files out, or give models with --model"
            )
        found = _of_bundle
    else:
        if not given.proofs or given.public_key or given.models:
            parser.error("give a bundle alone, or a model and its proofs (without --public-key and --model)")
        found = _of_files
    told: dict[str, Any] = {"checker": holdfast_check.__version__, "findings": [], "certificates": []}
    try:
        with time_limit(given.seconds):
            code = found(given, told)
    except Rejected as error:
        print(_printable(str(error)), file=sys.stderr)
        return UNREADABLE
    if given.json:
        Path(given.json).write_text(
            json.dumps({**told, "exit_code": code}, indent=1) + "\n", encoding="utf-8"
        )
    return code


def _is_bundle(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(4) == b"PK\3\4"
    except OSError:
        return False


def _of_files(given: argparse.Namespace, told: dict[str, Any]) -> int:
    """Check proof files against one model."""
    model = Model.read_file(given.model)
    verdicts = []
    for path in given.proofs:
        verdicts.append(check(model, path, exact=given.exact))
        _show(path, verdicts[-1], told)
    accepted = sum(verdict.accepted for verdict in verdicts)
    print(f"{accepted} of {len(verdicts)} accepted, of the model with sha256 {model.sha256}")
    return _code(verdicts)


def _code(verdicts: Sequence[ProofVerdict]) -> int:
    """The exit code for some verdicts."""
    if all(verdict.accepted for verdict in verdicts):
        return 0
    return REJECTED if any(not verdict.accepted and verdict.finished for verdict in verdicts) else OPEN


def _of_bundle(given: argparse.Namespace, told: dict[str, Any]) -> int:
    """Check a bundle, with one line for each finding and each certificate."""
    keys = [_key(path) for path in given.public_key]
    states = set()
    for found in check_bundle(given.model, keys, given.models, given.exact):
        if isinstance(found, CheckLine):
            states.add(found.state)
            state = "" if found.state == "ok" else f"{found.state.upper()}, "
            print(_printable(f"{found.what}: {state or 'ok, '}{found.told}"))
            for detail in found.details[:MOST_DETAILS]:
                print(_printable(f"    {detail}"))
            if len(found.details) > MOST_DETAILS:
                print(f"    and {len(found.details) - MOST_DETAILS} more")
            told["findings"].append({**found.__dict__, "details": list(found.details)})
        else:
            _show(*found, told)
    if states == {"ok"}:
        print(
            "all held. Not checked here: that the inputs are those of your data, and counterexamples in your model"
        )
    return REJECTED if "differs" in states else OPEN if "unchecked" in states else 0


def _key(path: str) -> VerificationKey:
    try:
        return read_key(Path(path).read_bytes())
    except OSError as error:
        raise Rejected(f"{path} cannot be read: {error}") from error
    except Rejected as error:
        raise Rejected(f"{path}: {error}") from error


def _show(path: str, verdict: ProofVerdict, told: dict[str, Any]) -> None:
    """Print the line of one certificate, and note it for --json."""
    about = verdict.header.get("input")
    named = f" (labelled as input {about})" if verdict.accepted and about is not None else ""
    named += f"; {verdict.compared}" if verdict.compared else ""
    named += f"; {verdict.recomputed}" if verdict.recomputed else ""
    refusal = "REJECTED" if verdict.finished else "NOT CHECKED"
    said = f"accepted: {verdict.claim}" if verdict.accepted else f"{refusal}: {verdict.reason}"
    print(_printable(f"{path}: {said}{named}"))
    told["certificates"].append(
        {
            "name": str(path),
            "accepted": verdict.accepted,
            "reason": verdict.reason,
            "compared": verdict.compared,
            "recomputed": verdict.recomputed,
            "claim": verdict.numbers.as_json() if verdict.accepted and verdict.numbers else None,
        }
    )


def _printable(text: str) -> str:
    """Put a text on one line and escape characters that could control a terminal or hide: names and reasons
    come from untrusted files.
    """
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "backslashreplace").decode()
        for sign in text
    )


if __name__ == "__main__":
    sys.exit(main())
