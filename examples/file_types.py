"""How many bytes of a file must change before magika, a detector of file types, predicts another type?"""

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

import holdfast as hf

found, runtime = find_spec("magika"), find_spec("onnxruntime")
if found is None or found.origin is None or runtime is None:
    sys.exit(
        "this example needs the network that magika ships, and onnxruntime: "
        "pip install --no-deps magika; pip install onnxruntime"
    )
model = next((Path(found.origin).parent / "models").glob("*/model.onnx"))
settings = json.loads((model.parent / "config.min.json").read_text())
types, ends, nothing = settings["target_labels_space"], settings["beg_size"], settings["padding_token"]
session = import_module("onnxruntime").InferenceSession(model)


def detect(files):
    """Bytes (n, bytes) -> probabilities (n, types). magika reads both ends of a file; 256 is padding."""
    rows = []
    for content in (bytes(row) for row in files.astype(np.uint8)):
        first, last = content.lstrip()[:ends], content.rstrip()[-ends:]
        rows.append([*first, *[nothing] * (ends - len(first)), *[nothing] * (ends - len(last)), *last])
    return session.run(None, {"bytes": np.array(rows, dtype=np.int32)})[0]


files = {
    "hello.py": b"import os\n\ndef hello(name):\n    print('hello', name)\n\nhello(os.environ['USER'])\n",
    "people.csv": b"name,age,city\nAnn,34,Rome\nBob,51,Oslo\nCleo,28,Lima\nDan,45,Bern\n",
    "page.html": b"<!doctype html>\n<html><head><title>A page</title></head>"
    b"<body><p>Hello.</p></body></html>\n",
}
signs = list(b"{;")  # Values that a changed byte may take.
for name, content in files.items():
    x = torch.tensor([list(content)], dtype=torch.float32)
    net = hf.Network.from_callable(
        detect, domain=(0, 255), shape=x.shape[1:], classes=types, name="magika", fingerprint=[model]
    )
    label = net(x).argmax(1)
    print(f"{name}: {types[label]}, probability {float(net(x).max()):.0%}, {len(content)} bytes")
    [b] = hf.radius(net, x, label, norm=0, unit="number", values=signs, stop=hf.Stop(queries=250))
    witness = b.upper.evidence.witness
    if witness is None:
        print("  no counterexample found within the budget")
        continue
    pairs = enumerate(zip(content, witness.byte().tolist(), strict=True))
    changes = [f"{chr(was)!r} -> {chr(now)!r} at byte {place}" for place, (was, now) in pairs if was != now]
    print(
        f"  {b.upper.value + 1:.0f} changed ({', '.join(changes)}): "
        f"predicted {types[net(witness[None]).argmax(1)]}"
    )
