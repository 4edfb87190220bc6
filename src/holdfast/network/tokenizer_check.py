"""Opens a tokenizer.json in a process of its own first: some files end whatever process reads them.

The package tokenizers is written in Rust, where asking for more memory than there is ends the process. A file of 300 bytes did that: a
`Precompiled` normalizer takes room for as many bytes as its first number says, up to 4 GiB, before it looks whether they are there. That
is checked here by reading the file; what else a file may do is seen by a process of its own that opens it first.
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

SECONDS = 120  # of a clock on the wall, and of the processor: large vocabularies take a few
MEMORY = 4 * 2**30  # bytes of addresses that the process may have
MOST_GROWTH = 10_000  # times that a normaliser may make a text longer
SAMPLES = "", "a", "The film was good. 12 \u00e9\u4e2d\u200b\n" * 4
ANSWER = "opened"
PROGRAM = """
import json, sys
try:
    import resource
    for what, most in ((resource.RLIMIT_AS, int(sys.argv[1])), (resource.RLIMIT_CPU, int(sys.argv[2])), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (most, most))
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


_opened = set[str]()  # hashes of files that were opened before


def check_tokenizer(content: str, name: str, hint: str) -> None:
    """Raise UnreadableFile where the file ends a process that opens it, takes too long or too much memory, or makes texts grow without
    measure, or where the package tokenizers refuses it."""
    if (digest := of_text(content)) in _opened:
        return
    try:
        model = json.loads(content)
        parts = list(_normalizers(model.get("normalizer") if isinstance(model, dict) else None))
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(
            f"{name}: is no tokenizer, for it is no JSON ({cut_text(str(error), 200)}). {hint}"
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
            f"{name}: no process could be started to try it in ({error}). Make room, and try again."
        ) from error
    if ended.stdout:
        answer = json.loads(ended.stdout)
        if answer != ANSWER:
            raise UnreadableFile(f"{name}: is no tokenizer ({answer}). {hint}")
    else:
        how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
        raise UnreadableFile(
            f"{name}: a process that opens it ends with {how}: it is damaged, or made to do that. {hint}"
        )
    _opened.add(digest)


def _normalizers(normalizer: Any) -> Iterator[Mapping[str, Any]]:
    """A normalizer and all within it."""
    if isinstance(normalizer, dict):
        yield normalizer
        parts = normalizer.get("normalizers")
        for part in parts if isinstance(parts, list) else ():
            yield from _normalizers(part)


def _is_whole(charsmap: object) -> bool:
    """Whether as many bytes of a table follow its first number, 32 bits, as that says. Nothing, or something else than text, is left to
    the package to refuse."""
    if not isinstance(charsmap, str) or not charsmap:
        return True
    try:
        table = base64.b64decode(charsmap)
    except ValueError:
        return True
    return len(table) < 4 or int.from_bytes(table[:4], "little") <= len(table) - 4


def _growth(normalizers: Sequence[Mapping[str, Any]]) -> int:
    """How many times as long they may make a text together, by what each puts in place of others or in front."""
    grown = 1
    for part in normalizers:
        put = [part.get("content"), part.get("prepend")]
        grown = min(
            grown * max([1, *(len(text) + 1 for text in put if isinstance(text, str) and len(text) > 1)]),
            MOST_GROWTH + 1,
        )
    return grown
