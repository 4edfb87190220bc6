"""Typical users get a first useful result: python -m benchmarks.walks [--source OTHER/src] [NAME ...]

Each user has files of their own (code with a model, and data), which are created here and not counted.
Counted are the steps, that is the commands or calls that they type, and the CPU seconds of all of them with
processes and imports. A walk ends where a step fails, and its error is shown; a step with "! " before it is one
that must be refused, in words that lead to the next. `--source` uses another version of holdfast in the same
environment.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

MOST = 4  # A walk may take at most this many steps.
SOURCE = Path(__file__).parents[1] / "src"
QUICK = "--limit 2 --queries 300"  # Limits that do not depend on the clock.
CODE = '''
import torch
from torch import nn

WORDS = ["<pad>", "<unk>", "the", "film", "was", "good", "bad", "fine", "great", "awful", "plot", "a"]

class Reviews(nn.Module):
    """An LSTM over padded batches, as tutorials write it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(len(WORDS), 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens):
        lengths = torch.full((tokens.size(0),), tokens.size(1))
        vectors = self.table(tokens)
        packed = nn.utils.rnn.pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.lstm(packed)
        return self.head(last[-1])

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.stem = nn.Sequential(convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        out = self.block(x)
        out += x
        return self.head(torch.relu(out).mean((2, 3)))

class Bert(nn.Module):
    """Words, positions, an encoder, and an answer with names."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), 8), nn.Embedding(32, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 2)

    def forward(self, input_ids):
        places = torch.arange(input_ids.size(1), device=input_ids.device)
        hidden = self.encoder(self.words(input_ids) + self.places(places))
        return {"hidden": hidden, "logits": self.head(hidden[:, 0])}

class Load(nn.Module):
    """A day of load and temperature -> the next hour of both."""

    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1]) + x[:, -1]

class Gait(nn.Module):
    """A second of three accelerometer axes -> walking, running or standing."""

    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])

class Policy(nn.Module):
    """A state and a goal -> one of three actions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, state, goal):
        return self.layers(torch.cat([state, goal], 1))

class Quantiles(nn.Module):
    """Scaled windows of two features -> three quantiles of the scaled load in each of two hours."""

    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 6)

    def forward(self, x):
        start = torch.zeros(1, len(x), 8)
        return self.head(self.gru(x, start)[0][:, -1]).reshape(-1, 2, 3)

def made(kind):
    torch.manual_seed(0)
    return kind().eval()

def policy(): return made(Policy)
def quantiles(): return made(Quantiles)

def history():
    import numpy as np
    return np.load("history.npy")

def inputs():
    from sklearn.preprocessing import StandardScaler
    return StandardScaler().fit(history())

def targets():
    from sklearn.preprocessing import MinMaxScaler
    return MinMaxScaler().fit(history()[:, :1])

def masked():
    """A factory that imports torch itself, and a closure over that module."""
    import torch as own

    def mask(x):
        return own.where(x > 0, x, own.zeros_like(x))

    class Masked(own.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = own.nn.Linear(3, 2)

        def forward(self, x):
            return self.last(mask(x))

    own.manual_seed(0)
    return Masked().eval()

def reviews(): return made(Reviews)
def residual(): return made(Residual)
def bert(): return made(Bert)
def load(): return made(Load)
def gait(): return made(Gait)
'''
TEXTS = "review,sentiment\nthe film was good,glad\na bad plot,sad\nthe plot was great,glad\n"
PROPERTY = (
    "".join(f"(declare-const X_{i} Real)\n(assert (>= X_{i} -1))\n(assert (<= X_{i} 1))\n" for i in range(3))
    + "(declare-const Y_0 Real)\n(assert (>= Y_0 100))\n"
)


@dataclass(frozen=True)
class Walk:
    """One user. `steps`: holdfast commands, or Python lines (>>>).

    `useful`: words that the last output or a page must show.
    """

    who: str
    makes: Callable[[], None]
    steps: tuple[str, ...]
    useful: tuple[str, ...]
    page: str = ""


@dataclass(frozen=True)
class Walked:
    """A finished walk.

    `steps`: steps typed, including a failed one. `ended`: the error, empty after a success.
    """

    steps: int
    seconds: float
    ended: str


def texts() -> None:
    Path("mine.py").write_text(CODE)
    Path("reviews.csv").write_text(TEXTS)
    Path("words.txt").write_text("<pad>\n<unk>\nthe\nfilm\nwas\ngood\nbad\nfine\ngreat\nawful\nplot\na\n")


def pictures() -> None:
    from PIL import Image

    Path("mine.py").write_text(CODE)
    rng = np.random.default_rng(0)
    for name in ("cat", "ship"):
        Path("photos", name).mkdir(parents=True)
        for place in range(2):
            Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(
                f"photos/{name}/{place}.png"
            )


def controller() -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)
    sizes = (("first", (3, 8)), ("last", (8, 1)))
    parts = [
        numpy_helper.from_array(rng.standard_normal(size).astype(np.float32), name) for name, size in sizes
    ]
    chain = (("MatMul", ["x", "first"], ["h"]), ("Relu", ["h"], ["r"]), ("MatMul", ["r", "last"], ["y"]))
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])]
        for name, size in (("x", 3), ("y", 1))
    ]
    graph = helper.make_graph([helper.make_node(*node) for node in chain], "controller", *ends, parts)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), "controller.onnx"
    )
    Path("property.vnnlib").write_text(PROPERTY)


def forecasts() -> None:
    Path("mine.py").write_text(CODE)
    np.save("days.npy", np.random.default_rng(0).normal(5, 1, (3, 6, 2)).astype(np.float32))


def motions() -> None:
    Path("mine.py").write_text(CODE)
    windows = np.random.default_rng(0).normal(0, 1, (2, 5, 3)).astype(np.float32)
    np.savez("motions.npz", x=windows, y=np.array([0, 1]))


def photos_in_an_array() -> None:
    Path("mine.py").write_text(CODE)
    x = np.random.default_rng(0).random((2, 3, 8, 8), dtype=np.float32)
    np.savez("data.npz", x=x, y=np.array([0, 1]))


def table_with_gaps() -> None:
    rng = np.random.default_rng(0)
    age, income = rng.integers(18, 80, 60), rng.normal(50, 15, 60).round(1)
    rows = [
        f"{a},{'' if k % 5 == 0 else i},{'yes' if a + i > 100 else 'no'}"
        for k, (a, i) in enumerate(zip(age, income, strict=True))
    ]
    Path("people.csv").write_text("\n".join(["age,income,granted", *rows]) + "\n")
    Path("mine.py").write_text(
        "import pandas as pd\n"
        "from sklearn.ensemble import HistGradientBoostingClassifier\n\n"
        "def boosting():\n"
        "    table = pd.read_csv('people.csv')\n"
        "    model = HistGradientBoostingClassifier(max_iter=5, random_state=0)\n"
        "    return model.fit(table[['age', 'income']], table.granted)\n\n"
        "def rows():\n"
        "    table = pd.read_csv('people.csv')\n"
        "    return {'x': table[['age', 'income']], 'y': table.granted}\n"
    )


def states_and_goals() -> None:
    Path("mine.py").write_text(CODE)
    rng = np.random.default_rng(0)
    named = {"state": rng.normal(0, 1, (2, 3)), "goal": rng.normal(0, 1, (2, 2))}
    np.savez("moves.npz", **{name: x.astype(np.float32) for name, x in named.items()})


def scaled_windows() -> None:
    Path("mine.py").write_text(CODE)
    history = np.random.default_rng(0).normal([500, 15], [100, 5], (60, 2)).astype(np.float32)
    np.save("history.npy", history)
    np.save("days.npy", history[:12].reshape(2, 6, 2))
    Path("channels.json").write_text(
        '{"load": {"unit": "MW", "scale": 10}, "temperature": {"unit": "K", "scale": 0.5}}'
    )


def files_of_torch() -> None:
    Path("mine.py").write_text(CODE)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 2)).eval()
    torch.jit.save(torch.jit.script(layers), "script.pt")
    torch.save(layers, "module.pt")
    np.save("x.npy", np.random.default_rng(0).normal(0, 1, (2, 3)).astype(np.float32))


def words_of_pieces() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "the", "film", "was", "good", "awe", "##some", "aw", "##ful", "a", "plot", "bad"]
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save("tokenizer.json")
    Path("mine.py").write_text(CODE)
    Path("reviews.csv").write_text(TEXTS.replace("great", "awesome"))
    Path("sets.json").write_text('{"good": ["awesome"], "bad": ["awful"], "awesome": ["good"]}')


def received() -> None:
    """A run folder from somebody else, with the model and data that it names."""
    photos_in_an_array()
    made = (
        "radius --model mine:residual --data data.npz --domain 0,1 --methods pgd,certify --queries 50 "
        "--executor here --out received"
    )
    ran = command(SOURCE)(made)
    assert not ran[0], ran[1]


MODEL = "--model mine:{} --out run"
WALKS = {
    "text": Walk(
        "an LSTM that reads reviews, and a .csv file of them",
        texts,
        (
            f"radius {MODEL.format('reviews')} --vocabulary words.txt --data reviews.csv "
            f"--frames each --norm 2 {QUICK}",
            "report run",
        ),
        ("glad", "film"),
        "run/report.html",
    ),
    "pictures": Walk(
        "a residual network, and a folder of PNG files",
        pictures,
        (
            f"radius {MODEL.format('residual')} --data photos --scale 255 --domain 0,1 --shape 3,8,8 {QUICK}",
            "report run",
        ),
        ("ship", "cat/0.png"),
        "run/report.html",
    ),
    "controller": Walk(
        "a controller as ONNX, and a property in VNN-LIB",
        controller,
        ("verify controller.onnx property.vnnlib --out run", "report run"),
        ("unsat", "property"),
        "run/report.html",
    ),
    "table": Walk(
        "a forest of scikit-learn, and a DataFrame",
        lambda: None,
        (
            ">>> import holdfast as hf; import numpy as np, pandas as pd; from sklearn.ensemble import "
            "RandomForestClassifier as Forest; "
            "rng = np.random.default_rng(0); x = pd.DataFrame({'age': rng.integers(18, 80, 200), 'debt': "
            "rng.random(200)}); "
            "y = np.where(x.age / 80 > x.debt, 'yes', 'no'); forest = Forest(5, random_state=0).fit(x, y)",
            ">>> net = hf.Network.from_sklearn(forest, columns=hf.Columns.of(x, scales='std'))",
            ">>> print(hf.radius(net, x[:2], y[:2]))",
        ),
        ("certified",),
    ),
    "bert": Walk(
        "a small BERT whose answer has names, and texts",
        texts,
        (
            f"radius {MODEL.format('bert')} --vocabulary words.txt --data reviews.csv --norm 2 {QUICK}",
            "show run --input 0",
        ),
        ("proved", "film"),
    ),
    "forecast": Walk(
        "a GRU that forecasts, and windows without labels",
        forecasts,
        (f"radius {MODEL.format('load')} --data days.npy --within 10% --drift {QUICK}", "show run --input 0"),
        ("proved", "band"),
    ),
    "sensors": Walk(
        "a GRU that reads accelerometers, and windows with labels",
        motions,
        (
            ">>> import holdfast as hf; import numpy as np, torch; import mine; "
            "data = np.load('motions.npz'); x, y = torch.from_numpy(data['x']), torch.from_numpy(data['y'])",
            ">>> print(hf.radius(mine.gait(), x, y, norm=2, frames='each', stop=hf.Stop(queries=300)))",
            ">>> print(hf.radius(mine.gait(), x, y, drift=True, stop=hf.Stop(queries=300)))",
        ),
        ("certified", "windows"),
    ),
    "researcher": Walk(
        "a module and tensors, to compare an attack and bounds of one's own with proofs",
        photos_in_an_array,
        (
            ">>> import holdfast as hf; import numpy as np, torch; import mine; "
            "x = torch.from_numpy(np.load('data.npz')['x']); model = mine.residual(); y = model(x).argmax(1)",
            ">>> print(hf.radius(model, x, y, methods=['pgd'], domain=(0, 1), stop=hf.Stop(queries=300)).upper)",
            ">>> print(hf.radius(model, x, y, norm='inf', domain=(0, 1), stop=hf.Stop(queries=300)).to_frame()[['lower', 'upper', 'lower_method']])",
            ">>> print(hf.bounds(model, hf.Ball(x, 0.001, torch.inf, (0, 1))).lower_A.shape)",
        ),
        ("lower_method", "torch.Size([2, 2, 3, 8, 8])"),
    ),
    "lazy": Walk(
        "a model and a file, and no wish to read documents",
        photos_in_an_array,
        (
            "",
            "inspect mine:residual --shape 3,8,8 --seconds 5",
            f"radius --model mine:residual --data data.npz --out runs/a {QUICK}",
        ),
        ("answer:",),
    ),
    "mlops": Walk(
        "two versions of a model in a pipeline, and a rule for the release",
        photos_in_an_array,
        (
            f"radius --model mine:residual --data data.npz --out old {QUICK}",
            f"radius --model mine:residual --data data.npz --seed 1 --out new {QUICK}",
            "compare old new --out compare.html",
            "gate new --against old --at 0.0001 --min-certified 0 --junit gate.xml",
        ),
        ("passed",),
    ),
    "gaps": Walk(
        "histogram boosting over a table with gaps",
        table_with_gaps,
        (
            "columns people.csv --label-column granted --out columns.json",
            f"radius --model mine:boosting --data mine:rows --columns columns.json --out run {QUICK}",
            "show run --input 0",
        ),
        ("missing", "proved"),
    ),
    "inputs": Walk(
        "a policy with a state and a goal, and arrays of both",
        states_and_goals,
        (
            f"radius --model mine:policy --inputs state=3,goal=2 --data moves.npz --out both {QUICK}",
            ">>> import holdfast as hf; import numpy as np, torch; import mine; data = np.load('moves.npz'); "
            "net = hf.Network.from_torch(mine.policy(), constants={'goal': data['goal'][0]}); "
            "print(hf.radius(net, data['state'], [0, 1], stop=hf.Stop(queries=300)))",
        ),
        ("certified",),
    ),
    "scalers": Walk(
        "a forecast of quantiles, trained on scaled windows",
        scaled_windows,
        (
            f"radius {MODEL.format('quantiles')} --data days.npy --input-scaler mine:inputs --output-scaler mine:targets "
            f"--within 10% --quantiles 0.1,0.5,0.9 --outputs median --columns channels.json {QUICK}",
            "report run",
        ),
        ("MW in load and", "the median of the quantiles"),
        "run/report.html",
    ),
    "factory": Walk(
        "a factory that imports torch itself",
        files_of_torch,
        (f"radius {MODEL.format('masked')} --data x.npy {QUICK}",),
        ("proved",),
    ),
    "files": Walk(
        "TorchScript, and a pickled module",
        files_of_torch,
        (
            "! radius --model script.pt --data x.npy --out run",
            "! radius --model module.pt --data x.npy --out run",
        ),
        ("TorchScript", "package.module:function", "a pickled torch module"),
    ),
    "pieces": Walk(
        "a model whose tokenizer splits words, and substitutes",
        words_of_pieces,
        (
            f"radius {MODEL.format('reviews')} --tokenizer tokenizer.json --data reviews.csv --substitutes sets.json "
            "--limit 2",
            "show run --input 0",
        ),
        ("film", "How many edits may be made"),
    ),
    "audit": Walk(
        "a run folder that somebody sent, its model and its data",
        received,
        ("check received --model mine:residual --data data.npz --all",),
        ("all held",),
    ),
}


def command(source: Path) -> Callable[[str], tuple[int, str]]:
    """A function that runs holdfast, or Python, in a new process and returns its exit code and output."""

    def run(step: str) -> tuple[int, str]:
        python = step.startswith(">>> ")
        words = ["-c", step.replace(">>> ", "")] if python else ["-m", "holdfast", *step.split()]
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
        ran = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
        return ran.returncode, ran.stdout + ran.stderr

    return run


def walked(walk: Walk, run: Callable[[str], tuple[int, str]]) -> Walked:
    """Take a walk in the working folder. Its Python lines run as one program, since they share variables."""
    walk.makes()
    began, said = spent(), ""
    python = [step for step in walk.steps if step.startswith(">>> ")]
    others = [step for step in walk.steps if not step.startswith(">>> ")]
    steps: Sequence[str] = [*others, "\n".join(python)] if python else walk.steps
    everything = ""
    for place, step in enumerate(steps, 1):
        refused = step.startswith("! ")
        code, said = run(step.removeprefix("! "))
        everything += said if refused else ""
        if refused and not code:
            return Walked(place, spent() - began, f"was not refused: {step}")
        if code and not refused:
            lines = [line.strip(" │") for line in said.splitlines() if any(map(str.isalpha, line))]
            return Walked(place, spent() - began, lines[-1] if lines else f"exit code {code}")
    shown = everything + said + (Path(walk.page).read_text() if walk.page else "")
    missing = [word for word in walk.useful if word not in shown]
    return Walked(
        len(walk.steps) - (bool(python) and not others),
        spent() - began,
        f"the output does not mention {', '.join(missing)}" if missing else "",
    )


def spent() -> float:
    """CPU seconds of this process and of its finished children."""
    return sum(
        use.ru_utime + use.ru_stime
        for use in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        choices=[[], *WALKS],
        help=f"walks, of {', '.join(WALKS)}; default: all",
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="src folder of another version")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    source = chosen.source.resolve()
    print("| user | steps | CPU-s to the first useful result | how it ended |\n| --- | --- | --- | --- |")
    for name in chosen.names or WALKS:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found = walked(WALKS[name], command(source))
            os.chdir("/")
        ended = found.ended.replace("|", "/")[:300] or "reached"
        print(f"| {WALKS[name].who} | {found.steps} | {found.seconds:.1f} | {ended} |", flush=True)


if __name__ == "__main__":
    main()
