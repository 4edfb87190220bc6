"""`Network`: the model under test as every method of the package calls it, with the number of queries
counted."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from holdfast import time_limit
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.foreign_text import first_line
from holdfast.memory_budget import is_out_of_memory, rows_per_call
from holdfast.network import model_identity, token_inputs
from holdfast.network.adapter import Adapter, Pool, single_input_model
from holdfast.network.classes import class_names_of, class_numbers
from holdfast.network.delegation import delegate
from holdfast.network.factories.assembly import AssemblyOptions, Source
from holdfast.network.factories.black_box import parts_of_callable
from holdfast.network.factories.estimator import parts_of_estimator
from holdfast.network.factories.exported_program import parts_of_exported_program
from holdfast.network.factories.onnx_file import parts_of_onnx_file
from holdfast.network.factories.torch_module import parts_of_module
from holdfast.network.flat_tensors import FlatTensor
from holdfast.network.low_precision import is_coarse, is_quantised, obstacle_to_graph
from holdfast.network.model_check import call_one_by_one_if_needed, check_and_count_outputs
from holdfast.network.output_comparison import same_by_rounding
from holdfast.network.recording import record_operators
from holdfast.network.several_inputs import Sizes
from holdfast.network.text import Given, HuggingFace, Texts, Tokenizer
from holdfast.network.trace import as_plain_module, convert_graph, export, module_in_float64
from holdfast.network.trees import Trees
from holdfast.process_state import cudnn_flags, without_tf32
from holdfast.region.base import Domain
from holdfast.region.columns import Columns
from holdfast.signals import call_model

if TYPE_CHECKING:
    import numpy as np

FIELDS_WITHOUT_DEFAULT = 6  # of Network: module to device; with fewer, a user called the class itself.

# Largest number of input elements in one forward pass. It keeps the activations of small networks within a
# few GiB (chosen by hand).
ELEMENTS_PER_CALL = 2**22
# The same on a CPU under a deadline, so that the deadline is checked often enough (chosen by hand).
ELEMENTS_PER_TIMED_CALL = 2**18


@dataclass(eq=False)
class Network:
    """A model as every method calls it: (n, *shape) -> (n, outputs), in the user's units.

    Build one with `from_torch`, `from_export`, `from_onnx`, `from_sklearn` or `from_callable`. The user's
    model is copied, never changed.

    Attributes:
        module: the model inside an `Adapter`.
        fingerprint: hash of everything the model consists of; "" if part of it cannot be hashed.
        shape: of one input; None for an axis of any size, or as a whole where it is not known.
        vectors: (words, dim), the embedding of a model that reads tokens.
        tokenizer: how text becomes tokens, if that is known.
        classes: the names of the outputs.
        token_model: the whole token model, token ids in; counterexamples of words are replayed through it.
        notes: what a user should know about how the model was read.
        labels: the classes as they appear in the user's data.
        columns: the columns of the table, where inputs are its rows.
        channels: the features of each frame, where inputs are windows (frames, features).
        trees: the trees, where the model is a sum of them.
        input_tensors: the inputs that one flat input holds, where the model has several.
        itself: the user's own model, where `module` was read from it. A counterexample must also change its
            prediction.
        queries: the number of inputs that the model was evaluated on.
        tokens_checked: for each input shape, the comparisons that a token model makes with its ids.
        widths: for each input shape, the number of outputs.
        state_changes: for each input shape, the name of the state that calls change, or None if calls change
            none.
        checked_pairs: for each input shape, the two inputs on which the model was checked, and its outputs for them.
    """

    module: nn.Module
    name: str
    source: Source
    domain: Domain
    fingerprint: str
    device: torch.device
    dtype: torch.dtype = torch.float32
    shape: tuple[int | None, ...] | None = None
    vectors: Tensor | None = None
    vocabulary: tuple[str, ...] | None = None
    tokenizer: Tokenizer | None = None
    classes: tuple[str, ...] | None = None
    token_model: nn.Module | None = None
    notes: tuple[str, ...] = ()
    labels: tuple[Any, ...] | None = None
    columns: Columns | None = None
    channels: Columns | None = None
    trees: Trees | None = None
    input_tensors: tuple[FlatTensor, ...] = ()
    itself: "Network | None" = None
    queries: int = 0
    tokens_checked: dict[tuple[int, ...], list[Callable[[Tensor], Tensor]]] = field(default_factory=dict)
    widths: dict[tuple[int, ...], int] = field(default_factory=dict)
    state_changes: dict[tuple[int, ...], str | None] = field(default_factory=dict)
    checked_pairs: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _programs: dict[tuple[int, ...], torch.export.ExportedProgram] = field(default_factory=dict)
    _twins: "dict[tuple[int, ...], Network | None]" = field(default_factory=dict)
    _recorded: dict[tuple[int, ...], fx.GraphModule | None] = field(default_factory=dict)

    def __new__(cls, *given: Any, **named: Any) -> "Network":
        if given and len(given) + len(named) < FIELDS_WITHOUT_DEFAULT:
            raise BadInput(
                "Network: build one with hf.Network.from_torch(module), from_onnx(path), from_sklearn(estimator) "
                "or from_callable(function)."
            )
        return super().__new__(cls)

    def __repr__(self) -> str:
        words = "" if self.vectors is None else f", {len(self.vectors)} words"
        kind = str(self.dtype).removeprefix("torch.") if self.differentiable else "black box"
        return (
            f"Network({self.name} from {self.source}, {kind} on {self.device}, domain {self.domain}{words})"
        )

    # ---- factories

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
        inputs: Sizes | None = None,
        constants: Mapping[str, Any] | None = None,
        input_scaler: Any = None,
        output_mean: float | Sequence[float] | Tensor | None = None,
        output_std: float | Sequence[float] | Tensor | None = None,
        output_scaler: Any = None,
    ) -> "Network":
        """A network from a torch module, (batch, *shape) -> (batch, outputs).

        Args:
            module: an nn.Module in evaluation mode.
            domain: lowest and highest value of an input, in the units of your data. None: unbounded.
            mean: subtracted from the input before the module sees it. A list has one number for each channel
                of an image (channels, height, width) or each feature of a sequence (frames, features). Where
                a list would be ambiguous, as for shape (3, 3), give an array that broadcasts over an input.
            std: the input is divided by it after `mean` is subtracted; given like `mean`.
            shape: of one input. Needed only for work that starts before any data are seen. For tokens,
                (length,).
            time_first: the module expects (time, batch, ...). Data for holdfast always have the batch axis
                first.
            pool: for a module that returns (batch, time, outputs): measure the last, the mean or the largest
                output over time.
            tokens: the module reads token ids through nn.Embedding; perturbations then act on its word
                vectors.
            vocabulary: the words, so that results show them; implies tokens.
            classes: names of the outputs, in their order, for results and for labels in data. None: those of
                a Hugging Face model (`config.id2label`), if it has any.
            tokenizer: how text becomes tokens: a tokenizer.json, a tokenizer of the packages tokenizers or
                transformers, or a function, text -> words of the vocabulary or token ids; implies tokens.
                None: `holdfast.network.text.Words`.
            output: which part of the module's answer is measured. Of a dict or a ModelOutput, its name; None:
                its logits, or its only tensor. Of a tuple, its position, counted from 0; None: the first,
                unless another could be meant.
            device: where the network runs, as torch names it: "cpu", "cuda", "cuda:1".
            name: its name in results. None: the name of its class.
            fingerprint: what identifies the model, as in `from_callable`. None: everything that the module
                reads is hashed.
            inputs: of a module with several inputs, or with a dict of inputs: the names and sizes of the ones that
                are perturbed, such as {"state": 8, "image": (3, 32, 32)}. Data are then a dict of arrays,
                or one array (batch, numbers) that holds all of them.
            constants: the values of other inputs, such as {"goal": [0.5, -0.2]}, without a batch axis.
            input_scaler: a fitted StandardScaler, MinMaxScaler, RobustScaler or MaxAbsScaler of scikit-learn
                that the model's inputs passed in training, instead of `mean` and `std`. Its features are the last axis of
                an input, or all numbers of it.
            output_mean: added to the outputs after they are multiplied by `output_std`, so that they are in your
                units. One number, one for each along the last axis of the model's answer, or one for each of all.
            output_std: the outputs are multiplied by it; given like `output_mean`.
            output_scaler: the fitted scaler of the targets, whose inverse gives your units, instead of
                `output_mean` and `output_std`.
        """
        are_logits = output in (None, "logits")  # The names of a configuration are those of the logits.
        names = class_names_of(module) if classes is None and are_logits else classes
        options = AssemblyOptions(
            domain=domain,
            mean=mean,
            std=std,
            time_first=time_first,
            pool=pool,
            vocabulary=vocabulary,
            classes=names,
            tokenizer=tokenizer,
            output=output,
            device=device,
            input_scaler=input_scaler,
            output_mean=output_mean,
            output_std=output_std,
            output_scaler=output_scaler,
        )
        parts = parts_of_module(
            module,
            options,
            shape=shape,
            tokens=tokens,
            name=name,
            fingerprint=fingerprint,
            inputs=inputs,
            constants=constants,
        )
        return cls(**vars(parts))

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
        input_scaler: Any = None,
        output_mean: float | Sequence[float] | Tensor | None = None,
        output_std: float | Sequence[float] | Tensor | None = None,
        output_scaler: Any = None,
    ) -> "Network":
        """A network from a `.pt2` file of torch.export.save.

        torch reads parts of such a file with pickle and sympy, and both can run code that the file contains.
        Therefore the file is opened only with trust=True; use it for files from people you trust. ONNX files
        contain no code. A token model is recognised by its input.

        Args:
            file: the path of the file.
            trust: whether to open it although it can run code.
            domain, mean, std, time_first, pool: the inputs and their scaling, as in `from_torch`.
            vocabulary, classes, tokenizer: words and names, as in `from_torch`.
            output, device: what is measured and where it runs, as in `from_torch`.
            input_scaler, output_mean, output_std, output_scaler: your units, as in `from_torch`.
        """
        options = AssemblyOptions(
            domain=domain,
            mean=mean,
            std=std,
            time_first=time_first,
            pool=pool,
            vocabulary=vocabulary,
            classes=classes,
            tokenizer=tokenizer,
            output=output,
            device=device,
            input_scaler=input_scaler,
            output_mean=output_mean,
            output_std=output_std,
            output_scaler=output_scaler,
        )
        return cls(**vars(parts_of_exported_program(file, options, trust=trust)))

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
        inputs: Sequence[str] | Sizes | None = None,
        input_scaler: Any = None,
        output_mean: float | Sequence[float] | Tensor | None = None,
        output_std: float | Sequence[float] | Tensor | None = None,
        output_scaler: Any = None,
    ) -> "Network":
        """A network from an ONNX file (`.onnx`, `.onnx.gz`), imported to torch operators.

        Args:
            file: the path of the file.
            domain, mean, std, time_first, pool: the inputs and their scaling, as in `from_torch`.
            vocabulary, classes, tokenizer: words and names, as in `from_torch`.
            device: where the network runs, as in `from_torch`.
            black_box: run the file with onnxruntime (extra `runtime`) as a black box, without gradients and
                proofs. Files with unknown operators are run so too; the network's notes say it.
            batched: False if the file takes a single input without a batch axis.
            constants: values for all inputs except the perturbed one.
            output: name of the output to measure. BadInput lists the outputs if it is missing and several
                could be meant.
            inputs: the names of several inputs that are perturbed together, with their sizes where the file
                leaves them open. Data are then a dict of arrays, or one array that holds all of them.
            input_scaler, output_mean, output_std, output_scaler: your units, as in `from_torch`.
        """
        options = AssemblyOptions(
            domain=domain,
            mean=mean,
            std=std,
            time_first=time_first,
            pool=pool,
            vocabulary=vocabulary,
            classes=classes,
            tokenizer=tokenizer,
            output=output,
            device=device,
            input_scaler=input_scaler,
            output_mean=output_mean,
            output_std=output_std,
            output_scaler=output_scaler,
        )
        parts = parts_of_onnx_file(
            file,
            options,
            black_box=black_box,
            batched=batched,
            constants=constants,
            inputs=inputs,
        )
        return cls(**vars(parts))

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
        """A network from any function of a numpy array, (n, *shape) float32 -> (n, outputs).

        Such a black box can be attacked and estimated, but nothing about it can be proved.

        Args:
            function: called with arrays of any number of rows.
            domain: lowest and highest value of an input. None: unbounded.
            shape: of one input. Needed only for work that starts before any data are seen.
            classes: names of the outputs, in their order.
            name: its name in results. None: the name of the function.
            fingerprint: what identifies the model in stored runs: a text of your own, such as its version, or
                the paths of the files that it consists of. None: everything that the function reads is
                hashed. If something cannot be hashed, a note says so, and a run of the network can be neither
                resumed nor joined with another.
        """
        parts = parts_of_callable(
            function,
            AssemblyOptions(domain=domain, classes=classes),
            shape=shape,
            name=name,
            fingerprint=fingerprint,
        )
        return cls(**vars(parts))

    @classmethod
    def from_sklearn(
        cls,
        estimator: Any,
        *,
        columns: Columns | None = None,
        domain: tuple[float | Tensor, float | Tensor] | Domain | None = None,
        name: str | None = None,
    ) -> "Network":
        """A network from a fitted classifier or regressor of scikit-learn, XGBoost or LightGBM, or a pipeline
        that ends in one.

        Linear models and multi-layer perceptrons, with scalers before them, become torch modules in float64
        that every method can bound. Trees and their sums are read leaf by leaf: they have no gradients, and
        proofs add up bounds over leaves. Everything else is a black box. Classes and column names are the
        estimator's own.

        Args:
            estimator: fitted, as sklearn's `fit` returns it.
            columns: the columns of the table, hf.Columns.of(frame). Needed for columns that hold words.
            domain: lowest and highest value of a number, where the columns do not give it.
            name: its name in results. None: the name of its class.
        """
        parts, own = parts_of_estimator(estimator, AssemblyOptions(domain=domain), columns=columns, name=name)
        return cls(**vars(parts), itself=None if own is None else cls(**vars(own)))

    # ---- evaluation

    @property
    def differentiable(self) -> bool:
        return self.source != "black box"

    def __call__(self, x: Tensor) -> Tensor:
        """(n, *shape) -> (n, outputs), without gradients. Every row counts as one query."""
        ask = delegate()
        if ask is not None:
            self.queries += len(x)
            return ask(self, "__call__", x)
        with torch.no_grad(), without_tf32():
            try:
                return torch.cat([self._forward(part) for part in self._parts(x)])
            except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
                if is_out_of_memory(error):
                    raise
                if not call_one_by_one_if_needed(self, x[:2].to(self.device, self.dtype)):
                    raise
            return torch.cat([self._forward(part) for part in self._parts(x)])

    def score_and_gradient(self, x: Tensor, score: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The scores (n,) of the outputs for x (n, *shape), and their gradients (n, *shape).

        Args:
            score: (n, outputs) -> (n,); each score depends only on its own row.
        """
        assert self.differentiable
        x = x.detach().to(self.device, self.dtype).requires_grad_(True)
        # cuDNN's recurrent layers have no backward pass in evaluation mode; torch's own have one.
        with torch.enable_grad(), cudnn_flags(enabled=False):
            gradient = None
            try:
                outputs = self._forward(x)
            except RuntimeError as error:
                outputs = self._without_gradient(x, error)
            values = score(outputs)
            try:
                # If the model or the score leaves torch's graph (a comparison, numpy), the gradient is taken
                # to be zero.
                if values.requires_grad:
                    gradient = torch.autograd.grad(values.sum(), x, allow_unused=True)[0]
            except RuntimeError as error:
                self._without_gradient(None, error)
        if gradient is None:
            return values.detach(), torch.zeros_like(x).detach()
        return values.detach(), torch.nan_to_num(gradient)

    def _without_gradient(self, x: Tensor | None, error: RuntimeError) -> Tensor:
        """The outputs without gradients, and a note, where torch cannot differentiate the model (for example
        after in-place writes)."""
        if is_out_of_memory(error):
            raise error
        reason = first_line(error).rstrip(".")
        note = (
            f"torch has no gradient of the model ({reason}), so searches that follow one proceed without it"
        )
        self.notes = self.notes if note in self.notes else (*self.notes, note)
        return torch.zeros(0) if x is None else self(x)

    def _forward(self, x: Tensor) -> Tensor:
        time_limit.raise_if_expired()
        self.queries += len(x)
        outputs: Tensor = call_model(self.name, self.module, x)
        return outputs.to(self.dtype) if outputs.is_floating_point() else outputs

    def _parts(self, x: Tensor) -> Iterator[Tensor]:
        """Batches of x that fit into one forward pass, on the network's device."""
        elements = time_limit.at_once(ELEMENTS_PER_CALL, ELEMENTS_PER_TIMED_CALL, self.device)
        rows = rows_per_call(x[0].numel(), elements) if len(x) else 1
        for part in x.split(rows):
            yield part.to(self.device, self.dtype)

    def ask_tokens(self, tokens: Tensor) -> Tensor:
        """(n, length) token ids -> (n, outputs), through the user's whole model, embedding included."""
        assert self.token_model is not None
        ask = delegate()
        if ask is not None:
            self.queries += len(tokens)
            return ask(self, "ask_tokens", tokens)
        time_limit.raise_if_expired()
        self.queries += len(tokens)
        with torch.no_grad(), without_tf32():  # as in __call__, so that batches and single sentences agree
            outputs: Tensor = call_model(self.name, self.token_model, tokens.to(self.device))
        return outputs

    def outputs_for(self, x: Tensor) -> int:
        """The number of outputs for inputs shaped like x.

        Raises BadInput if the model is not fit to be measured on them.

        Unfit is a model that raises an exception on the first and on the last rows, mixes rows of a batch,
        draws random numbers or changes its own state.
        """
        return check_and_count_outputs(self, x)

    @property
    def output_spread(self) -> Tensor | None:
        """The numbers by which outputs are multiplied to be in the user's units, if any: their usual size."""
        spread = getattr(single_input_model(self.module) or self.module, "output_std", None)
        return spread if isinstance(spread, Tensor) else None

    def exactly(self, x: Tensor) -> Tensor:
        """The user's numbers in the network's dtype if it represents all of them exactly, else in float64.

        Perturbations are measured from these; only the model's input is rounded to its own dtype. A black box
        gets rounded numbers.
        """
        x = x.to(self.device)
        rounded = x.to(self.dtype)
        exact = not self.differentiable or bool((rounded.double() == x.double()).all() | x.isnan().any())
        return rounded if exact else x.double()

    # ---- the traced graph and variants of the network

    def program(self, x: Tensor) -> torch.export.ExportedProgram:
        """The traced graph for inputs shaped like x, with a free batch axis.

        Raises UnsupportedLayer if there is none.
        """
        if not self.differentiable:
            raise UnsupportedLayer(
                f"{self.name} is a black box, so nothing about it can be proved. Attacks and estimates still "
                f"work."
            )
        obstacle = obstacle_to_graph(self.module)
        if obstacle is not None:
            raise UnsupportedLayer(obstacle)
        shape = tuple(x.shape[1:])
        if shape not in self._programs:
            self._programs[shape] = export(self.module, x[:1].to(self.device, self.dtype))
        return self._programs[shape]

    def recorded_operators(self, x: Tensor) -> fx.GraphModule | None:
        """The operators of the network for inputs shaped like x, recorded from calls; None if that is not enough."""
        shape = tuple(x.shape[1:])
        if shape not in self._recorded:
            example = x[:1].to(self.device, self.dtype)
            has_graph = self.differentiable and obstacle_to_graph(self.module) is None
            self._recorded[shape] = record_operators(self.module, example) if has_graph else None
        return self._recorded[shape]

    def operators(self, x: Tensor) -> fx.GraphModule:
        """The operators of the network for inputs shaped like x, as a module with a free batch axis.

        They are recorded where that is enough, which is much faster, else those of `program`. The caller may change
        the graph, but not the weights. Raises UnsupportedLayer if there is none.
        """
        recorded = self.recorded_operators(x)
        if recorded is None:
            return as_plain_module(self.program(x))
        return fx.GraphModule(recorded, copy.deepcopy(recorded.graph))

    def identity(self, x: Tensor) -> str:
        """The hash of everything that decides the outputs for inputs shaped like x: the model, how it is
        called, its traced program."""
        return model_identity.identity(self, x)

    def double(self, x: Tensor) -> "Network | None":
        """The same network in float64 for inputs shaped like x, or None if there is none (a black box, a
        fixed dtype inside)."""
        if self.dtype == torch.float64 or not self.differentiable:
            return self if self.differentiable else None
        if is_coarse(self.dtype) and bool((x.to(self.dtype).double() == x.double()).all()):
            return None  # What its rounding decides is its answer, unless the data themselves are rounded.
        shape = tuple(x.shape[1:])
        if shape not in self._twins:
            self._twins[shape] = self._find_double(x)
        return self._twins[shape]

    def _find_double(self, x: Tensor) -> "Network | None":
        """The network with its module in float64, else with its traced graph; None if neither gives the same
        outputs.

        A quantised network has none: at a tie of a rounding, float64 would take another step than the network
        that is deployed.
        """
        if is_quantised(self.module):
            return None

        def convert_program() -> nn.Module:
            program = as_plain_module(self.program(x))
            return Adapter(convert_graph(program, dtype=torch.float64, device=self.device, own=self.dtype))

        ways: tuple[Callable[[], nn.Module], ...] = (
            lambda: module_in_float64(self.module, self.device, self.dtype),
            convert_program,
        )
        for convert in ways:
            with contextlib.suppress(Exception):
                converted = self.around(convert())
                converted.dtype = torch.float64
                probe = x[:2].to(self.device, self.dtype)
                # A layer that rounds to float32 inside shows as a difference.
                if same_by_rounding(self(probe), converted(probe)):
                    return converted
        return None

    def around(self, module: nn.Module) -> "Network":
        """A network with the same options around another module, without anything that was derived from this
        module."""
        other = copy.copy(self)
        other.module, other.widths = module, {}
        other.itself, other.trees = None, None
        other.forget_checks()
        return other

    def forget_checks(self) -> None:
        """Drop the traced programs, float64 variants and checks of the model, after the module was replaced."""
        self._programs, self._twins, self._recorded = {}, {}, {}
        self.state_changes, self.checked_pairs = {}, {}

    # ---- tables, texts and tokens

    def with_columns(self, columns: Columns) -> "Network":
        """The same network for rows of a table with these columns, or for windows with these channels."""
        if not isinstance(columns, Columns):
            raise BadInput(
                f"with_columns: expected hf.Columns.of(frame), or hf.Columns.of_channels(names), got {columns!r}."
            )
        count = len(columns.features)
        if (
            columns.channels
            and self.shape is not None
            and (len(self.shape) < 2 or self.shape[-1] not in (None, count))
        ):
            raise BadInput(
                f"{self.name} takes inputs of shape {self.shape}, and there are {count} channels "
                f"({', '.join(columns.features[:6])}): windows of (frames, features) have one for each feature."
            )
        if not columns.channels and self.shape is not None and self.shape != (count,):
            raise BadInput(
                f"{self.name} takes inputs of shape {self.shape}, the columns are {count} numbers in a row. The "
                "features of windows (frames, features) are described by hf.Columns.of_channels."
            )
        other = copy.copy(self)
        other.columns, other.channels = (None, columns) if columns.channels else (columns, None)
        return other

    def rows(self, table: Any) -> Tensor:
        """A DataFrame -> (rows, features) float64, encoded by the columns of the network.

        Without columns the numbers are returned unchanged.
        """
        return (self.columns or Columns.named(table.columns)).encode(table)

    def places_of(self, y: Any) -> Any:
        """Class labels of the user's data as output numbers.

        Values that are output numbers already are returned unchanged.
        """
        return class_numbers(y, self.labels, self.classes, self.name)

    def embed(self, tokens: Tensor) -> Tensor:
        """(batch, length) token ids -> (batch, length, dim) word vectors."""
        return token_inputs.embed(self, tokens)

    def read_texts(self, texts: Sequence[str], places: Sequence[str] | None = None, **options: Any) -> Texts:
        """Texts as tokens, with notes about them. Options as in `holdfast.network.text.read_texts`."""
        return token_inputs.read_network_texts(self, texts, places, **options)

    def tokens(self, text: str) -> Tensor:
        """(length,) token ids of a text, by the network's tokenizer. Warns of unknown words."""
        found: Tensor = self.inputs([text])[0]
        return found

    def inputs(self, x: Any, *, alike: bool = False) -> Any:
        """A list of texts as token ids: one tensor if all are equally long, else a list.

        Anything else is returned unchanged.

        Args:
            alike: raise BadInput if the texts have different numbers of tokens.
        """
        return token_inputs.tokens_of_texts(self, x, alike=alike, stacklevel=3)

    def sentence(self, tokens: Tensor | Sequence[int]) -> str:
        """The text of token ids, without special tokens: of a counterexample, for instance.

        Without a tokenizer that joins pieces, the words stand side by side.
        """
        ids = [
            int(token) for token in tokens if int(token) >= 0
        ]  # Shorter texts of a batch end with negative numbers.
        if isinstance(self.tokenizer, HuggingFace):
            return self.tokenizer.sentence(ids)
        return " ".join(self.words(torch.tensor(ids, dtype=torch.int64)))

    def words(self, tokens: Tensor) -> list[str]:
        """The words of (length,) token ids, or the ids as text if the network has no vocabulary."""
        return [self.vocabulary[t] if self.vocabulary else str(t) for t in tokens.tolist()]
