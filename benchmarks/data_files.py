"""The data sets of the benchmarks: public source, licence, expected files and checksums.

    python -m benchmarks.data_files                    # which sets are complete in the data folder, which
    files are missing python -m benchmarks.data_files --data FOLDER      # the same for another folder python
    -m benchmarks.data_files --write            # write benchmarks/data.md

Nothing is downloaded. A file with another checksum is reported: its results will differ from those in
benchmarks/results.
"""

import argparse
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.certify.data import ROOT, SHARED

PAGE = ROOT / "benchmarks" / "data.md"
BLOCK_BYTES = 2**20  # Bytes that are hashed at once.


@dataclass(frozen=True)
class DataSet:
    """One folder of the data folder.

    files       file name -> SHA-256.
    conversion  how the files are made from the public source.
    """

    title: str
    source: str
    licence: str
    conversion: str
    files: Mapping[str, str]


SETS: dict[str, DataSet] = {
    "mnist": DataSet(
        "MNIST, 60,000 training and 10,000 test images",
        "LeCun, Cortes, Burges: the MNIST database (the four idx files)",
        "CC BY-SA 3.0",
        "One npz file with x_train, y_train, x_test, y_test: uint8, images (n, 28, 28).",
        {"mnist.npz": "5bbdec88cd55ba763855a598b75253decc1f9767f4f8e77eb973fa95520ab841"},
    ),
    "mnist_strokes_derived": DataSet(
        "MNIST digits as pen strokes, 20,000 training and 10,000 test sequences",
        "derived from MNIST; the format is that of E. de Jong's MNIST stroke sequences, the sequences are "
        "not",
        "as MNIST",
        "Threshold 110, Zhang-Suen thinning, greedy path that keeps its direction. One npz file: seq_* "
        "int8 (points, 4) with rows "
        "(dx, dy, end of stroke, end of digit), len_* points of each digit, y_* labels.",
        {"strokes.npz": "07fc519aeb710c55e8bf34082a106021d809c27c32c378c0464be3d10bb99c7c"},
    ),
    "cifar10": DataSet(
        "CIFAR-10, a subset: 10,000 training, 1,000 validation, 1,000 test images",
        "Krizhevsky 2009: CIFAR-10",
        "no formal licence",
        "One npz file with x_*, y_*: uint8, images (n, 32, 32, 3). Training images 0 to 9,999, validation "
        "49,000 to 49,999, the first "
        "1,000 test images.",
        {"cifar10_subset.npz": "bb1e7e5edca6abba6b3335297c1388609372b6d9324232de086c88dd72f2f26f"},
    ),
    "news_titles": DataSet(
        'TagMyNews titles, 7 classes, 22,222 training and 9,794 test titles (POPQORN and MARBLE call this set "QC")',
        "Vitale, Ferragina, Scaiella 2012: TagMyNews; the test split is that of POPQORN's repository",
        "published for research, no formal licence",
        "Tab-separated files, xz-compressed: class, title.",
        {
            "test.tsv.xz": "ef0ef5ff389d68ef093a9eace5cbb6bdd24e1be489a45832aee2da0e09429ccb",
            "train.tsv.xz": "b03edbe5d8b8958231ea5c2db16da43a8b3436d9db5dde63bcb9831af276c50e",
        },
    ),
    "trec_qc": DataSet(
        "TREC question classification, 6 coarse classes, 5,452 training and 500 test questions",
        "Li and Roth 2002 (UIUC CogComp)",
        "published for research, no formal licence",
        "Tab-separated files, xz-compressed: COARSE:fine, question.",
        {
            "test.tsv.xz": "984f498fac3e52c823c65a3af91b20d51bc1547fe1157934b9fe22e03e1c8cc8",
            "train.tsv.xz": "c0fb4ff66bfd46c703c5eaed40e6507896028b269ba283e3445f2a70de4f18ea",
        },
    ),
    "toxic_jigsaw": DataSet(
        "Jigsaw toxic comments, 11,241 of them, two classes (contains slurs)",
        "Kaggle: Toxic Comment Classification Challenge, 2018",
        "CC0 (Kaggle)",
        "One tab-separated file, xz-compressed: 1 for any of the six flags, comment.",
        {"all.tsv.xz": "a0c695f5fb12938164c0d058ba00632657f0f4d17ef625d3dcc52ecf7f0df8c2"},
    ),
    "imdb": DataSet(
        "Large Movie Review Dataset, 25,000 training and 25,000 test reviews, two classes",
        "Maas et al. 2011",
        "no formal licence; the authors ask for citation",
        "Tab-separated files, xz-compressed: label (1 positive), text; line breaks removed, shuffled with "
        "seed 0.",
        {
            "test.tsv.xz": "7e4b4d0efa3207285044081411bb134440d799f7ff25258e97192ea755a328aa",
            "train.tsv.xz": "8f080a86ae331a278b0eeb2c451858403bcf134d24174a232401eca11256cc4e",
        },
    ),
    "vectors": DataSet(
        "GoogleNews word2vec, the 22,999 words of the texts above, 300 dimensions",
        "Mikolov et al. 2013; the subset of Bolukbasi et al. 2016",
        "Apache-2.0 (word2vec)",
        "One npz file: words, vectors (n, 300) float16 of length 1.",
        {"gnews_w2v300_f16.npz": "01ba4ebac32485922b88a7dde39f1ae4c7767f4a4842ddf8a638ecb4b01a725e"},
    ),
    "synonyms": DataSet(
        "Counter-fitted neighbours of 49,975 words, PPDB synonyms, antonyms",
        "Jia et al. 2019 (certified-word-sub); Mrksic et al. 2016 (counter-fitting)",
        "MIT; Apache-2.0 (PPDB: CC BY 3.0)",
        "The published files, xz-compressed.",
        {
            "counterfitted_neighbors.json.xz": "6603d2ffe3f2503783d224d26399e16541d2484ec4fa3e894dec390e5de722b9",
            "ppdb_antonyms.txt.xz": "10d1dfa0e60fb3e058904cbcd81850d46af48c3239d6fc8d62629670e8c17d6b",
            "ppdb_synonyms.txt.xz": "aacd46981d9cb1bb84bf20e31c6f0025e1f497303eccc6943644063c4f37b0f4",
            "wordnet_antonyms.txt.xz": "a80f156e3e9d2b6937d50eb7e12bd95bef8822318ef6b55b3f877232194b3599",
        },
    ),
    "deepquant_nets": DataSet(
        "DeepQuant's networks ReLU-NN-0 to 5 (Table 2)",
        "the repository of DeepGO (TrustAI)",
        "BSD-3-Clause",
        "One npz file a network: W0, b0, W1, b1, ... with y = W x + b; ops: layer names; mean, where "
        "given, is subtracted from the input.",
        {
            "relu_nn_0.npz": "6aa8a6de9e3f54d45ce6cc2f982a7a5daba94aaab57b46fadcedb3ce198fab55",
            "relu_nn_1.npz": "8bc7061d05d6ffffdaf3276351c858f8d326a4d55e47533c3c67e40301bce751",
            "relu_nn_2.npz": "f5840184066a838792697f3d2a4d99730960105e63013e5cf366650b2a666a29",
            "relu_nn_3.npz": "a899bbd5345038c49d569b4053c74169232597437aeac2ccc750713e312b8b41",
            "relu_nn_4.npz": "c13dce092fb20ea55fe4eb721a1238d8baae92f12da408d14a4e9e26ea0a01b1",
            "relu_nn_5.npz": "e247e625b7d8dcaf716178add43fb4874c53a5ccb9226fc1aadf16988380353c",
        },
    ),
    "acasxu": DataSet(
        "ACAS Xu, network 1_1 of 45",
        "the ACAS Xu benchmark of the Verification of Neural Networks Competition (Julian et al. 2016; Katz "
        "et al. 2017)",
        "CC BY 4.0 (the folder nnet of ReluplexCav2017)",
        "The published file.",
        {
            "onnx/ACASXU_run2a_1_1_batch_2000.onnx.gz": "24b83b3aa6fae0c1303dab138684941c6df1802b1a5a8f42e404f1c93b6b01bb",
        },
    ),
    "control": DataSet(
        "Four controllers of ARCH-COMP 2024, category AINNCS",
        "the repository verivital/ARCH-COMP2024",
        "none stated: for comparison only",
        "The published files.",
        {
            "acc.onnx": "8dbc1a56cd77b264b46ce8eb226add9098896f393ae2a63538598775bfbcec1b",
            "single_pendulum.onnx": "f855ee789c5f360bb1ba8722ded4226d955876a422b61ba3aca8d71eaa621227",
            "tora.onnx": "52a50c6bc6b1b45b89319edc809cd4d3baca06c32f9fd2ddceb2e95007414418",
            "unicycle.onnx": "9c9796ec74c0b11c0fe6aa5e0eb3814094dd62538de8c6707ec7e917e718a846",
        },
    ),
    "prover": DataSet(
        "PROVER's LSTMs on MNIST rows",
        "Ryou et al. 2021: the repository eth-sri/prover, folder saved",
        "none stated: for comparison only",
        "safetensors files with the keys lstm.*, linear.* of torch.nn.LSTM and torch.nn.Linear.",
        {
            "mnist_04f_032h_1l.safetensors": "e59e5aed5d15ae8a4c73cba7644b74bfbddacdb18d627d86846400bb7971c306",
            "mnist_04f_064h_1l.safetensors": "4d529f2abd1ca4b41e76dd0ea8353eae1f6faa169af55041768a9e3b6f3921c8",
            "mnist_07f_032h_1l.safetensors": "4e970d2a6d344b6109dee5d0baf68e2e730529c2dd9299546409c1cdbb4500e3",
        },
    ),
    "recurrent": DataSet(
        "cert-rnn-py's LSTM on MNIST rows: 28 frames, two layers of 32, and 30 images",
        "the repository of cert-rnn-py",
        "unknown: for comparison only",
        "One npz file: W0 R0 b0 W1 R1 b1 (input and recurrent weights and one bias of each layer, torch's "
        "order of gates), Wfc bfc, x, y, logits.",
        {"certrnn_lstm_2x32.npz": "1d8fe03a9efe8637feafa14e83fc99ee1fff8394f8b8b9cc2c29114a103bf292"},
    ),
}


def sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while block := source.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def problems(name: str, folder: Path, *, hashed: bool = True) -> list[str]:
    """What is wrong with a set in the data folder: one line for each missing or different file.

    Args:
        hashed: Compare checksums too, which reads the files.
    """
    data_set, found = SETS[name], []
    for file, expected in data_set.files.items():
        path = folder / name / file
        if not path.is_file():
            found.append(
                f"{path}: missing. Source: {data_set.source}. Conversion: {data_set.conversion} "
                "(benchmarks/data.md)"
            )
        elif hashed and sha256(path) != expected:
            found.append(f"{path}: its SHA-256 differs from {expected[:12]}..., so results will differ too.")
    return found


def page() -> str:
    """The text of benchmarks/data.md."""

    def lines() -> Iterator[str]:
        yield "# Data of the benchmarks\n"
        yield (
            "Written by `python -m benchmarks.data_files --write`. `python -m benchmarks.data_files --data "
            "FOLDER` reports which files of\n"
            "a data folder are missing or differ. The benchmarks read the folder given by `--data`; each "
            "set has a folder of its own there.\n"
            "Nothing is downloaded, and nothing of it is part of this repository."
        )
        for name, data_set in SETS.items():
            yield f"\n## {name}\n"
            yield f"{data_set.title}.\n"
            yield f"- Source: {data_set.source}."
            yield f"- Licence: {data_set.licence}."
            yield f"- Conversion: {data_set.conversion}"
            yield "\n| file | SHA-256 |\n|---|---|"
            for file, digest in data_set.files.items():
                yield f"| `{name}/{file}` | `{digest}` |"

    return "\n".join(lines()) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SHARED, help="the data folder")
    parser.add_argument("--write", action="store_true", help="write benchmarks/data.md")
    chosen = parser.parse_args(words)
    if chosen.write:
        PAGE.write_text(page())
        return 0
    incomplete = 0
    for name in SETS:
        found = problems(name, chosen.data)
        incomplete += bool(found)
        print(f"{name}: {'complete' if not found else ''}")
        for line in found:
            print(f"  {line}")
    return int(incomplete > 0)


if __name__ == "__main__":
    raise SystemExit(main())
