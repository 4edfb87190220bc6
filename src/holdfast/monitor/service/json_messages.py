"""Requests and scores as JSON. A message is either understood, or refused with a status and a reason."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from holdfast.monitor.score import Score, Scores, Steps
from holdfast.network.text import Texts
from holdfast.result import Evidence

# A string, or an unterminated one up to the end of the message. A started match never fails, so each byte is
# read once.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
OPENING, CLOSING = (np.frombuffer(signs, dtype=np.uint8) for signs in (b"[{", b"]}"))
LONGEST_REASON = 400  # Characters: limit for a reason, which may quote the message (chosen by hand).
# Characters of a text for each element of the longest sequence; longer texts are refused (chosen by hand).
CHARACTERS_PER_ELEMENT = 64


class Refused(Exception):
    """A refused request: an HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        # Half a surrogate pair is valid in JSON, but cannot be encoded in the answer.
        plain = reason.encode("utf-8", "replace").decode()
        self.reason = plain if len(plain) <= LONGEST_REASON else f"{plain[:LONGEST_REASON]} ..."


@dataclass(frozen=True)
class ScoreRequest:
    """A text, or a sequence of words, token ids or frames (n, ...), and the number of steps k."""

    sequence: Any
    k: Steps


def read_question(body: bytes | str, longest: int, depth: int) -> ScoreRequest:
    """Parse {"sequence": [...]} or {"text": "..."}, optionally with {"k": 0 | steps | "final"}."""
    found = _json(body, depth)
    if (
        not isinstance(found, dict)
        or len({"sequence", "text"} & found.keys()) != 1
        or found.keys() - {"sequence", "text", "k"}
    ):
        raise Refused(
            422,
            'expected an object with either "sequence" (a list) or "text" (a string), and optionally "k".',
        )
    k = found.get("k", 0)
    if k != "final" and not (type(k) is int and 0 <= k < longest):
        raise Refused(422, f'"k" must be an integer from 0 to {longest - 1}, or "final".')
    if "text" in found:
        if not isinstance(found["text"], str):
            raise Refused(422, '"text" must be a string.')
        limit = CHARACTERS_PER_ELEMENT * longest
        if len(found["text"]) > limit:
            raise Refused(422, f'"text" has {len(found["text"])} characters; at most {limit} are allowed.')
        return ScoreRequest(found["text"], k)
    sequence = found["sequence"]
    if not isinstance(sequence, list):
        raise Refused(422, '"sequence" must be a list of words, of token ids, or of frames.')
    check_length(len(sequence), longest)
    return ScoreRequest(_elements(sequence), k)


def check_length(elements: int, longest: int) -> None:
    if not 1 <= elements <= longest:
        raise Refused(422, f"the sequence has {elements} elements; this service takes 1 to {longest}.")


def read_element(message: bytes | str, depth: int) -> Any:
    """Parse one message of a stream: an element as JSON, or {"reset": true} -> None."""
    found = _json(message, depth)
    if found == {"reset": True}:
        return None
    if isinstance(found, dict):
        raise Refused(422, 'send one element at a time (a word, a token id or a frame), or {"reset": true}.')
    elements = _elements([found])
    return elements[0]


def _json(body: bytes | str, depth: int) -> Any:
    if _depth(body) > depth:
        raise Refused(422, f"lists and objects are nested more than {depth} deep.")
    try:
        return json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise Refused(400, f"the body is not JSON ({str(error).splitlines()[0][:200]}).") from error


def _depth(body: bytes | str) -> int:
    """Return the nesting depth of brackets outside of strings, in time linear in the length of the body."""
    signs = np.frombuffer(
        STRING.sub(b"", body.encode("utf-8", "replace") if isinstance(body, str) else body), dtype=np.uint8
    )
    steps = np.isin(signs, OPENING).astype(np.int64) - np.isin(signs, CLOSING)
    return int(steps.cumsum().max(initial=0))


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _elements(sequence: list[Any]) -> Any:
    """Return all words, all ids, or all frames of one shape as a float tensor."""
    if all(isinstance(element, str) for element in sequence) or all(
        type(element) is int and abs(element) < 2**63 for element in sequence
    ):
        return sequence
    if not all(isinstance(element, float | list) for element in sequence):
        raise Refused(
            422, "a sequence must hold only words, only token ids or only frames (lists of numbers)."
        )
    try:
        frames = torch.tensor(sequence, dtype=torch.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise Refused(
            422, f"the frames are not lists of numbers of one shape ({str(error).splitlines()[0][:200]})."
        ) from error
    if not frames.numel() or not bool(frames.isfinite().all()):
        raise Refused(422, "a frame is empty or holds a number that is too large.")
    return frames


# ---- answers


def error_body(reason: str) -> bytes:
    """Return the body of every refusal and failure."""
    return json.dumps({"error": reason}).encode()


def scores_json(scores: Scores, text: Texts | None = None) -> dict[str, Any]:
    """Scores as JSON, converted column by column for speed. text: how a text was read, if one was sent."""
    names = ("value", "low", "high", "label", "support", "attackable")
    columns = (scores.values, scores.low, scores.high, scores.labels, scores.support, scores.attackable)
    rows = [
        dict(zip(names, row, strict=True))
        for row in zip(*(map(_number, column.tolist()) for column in columns), strict=True)
    ]
    if scores.words is not None:
        rows = [{"element": word, **row} for word, row in zip(scores.words, rows, strict=True)]
    answer: dict[str, Any] = {"k": scores.k, "scores": rows, "least": scores.least, "most": scores.most}
    if scores.k == "final":
        answer["attack_success"] = [_number(value) for value in scores.attack_success.tolist()]
    if text is not None:
        answer |= {"unknown": text.unknown, "left_out": text.left_out}
    return {**answer, "evidence": evidence_json(scores.evidence)}


def score_json(score: Score | None) -> dict[str, Any]:
    """Return a score as JSON. None: an unknown element that the monitor skips."""
    if score is None:
        return {"skipped": True}
    numbers = {
        "value": score.value,
        "low": score.low,
        "high": score.high,
        "label": score.label,
        "support": score.support,
    }
    return {
        **{name: _number(number) for name, number in numbers.items()},
        "evidence": evidence_json(score.evidence),
    }


def evidence_json(evidence: Evidence) -> dict[str, Any]:
    said = {
        "kind": evidence.kind,
        "method": evidence.method,
        "dtype": evidence.dtype,
        "confidence": evidence.confidence,
    }
    return {
        **{key: value for key, value in said.items() if value is not None},
        "assumptions": list(evidence.assumptions),
    }


def _number(value: float) -> float | None:
    """Replace NaN by None: JSON has no NaN."""
    return None if math.isnan(value) else value
