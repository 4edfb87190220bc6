"""holdfast-check MODEL PROOF...: verify the claims of proof and witness files about a model."""

import argparse
import sys
from collections.abc import Sequence

from holdfast_check.errors import Rejected
from holdfast_check.proof import Model, check


def main(arguments: Sequence[str] | None = None) -> int:
    """Check every file and return the exit code. 0: all accepted. 1: at least one was rejected. 2: the model
    cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="holdfast-check",
        description="Accepts or rejects certificates that 'holdfast prove' wrote, without holdfast's engine. Not the same: "
        "'holdfast check' recomputes the results of a run folder, 'holdfast verify-bundle' checks a bundle file, "
        "'holdfast verify' answers a VNN-LIB query.",
    )
    parser.add_argument("model", help="the .onnx file, or the .safetensors file written next to the proofs")
    parser.add_argument("proofs", nargs="+", metavar="proof", help=".proof and .witness files")
    given = parser.parse_args(arguments)
    try:
        model = Model.read_file(given.model)
    except Rejected as error:
        print(_printable(str(error)), file=sys.stderr)
        return 2
    accepted = 0
    for path in given.proofs:
        verdict = check(model, path)
        accepted += verdict.accepted
        about = verdict.header.get("input")
        named = f" (labelled as input {about})" if verdict.accepted and about is not None else ""
        named += f"; {verdict.compared}" if verdict.compared else ""
        said = f"accepted: {verdict.claim}" if verdict.accepted else f"REJECTED: {verdict.reason}"
        print(_printable(f"{path}: {said}{named}"))
    print(f"{accepted} of {len(given.proofs)} accepted, of the model with sha256 {model.sha256}")
    return 0 if accepted == len(given.proofs) else 1


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
