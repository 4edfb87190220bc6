"""Run every module of the zoo through every entry point and every capability: right, refused, or wrong?

python -m benchmarks.adversary
python -m benchmarks.adversary --module "views" --entry from_torch --capability bounds --verbose

The zoo (tests/adversary/zoo.py) holds models that are hard to read correctly. The exit code is 1 after any
wrong result.
"""

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "adversary"))

from judge import CAPABILITIES, ENTRIES, Case, Judgement, NoWay, Trial, capabilities_of
from zoo import HOSTILE, INNOCENT

VERDICTS = ("right", "refused", "wrong")


def seeded() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def judged(entry: str, case: Case, capabilities: list[str]) -> dict[str, Judgement]:
    """Result of each capability.

    Raises NoWay if the module cannot enter this way (such as one that torch cannot export).
    """
    seeded()
    trial = Trial(entry, case)
    return {
        capability: trial.examine(capability)
        for capability in capabilities_of(case)
        if capability in capabilities
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Run the whole zoo through every entry point and every capability."
    )
    parser.add_argument("--module", default="", help="only modules with this in their names")
    parser.add_argument("--entry", choices=[*ENTRIES], action="append", help="only these entries")
    parser.add_argument(
        "--capability",
        "--room",
        choices=[*CAPABILITIES],
        action="append",
        metavar="NAME",
        help=f"only these, of: {'; '.join(CAPABILITIES)}",
    )
    parser.add_argument("--verbose", action="store_true", help="print every result")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    entries, capabilities = chosen.entry or [*ENTRIES], chosen.capability or [*CAPABILITIES]
    counts: dict[tuple[str, str], Counter[str]] = {}
    wrong: list[str] = []
    unproved: list[str] = []
    no_way: list[str] = []
    began = time.monotonic()
    for zoo, cases in (("hostile", HOSTILE), ("innocent", INNOCENT)):
        for name, case in cases.items():
            if chosen.module not in name:
                continue
            for entry in entries:
                try:
                    answers = judged(entry, case, capabilities)
                except NoWay as error:
                    no_way.append(f"{zoo}: {name}: {entry}: {str(error).splitlines()[0]}")
                    continue
                for capability, found in answers.items():
                    counts.setdefault((entry, capability), Counter())[found.verdict] += 1
                    line = f"{zoo}: {name}: {entry}: {capability}: {found.verdict}: {found.detail}"
                    if found.verdict == "wrong":
                        wrong.append(line)
                    if (
                        zoo == "innocent"
                        and entry != "from_callable"
                        and capability != "saliency"
                        and found.detail != "proved"
                    ):
                        unproved.append(line)
                    if chosen.verbose:
                        print(line, flush=True)
    print("| entry | capability | " + " | ".join(VERDICTS) + " |")
    print("|---|---|" + "---|" * len(VERDICTS))
    for (entry, capability), count in sorted(
        counts.items(), key=lambda item: ([*ENTRIES].index(item[0][0]), [*CAPABILITIES].index(item[0][1]))
    ):
        print(f"| {entry} | {capability} | " + " | ".join(str(count[verdict]) for verdict in VERDICTS) + " |")
    total = sum(counts.values(), Counter())
    print("| all | all | " + " | ".join(str(total[verdict]) for verdict in VERDICTS) + " |")
    for title, lines in (
        ("wrong", wrong),
        ("innocent, but not proved", unproved),
        ("torch itself cannot export it", no_way),
    ):
        if lines:
            print(f"\n{title}:\n" + "\n".join(f"- {line[:400]}" for line in lines))
    print(f"\n{sum(total.values())} results in {time.monotonic() - began:.0f} s")
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
