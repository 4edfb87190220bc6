"""ACAS Xu, networks that advise an aircraft: safety properties proved or refuted, and a report to sign."""

import shutil
import subprocess
import sys
from pathlib import Path

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data/acasxu").resolve()
if not (folder / "onnx").is_dir():
    sys.exit(
        f"{folder}: no ACAS Xu here. Give the folder of VNN-COMP's benchmark (with onnx/ and vnnlib/): "
        "python examples/aircraft.py FOLDER"
    )

case = {  # Network and property, and the meaning of the property.
    (
        "1_1",
        "prop_1",
    ): "an intruder far away and much slower: the score of clear-of-conflict stays below its threshold",
    ("4_5", "prop_10"): "an intruder far away: the advice is clear-of-conflict",
    ("1_7", "prop_3"): "an intruder straight ahead, coming closer: the advice is never clear-of-conflict",
    ("2_9", "prop_8"): "far above or below, weak left before: the advice is clear-of-conflict or weak left",
}
runs = Path("runs/aircraft")
# One line for each instance (network, property, seconds). A list names files in its own folder only.
instances = Path("aircraft/instances.csv")
instances.parent.mkdir(exist_ok=True)
lines = []
for net, prop in case:
    network, spec = f"ACASXU_run2a_{net}_batch_2000.onnx.gz", f"{prop}.vnnlib.gz"
    shutil.copy(folder / "onnx" / network, instances.parent)
    shutil.copy(folder / "vnnlib" / spec, instances.parent)
    lines.append(f"{network},{spec},60\n")
instances.write_text("".join(lines))
for (net, prop), words in case.items():
    print(f"{net} {prop}: {words}", flush=True)
holdfast = [sys.executable, "-m", "holdfast"]
# The exit code is 0 if all properties are proved, and 1 if one is refuted.
subprocess.run([*holdfast, "verify", instances, "--out", runs])
# The report contains property, verdict, counterexample, time and hashes.
subprocess.run([*holdfast, "report", runs], check=True)
