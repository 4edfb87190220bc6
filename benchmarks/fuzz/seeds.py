"""Valid small files of every kind that holdfast reads, written by the real writers."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import onnx
import pandas
import torch
from onnx import TensorProto, helper
from PIL import Image
from torch import Tensor, nn

import holdfast as hf
from holdfast.api.radius import radius_problems
from holdfast.attacks import PGD
from holdfast.certificates.network_export import describe_network
from holdfast.certify import Certify
from holdfast.evidence import bundle
from holdfast.evidence.model import name_files
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.mutation.mutation import Groups, Noise, Typos
from holdfast.monitor.outputs import Tolerance
from holdfast.question import DataDescription, ModelDescription, Question
from holdfast.result import Answers, Likely
from holdfast.store import SALIENCY

WORDS = ("<pad>", "the", "film", "was", "good", "bad", "fine", "great", "awful")
SENTENCES = ("the film was good", "the film was awful", "good film", "was bad the film")


class Frames(nn.Module):
    """(batch, time, 2) -> (batch, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.lstm(x)[0][:, -1])
        return answer


class Tokens(nn.Module):
    """(batch, time) -> (batch, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(len(WORDS), 3)
        self.lstm = nn.LSTM(3, 3, batch_first=True)
        self.head = nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.lstm(self.table(tokens))[0][:, -1])
        return answer


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 2))


def made(folder: Path) -> None:
    """Write all files into a folder."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The exporters warn about themselves.
        _models(folder)
    _data(folder)
    _specifications(folder)
    _monitors(folder)
    _runs(folder)


def tokens_network(folder: Path) -> hf.Network:
    return hf.Network.from_onnx(folder / "tokens.onnx", vocabulary=WORDS)


def _models(folder: Path) -> None:
    free = {"x": {0: "batch"}}
    for name, module, x in (
        ("dense", dense(), torch.rand(2, 4)),
        ("images", images(), torch.rand(2, 1, 5, 5)),
        ("frames", Frames(), torch.rand(2, 3, 2)),
    ):
        torch.onnx.export(
            module.eval(), (x,), folder / f"{name}.onnx", dynamo=False, input_names=["x"], dynamic_axes=free
        )
    axes = {"t": {0: "batch", 1: "length"}}
    torch.onnx.export(
        Tokens().eval(),
        (torch.zeros(2, 4, dtype=torch.int64),),
        folder / "tokens.onnx",
        dynamo=False,
        input_names=["t"],
        dynamic_axes=axes,
    )
    onnx.save(_functions(), folder / "functions.onnx")
    program = torch.export.export(
        dense().eval(), (torch.rand(2, 4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    torch.export.save(program, folder / "dense.pt2")


def _functions() -> onnx.ModelProto:
    """A model with shape arithmetic, a branch, a local function, and constants in attributes."""
    own = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    twice = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], own[:1]
    )

    def branch(name: str, operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["h"], [name])
        return helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        )

    nodes = [
        helper.make_node("Twice", ["x"], ["d"], domain="own"),
        helper.make_node("Shape", ["d"], ["s"]),
        helper.make_node("Constant", [], ["i"], value=helper.make_tensor("i", TensorProto.INT64, [1], [0])),
        helper.make_node("Gather", ["s", "i"], ["n"]),
        helper.make_node("Constant", [], ["m"], value=helper.make_tensor("m", TensorProto.INT64, [1], [-1])),
        helper.make_node("Concat", ["n", "m"], ["to"], axis=0),
        helper.make_node("Reshape", ["d", "to"], ["h"]),
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [1])),
        helper.make_node(
            "If", ["c"], ["r"], then_branch=branch("yes", "Relu"), else_branch=branch("no", "Tanh")
        ),
        helper.make_node("Gemm", ["r", "w", "v"], ["y"], transB=1),
    ]
    weights = [
        helper.make_tensor("w", TensorProto.FLOAT, [2, 4], torch.rand(8).tolist()),
        helper.make_tensor("v", TensorProto.FLOAT, [2], [0.5, 0.0]),
    ]
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])]
        for name, size in (("x", 4), ("y", 2))
    ]
    graph = helper.make_graph(nodes, "functions", *ports, initializer=weights)
    return helper.make_model(graph, functions=[twice], opset_imports=own, ir_version=8)


def _data(folder: Path) -> None:
    x = torch.rand(4, 4).numpy()
    np.savez(folder / "plain.npz", x=x, y=np.array([0, 1, 2, 1]))
    np.savez_compressed(
        folder / "rich.npz",
        x=x.astype(np.float64),
        y=np.array([0, 1, 2, 1]),
        names=np.array(list("abcd")),
        classes=np.array(["ant", "bee", "cow"]),
    )
    np.save(folder / "box.npy", np.stack([x[0] - 1, x[0] + 1]))
    np.save(folder / "mask.npy", x[0] > 0.5)
    (folder / "box.csv").write_text("0,1\n-1,1\n0.5,0.75\n1e-3,2\n")
    (folder / "instances.csv").write_text("dense.onnx,one.vnnlib,10\n./functions.onnx,one.vnnlib,\n")
    (folder / "key.csv").write_text("network,property,expected\ndense,one,sat\nfunctions,one,unsat?\n")
    (folder / "text.tsv").write_text("".join(f"{k % 2}\t{text}\n" for k, text in enumerate(SENTENCES)))
    rows = "".join(
        f"{k},{','.join(map(str, row))},{label}\n"
        for k, (row, label) in enumerate(zip(x.tolist(), "abcb", strict=True))
    )
    (folder / "table.csv").write_text(f"id,age,height,weight,pulse,label\n{rows}")
    pandas.read_csv(folder / "table.csv").to_parquet(folder / "table.parquet")
    (folder / "texts.csv").write_text(
        "".join(
            f'"{text}",{label}\n'
            for text, label in zip(("text", *SENTENCES), ("label", *"abab"), strict=True)
        )
    )
    (folder / "pictures").mkdir()
    for k, ending in enumerate(("png", "jpg")):
        Image.fromarray((np.arange(25, dtype=np.uint8) * 9 + k).reshape(5, 5)).save(
            folder / "pictures" / f"{k}.{ending}"
        )
    (folder / "words.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "substitutes.json").write_text(
        json.dumps({"good": ["fine", "great"], "awful": ["bad", "horrid"]})
    )
    (folder / "places.json").write_text(json.dumps([[[], ["movie"], [], ["fine"]], [[], [], [], ["bad"]]]))


def _specifications(folder: Path) -> None:
    names = "".join(
        f"(declare-const {name} Real)\n" for name in ("X_0", "X_1", "X_2", "X_3", "Y_0", "Y_1", "Y_2")
    )
    box = "".join(f"(assert (>= X_{k} -{k}.5))\n(assert (<= X_{k} 1.25e{k}))\n" for k in range(4))
    (folder / "one.vnnlib").write_text(
        f"; a property\n{names}{box}(assert (or (and (<= Y_0 Y_1) (<= Y_0 Y_2)) (and (>= (+ Y_0 (* 2 Y_1)) "
        "0.1))))\n"
    )
    boxes = "".join(f"(and (>= X_0 {k}) (<= X_0 {k}.5) (< Y_0 {k}))" for k in range(3))
    rest = "".join(f"(assert (and (>= X_{k} 0) (<= X_{k} 1)))\n" for k in range(1, 4))
    (folder / "many.vnnlib").write_text(
        f"{names}{rest}(assert (or {boxes}))\n(assert (or (<= Y_1 0) (<= Y_2 -1)))\n"
    )
    head = (
        "(vnnlib-version <2.0>)\n"
        "(declare-network N (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))\n"
    )
    limits = "(assert (and (>= X[0,0] -1.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 0.1)))\n"
    (folder / "two.vnnlib").write_text(
        f"{head}{limits}(assert (or (<= Y[0,0] Y[0,1]) (> (+ (* 2.0 Y[0,0]) 1.5) 0.0)))\n"
    )
    (folder / "several.vnnlib").write_text(
        '(vnnlib-version <2.0>)\n(declare-network f (declare-input X float32 [1,2] "x") (declare-output Y real [] "y"))\n'
        "(declare-network g (isomorphic-to f) (declare-input U real [1,2]) "
        '(declare-hidden H float64 [3] "inner") (declare-output V real []))\n'
        f"{limits}(assert (== X[0,0] U[0,0])) (assert (<= -0.1 (- X[0,1] U[0,1]) 0.1))\n"
        "(assert (or (!= Y V) (<= (* X[0,0] H[2] (- H[0])) (+ V 0.5 (* 2 X[0,1] X[0,1])))))\n"
    )


def _monitors(folder: Path) -> None:
    net = tokens_network(folder)
    groups = Groups.of_sets({"good": ["good", "fine"], "bad": ["bad", "awful"]}, vocabulary=WORDS)
    Monitor.fit(net, SENTENCES, groups, unknown="skip").save(folder / "monitor_exact")
    Monitor.fit(net, SENTENCES, groups, mode="abstract", unknown="skip").save(folder / "monitor_abstract")
    Monitor.fit(net, SENTENCES, Typos(WORDS), unknown="skip").save(folder / "monitor_typos")
    shutil.copytree(folder / "monitor_exact", folder / "monitor_old")  # as version 1 wrote it
    text = folder / "monitor_old" / "monitor.json"
    old = {**json.loads(text.read_text()), "version": 1}
    old.pop("digest", None)
    text.write_text(json.dumps(old))
    frames = hf.Network.from_onnx(folder / "frames.onnx")
    Monitor.fit(frames, [torch.rand(3, 2)], Noise(0.1), answer=Tolerance(0.01), samples=20).save(
        folder / "monitor_noise"
    )


def _runs(folder: Path) -> None:
    net = hf.Network.from_onnx(folder / "dense.onnx", domain=(0, 1))
    x = torch.rand(3, 4)
    y = net(x).argmax(1)
    asked = Question(
        model=ModelDescription("dense", "onnx", net.fingerprint),
        data=DataDescription("points", "x", 3, ("ant", "bee", "cow")),
    )
    problems = list(radius_problems(net, x, y))
    with hf.Store.create(folder / "run", asked) as store:
        store.put_inputs(list(x), y.tolist(), y.tolist(), ["a", "b", "c"], [None, [1, 2], None])
        records = hf.solve(problems, [PGD(), Certify()], store=store)
        store.put_artefacts(SALIENCY, {record.key: torch.rand(4) for record in records})
        likely = Likely(0, 1.5, 0.75)
        store.put_answers({record.key: Answers((likely,), (likely,)) for record in records})
    for extra in (folder / "run").glob("run.sqlite-*"):
        raise AssertionError(f"{extra} was left by a closed run")
    hf.prove(problems, records, folder, file=folder / "dense.onnx")  # 0.proof, 1.proof, 2.proof
    (folder / "described.safetensors").write_bytes(describe_network(net, x))
    bundle.write_bundle(
        folder / "run",
        folder / "evidence.zip",
        bundle.BundleInputs(name_files([folder / "dense.onnx"]), True, None, None),
    )
