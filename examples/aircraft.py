"""A safety case for ACAS Xu, networks that tell an aircraft how to turn: every property proved or refuted, and a page to sign."""

import subprocess
import sys
from pathlib import Path

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data/acasxu").resolve()
if not (folder / "onnx").is_dir():
    sys.exit(
        f"{folder}: no ACAS Xu here. Give the folder of VNN-COMP's benchmark: python examples/aircraft.py FOLDER (onnx/, vnnlib/)"
    )

case = {  # network and property, and what the property says in words
    (
        "1_1",
        "prop_1",
    ): "an intruder far away and much slower: the score of clear-of-conflict stays below its threshold",
    ("4_5", "prop_10"): "an intruder far away: the advice is clear-of-conflict",
    ("1_7", "prop_3"): "an intruder straight ahead, coming closer: the advice is never clear-of-conflict",
    ("2_9", "prop_8"): "far above or below, weak left before: the advice is clear-of-conflict or weak left",
}
runs = Path("runs/aircraft")
instances = Path("aircraft.csv")  # a line for each: network, property, seconds
instances.write_text(
    "".join(
        f"{folder}/onnx/ACASXU_run2a_{net}_batch_2000.onnx.gz,{folder}/vnnlib/{prop}.vnnlib.gz,60\n"
        for net, prop in case
    )
)
for (net, prop), words in case.items():
    print(f"{net} {prop}: {words}", flush=True)
holdfast = [sys.executable, "-m", "holdfast"]
subprocess.run(
    [*holdfast, "verify", instances, "--out", runs]
)  # exit code 0: all proved; 1: something was refuted
subprocess.run(
    [*holdfast, "report", runs], check=True
)  # the page: property, answer, counterexample, time, hashes
