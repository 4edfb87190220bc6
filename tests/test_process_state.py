"""holdfast leaves the process as its user set it: threads, random numbers, logging, warnings, torch's settings, the user's own modules."""

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats  # noqa: F401  its import, which `hf.smoothed` waits for, changes the filters of warnings
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import holdfast as hf
from holdfast.errors import HoldfastError, UnreadableFile
from holdfast.execution import Local
from holdfast.hardening import Recipe
from holdfast.network import Network
from holdfast.network.estimators import opening
from holdfast.process_state import (
    cudnn_flags,
    ignored_standard_error,
    ignored_torch_logs,
    ignored_warnings,
    own_random_numbers,
    without_tf32,
)
from process_snapshot import differences, of_module, of_process
from sizes import combinations

X = torch.rand(2, 3, generator=torch.Generator().manual_seed(1))
FEW = hf.Stop(queries=60)
METHODS = [hf.attacks.PGD(steps=2), hf.certify.Certify()]
BOX = "".join(f"(declare-const X_{i} Real)\n(assert (>= X_{i} 0))\n(assert (<= X_{i} 1))\n" for i in range(3))
SPEC = f"{BOX}(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n(assert (>= Y_0 100))\n"


@pytest.fixture(scope="module", autouse=True)
def _everything_imported() -> None:
    """torch.export and what it imports set a variable of the environment and add warning filters once in a process."""
    torch.export.export(dense(), (X,), strict=False)
    hf.bounds(network(dense()), hf.Ball(X, 0.1))


@pytest.fixture(autouse=True)
def _unusual_settings() -> Iterator[None]:
    """As a user may have set them, none of them the default, so that writing defaults back is noticed."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.allow_tf32,
        matmul.allow_tf32,
        logging.root.manager.disable,
    )
    filters, errors = warnings.filters[:], np.geterr()  # type: ignore[index]
    cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = True, True, False, False
    logging.disable(logging.INFO)
    warnings.filterwarnings("ignore", "a filter of the user's own")
    np.seterr(under="warn")
    try:
        with threadpool_limits(2, user_api="blas"):
            yield
    finally:
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = before[:4]
        logging.disable(before[4])
        warnings.filters[:] = filters  # type: ignore[index]
        np.seterr(**errors)  # type: ignore[arg-type]


class Packs(nn.Module):
    """Packs its frames, as models of speech do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            x[..., None], torch.full((x.shape[0],), x.shape[1]), batch_first=True, enforce_sorted=False
        )
        return self.out(self.cell(packed)[1][0][-1])


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 2))


def packing() -> nn.Module:
    torch.manual_seed(0)
    return Packs()


def network(module: nn.Module) -> Network:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is in training mode
        return Network.from_torch(module, domain=(0, 1))


def proofs(net: Network, folder: Path) -> None:
    problems = hf.api.radius.radius_problems(net, X[:1], labels(net)[:1])
    hf.prove(problems, hf.solve(problems, METHODS, FEW), folder)


def stored(net: Network, folder: Path) -> None:
    (folder / "spec.vnnlib").write_text(SPEC)
    hf.verify(net, folder / "spec.vnnlib")


def labels(net: Network) -> Tensor:
    return net(X).argmax(1)


def hardened(net: Network, folder: Path) -> None:
    x = torch.rand(40, 3, generator=torch.Generator().manual_seed(2))
    recipe = Recipe("intervals", epochs=1, batch=8)
    hf.harden(
        net,
        x,
        (x[:, 0] > 0.5).long(),
        radius=0.05,
        recipe=recipe,
        begin="afresh",
        validation=0.25,
        measured=4,
        folder=folder / "out",
    )


QUESTIONS: dict[str, Callable[[Network, Path], object]] = {
    "from_torch": lambda net, _: net,
    "radius": lambda net, _: hf.radius(net, X, labels(net), stop=FEW),
    "radius, tight": lambda net, _: hf.radius(net, X[:1], labels(net)[:1], tier="tight", stop=FEW),
    "radius, l2": lambda net, _: hf.radius(net, X, labels(net), norm=2, stop=FEW),
    "radius, changes": lambda net, _: hf.radius(net, X[:1], labels(net)[:1], norm=0, stop=FEW),
    "worst": lambda net, _: hf.worst(net, hf.Ball(X, 0.1), hf.Robustness(labels(net)), stop=FEW),
    "bounds": lambda net, _: hf.bounds(net, hf.Ball(X, 0.1)),
    "risk": lambda net, _: hf.risk(net, X[:1], "robustness", y=labels(net)[:1], radius=0.1, queries=60),
    "saliency": lambda net, _: hf.saliency(net, X[:1], labels(net)[:1]),
    "verify": stored,
    "reach": lambda net, _: hf.reach(net, (torch.zeros(3), torch.ones(3)), tolerance=1.0),
    "testgen": lambda net, _: hf.testgen(net, X, changes=1, tests=2),
    "harden": hardened,
    "prove": proofs,
    "smoothed": lambda net, _: hf.smoothed(net, X[:1], sigma=0.1, samples=50, choosing=10),
    "in processes": lambda net, _: hf.solve(
        hf.api.radius.radius_problems(net, X, labels(net)), [hf.attacks.PGD(steps=2)], FEW, executor=Local(workers=1)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), combinations(list(QUESTIONS), [dense, packing]))
def test_a_question_leaves_the_process_and_the_users_module_as_they_were(
    name: str, kind: Callable[[], nn.Module], tmp_path: Path
) -> None:
    module = kind()
    before, own = of_process(), of_module(module)
    QUESTIONS[name](network(module), tmp_path)
    assert differences(before, of_process()) == {}
    assert differences(own, of_module(module)) == {}


class Failing(nn.Module):
    """Answers, until it is told to fail."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.layers = dense().eval()

    def forward(self, x: Tensor) -> Tensor:
        if Failing.fails:
            raise ArithmeticError("the model's own failure")
        return self.layers(x)


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name != "from_torch"])
def test_a_question_that_fails_leaves_the_process_as_it_was(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(Failing())
    monkeypatch.setattr(f"{__name__}.labels", lambda net: torch.zeros(2, dtype=torch.int64))
    before = of_process()
    monkeypatch.setattr(Failing, "fails", True)
    with pytest.raises((HoldfastError, ArithmeticError)):
        QUESTIONS[name](net, tmp_path)
    assert differences(before, of_process()) == {}


class NotTraceable(nn.Module):
    """Chooses by a number of its input, of which torch.export logs and prints the whole graph."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2] if float(x.sum()) > 0 else -x[:, :2]


def damaged(folder: Path) -> Path:
    file = folder / "damaged.pt2"
    file.write_bytes(b"PK\x03\x04 no archive")
    return file


def exported(folder: Path) -> Path:
    file = folder / "model.pt2"
    torch.export.save(torch.export.export(dense().eval(), (torch.zeros(1, 3),)), file)
    return file


def fitted(_: Path) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    rows = np.random.default_rng(0).random((20, 3))
    return RandomForestClassifier(3, random_state=0).fit(rows, rows[:, 0] > 0.5)


OPENINGS: dict[str, tuple[Callable[[Path], Any], Callable[[Any], object], type[Exception] | None]] = {
    "from_export": (exported, lambda file: Network.from_export(file, trust=True), None),
    "from_export, damaged": (damaged, lambda file: Network.from_export(file, trust=True), UnreadableFile),
    "from_sklearn": (fitted, lambda model: Network.from_sklearn(model)(X.double()), None),
    "from_callable": (
        lambda _: lambda x: x[:, :2],
        lambda f: hf.radius(Network.from_callable(f), X, torch.zeros(2).long(), stop=FEW),
        None,
    ),
    "not traceable": (
        lambda _: NotTraceable(),
        lambda m: hf.bounds(Network.from_torch(m.eval()), hf.Ball(X, 0.1)),
        HoldfastError,
    ),
}


class Collecting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def logged(_unusual_settings: None) -> Iterator[list[str]]:
    """What reaches a handler of the user's, at the root and at torch's own loggers, which pass nothing on."""
    handler = Collecting()
    loggers = [
        logging.root,
        *(
            logging.getLogger(name)
            for name in ("torch", "torch.export", "torch.fx.experimental.symbolic_shapes")
        ),
    ]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler.messages
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.mark.parametrize("name", OPENINGS)
def test_opening_a_model_leaves_the_process_as_it_was(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], logged: list[str]
) -> None:
    make, open_it, refusal = OPENINGS[name]
    made = make(tmp_path)
    before = of_process()
    capfd.readouterr()
    with pytest.raises(refusal) if refusal is not None else warnings.catch_warnings():
        open_it(made)
    assert differences(before, of_process()) == {}
    assert capfd.readouterr() == ("", "")
    assert logged == []


# ---------------------------------------------------------------- threads that overlap


def overlapping(enter: Callable[[], Any]) -> None:
    """Two threads, of which the one that begins first ends first."""
    first_in, both_in, first_out = threading.Event(), threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def first() -> None:
        try:
            with enter():
                first_in.set()
                assert both_in.wait(60)
        except BaseException as error:
            failures.append(error)
        finally:
            first_in.set()
            first_out.set()

    def second() -> None:
        try:
            assert first_in.wait(60)
            with enter():
                both_in.set()
                assert first_out.wait(60)
        except BaseException as error:
            failures.append(error)
        finally:
            both_in.set()

    threads = [threading.Thread(target=work, daemon=True) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)


def test_weights_drawn_afresh_seed_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no GPU is in use yet, torch would remember such a seed in the place of the user's."""
    net, seeded = network(dense()), list[int]()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    hardened(net, tmp_path)
    assert seeded == []


CONTEXTS: dict[str, Callable[[], Any]] = {
    "warnings": ignored_warnings,
    "warnings of all threads": lambda: ignored_warnings(every_thread=True),
    "logs": ignored_torch_logs,
    "standard error": ignored_standard_error,
    "cuDNN": without_tf32,
    "BLAS threads": lambda: opening._one_blas_thread(None),
    "without cuDNN": lambda: cudnn_flags(enabled=False),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_contexts_that_overlap_leave_the_process_as_it_was(name: str) -> None:
    before = of_process()
    overlapping(CONTEXTS[name])
    assert differences(before, of_process()) == {}


def test_what_other_threads_print_log_and_warn_of_arrives(
    capsys: pytest.CaptureFixture[str], logged: list[str]
) -> None:
    log = logging.getLogger("torch.export")

    def speak(who: str) -> None:
        print(f"{who} prints", file=sys.stderr)
        log.warning("%s logs", who)
        warnings.warn(f"{who} warns")

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with ignored_warnings(), ignored_torch_logs(), ignored_standard_error():
            speak("this thread")
            logging.getLogger("the user's").warning("this thread logs for the user")
            thread = threading.Thread(target=speak, args=("another thread",))
            thread.start()
            thread.join(60)
    assert [str(one.message) for one in found] == ["another thread warns"]
    assert logged == ["this thread logs for the user", "another thread logs"]
    assert "another thread prints" in (printed := capsys.readouterr().err)
    assert "this thread prints" not in printed


def test_a_proof_without_cudnn_is_not_disturbed_by_a_thread_that_asks_the_model() -> None:
    with cudnn_flags(enabled=False):
        seen: list[tuple[bool, bool]] = []

        def ask() -> None:
            with without_tf32():
                seen.append((torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(60)
        assert seen == [(False, False)]
        with without_tf32():
            assert torch.backends.cudnn.enabled  # of one thread, what is inside decides


PAUSES: dict[int, Callable[[], None]] = {}  # thread -> what it does when it first comes to the model


def test_random_numbers_are_the_users_own_again_when_threads_overlap() -> None:
    """The second thread waits: else it would save what the first has seeded, and restore that last."""
    before, drawn = of_process(), []
    inside, second_begins = threading.Event(), threading.Event()

    def first() -> None:
        with own_random_numbers(7):
            inside.set()
            assert second_begins.wait(60)
            drawn.append(float(torch.rand(())))

    def second() -> None:
        assert inside.wait(60)
        second_begins.set()
        with own_random_numbers(7):
            drawn.append(float(torch.rand(())))

    threads = [threading.Thread(target=work, daemon=True) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert drawn == [float(torch.rand((), generator=torch.Generator().manual_seed(7)))] * 2
    assert differences(before, of_process()) == {}


class Pausing(Packs):
    def forward(self, x: Tensor) -> Tensor:
        PAUSES.pop(threading.get_ident(), lambda: None)()
        return super().forward(x)


def test_a_thread_may_trace_a_packed_model_while_another_does() -> None:
    """torch.export knows one trace at a time in a process: the second thread begins inside the first one's trace, and waits."""
    torch.manual_seed(0)
    models = [Pausing().eval(), Pausing().eval()]
    wanted = [hf.bounds(Network.from_torch(model), hf.Ball(X, 0.1)) for model in models]
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()
    found: dict[int, Any] = {}
    before = of_process()

    def trace(place: int, pause: Callable[[], None]) -> None:
        try:
            net = Network.from_torch(models[place])
            PAUSES[threading.get_ident()] = pause
            net.program(X)
            first_out.set()
            found[place] = hf.bounds(net, hf.Ball(X, 0.1))
        except Exception as error:
            found[place] = error
        finally:
            first_out.set()

    def first() -> None:
        first_in.set()
        second_in.wait(
            1
        )  # in vain, where the second waits; without that it would be inside now, and stay until the first is out

    def second() -> None:
        second_in.set()
        first_out.wait(60)

    threads = [
        threading.Thread(target=trace, args=(place, pause), daemon=True)
        for place, pause in enumerate((first, second))
    ]
    threads[0].start()
    assert first_in.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    for place, bounds in enumerate(wanted):
        assert not isinstance(found[place], Exception), found[place]
        assert torch.equal(found[place].lower, bounds.lower)
        assert torch.equal(found[place].upper, bounds.upper)
    assert differences(before, of_process()) == {}
