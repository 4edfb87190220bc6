"""The network under test: where it came from, what goes in, what comes out, and how often it was asked."""

import contextlib
import copy
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from holdfast import time_limit
from holdfast.errors import BadInput, UnreadableFile, UnsupportedLayer
from holdfast.files import in_words
from holdfast.foreign_text import first_line
from holdfast.memory_budget import is_out_of_memory
from holdfast.network.adapter import (
    Adapter,
    BlackBox,
    InTurn,
    OutputOf,
    Pool,
    check_unambiguous,
    for_any_batch,
    map_over_batch,
    one_by_one,
    over_single_inputs,
    told_of,
)
from holdfast.network.callable_fingerprint import hash_callable
from holdfast.network.classes import numbers_of
from holdfast.network.delegation import delegate
from holdfast.network.fingerprint import combine_hashes, of_file, of_output, of_program, of_tensors, of_text
from holdfast.network.float32_precision import cudnn_flags, in_full
from holdfast.network.normalisation import domain_along_axis, normaliser
from holdfast.network.recurrent import copy_module
from holdfast.network.statefulness import first_change, generators, state_of
from holdfast.network.text import Given, HuggingFace, Texts, Tokenizer, read_texts, tokenizer_of
from holdfast.network.tokens import OfVectors, of_vectors, split_graph, split_module
from holdfast.network.trace import as_plain_module, convert_graph, export, rewrite
from holdfast.network.trees import Trees
from holdfast.process_state import ignored_torch_logs
from holdfast.region.base import Domain
from holdfast.region.columns import Columns
from holdfast.signals import asked_of_model

if TYPE_CHECKING:
    import numpy as np

NOT_HASHED = "not hashed"
NAME_IT = (
    "name what it is made of: from_callable(f, fingerprint=[files] or its version), and so with from_torch, or --fingerprint FILE on the "
    "command line"
)
Source = Literal["torch", "export", "onnx", "black box"]
ELEMENTS_PER_CALL = (
    2**22
)  # input numbers in one forward pass; keeps activations of small networks within a few GiB
ELEMENTS_IN_TIME = 2**18  # the same on a CPU where somebody waits
LENGTHS = re.compile(r"(^|_)(length|lengths|lens?)(_|$)|^length")
ROWS = 256  # sentences that are compared at once


class _Refused(BadInput):
    """An exception of the model's own."""


@dataclass(eq=False)
class Network:
    """A model as every method sees it: (n, *shape) -> (n, outputs), in the user's units.

    Build one with `from_torch`, `from_export`, `from_onnx`, `from_sklearn` or `from_callable`. The user's model is copied, never changed.
    """

    module: nn.Module
    name: str
    source: Source
    domain: Domain
    fingerprint: str  # of all that makes it; "": that cannot be hashed
    device: torch.device
    dtype: torch.dtype = torch.float32
    shape: tuple[int | None, ...] | None = None  # of one input; None inside where any length will do
    vectors: Tensor | None = None  # (words, dim), where the model reads tokens
    vocabulary: tuple[str, ...] | None = None
    tokenizer: Tokenizer | None = None  # how text becomes tokens, where that is known
    classes: tuple[str, ...] | None = None  # the names of its outputs
    token_model: nn.Module | None = None  # the whole model, tokens in, to replay words through
    notes: tuple[str, ...] = ()  # what a user should know about how the model was read
    labels: tuple[Any, ...] | None = None  # the classes as they stand in the user's data
    columns: Columns | None = None  # where inputs are rows of a table: what each column is
    trees: Trees | None = None  # where the model is a sum of them
    itself: "Network | None" = (
        None  # the user's own model, where `module` was read from it: a witness must break it too
    )
    queries: int = 0
    tokens_checked: dict[tuple[int, ...], list[Callable[[Tensor], Tensor]]] = field(
        default_factory=dict
    )  # length -> what is asked of ids
    widths: dict[tuple[int, ...], int] = field(
        default_factory=dict
    )  # shape -> how many outputs it was found to have
    _memory: dict[tuple[int, ...], str | None] = field(
        default_factory=dict
    )  # shape -> what the model was found to remember
    _programs: dict[tuple[int, ...], torch.export.ExportedProgram] = field(default_factory=dict)
    _twins: "dict[tuple[int, ...], Network | None]" = field(default_factory=dict)

    def __repr__(self) -> str:
        words = "" if self.vectors is None else f", {len(self.vectors)} words"
        kind = str(self.dtype).removeprefix("torch.") if self.differentiable else "black box"
        return (
            f"Network({self.name} from {self.source}, {kind} on {self.device}, domain {self.domain}{words})"
        )

    # ---- ways in

    @classmethod
    def from_torch(
        cls,
        module: nn.Module,
        *,
        domain: tuple[float | Tensor, float | Tensor] | Domain | None = None,
        mean: float | Sequence[float] | Tensor | None = None,
        std: float | Sequence[float] | Tensor | None = None,
        shape: Sequence[int] | None = None,
        time_first: bool = False,
        pool: Pool | None = None,
        tokens: bool = False,
        vocabulary: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        tokenizer: Given | None = None,
        output: str | None = None,
        device: str | torch.device = "cpu",
        name: str | None = None,
        fingerprint: str | Sequence[str | Path] | None = None,
    ) -> "Network":
        """A torch module, (batch, *shape) -> (batch, outputs).

        domain      lowest and highest value of an input, in the units you measure in; None: unbounded.
        mean, std   the module is given (x - mean) / std. A list is one number for each channel of an image (channels, height, width), for
                    each feature of a sequence (frames, features); where that is ambiguous, as of (3, 3), give an array that broadcasts.
        shape       the shape of one input; only needed by what runs before any data is seen. For tokens, (length,).
        time_first  the module wants (time, batch, ...). You always give holdfast the batch first.
        pool        the module answers (batch, time, outputs): take the last, the mean or the largest over time.
        tokens      the module reads token ids through nn.Embedding; regions then live among its word vectors.
        vocabulary  the words, so that answers show them; implies tokens.
        tokenizer   how text becomes tokens: a tokenizer.json, a tokenizer of the packages tokenizers or transformers, or a function, text
                    -> words of the vocabulary or token ids; implies tokens. None: `holdfast.network.text.Words`.
        classes     the names of the outputs, in their order, so that answers show them and data may speak of them.
        output      what is measured of a dict or a ModelOutput, by its name; None: its logits, or its only tensor. Of a tuple, its place,
                    counted from 0; None: the first, unless another could be meant.
        fingerprint by what the model is known again, as in `from_callable`; None: all that the module reads is hashed.
        """
        if not isinstance(module, nn.Module):
            raise BadInput(
                f"from_torch needs a torch.nn.Module, got {type(module).__name__}; any function goes through from_callable."
            )
        notes: list[str] = []
        written = getattr(module, "_orig_mod", None)
        if isinstance(written, nn.Module):
            module = written
            notes.append("was compiled; measured as it was written, without torch.compile")
        _check_one_input(module.forward, name or type(module).__name__, lengths=True)
        lazy = next((key for key, value in module.named_parameters() if is_lazy(value)), None)
        if lazy is not None:
            raise BadInput(
                f"{type(module).__name__}: {lazy} has no size yet (a lazy layer). Call the module once on an input first."
            )
        if module.training:
            warnings.warn(
                f"{type(module).__name__} is in training mode; holdfast measures a copy in evaluation mode (dropout off, batch norm "
                f"with its stored statistics). Your module stays as it is.",
                stacklevel=2,
            )
            notes.append("was in training mode; measured in evaluation mode")
        try:
            copied = copy_module(module).eval().requires_grad_(False)
        except Exception as error:
            raise BadInput(
                f"{type(module).__name__} cannot be copied ({error}); give holdfast a fresh, untrained-on module."
            ) from error
        digest, more = _known_by(module) if fingerprint is None else (named_by(fingerprint), [])
        where = _device(device)
        copied = copied.to(where)
        tokens = tokens or vocabulary is not None or tokenizer is not None
        vectors, token_model = None, None
        if tokens:
            _check_weights(copied, name or type(module).__name__)  # before the embedding goes its own way
            token_model = copied
            length = shape[0] if shape else 7
            beside = (torch.full((3,), length, dtype=torch.int64),) if _takes_lengths(copied) else ()
            vectors, copied = split_module(
                copied, (length, 3) if time_first else (3, length), *beside, output=output
            )
            shape = (shape[0] if shape else None, vectors.shape[1])  # type: ignore[assignment]
        return cls._of(
            copied, name=name or type(module).__name__, source="torch", domain=domain, mean=mean, std=std, shape=shape,
            time_first=time_first, pool=pool, vectors=vectors, vocabulary=vocabulary, tokenizer=tokenizer, classes=classes,
            token_model=token_model, device=where, notes=[*notes, *more], fingerprint=digest and combine_hashes(digest, of_output(output)),
            output=output,
        )  # fmt: skip

    @classmethod
    def from_export(
        cls,
        file: str | Path,
        *,
        trust: bool = False,
        domain: tuple[float | Tensor, float | Tensor] | Domain | None = None,
        mean: float | Sequence[float] | Tensor | None = None,
        std: float | Sequence[float] | Tensor | None = None,
        time_first: bool = False,
        pool: Pool | None = None,
        vocabulary: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        tokenizer: Given | None = None,
        output: str | None = None,
        device: str | torch.device = "cpu",
    ) -> "Network":
        """A `.pt2` file written by torch.export.save. Options as in `from_torch`; a token model is recognised by its input.

        torch reads parts of such a file with pickle and sympy, and either can run code that the file brings along. So it is opened
        only with trust=True, for files from people you trust. ONNX files carry no code.
        """
        path = _existing(file)
        if not trust:
            raise UnreadableFile(
                f"{path}: opening a .pt2 file can run code that it contains (torch unpickles parts of it). If you trust whoever "
                f"made it, pass trust=True (--trust on the command line); otherwise ask for an ONNX file, which cannot."
            )
        where = _device(device)
        try:
            with ignored_torch_logs():  # it logs the traceback of what the error below says in one line
                program = torch.export.load(path)
                model = as_plain_module(program)
        except Exception as error:
            raise UnreadableFile(
                f"{path}: torch.export cannot read it ({first_line(error)}). Was it written by torch.export.save?"
            ) from error
        values = [
            node.meta["val"]
            for node in program.graph.nodes
            if node.name in program.graph_signature.user_inputs
        ]
        if len(values) != 1:
            names = ", ".join(program.graph_signature.user_inputs)
            raise BadInput(
                f"{path}: the program takes {len(values)} inputs ({names}); holdfast gives it one tensor, the input that moves. Export a "
                f"module whose forward takes that tensor and gives the others to your model, or export to ONNX: there --constant "
                f"name=value (constants=) fixes an input."
            )
        example = _example(values[0], where)
        model = convert_graph(model, dtype=None, device=where).requires_grad_(False)
        # None marks what the program leaves open.
        shape = item_shape([d if isinstance(d, int) else None for d in values[0].shape], time_first)
        rest: nn.Module = model
        vectors: Tensor | None = None
        token_model: nn.Module | None = None
        if not example.is_floating_point():
            _check_weights(model, path.name)
            token_model = model
            vectors, rest_module = split_graph(model, example)
            assert isinstance(rest_module, fx.GraphModule)
            rest, shape = rest_module, (*shape, vectors.shape[1])
        count = values[0].shape[0]
        fixed = count if isinstance(count, int) else None
        answers, axis = [], min(int(time_first), example.dim() - 1)
        for rows in (example, example.narrow(axis, 0, 1)):
            with (
                contextlib.suppress(Exception),
                torch.no_grad(),
            ):  # a fixed batch; what else it cannot do is told when it is first asked
                answers.append((rows.shape[axis], rest(rows if vectors is None else vectors[rows])))
        if output is None:
            check_unambiguous(answers)
        notes = list(filter(None, [told_of(answer, output) for _, answer in answers[:1]]))
        if output is not None:
            rest, token_model = (
                OutputOf(rest, output),
                None if token_model is None else OutputOf(token_model, output),
            )
        body = (
            rest
            if time_first
            else for_any_batch(rest, example if vectors is None else vectors[example], fixed=fixed)
        )
        return cls._of(
            body, name=path.name, source="export", domain=domain,
            mean=mean, std=std, shape=shape, time_first=time_first, pool=pool, vectors=vectors, vocabulary=vocabulary,
            classes=classes, tokenizer=tokenizer, token_model=token_model, device=where, notes=notes,
            fingerprint=combine_hashes(of_file(path), of_output(output)),
        )  # fmt: skip

    @classmethod
    def from_onnx(
        cls,
        file: str | Path,
        *,
        domain: tuple[float | Tensor, float | Tensor] | Domain | None = None,
        mean: float | Sequence[float] | Tensor | None = None,
        std: float | Sequence[float] | Tensor | None = None,
        time_first: bool = False,
        pool: Pool | None = None,
        vocabulary: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        tokenizer: Given | None = None,
        device: str | torch.device = "cpu",
        black_box: bool = False,
        batched: bool = True,
        constants: Mapping[str, Any] | None = None,
        output: str | None = None,
    ) -> "Network":
        """An ONNX file (`.onnx`, `.onnx.gz`), imported to torch operators. Options as in `from_torch`.

        batched=False: the file takes a single input without a batch axis. constants: values for all inputs but the one that moves.
        output: the name of the output to measure, where the file has several; BadInput lists them where several could be meant.

        With black_box=True, or where an operator is not known, the file runs through onnxruntime (extra `runtime`) as a black box:
        no gradients and no proofs, and the network's notes say so.
        """
        from holdfast.network.onnx import open_onnx  # onnx is not needed to import the library

        path = _existing(file)
        with in_words(
            path,
            "its layers cannot be asked",
            "It is damaged, or they do not fit together: export or download it again.",
        ):
            opened = open_onnx(path, black_box=black_box, constants=constants, output=output)
            where = _device("cpu" if opened.black_box else device)
            model = opened.module.to(where).requires_grad_(False)
            vectors, token_model = None, None
            example, shape = (
                opened.example.to(where),
                item_shape(opened.shape, time_first) if batched else opened.shape,
            )
            if opened.vectors is not None:
                vectors, token_model = opened.vectors.to(where), opened.token_module
            if not batched:
                model = (
                    InTurn(model, keeps_axis=False)
                    if opened.black_box
                    else over_single_inputs(model, example)
                )
            elif not opened.black_box and not time_first:
                model = for_any_batch(model, example, fixed=opened.shape[0] if opened.shape else None)
            return cls._of(
                model, name=path.name, source="black box" if opened.black_box else "onnx", domain=domain, mean=mean, std=std,
                shape=shape, time_first=time_first, pool=pool, vectors=vectors, vocabulary=vocabulary, tokenizer=tokenizer,
                classes=classes,
                token_model=token_model, device=where, notes=list(opened.notes), fingerprint=combine_hashes(of_file(path), *opened.beside),
            )  # fmt: skip

    @classmethod
    def from_callable(
        cls,
        function: "Callable[[np.ndarray[Any, Any]], Any]",
        *,
        domain: tuple[float | Tensor, float | Tensor] | Domain | None = None,
        shape: Sequence[int] | None = None,
        classes: Sequence[str] | None = None,
        name: str | None = None,
        fingerprint: str | Sequence[str | Path] | None = None,
    ) -> "Network":
        """Any function of a numpy array, (n, *shape) float32 -> (n, outputs). A black box: attacks and estimates, never a proof.

        fingerprint  by what the model is known again: a text of your own, such as its version, or the paths of the files that it is made
                     of. If not said, all that the function reads is hashed; where that cannot be done, the network's notes say so, and
                     no run of it can be taken up again or joined with another.
        """
        if not callable(function):
            raise BadInput(f"from_callable needs a function, got {type(function).__name__}.")
        label: str = name or str(getattr(function, "__name__", type(function).__name__))
        _check_one_input(function, label)
        notes = ["black box: no gradients, nothing can be proved"]
        digest, more = _known_by(function) if fingerprint is None else (named_by(fingerprint), [])
        return cls._of(
            BlackBox(function), name=label, source="black box", domain=domain, mean=None, std=None, shape=shape, time_first=False,
            pool=None, vectors=None, vocabulary=None, classes=classes, token_model=None, device=torch.device("cpu"),
            notes=[*notes, *more], fingerprint=digest,
        )  # fmt: skip

    @classmethod
    def from_sklearn(
        cls,
        estimator: Any,
        *,
        columns: Columns | None = None,
        domain: tuple[float | Tensor, float | Tensor] | Domain | None = None,
        name: str | None = None,
    ) -> "Network":
        """A fitted classifier or regressor of scikit-learn, XGBoost or LightGBM, or a pipeline with one at its end.

        Linear models and multi-layer perceptrons, with scalers before them, become torch modules in float64, and everything about them
        can be proved. Trees and their sums are read leaf by leaf: they have no gradients, and proofs add up their leaves. Everything else
        is a black box. Classes and names of columns are the estimator's own.

        columns  what the columns of the table are: hf.Columns.of(frame). Needed where they hold words.
        domain   lowest and highest value of a number, where the columns do not say.
        """
        from holdfast.network.estimators import (
            open_estimator,
        )  # scikit-learn is not needed to import the library

        opened, label = open_estimator(estimator, columns), name or type(estimator).__name__
        predict = estimator.predict
        own = getattr(predict, "__self__", None) is estimator
        digest, more = _known_by(predict if own else [estimator, predict])

        def make_network(module: nn.Module, source: Source, notes: tuple[str, ...]) -> Network:
            return cls._of(
                module, name=label, source=source, domain=domain, mean=None, std=None, shape=(len(opened.columns.features),),
                time_first=False, pool=None, vectors=None, vocabulary=None, token_model=None, device=torch.device("cpu"),
                notes=[*notes, *more], fingerprint=digest,
            )  # fmt: skip

        if opened.itself is None:
            net = make_network(opened.module, "black box", opened.notes)
        else:
            net = make_network(opened.module, "torch", opened.notes)
            net.itself = make_network(opened.itself, "black box", ())
        net.classes, net.labels, net.columns, net.trees = (
            opened.classes,
            opened.labels,
            opened.columns,
            opened.trees,
        )
        return net

    @classmethod
    def _of(
        cls,
        model: nn.Module,
        *,
        name: str,
        source: Source,
        domain: tuple[float | Tensor, float | Tensor] | Domain | None,
        mean: float | Sequence[float] | Tensor | None,
        std: float | Sequence[float] | Tensor | None,
        shape: Sequence[int | None] | None,
        time_first: bool,
        pool: Pool | None,
        vectors: Tensor | None,
        vocabulary: Sequence[str] | None,
        classes: Sequence[str] | None = None,
        tokenizer: Given | None = None,
        token_model: nn.Module | None,
        device: torch.device,
        notes: list[str],
        fingerprint: str,
        output: str | None = None,
    ) -> "Network":
        _check_weights(model, name)
        if vectors is None and vocabulary is not None:
            raise BadInput(f"{name} does not read tokens, so a vocabulary has no meaning for it.")
        if vectors is None and tokenizer is not None:
            raise BadInput(f"{name} does not read tokens, so a tokenizer has no meaning for it.")
        if vectors is not None and vocabulary is not None and len(vocabulary) != len(vectors):
            raise BadInput(
                f"the vocabulary has {len(vocabulary)} words, but the embedding of {name} has {len(vectors)} rows."
            )
        reads = None if vectors is None else tokenizer_of(tokenizer, vocabulary, len(vectors))
        if vectors is not None and vocabulary is None and isinstance(reads, HuggingFace):
            vocabulary = reads.words(len(vectors))
        dtype = _floating(model)
        adapter = Adapter(
            model,
            mean=normaliser(mean, shape or None, dtype, "mean"),
            std=normaliser(std, shape or None, dtype, "std"),
            time_first=time_first,
            pool=pool,
            takes_lengths=source == "torch" and _takes_lengths(model),
            output=output,
        )
        if token_model is not None:
            token_model = Adapter(
                token_model,
                time_first=time_first,
                pool=pool,
                takes_lengths=adapter.takes_lengths,
                output=output,
            )
        return cls(
            module=adapter.eval().to(device),
            name=name,
            source=source,
            domain=domain_along_axis(Domain.of(domain), shape or None),
            fingerprint=fingerprint,
            device=device,
            dtype=dtype,
            shape=tuple(shape) if shape is not None else None,
            vectors=vectors,
            vocabulary=tuple(vocabulary) if vocabulary is not None else None,
            classes=distinct_names(classes, f"classes of {name}"),
            tokenizer=reads,
            token_model=token_model,
            notes=tuple(notes),
        )

    # ---- asking

    @property
    def differentiable(self) -> bool:
        return self.source != "black box"

    def __call__(self, x: Tensor) -> Tensor:
        """(n, *shape) -> (n, outputs), no gradient; every row counts as one query."""
        ask = delegate()
        if ask is not None:
            self.queries += len(x)
            return ask(self, "__call__", x)
        with torch.no_grad(), in_full():
            try:
                return torch.cat([self._forward(part) for part in self._parts(x)])
            except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
                if is_out_of_memory(error) or not self._one_by_one(x[:2].to(self.device, self.dtype)):
                    raise
            return torch.cat([self._forward(part) for part in self._parts(x)])

    def _one_by_one(self, first: Tensor) -> bool:
        """Whether the model refuses two inputs at once, or answers once to both, but takes each alone. Then it is asked so from now on."""
        if not self.differentiable or len(first) < 2 or one_by_one(self.module) is not None:
            return False
        try:
            probe = copy_module(
                self.module
            )  # a model that remembers what it was asked first must not have been asked yet
            with torch.no_grad(), contextlib.suppress(Exception):
                if len(probe(first)) != 1:
                    return False
            way = type(map_over_batch(probe, first))
        except Exception:  # then it is the inputs that it refuses
            return False
        self.module = Adapter(way(self.module)).eval()
        if self.token_model is not None:
            self.token_model = Adapter(InTurn(self.token_model)).eval()
        self._programs, self._twins, self._memory = {}, {}, {}
        self.notes = (*self.notes, "takes one input at a time, so it is asked one by one")
        return True

    def score_and_gradient(self, x: Tensor, score: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """(n, *shape), a function (n, outputs) -> (n,) that treats rows apart -> scores (n,), their gradients (n, *shape)."""
        assert self.differentiable
        x = x.detach().to(self.device, self.dtype).requires_grad_(True)
        # cuDNN's recurrent layers have no backward pass in evaluation mode; torch's own have.
        with torch.enable_grad(), cudnn_flags(enabled=False):
            gradient = None
            try:
                outputs = self._forward(x)
            except RuntimeError as error:
                outputs = self._without_gradient(x, error)
            values = score(outputs)
            try:
                # A model or a score that cuts the graph (a comparison, numpy) is flat to torch.
                gradient = (
                    torch.autograd.grad(values.sum(), x, allow_unused=True)[0]
                    if values.requires_grad
                    else None
                )
            except RuntimeError as error:
                self._without_gradient(None, error)
        return values.detach(), torch.zeros_like(x).detach() if gradient is None else torch.nan_to_num(
            gradient
        )

    def _without_gradient(self, x: Tensor | None, error: RuntimeError) -> Tensor:
        """The answers alone, where torch has no gradient of the model: it overwrites what its own gradient needs, say. A note says so."""
        if is_out_of_memory(error):
            raise error
        note = f"torch has no gradient of the model ({first_line(error).rstrip('.')}), so searches that follow one are blind"
        self.notes = self.notes if note in self.notes else (*self.notes, note)
        return torch.zeros(0) if x is None else self(x)

    def _forward(self, x: Tensor) -> Tensor:
        time_limit.check()
        self.queries += len(x)
        outputs: Tensor = asked_of_model(self.name, self.module, x)
        return outputs.to(self.dtype) if outputs.is_floating_point() else outputs

    def _parts(self, x: Tensor) -> Iterator[Tensor]:
        numbers = time_limit.at_once(ELEMENTS_PER_CALL, ELEMENTS_IN_TIME, self.device)
        rows = max(1, numbers // max(1, x[0].numel())) if len(x) else 1
        for part in x.split(rows):
            yield part.to(self.device, self.dtype)

    def embed(self, tokens: Tensor) -> Tensor:
        """(batch, length) token ids -> (batch, length, dim)."""
        if self.vectors is None:
            raise BadInput(
                f"the data are integers, but {self.name} takes numbers. If they are token ids, build the network with tokens=True; "
                f"if they are values, convert them to float."
            )
        words = len(self.vectors)
        if tokens.numel() and not bool(((tokens >= 0) & (tokens < words)).all()):
            raise BadInput(
                f"token ids run from {int(tokens.min())} to {int(tokens.max())}, but the embedding has {words} words."
            )
        vectors = self.vectors[tokens.to(self.vectors.device)]
        if of_vectors(self.module) is not None and self.token_model is not None and len(tokens):
            self._same_as_of_tokens(tokens, vectors)
        return vectors

    def _same_as_of_tokens(self, tokens: Tensor, vectors: Tensor) -> None:
        """Raise unless the sentences are answered by their vectors as they are by their ids, which the model may look at too. What it
        does not answer at all is found out when it is asked."""
        for ids, points in zip(tokens.split(ROWS), vectors.split(ROWS), strict=True):
            with torch.no_grad(), in_full(), contextlib.suppress(Exception):
                said, meant = self.module(points), self.token_model(ids.to(self.device))  # type: ignore[misc]
                wrong = next((i for i in range(len(ids)) if not same_by_rounding(meant[i], said[i])), None)
                if wrong is not None:
                    break
        else:
            return
        raise BadInput(
            f"{self.name} does not answer the sentence {' '.join(self.words(ids[wrong]))!r} by its word vectors as it does by its token "
            f"ids: it looks at the ids too, for a mask of padding perhaps. Leave such words out; padding is cut off with lengths=."
        )

    def ask_tokens(self, tokens: Tensor) -> Tensor:
        """(n, length) token ids -> (n, outputs), through the user's whole model, embedding and all."""
        assert self.token_model is not None
        ask = delegate()
        if ask is not None:
            self.queries += len(tokens)
            return ask(self, "ask_tokens", tokens)
        time_limit.check()
        self.queries += len(tokens)
        with torch.no_grad(), in_full():  # as vectors are asked: sentences come in batches and alone
            outputs: Tensor = asked_of_model(self.name, self.token_model, tokens.to(self.device))
        return outputs

    def outputs_for(self, x: Tensor) -> int:
        """How many outputs the network has, by asking it about the first rows, or where it refuses these about the last; BadInput if it
        refuses both or mixes rows."""
        try:
            return self._outputs_for(x)
        except _Refused:
            return self._outputs_for(x.flip(0))

    def _outputs_for(self, x: Tensor) -> int:
        x = x.to(self.device, self.dtype)
        if self.shape is not None and not _fits(tuple(x.shape[1:]), self.shape):
            want = "x".join("any" if d is None else str(d) for d in self.shape)
            raise BadInput(
                f"the inputs have shape {tuple(x.shape[1:])}, {self.name} takes {want} (without the batch axis)."
            )
        first = x[:2] if len(x) > 1 else x.repeat(2, *(1 for _ in x.shape[1:]))
        shape = tuple(x.shape[1:])
        if self.differentiable and shape not in self._memory:
            self._one_by_one(first)
            self._memory[shape] = self._remembers(first)
        if self._memory.get(shape):
            raise BadInput(
                f"{self.name} remembers what it was asked: {self._memory[shape]} changes when it answers. So no answer about it has a "
                f"meaning; take that out. If it builds a layer or a table when it is first asked, call it once before you give it to "
                f"holdfast."
            )
        try:
            chance = generators()
            with self._note_extra_outputs():
                pair = self(first)
                drawn = first_change(chance, generators())
                alone = torch.cat([self(row[None]) for row in first])
            again = self(first)
        except BadInput:
            raise
        except Exception as error:
            raise _refusal(self.name, x, error) from error
        if drawn is not None:
            raise BadInput(
                f"{self.name} draws random numbers ({drawn} generator), so it may answer otherwise when it is asked the same again and no "
                f"answer about it has a meaning. Take the chance out, or put it into evaluation mode."
            )
        if pair.dim() != 2 or pair.shape[0] != 2:
            raise BadInput(
                f"{self.name} answered {tuple(pair.shape)} to a batch of 2; expected (batch, outputs). For a time-first model "
                f"pass time_first=True, for one answer a frame pass pool='last', 'mean' or 'max'."
            )
        if not pair.is_floating_point():
            raise BadInput(
                f"{self.name} answers with {pair.dtype}, not with numbers that can change a little; give it without its last step."
            )
        if not bool(pair.isfinite().all()):
            raise BadInput(
                f"{self.name} answers NaN or infinity on the first inputs; check its weights and the scale of the data."
            )
        if not same_by_rounding(pair, alone):
            raise BadInput(
                f"{self.name} answers differently when inputs share a batch, so no answer about one input has a meaning. Is the batch "
                f"axis really first (time_first=)? Does a layer work across the batch?"
            )
        if not alike(pair, again):
            raise BadInput(
                f"{self.name} answers differently when it is asked the same again, so no answer about it has a meaning. Does it draw "
                f"random numbers (dropout, noise), or remember what it was asked before? Take that out, or fix its state."
            )
        self.widths[shape] = int(pair.shape[1])
        return self.widths[shape]

    def _remembers(self, x: Tensor) -> str | None:
        """What changes in the model when it is asked, so that its answers may depend on what it was asked before. What it only makes at
        its first call is allowed, if another first call would have made the same of it."""
        fresh = copy_module(self.module)
        states = [state_of(self.module)]
        with torch.no_grad():
            for asked in (x, x[:1], x[1:]):
                self._call_module(self.module, asked)
                states.append(state_of(self.module))
            moved = first_change(states[1], states[2]) or first_change(states[2], states[3])
            if moved is None and first_change(states[0], states[1]) is not None:
                layers = set(self.module.state_dict()) - set(fresh.state_dict())
                if layers or not alike(
                    self._call_module(fresh, x[1:] + 0.125), self._call_module(self.module, x[1:] + 0.125)
                ):
                    moved = first_change(states[0], states[1])
        return moved

    def _call_module(self, module: nn.Module, x: Tensor) -> Tensor:
        try:
            outputs: Tensor = asked_of_model(self.name, module, x)
        except BadInput:
            raise
        except Exception as error:
            raise _refusal(self.name, x, error) from error
        return outputs

    @contextlib.contextmanager
    def _note_extra_outputs(self) -> Iterator[None]:
        """A note where the model answers with more than one thing; BadInput where more than one could be meant."""
        adapter = one_by_one(self.module) or self.module
        inner = adapter.model if isinstance(adapter, Adapter) else None
        output = getattr(adapter, "output", None)

        answers: list[tuple[int, Any]] = []

        def look(_: nn.Module, given: Any, answer: Any) -> None:
            answers.append((given[0].shape[1 if adapter.time_first else 0], answer))
            note = None if isinstance(inner, nn.RNNBase) else told_of(answer, output)
            if note is not None and note not in self.notes:
                self.notes = (*self.notes, note)

        if inner is None or isinstance(inner, torch.jit.ScriptModule):
            yield
            return
        handle = inner.register_forward_hook(look)
        try:
            yield
        finally:
            handle.remove()
        if output is None and not isinstance(inner, nn.RNNBase):
            check_unambiguous(answers)

    def exactly(self, x: Tensor) -> Tensor:
        """The user's numbers: in the network's arithmetic where that can hold every one of them, else in float64.

        What is measured is measured from there; only what the model is given is rounded to its own arithmetic. Of a black box no more is
        known than what it says of rounded numbers.
        """
        x = x.to(self.device)
        rounded = x.to(self.dtype)
        exact = not self.differentiable or bool((rounded.double() == x.double()).all() | x.isnan().any())
        return rounded if exact else x.double()

    # ---- looking inside

    def program(self, x: Tensor) -> torch.export.ExportedProgram:
        """The graph for inputs of this shape, batch axis free; UnsupportedLayer if there is none."""
        if not self.differentiable:
            raise UnsupportedLayer(
                f"{self.name} is a black box, so nothing about it can be proved. Attacks and estimates still work."
            )
        shape = tuple(x.shape[1:])
        if shape not in self._programs:
            self._programs[shape] = export(self.module, x[:1].to(self.device, self.dtype))
        return self._programs[shape]

    def identity(self, x: Tensor) -> str:
        """The hash of all that decides the answers to inputs like x: the model and how it is read, and the program as torch traces it, so
        that what the model's code calls is a part of it."""
        adapter = one_by_one(self.module) or self.module
        how, tensors = [self.fingerprint, self.dtype, self.source], {}
        if isinstance(adapter, Adapter):  # a score of a network is none, but always has a program
            how += [adapter.time_first, adapter.pool, adapter.takes_lengths, adapter.output]
            tensors = {
                key: value
                for key, value in (("mean", adapter.mean), ("std", adapter.std))
                if isinstance(value, Tensor)
            }
        with contextlib.suppress(UnsupportedLayer):
            how.append(of_program(self.program(x)))
        return of_tensors(tensors, begin=str(how))

    def double(self, x: Tensor) -> "Network | None":
        """The same network in float64 for inputs like x, or None where there is none (a black box, a fixed dtype inside)."""
        if self.dtype == torch.float64 or not self.differentiable:
            return self if self.differentiable else None
        shape = tuple(x.shape[1:])
        if shape not in self._twins:
            self._twins[shape] = self._double(x)
        return self._twins[shape]

    def around(self, module: nn.Module) -> "Network":
        """A network like this one around another module, of which nothing is known yet."""
        other = copy.copy(self)
        other.module, other.widths, other._memory, other._programs, other._twins = module, {}, {}, {}, {}
        other.itself, other.trees = None, None
        return other

    def _double(self, x: Tensor) -> "Network | None":
        for build in (self._double_module, self._double_graph):
            with contextlib.suppress(Exception):
                twin = self.around(build(x))
                twin.dtype = torch.float64
                probe = x[:2].to(self.device, self.dtype)
                # A layer that rounds to float32 inside would be no twin at all.
                if same_by_rounding(self(probe), twin(probe)):
                    return twin
        return None

    def _double_module(self, x: Tensor) -> nn.Module:
        copied = copy_module(self.module).double()
        for part in copied.modules():
            if isinstance(part, fx.GraphModule):
                rewrite(part, dtype=torch.float64, device=self.device)
        return copied

    def _double_graph(self, x: Tensor) -> nn.Module:
        graph = convert_graph(as_plain_module(self.program(x)), dtype=torch.float64, device=self.device)
        return Adapter(graph)

    def with_columns(self, columns: Columns) -> "Network":
        """The same network over rows of a table with these columns."""
        if self.shape is not None and self.shape != (len(columns.features),):
            raise BadInput(
                f"{self.name} takes inputs of shape {self.shape}, the columns are {len(columns.features)} numbers in a row."
            )
        told = copy.copy(self)
        told.columns = columns
        return told

    def rows(self, table: Any) -> Tensor:
        """A DataFrame -> (rows, features) float64, as the columns of the network say, or else numbers as they stand."""
        return (self.columns or Columns.named(table.columns)).encode(table)

    def places_of(self, y: Any) -> Any:
        """Classes as the user's data name them -> their numbers. What are numbers of outputs already stays."""
        if isinstance(y, Tensor):
            return y
        given = y.tolist() if hasattr(y, "tolist") else list(y)
        names = self.labels or (self.classes if any(isinstance(label, str) for label in given) else None)
        if names is None or names == tuple(range(len(names))):
            return y if not hasattr(y, "to_numpy") else given
        return numbers_of(given, names, lambda place: f"{self.name}, label {place}")

    def read_texts(self, texts: Sequence[str], places: Sequence[str] | None = None, **how: Any) -> Texts:
        """Texts as tokens, and what must be told of them. Options as in `holdfast.network.text.read_texts`."""
        if self.tokenizer is None:
            takes = "takes numbers" if self.vectors is None else "was not told how text becomes tokens"
            raise BadInput(
                f"{self.name} {takes}: text needs a network that reads tokens, and its words (vocabulary=, --vocabulary FILE, one a line) "
                f"or its tokenizer (tokenizer=, --tokenizer)."
            )
        return read_texts(self.tokenizer, texts, places, **how)

    def tokens(self, text: str) -> Tensor:
        """A text -> (length,) token ids, as everywhere in holdfast; what is unknown is warned of."""
        found: Tensor = self.inputs([text])[0]
        return found

    def inputs(self, x: Any, *, alike: bool = False) -> Any:
        """A list of texts as token ids, in one tensor where they are equally long, else in a list; anything else as it is.

        alike: BadInput where they are not.
        """
        if isinstance(x, str):
            raise BadInput("x is a single text: give a list of texts.")
        if not isinstance(x, Sequence) or not any(isinstance(row, str) for row in x):
            return x
        found = self.read_texts(x)
        for note in found.notes:
            warnings.warn(note, stacklevel=3)
        lengths = sorted({len(row) for row in found.tokens})
        if len(lengths) > 1 and alike:
            raise BadInput(
                f"texts of {lengths[0]} and of {lengths[-1]} tokens; here all must be of one length, so ask about some of them."
            )
        return torch.stack(found.tokens) if len(lengths) == 1 else found.tokens

    def words(self, tokens: Tensor) -> list[str]:
        """(length,) token ids -> the words, or their numbers where no vocabulary was given."""
        return [self.vocabulary[t] if self.vocabulary else str(t) for t in tokens.tolist()]


def _known_by(function: Any) -> tuple[str, list[str]]:
    """The hash of all that it reads; where something cannot be read, none, and a note."""
    digest, missed = hash_callable(function)
    told = f"{NOT_HASHED}: {missed} cannot be read; so that its runs can be resumed and joined, {NAME_IT}"
    return digest, [told] if missed else []


def named_by(fingerprint: str | Sequence[str | Path]) -> str:
    """The hash by which a user says that a model is known again: of a text, or of files."""
    if isinstance(fingerprint, str):
        if not fingerprint.strip():
            raise BadInput(
                "fingerprint: an empty text tells no model from another. Give its version, say, or the paths of its files."
            )
        return of_text(f"said: {fingerprint}")
    files = [_existing(path) for path in fingerprint]
    if not files:
        raise BadInput(
            "fingerprint: no files are named. Give the paths of the files that the model is made of, or a text such as its version."
        )
    return of_text("\n".join(["files:", *(of_file(path) for path in files)]))


def alike(a: Tensor, b: Tensor, units: float = 64) -> bool:
    """Whether two answers are the same up to a few units of rounding of the largest."""
    if a.shape != b.shape:
        return False
    p, q = a.double(), b.double()
    size = torch.where(q.isfinite(), q, 0).abs().amax() if a.numel() else 0.0
    return bool(((p - q).abs() <= units * torch.finfo(a.dtype).eps * size).logical_or(_equal(p, q)).all())


def same_by_rounding(own: Tensor, other: Tensor, size: Tensor | float = 0.0) -> bool:
    """Whether an answer in the model's own arithmetic and another, in float64 or of another batch size, differ by no more than rounding
    does in networks. size: that of outputs elsewhere, where these may be near zero."""
    coarse = 1e-3 if own.dtype in (torch.float32, torch.float64) else 5e-2
    a, b = own.double(), other.double()
    if a.shape != b.shape:
        return False
    near = (a - b).abs() <= coarse * torch.clamp(b.abs(), min=size) + coarse / 10
    return bool(near.logical_or(_equal(a, b)).all())


def _equal(a: Tensor, b: Tensor) -> Tensor:
    """The same number, or both no number."""
    return (a == b) | (a.isnan() & b.isnan())


def _device(device: str | torch.device) -> torch.device:
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise BadInput(f"device {device!r}: {first_line(error)}") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            f"device {device!r}: no GPU is visible to torch here. Use device='cpu' (it gives the same answers, slower)."
        )
    return where


def _existing(file: str | Path) -> Path:
    path = Path(file)
    if not path.is_file():
        raise UnreadableFile(
            f"{path}: {'is a folder' if path.is_dir() else 'no such file'}. Give the path of a model file."
        )
    return path


def distinct_names(names: Sequence[str] | None, what: str) -> tuple[str, ...] | None:
    """BadInput where two are the same: nobody could tell which is meant."""
    found = None if names is None else tuple(str(name) for name in names)
    twice = next((name for name, count in Counter(found or ()).items() if count > 1), None)
    if twice is not None:
        raise BadInput(f"{what}: {twice!r} stands there more than once.")
    return found


def _floating(module: nn.Module) -> torch.dtype:
    """The arithmetic the model works in: that of its first floating parameter or buffer."""
    tensors = [*module.parameters(), *module.buffers()]
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)


def _check_weights(module: nn.Module, name: str) -> None:
    trained = dict(module.named_parameters())
    for key, value in module.state_dict().items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        # An attention mask says minus infinity in places; no trained weight does, and no running mean.
        may_mask = key not in trained and "running_" not in key
        if not bool((value.isfinite() | (may_mask & (value == -torch.inf))).all()):
            raise BadInput(
                f"{name}: {key} holds NaN or infinity. The file is damaged or the training diverged."
            )


def _check_one_input(function: Callable[..., Any], name: str, *, lengths: bool = False) -> None:
    """Raise where the signature asks for something else than one tensor, or one and its lengths."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some code of C and of TorchScript tells none
        return
    kinds = inspect.Parameter
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    needed = [
        p
        for p in parameters
        if p.default is kinds.empty and p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    if not positional and not any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        raise BadInput(f"{name} takes no input by its place; holdfast gives it one tensor, (batch, *shape).")
    others = [p for p in needed if p not in positional[:1]]
    if lengths and len(positional) > 1 and positional[1] in others and LENGTHS.search(positional[1].name):
        others.remove(positional[1])
    if others:
        names = [p.name for p in (*positional[:1], *others)]
        raise BadInput(
            f"{name} takes {len(names)} inputs ({', '.join(names)}); holdfast gives it one tensor, the input that moves. Put a module "
            f"around it that holds the others: its forward takes one tensor x and returns model(x, ...). An .onnx file needs none: there "
            f"--constant {names[-1]}=0.5 (constants=) fixes an input."
        )


def _refusal(name: str, x: Tensor, error: Exception) -> _Refused:
    """What a model raised, and what that often means where it is not about the values of its input."""
    hint = ""
    if isinstance(error, TypeError | IndexError | KeyError | AttributeError):
        hint = (
            f". holdfast gives the model one tensor of shape {('batch', *x.shape[1:])}: a model that takes a dict, a list or several "
            f"inputs needs a module around it whose forward takes that tensor"
        ).replace("'batch'", "batch")
    return _Refused(
        f"{name} refused inputs of shape {tuple(x.shape[1:])}: {first_line(error).rstrip('.')}{hint}."
    )


def _takes_lengths(model: nn.Module) -> bool:
    """Does forward want the lengths of the sequences beside them?"""
    whole = model.behind if isinstance(model, OfVectors) else model
    parameters = list(inspect.signature(whole.forward).parameters.values())
    return (
        len(parameters) > 1
        and parameters[1].default is inspect.Parameter.empty
        and bool(LENGTHS.search(parameters[1].name))
    )


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(w is None or w == s for s, w in zip(shape, wanted, strict=True))


def item_shape(shape: Sequence[int | None], time_first: bool) -> tuple[int | None, ...]:
    """The shape of one input, given that of the model's own batch."""
    return (shape[0], *shape[2:]) if time_first else tuple(shape[1:])


def _example(value: Any, device: torch.device) -> Tensor:
    """Zeros in the shape of a traced input, open axes at a small size. Zero is a valid token too."""
    shape = [d if isinstance(d, int) else 2 for d in value.shape]
    return torch.zeros(shape, dtype=value.dtype, device=device)
