"""Forty models of common kinds, as people have them: how many are proved, only attacked, or refused.

    python -m benchmarks.model_zoo                      # all, about 70 CPU-seconds
    python -m benchmarks.model_zoo --only tables        # one family, or models by name
    python -m benchmarks.model_zoo --json zoo.json

Each model is given to holdfast in the call that its user would try first: no wrapper and no export. Two inputs are
measured, in the norm inf, by tier fast. The answer is

    proved    a radius above zero is certified for at least one of them
    attacked  nothing is certified, and a counterexample was found
    open      neither; the notes say why
    refused   an error

Weights of torch models are random (the kinds of layers decide about proofs, not the training); estimators are fitted
on a table of 300 drawn rows with numbers, whole numbers, gaps and categories. The file uses only calls that exist
since commit 81df22f1 or whose absence counts as a refusal there, so that it also runs with the code of that commit:

    PYTHONPATH=OLD/src python benchmarks/model_zoo.py
"""

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf

INPUTS = 2  # Inputs of each model that are measured.
SECONDS = 120.0  # Wall time for one model; only a stuck one needs it (chosen by hand).
FAMILIES = ("tables", "vision", "sequences", "text")


@dataclass(frozen=True)
class Case:
    """A model, and the call that measures it."""

    family: str
    name: str
    measure: Callable[[], Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a model."""

    family: str
    name: str
    answer: str
    certified: float
    cpu_seconds: float
    reason: str


CASES: list[Case] = []


def case(family: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function that measures one model; its name is that of the model."""

    def register(measure: Callable[[], Any]) -> Callable[[], Any]:
        CASES.append(Case(family, measure.__name__, measure))
        return measure

    return register


def judge(one: Case) -> Outcome:
    """Measure one model."""
    began = time.process_time()
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = one.measure()
    except Exception as error:  # everything that a user would see as a refusal
        lines = (str(error).strip() or type(error).__name__).splitlines()
        spent = time.process_time() - began
        return Outcome(one.family, one.name, "refused", 0.0, spent, lines[0])
    certified = max(bracket.lower.value for bracket in found)
    attacked = any(np.isfinite(bracket.upper.value) for bracket in found)
    answer = "proved" if certified > 0 else "attacked" if attacked else "open"
    notes = next((bracket.note for bracket in found if bracket.note), "")
    return Outcome(one.family, one.name, answer, certified, time.process_time() - began, notes)


# ---- tables


def table(*, gaps: bool = False, words: bool = True) -> tuple[Any, Any]:
    """A table of loans, and whether each was granted."""
    import pandas as pd

    draw = np.random.default_rng(0)
    count = 300
    frame = pd.DataFrame(
        {
            "age": draw.integers(18, 80, count),
            "income": draw.normal(50, 15, count).clip(5).round(1),
            "children": draw.integers(0, 4, count).astype(float),
            "job": pd.Categorical(draw.choice(["smith", "baker", "clerk", "pilot"], count)),
        }
    )
    score = frame.age / 10 + frame.income / 10 - frame.children + 2 * frame.job.isin(["baker", "pilot"])
    if gaps:
        frame["income"] = frame.income.where(draw.random(count) > 0.2)
    return (frame if words else frame.drop(columns="job")), (score > 9).to_numpy().astype(int)


def estimate(model: Any, *, gaps: bool = False, words: bool = True) -> Any:
    """Fit an estimator, and measure its first rows."""
    frame, y = table(gaps=gaps, words=words)
    model.fit(frame, y)
    net = hf.Network.from_sklearn(model, columns=hf.Columns.of(frame, scales="std"))
    return hf.radius(net, frame[:INPUTS], model.predict(frame[:INPUTS]), seconds=SECONDS)


def encoded(encoder: str) -> Any:
    """The column of words by an encoder of scikit-learn, the numbers scaled."""
    from sklearn import preprocessing
    from sklearn.compose import make_column_transformer

    return make_column_transformer(
        (preprocessing.StandardScaler(), ["age", "income", "children"]),
        (getattr(preprocessing, encoder)(), ["job"]),
    )


@case("tables")
def logistic_regression_behind_encoders() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    return estimate(make_pipeline(encoded("OneHotEncoder"), LogisticRegression()))


@case("tables")
def random_forest_behind_one_hot() -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline

    forest = RandomForestClassifier(10, max_depth=5, random_state=0)
    return estimate(make_pipeline(encoded("OneHotEncoder"), forest))


@case("tables")
def random_forest_behind_ordinal() -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline

    forest = RandomForestClassifier(10, max_depth=5, random_state=0)
    return estimate(make_pipeline(encoded("OrdinalEncoder"), forest))


@case("tables")
def histogram_boosting_with_gaps() -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return estimate(HistGradientBoostingClassifier(max_iter=10, random_state=0), gaps=True, words=False)


@case("tables")
def histogram_boosting_with_categories() -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return estimate(HistGradientBoostingClassifier(max_iter=10, categorical_features="from_dtype"))


@case("tables")
def xgboost_with_gaps() -> Any:
    from xgboost import XGBClassifier

    return estimate(XGBClassifier(n_estimators=10, max_depth=4), gaps=True, words=False)


@case("tables")
def xgboost_with_categories() -> Any:
    from xgboost import XGBClassifier

    return estimate(XGBClassifier(n_estimators=10, max_depth=4, enable_categorical=True))


@case("tables")
def lightgbm_with_categories() -> Any:
    from lightgbm import LGBMClassifier

    return estimate(LGBMClassifier(n_estimators=10, num_leaves=8, verbose=-1))


@case("tables")
def imputer_before_logistic_regression() -> Any:
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression())
    return estimate(model, gaps=True, words=False)


@case("tables")
def calibrated_pipeline() -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    return estimate(CalibratedClassifierCV(make_pipeline(encoded("OneHotEncoder"), LogisticRegression())))


@case("tables")
def stack_of_linear_models() -> Any:
    from sklearn.ensemble import StackingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    parts = [("a", LogisticRegression(max_iter=1000)), ("b", LinearSVC())]
    return estimate(StackingClassifier(parts), words=False)


@case("tables")
def vote_of_forests() -> Any:
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier, VotingClassifier

    parts = [
        ("a", RandomForestClassifier(5, max_depth=4, random_state=0)),
        ("b", ExtraTreesClassifier(5, max_depth=4, random_state=0)),
    ]
    return estimate(VotingClassifier(parts, voting="soft"), words=False)


@case("tables")
def calibrated_forest() -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import RandomForestClassifier

    return estimate(
        CalibratedClassifierCV(RandomForestClassifier(5, max_depth=4, random_state=0)), words=False
    )


@case("tables")
def nearest_neighbours() -> Any:
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return estimate(make_pipeline(StandardScaler(), KNeighborsClassifier()), words=False)


# ---- torch models


def bracket(module: nn.Module, x: Tensor, **options: Any) -> Any:
    """Measure a torch model on inputs, with the class that it predicts."""
    module = module.eval()
    net = hf.Network.from_torch(module, **options)
    y = net(net.embed(x) if options.get("tokens") else x).argmax(-1)
    return hf.radius(net, x, y, seconds=SECONDS)


def image(size: int = 16) -> Tensor:
    return torch.rand(INPUTS, 3, size, size)


class Residual(nn.Module):
    """layers(x) + shortcut(x), then ReLU."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.relu(self.layers(x) + self.shortcut(x))
        return found


@case("vision")
def convolutions_with_batch_norm() -> Any:
    blocks = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()]
    return bracket(nn.Sequential(*blocks, nn.Flatten(), nn.Linear(256, 10)), image(), domain=(0, 1))


@case("vision")
def vgg_with_max_pooling() -> Any:
    def block(inside: int, outside: int) -> list[nn.Module]:
        return [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

    layers = [
        *block(3, 8),
        *block(8, 8),
        nn.Flatten(),
        nn.Linear(128, 32),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(32, 10),
    ]
    return bracket(nn.Sequential(*layers), image(), domain=(0, 1))


@case("vision")
def residual_network() -> Any:
    tail = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return bracket(nn.Sequential(Residual(3, 8, 2), Residual(8, 16, 2), *tail), image(), domain=(0, 1))


@case("vision")
def mobile_network() -> Any:
    layers = [
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.ReLU6(),
        nn.Conv2d(8, 8, 3, 1, 1, groups=8),
        nn.Hardswish(),
        nn.Conv2d(8, 16, 1),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    ]
    return bracket(nn.Sequential(*layers), image(), domain=(0, 1))


class Squeeze(nn.Module):
    """Channels multiplied by a gate, as in squeeze-and-excitation networks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.down, self.up = nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(8, 2), nn.Linear(2, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        gate = torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3))))))
        found: Tensor = self.head((x * gate[:, :, None, None]).mean((2, 3)))
        return found


@case("vision")
def squeeze_and_excitation() -> Any:
    return bracket(Squeeze(), image(), domain=(0, 1))


class Dense(nn.Module):
    """Each layer reads all before it, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 + 4 * k, 4, 3, padding=1) for k in range(3))
        self.head = nn.Linear(15, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, torch.relu(layer(x))], 1)
        found: Tensor = self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return found


@case("vision")
def dense_network() -> Any:
    return bracket(Dense(), image(8), domain=(0, 1))


class ConvNext(nn.Module):
    """A block of ConvNeXt: depthwise convolution, layer norm over channels, GELU, residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inner = self.norm(self.deep(x).permute(0, 2, 3, 1))
        inner = self.narrow(nn.functional.gelu(self.wide(inner))).permute(0, 3, 1, 2)
        found: Tensor = self.head((x + inner).mean((2, 3)))
        return found


@case("vision")
def convnext() -> Any:
    return bracket(ConvNext(), image(), domain=(0, 1))


class Patches(nn.Module):
    """A small vision transformer: patches, one encoder layer, mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 8, 8)
        self.place = nn.Parameter(torch.randn(1, 4, 16) / 4)
        self.layer = nn.TransformerEncoderLayer(
            16, 2, 32, batch_first=True, norm_first=True, activation="gelu"
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(self.embed(x).flatten(2).transpose(1, 2) + self.place).mean(1))
        return found


@case("vision")
def vision_transformer() -> Any:
    return bracket(Patches(), image(), domain=(0, 1))


class Len(nn.Module):
    """The batch size by len(x), as in much code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.relu(self.conv(x)).reshape(len(x), -1))
        return found


@case("vision")
def view_by_len() -> Any:
    return bracket(Len(), image(), domain=(0, 1))


class ImageAndNumbers(nn.Module):
    """An image with two numbers about it, each an input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(258, 10)

    def forward(self, image: Tensor, numbers: Tensor) -> Tensor:
        found: Tensor = self.head(torch.cat([torch.relu(self.conv(image)).flatten(1), numbers], 1))
        return found


@case("vision")
def image_and_numbers() -> Any:
    net: Any = hf.Network.from_torch(ImageAndNumbers().eval(), inputs={"image": (3, 16, 16), "numbers": 2})
    x = {"image": image(), "numbers": torch.rand(INPUTS, 2)}
    return hf.radius(
        net, x, net(torch.cat([x["image"].flatten(1), x["numbers"]], 1)).argmax(1), seconds=SECONDS
    )


# ---- sequences

FRAMES, FEATURES = 6, 3


def frames() -> Tensor:
    return torch.randn(INPUTS, FRAMES, FEATURES)


class Last(nn.Module):
    """A recurrent layer, and a linear layer on its last state."""

    def __init__(self, cell: nn.Module, width: int) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.cell(x)[0][:, -1])
        return found


@case("sequences")
def lstm() -> Any:
    return bracket(Last(nn.LSTM(FEATURES, 8, batch_first=True), 8), frames())


@case("sequences")
def gru_of_two_layers() -> Any:
    return bracket(Last(nn.GRU(FEATURES, 8, 2, batch_first=True), 8), frames())


@case("sequences")
def bidirectional_lstm() -> Any:
    return bracket(Last(nn.LSTM(FEATURES, 6, batch_first=True, bidirectional=True), 12), frames())


@case("sequences")
def elman_network() -> Any:
    return bracket(Last(nn.RNN(FEATURES, 8, batch_first=True), 8), frames())


class Temporal(nn.Module):
    """Dilated convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(FEATURES, 8, 2), nn.ReLU(), nn.Conv1d(8, 8, 2, dilation=2), nn.ReLU()
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(x.transpose(1, 2)).mean(2))
        return found


@case("sequences")
def temporal_convolutions() -> Any:
    return bracket(Temporal(), frames())


class Attention(nn.Module):
    """A GRU with a weighted mean of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.score, self.head = (
            nn.GRU(FEATURES, 6, batch_first=True),
            nn.Linear(6, 1),
            nn.Linear(6, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        states = self.cell(x)[0]
        found: Tensor = self.head((self.score(states).softmax(1) * states).sum(1))
        return found


@case("sequences")
def gru_with_attention() -> Any:
    return bracket(Attention(), frames())


class Encoder(nn.Module):
    """A transformer encoder over frames."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(FEATURES, 16), nn.Linear(16, 4)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(self.embed(x)).mean(1))
        return found


@case("sequences")
def transformer_over_frames() -> Any:
    return bracket(Encoder(), frames())


class Scaled(nn.Module):
    """A forecaster with its scalers inside, and the batch size by len(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([500.0, 15.0, 1.0]))
        self.register_buffer("std", torch.tensor([100.0, 5.0, 0.5]))
        self.cell, self.head = nn.GRU(FEATURES, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        start = torch.zeros(1, len(x), 6)
        states, _ = self.cell((x - self.mean) / self.std, start)
        found: Tensor = self.head(states[:, -1]) * 100 + 500
        return found


@case("sequences")
def forecaster_with_scalers() -> Any:
    x = frames() * torch.tensor([100.0, 5.0, 0.5]) + torch.tensor([500.0, 15.0, 1.0])
    net = hf.Network.from_torch(Scaled().eval())
    return hf.radius(net, x, property=hf.Within(5.0), seconds=SECONDS)


class Policy(nn.Module):
    """Actions from a state and a goal."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(11, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, state: Tensor, goal: Tensor) -> Tensor:
        found: Tensor = self.layers(torch.cat([state, goal], 1))
        return found


@case("sequences")
def policy_with_a_fixed_goal() -> Any:
    return bracket(Policy(), torch.randn(INPUTS, 8), constants={"goal": [0.5, -0.2, 0.1]})


class Observation(Policy):
    """The same with one dict of observations."""

    def forward(self, observation: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(observation["state"], observation["goal"])


@case("sequences")
def policy_with_a_dict() -> Any:
    net: Any = hf.Network.from_torch(Observation().eval(), inputs={"state": 8, "goal": 3})
    x = {"state": torch.randn(INPUTS, 8), "goal": torch.randn(INPUTS, 3)}
    y = net(torch.cat([x["state"], x["goal"]], 1)).argmax(1)
    return hf.radius(net, x, y, seconds=SECONDS)


# ---- text

WORDS, LENGTH, WIDTH = 50, 5, 8


def tokens() -> Tensor:
    return torch.randint(0, WORDS, (INPUTS, LENGTH))


class Reader(nn.Module):
    """An embedding, then a function of the word vectors (batch, length, WIDTH) -> (batch, width)."""

    def __init__(self, read: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding, self.read, self.head = nn.Embedding(WORDS, WIDTH), read, nn.Linear(width, 3)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.read(self.embedding(ids)))
        return found


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class State(nn.Module):
    """The last state of a recurrent layer."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.cell(x)[0][:, -1]
        return found


class Largest(nn.Module):
    """A convolution over words and the largest value over time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x.transpose(1, 2))).amax(2)


class Attended(nn.Module):
    """A transformer layer and the mean over words."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x).mean(1)
        return found


@case("text")
def mean_of_word_vectors() -> Any:
    return bracket(Reader(Mean(), WIDTH), tokens(), tokens=True)


@case("text")
def convolution_over_words() -> Any:
    return bracket(Reader(Largest(), 8), tokens(), tokens=True)


@case("text")
def lstm_over_words() -> Any:
    return bracket(Reader(State(nn.LSTM(WIDTH, 8, batch_first=True)), 8), tokens(), tokens=True)


@case("text")
def gru_over_words() -> Any:
    return bracket(Reader(State(nn.GRU(WIDTH, 8, batch_first=True)), 8), tokens(), tokens=True)


@case("text")
def transformer_over_words() -> Any:
    return bracket(Reader(Attended(), WIDTH), tokens(), tokens=True)


@case("text")
def bert_of_hugging_face() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
        attn_implementation="eager",
    )
    return bracket(BertForSequenceClassification(config), tokens(), tokens=True)


def run(only: Sequence[str] = ()) -> list[Outcome]:
    """Measure the models of these families or names; all if none is given."""
    chosen = [one for one in CASES if not only or one.family in only or one.name in only]
    found = []
    for one in chosen:
        outcome = judge(one)
        found.append(outcome)
        print(
            f"{outcome.family:10} {outcome.name:36} {outcome.answer:9} {outcome.certified:10.4g} "
            f"{outcome.cpu_seconds:6.1f} CPU-s  {outcome.reason[:90]}",
            flush=True,
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="families or names")
    parser.add_argument("--json", help="file for the outcomes")
    options = parser.parse_args(arguments)
    known = {*FAMILIES, *(one.name for one in CASES)}
    strange = next((name for name in options.only if name not in known), None)
    if strange is not None:
        parser.error(f"there is no family or model {strange!r}")
    found = run(options.only)
    for family in [family for family in FAMILIES if any(one.family == family for one in found)]:
        counts = Counter(one.answer for one in found if one.family == family)
        print(f"{family}: " + ", ".join(f"{count} {answer}" for answer, count in sorted(counts.items())))
    total = Counter(one.answer for one in found)
    print(f"all {len(found)}: " + ", ".join(f"{count} {answer}" for answer, count in sorted(total.items())))
    if options.json:
        with open(options.json, "w") as file:
            json.dump([asdict(one) for one in found], file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
