"""Safe reading of a tokenizer.json: it is first opened in a separate process, because some files crash the
process that reads them.

The package tokenizers is written in Rust, where a failed memory allocation aborts the process. A file of 300
bytes can do that: a `Precompiled` normalizer allocates as many bytes as its first number says, up to 4 GiB,
before it checks that they exist. This case is found by reading the file; other crashes happen in the separate
process.
"""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import UnreadableFile
from holdfast.foreign_text import cut_text
from holdfast.network.fingerprint import of_text

# Limit on the wall-clock time and on the CPU time of the process, in seconds. Large vocabularies take a few
# seconds (chosen by hand).
SECONDS = 120
# Limit on the address space of the process, in bytes (chosen by hand).
MEMORY = 4 * 2**30
# Largest factor by which a normalizer may lengthen a text (chosen by hand).
MOST_GROWTH = 10_000
# Texts that the process tokenizes.
SAMPLES = "", "a", "The film was good. 12 \u00e9\u4e2d\u200b\n" * 4
# Longest reason in an error message, in characters (chosen by hand).
MAX_REASON = 200
# The output of the process for a file that it could open.
ANSWER = "opened"
PROGRAM = """
import json, sys
try:
    import resource
    limits = {
        resource.RLIMIT_AS: int(sys.argv[1]),
        resource.RLIMIT_CPU: int(sys.argv[2]),
        resource.RLIMIT_CORE: 0,
    }
    for resource_name, limit in limits.items():
        resource.setrlimit(resource_name, (limit, limit))
except (ImportError, OSError, ValueError):
    pass
given = json.load(sys.stdin)
import tokenizers
try:
    made = tokenizers.Tokenizer.from_str(given["content"])
    made.no_padding()
    made.get_vocab(with_added_tokens=True)
    for text in given["samples"]:
        try:
            made.encode(text)
        except BaseException:
            pass
except BaseException as error:
    print(json.dumps(str(error)[:300]))
else:
    print(json.dumps("opened"))
"""


# Hashes of the files that passed the check in this process.
_opened = set[str]()


def check_tokenizer(content: str, name: str, hint: str) -> None:
    """Raise UnreadableFile if the file cannot be opened safely.

    That is the case if it crashes a process that opens it, takes too much time or memory, lengthens texts too
    much, or is refused by the package tokenizers.
    """
    if (digest := of_text(content)) in _opened:
        return
    try:
        model = json.loads(content)
        parts = list(_normalizers(model.get("normalizer") if isinstance(model, dict) else None))
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(
            f"{name}: is no tokenizer, for it is no JSON ({cut_text(str(error), MAX_REASON)}). {hint}"
        ) from error
    if not all(_is_whole(part.get("precompiled_charsmap")) for part in parts):
        raise UnreadableFile(
            f"{name}: is no tokenizer: its precompiled_charsmap is shorter than it says. {hint}"
        )
    if _growth(parts) > MOST_GROWTH:
        raise UnreadableFile(
            f"{name}: its normalizer makes a text more than {MOST_GROWTH} times as long. {hint}"
        )
    command = [sys.executable, "-P", "-c", PROGRAM, str(MEMORY), str(SECONDS)]
    given = json.dumps({"content": content, "samples": SAMPLES})
    try:
        ended = subprocess.run(
            command,
            input=given.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnreadableFile(f"{name}: opening it takes longer than {SECONDS} s. {hint}") from error
    except OSError as error:
        raise UnreadableFile(
            f"{name}: no process could be started to check it ({error}). Free some memory, and try again."
        ) from error
    if ended.stdout:
        answer = json.loads(ended.stdout)
        if answer != ANSWER:
            raise UnreadableFile(f"{name}: is no tokenizer ({answer}). {hint}")
    else:
        how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
        raise UnreadableFile(
            f"{name}: a process that opens it ends with {how}: it is damaged or malicious. {hint}"
        )
    _opened.add(digest)


def _normalizers(normalizer: Any) -> Iterator[Mapping[str, Any]]:
    """A normalizer and all normalizers inside it."""
    if isinstance(normalizer, dict):
        yield normalizer
        parts = normalizer.get("normalizers")
        for part in parts if isinstance(parts, list) else ():
            yield from _normalizers(part)


def _is_whole(charsmap: object) -> bool:
    """Whether a table has as many bytes as its first number (32 bits, little endian) says.

    True also if there is no table or it is not text: the package handles these cases.
    """
    if not isinstance(charsmap, str) or not charsmap:
        return True
    try:
        table = base64.b64decode(charsmap)
    except ValueError:
        return True
    return len(table) < 4 or int.from_bytes(table[:4], "little") <= len(table) - 4


def _growth(normalizers: Sequence[Mapping[str, Any]]) -> int:
    """An upper bound of the factor by which the normalizers together lengthen a text, from the texts that
    they insert."""
    grown = 1
    for part in normalizers:
        inserted = [part.get("content"), part.get("prepend")]
        grown = min(
            grown
            * max([1, *(len(text) + 1 for text in inserted if isinstance(text, str) and len(text) > 1)]),
            MOST_GROWTH + 1,
        )
    return grown
