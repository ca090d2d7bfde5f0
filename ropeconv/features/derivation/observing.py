"""Run the attention of a model, and see the queries and keys that it multiplies.

`AttentionObserver` hooks into a model without weights and keeps, for every attention layer, the
queries and keys of the product Q K^T. Its words, here and in the modules that use it:

run              one forward pass of `TOKENS` tokens, which are all the same
undisturbed run  a run in which nothing is replaced: without weights, all projections give zeros
override         puts other numbers in place of the output of a projection, in one run
NaN              put in place of an output, shows what is computed from it: that is NaN too
skipped module   a module after the attention, which returns its input to save time
name inside      the name of a module below its layer: self_attn.q_proj of model.layers.0
"""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import Module, ModuleList
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from .rotation import Numbers
from .weightless import NORM_NAME

TOKENS = 29
"""Tokens of a run: a prime, so that no other dimension of a model has that size."""
TOKEN_ID = 5
"""The token of every position, which any vocabulary has."""
LEAST_VISIBLE_SCORE = -1e4
"""Lower scores are masked: masks add -inf, or the least number of a dtype."""
ROTARY_NAME = re.compile(r"rotary|rope", re.IGNORECASE)
"""Names of the classes of modules that compute cosines and sines."""
PRODUCT_NAMES = ("matmul", "__matmul__", "bmm")
"""Names of torch functions that multiply queries by transposed keys."""

Override = Callable[[str, torch.Tensor], torch.Tensor | None]
"""A function of the name of a module inside its layer and the output of that module.

It returns what replaces the output, or None to keep it.
"""


@dataclass
class Seen:
    """The attention of one layer in a run."""

    queries: Numbers
    """Numbers of shape (heads, tokens, width), after the rotation."""

    keys: Numbers
    """Likewise."""

    visible: Numbers | None = None
    """Whether each token sees each other one, of shape (tokens, tokens); None without a mask."""

    score: float | None = None
    """The score of the first token of the first head for itself; None where that is not seen."""

    count: int = 1
    """How many times the layer computed attention."""

    ran_before: list[str] = field(default_factory=list)
    """Names of the modules inside the layer that ran before the attention, in order."""

    input_from: dict[str, str] = field(default_factory=dict)
    """For a module, the one whose output is its input: {"self_attn.q_proj": "input_layernorm"}."""


class AttentionObserver:
    """A model that is run to see its attention.

    Args:
        model: A model of `without_weights`.
        context: The number of positions that it may have.
        skipped_modules: Names inside a layer of modules after its attention, which are not run.
    """

    def __init__(self, model: Module, context: int, skipped_modules: Iterable[str] = ()) -> None:
        """Add hooks to the modules of a model, which note in these attributes what a run shows."""
        self.model = model
        """The model, with hooks."""

        self.skipped_modules = set(skipped_modules)
        """Names inside a layer of modules that return their input."""

        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        """Whether the positions of the tokens can be chosen; else they are 0, 1, 2, ..."""

        self.positions = spread(context) if self.takes_positions else list(range(TOKENS))
        """The positions of the tokens in a run."""

        self.modules: dict[str, Module] = {}
        """The modules with parameters and the norms of a layer, by their name inside it.

        One for each name: that of the first layer that has it.
        """

        # what all runs so far have shown

        self.can_be_skipped: dict[str, bool] = {}
        """For each child of a layer, such as "mlp", whether it can return its input and do nothing.

        It can if in every layer and every run it came after the attention, and its output had the
        shape of its input.
        """

        self.layers_with_unknown_attention: dict[str, None] = {}
        """Names of layers with a softmax, before which no product of queries and keys was seen."""

        # what the present run shows

        self.seen: dict[str, Seen] = {}
        """The attention of each layer, by the name of the layer."""

        self.layers_with_nan: dict[str, None] | None = None
        """Names of layers that computed a NaN, as keys; None in runs that do not look for NaN."""

        self._input_has_nan = False
        """Whether the input of the watched module had a NaN."""

        # what the present run is asked to do

        self._override: Override = keep_outputs
        """Gives the outputs that are replaced."""

        self._norms_do_nothing = False
        """Whether norms return their input."""

        self._watched: tuple[str, str] | None = None
        """The layer and the module inside it whose input is checked for NaN; None for no check."""

        # where the present run is

        self.layer = ""
        """The name of the layer that runs; empty outside layers."""

        self._outer: list[str] = []
        """The names of layers around it: a layer may run inside another one."""

        self._factors_before_softmax: tuple[Any, Any] | None = None
        """Queries and keys that were multiplied in this layer, and have had no softmax yet."""

        self._modules_so_far: list[str] = []
        """Names of modules that have run in this layer, in order."""

        self._input_from: dict[str, str] = {}
        """`Seen.input_from` of this layer so far."""

        self._maker_by_id: dict[int, tuple[str, Any]] = {}
        """The module that made a tensor of this layer, by the tensor's id().

        The tensor is kept too, so that no other one gets its id while the layer runs.
        """

        self._add_hooks()

    # hooks

    def _add_hooks(self) -> None:
        """Add hooks to each layer of the model and to the modules inside it.

        A layer is an outermost numbered item of a list of modules, such as model.layers.3. Its
        hooks note that it begins and ends.
        """
        modules = dict(self.model.named_modules())
        for name, module in modules.items():
            layer = _layer_around(name, modules)
            if not layer:  # outside of all layers, as embeddings are
                continue
            if name == layer:
                module.register_forward_pre_hook(self._begin_layer(layer))
                module.register_forward_hook(self._end_layer)
                continue
            name_inside = name.removeprefix(f"{layer}.")
            self._add_hooks_inside(layer, name_inside, module)

    def _add_hooks_inside(self, layer: str, name_inside: str, module: Module) -> None:
        """Add the hooks of a module inside a layer, which record and replace its output.

        Args:
            layer: The name of the layer, such as "model.layers.3".
            name_inside: The name of the module below the layer, such as "mlp" or
                "self_attn.q_proj".
            module: The module.
        """
        # A module that comes after the attention, such as "mlp", has no effect on queries and keys.
        # `skipped_modules` has those that an earlier run has found: they do nothing here, to save
        # time. For the other children of the layer, this run records whether they can be skipped.
        is_child_of_layer = "." not in name_inside
        if name_inside in self.skipped_modules:
            module.forward = _return_first_input
        elif is_child_of_layer:
            hook = partial(self._record_whether_skippable, layer, name_inside)
            module.register_forward_hook(hook, with_kwargs=True)

        # projections and norms, whose outputs a run can replace; a norm may have no weights
        has_parameters = any(True for _ in module.parameters(recurse=False))
        is_norm = NORM_NAME.search(type(module).__name__) is not None
        if has_parameters or is_norm:
            hook = partial(self._record_and_replace_output, layer, name_inside)
            module.register_forward_hook(hook, with_kwargs=True)
            self.modules.setdefault(name_inside, module)

    def _begin_layer(self, name: str) -> Callable[..., None]:
        """Return a hook that torch calls before a layer runs.

        Args:
            name: The name of the layer, such as "model.layers.3".
        """

        def begin(module: Module, args: Any) -> None:
            """Record that the layer runs now, and forget what another layer has done."""
            self._outer.append(self.layer)
            self.layer = name
            self._factors_before_softmax = None
            self._modules_so_far = []
            self._input_from = {}
            self._maker_by_id = {}

        return begin

    def _end_layer(self, module: Module, args: Any, output: Any) -> None:
        """Record that a layer has run, and that the layer around it continues; torch calls this."""
        self.layer = self._outer.pop() if self._outer else ""

    def _record_whether_skippable(
        self, layer: str, name_inside: str, module: Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        """Record whether a child of a layer, such as "mlp", has no effect on queries and keys.

        It has none if it runs after the attention. torch calls this after the child has run. A
        model that is built later skips the child: it returns its input, to save time.

        Args:
            layer: The name of the layer, such as "model.layers.3".
            name_inside: The name of the child below the layer.
            module: The child.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            output: Its output.
        """
        # the child may also be called outside of its layer
        if self.layer != layer:
            return

        # The attention of a layer is computed at its softmax. The child must run after it, must
        # have none of the projections before it, and must return the shape of its input.
        attention = self.seen.get(layer)  # None before the softmax
        waits_for_softmax = self._factors_before_softmax is not None
        can_be_skipped_here = False
        if attention is not None and not waits_for_softmax:
            keeps_shape = _has_shape_of(_first_input(args, kwargs), output)
            prefix = f"{name_inside}."
            has_projections = any(name.startswith(prefix) for name in attention.ran_before)
            can_be_skipped_here = keeps_shape and not has_projections

        # a child has the same name in all layers, and must be skippable in each of them
        can_be_skipped_so_far = self.can_be_skipped.get(name_inside, True)
        self.can_be_skipped[name_inside] = can_be_skipped_so_far and can_be_skipped_here

    def _record_and_replace_output(
        self, layer: str, name_inside: str, module: Module, args: Any, kwargs: Any, output: Any
    ) -> Any:
        """Record a call of a module inside a layer, and return the output for the model to use.

        torch calls this after the module has run.

        Args:
            layer: The name of the layer, such as "model.layers.3".
            name_inside: The name of the module below the layer, such as "self_attn.q_proj".
            module: The module.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            output: The output that the module has computed.
        """
        module_input = _first_input(args, kwargs)
        self._record_call(layer, name_inside, module_input)
        runs_in_its_layer = self.layer == layer
        if not runs_in_its_layer or not isinstance(output, torch.Tensor):
            return output

        result = self._choose_output(module, name_inside, module_input, output)
        # A later module whose input is this tensor finds here which module made it. The tensor is
        # stored too, so that no other tensor gets its id.
        self._maker_by_id[id(result)] = (name_inside, result)
        return result

    def _record_call(self, layer: str, name_inside: str, module_input: Any) -> None:
        """Record the place of a module in the order of calls, and which module made its input.

        Args:
            layer: The name of the layer, such as "model.layers.3".
            name_inside: The name of the module below the layer, such as "self_attn.q_proj".
            module_input: The first argument of the module.
        """
        # a run of `reaches` asks whether a NaN arrives at one module
        is_watched = self._watched == (layer, name_inside)
        if is_watched and has_nan(module_input):
            self._input_has_nan = True

        # the input may be a tensor that another module of the layer has returned
        if id(module_input) in self._maker_by_id:
            name_of_maker, _tensor = self._maker_by_id[id(module_input)]
            self._input_from[name_inside] = name_of_maker
        self._modules_so_far.append(name_inside)

    def _choose_output(
        self, module: Module, name_inside: str, module_input: Any, output: torch.Tensor
    ) -> torch.Tensor:
        """Return the output of a module in this run: its own output, or a replacement.

        Args:
            module: The module.
            name_inside: The name of the module below its layer, such as "self_attn.q_proj".
            module_input: The first argument of the module.
            output: The output that the module has computed.
        """
        # the caller of `run` replaces the output, for example by random numbers
        replacement = self._override(name_inside, output)
        if replacement is not None:
            return replacement

        # norms are switched off: a norm returns a copy of its input
        if self._norms_do_nothing and _is_norm_call(module, name_inside, module_input, output):
            return torch.clone(module_input)
        return output

    # runs

    def run(
        self,
        override: Override,
        positions: Sequence[int] | None = None,
        norms_do_nothing: bool = False,
    ) -> dict[str, Seen]:
        """Run the model once, with the outputs of some modules replaced, and note its attention.

        Args:
            override: A function that is given the name of a module inside a layer and its output,
                and returns what replaces the output; None for nothing.
            positions: The positions of the tokens, None for those of the observer.
            norms_do_nothing: Whether norms return their input, so that the numbers of projections
                reach the product of queries and keys.

        Returns:
            The attention of each layer, by its name.
        """
        self.seen = {}
        self._override = override
        self._norms_do_nothing = norms_do_nothing

        arguments: dict[str, Any] = {"input_ids": torch.full((1, TOKENS), TOKEN_ID)}
        parameters = inspect.signature(self.model.forward).parameters
        if self.takes_positions:
            arguments["position_ids"] = torch.tensor([list(positions or self.positions)])
        if "use_cache" in parameters:
            arguments["use_cache"] = False
        with torch.no_grad(), ScoreWatcher(self):
            self.model(**arguments)
        return self.seen

    def reaches(self, layer: str, source: str, target: str) -> bool:
        """Whether the input of one module is computed from the output of another one.

        The model runs with NaN in place of the output of the source. All that is computed from it
        is NaN then too, so the input of the target shows whether it is.

        Args:
            layer: The name of the layer, such as "layers.0".
            source: The module whose output is replaced, by its name inside the layer, such as
                "input_layernorm".
            target: The module whose input is checked, such as "self_attn.q_proj".
        """

        def give_nan(name: str, output: torch.Tensor) -> torch.Tensor | None:
            is_source = name == source and self.layer == layer
            return torch.full_like(output, float("nan")) if is_source else None

        # `_record_call`, which runs at each call of a module, checks the input of the target
        self._watched = (layer, target)
        self._input_has_nan = False
        try:
            self.run(give_nan)
        except Exception:  # a class may check the numbers
            return False
        finally:
            self._watched = None
        return self._input_has_nan

    def layers_with_positions(self) -> list[str]:
        """Return the names of the layers that compute with the output of rotary modules.

        That output (cosines and sines) is replaced by NaN, so each layer that uses it computes NaN.
        A layer does not pass NaN on to the next one, since its last projection has no weights here,
        and gives zeros.
        """

        def give_nan(module: Module, args: Any, output: Any) -> Any:
            return tree_map(_fill_with_nan, output)

        hooks = []
        for module in self.model.modules():
            if ROTARY_NAME.search(type(module).__name__):
                hooks.append(module.register_forward_hook(give_nan))

        # `ScoreWatcher`, which sees each call of a torch function in the run, adds to this the name
        # of a layer in which a result has a NaN
        self.layers_with_nan = {}
        try:
            self.run(keep_outputs)
        except Exception:  # a class may check the numbers
            return []
        finally:
            found = list(self.layers_with_nan)
            self.layers_with_nan = None
            for hook in hooks:
                hook.remove()
        return found

    # called by ScoreWatcher

    def note_product(self, queries: Any, keys: Any) -> None:
        """Keep the factors of a product, which may be queries and keys, until the next softmax.

        Args:
            queries: Tensor of shape (..., tokens, width).
            keys: Tensor of shape (..., tokens, width).
        """
        self._factors_before_softmax = (queries, keys)

    def note_softmax(self, visible: Any, scores: Any = None) -> None:
        """Record the attention of the layer that runs, when its scores go through a softmax.

        Models multiply many tensors. The last product before a softmax is the product of queries
        and keys.

        Args:
            visible: Whether each token sees each other token, of shape (tokens, tokens); None where
                no mask was found.
            scores: The scores, of shape (..., tokens, keys); None where the class computes them
                inside another function.
        """
        # a softmax outside of all layers is not attention
        if not self.layer:
            return
        # no product came before: the class multiplies queries and keys in an unknown way
        if self._factors_before_softmax is None:
            self.layers_with_unknown_attention[self.layer] = None  # a set of names, in order
            return
        queries, keys = self._factors_before_softmax
        self._factors_before_softmax = None

        # the score of the first token for itself, which shows the factor on scores, 1 / sqrt(width)
        first_score = None
        if scores is not None:
            first_score = float(scores.detach().flatten()[0])

        # some layers compute attention more than once; the last one is kept, with the count
        earlier = self.seen.get(self.layer)
        count = earlier.count + 1 if earlier else 1
        self.seen[self.layer] = Seen(
            queries=_as_heads_tokens_width(queries),
            keys=_as_heads_tokens_width(keys),
            visible=None if visible is None else np.asarray(visible),
            score=first_score,
            count=count,
            ran_before=list(self._modules_so_far),
            input_from=dict(self._input_from),
        )


def _layer_around(name: str, modules: Mapping[str, Module]) -> str:
    """Return the outermost layer that has a module, which may be itself; empty without one.

    Args:
        name: The name of the module: model.layers.3.mlp.experts.7 is in model.layers.3.
        modules: All modules by name.
    """
    parts = name.split(".")
    for index, part in enumerate(parts):
        parent = modules.get(".".join(parts[:index]))
        if part.isdigit() and isinstance(parent, ModuleList):
            return ".".join(parts[: index + 1])
    return ""


def _first_input(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the first argument of a call, by position or else by name; None without any."""
    return args[0] if args else next(iter(kwargs.values()), None)


def _return_first_input(*args: Any, **kwargs: Any) -> Any:
    """Take the place of `forward` of a module that is skipped."""
    return args[0] if args else next(iter(kwargs.values()))


def _is_norm_call(module: Module, name: str, given: Any, output: torch.Tensor) -> bool:
    """Whether a module is a norm by its names, and returned the shape that it was given."""
    has_name_of_norm = NORM_NAME.search(f"{name} {type(module).__name__}") is not None
    return has_name_of_norm and _has_shape_of(given, output)


def _has_shape_of(given: Any, output: Any) -> bool:
    """Whether an output is a tensor of the shape and dtype of an input."""
    if not (isinstance(given, torch.Tensor) and isinstance(output, torch.Tensor)):
        return False
    return bool(given.shape == output.shape and given.dtype == output.dtype)


def _as_heads_tokens_width(tensor: Any) -> Numbers:
    """Return queries or keys as an array of shape (heads, tokens, width)."""
    flat = tensor.detach().reshape(-1, *tensor.shape[-2:])
    numbers: Numbers = flat.double().numpy()
    return numbers


def _fill_with_nan(item: Any) -> Any:
    """Return a tensor of the same shape whose numbers are NaN; return anything else unchanged."""
    if isinstance(item, torch.Tensor) and item.is_floating_point():
        return torch.full_like(item, float("nan"))
    return item


def has_nan(result: Any) -> bool:
    """Whether a result is a tensor in which some number is NaN."""
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return False
    # weights that are not there (weightless.Absent) count as zeros
    if type(result) is not torch.Tensor or not result.numel():
        return False
    with torch._C.DisableTorchFunction():
        return bool(result.isnan().any())


class ScoreWatcher(TorchFunctionMode):  # type: ignore[misc]
    """Sees the products of queries and keys, and the softmax after them.

    Inside `with ScoreWatcher(observer):` torch calls it for each of its functions.
    """

    def __init__(self, observer: AttentionObserver) -> None:
        super().__init__()
        self.observer = observer
        """The observer, which keeps what is seen."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the result of a torch function, and record it if it is a part of attention.

        torch calls this in place of the function. Attention is a product of queries and keys that
        is followed by a softmax in the same layer.
        """
        kwargs = dict(kwargs or {})
        result = func(*args, **kwargs)
        observer = self.observer
        runs_in_layer = observer.layer != ""
        if not runs_in_layer:
            return result

        # Some runs look for layers that compute NaN; None in all others. The keys of the dictionary
        # are a set of names, in order.
        layers_with_nan = observer.layers_with_nan
        if layers_with_nan is not None and has_nan(result):
            layers_with_nan[observer.layer] = None

        name = getattr(func, "__name__", "")
        # queries @ keys^T
        if name in PRODUCT_NAMES:
            queries, transposed_keys, *_ = args
            self._record_product(queries, transposed_keys, result)

        # a bias, to which queries @ keys^T is added
        elif name == "baddbmm":
            _bias, queries, transposed_keys, *_ = args
            self._record_product(queries, transposed_keys, result)

        # einsum("bhqd,bhkd->bhqk", queries, keys)
        elif name == "einsum":
            equation, *factors = args
            if isinstance(equation, str) and len(factors) == 2:
                first, second = factors
                self._record_einsum(equation, first, second, result)

        elif name == "softmax" and isinstance(result, torch.Tensor):
            scores = args[0] if args else kwargs["input"]
            self._record_softmax(scores)

        # product, mask and softmax in one function, so that mask and scores are not seen
        elif name == "scaled_dot_product_attention":
            queries, keys, *_ = args
            *_, query_tokens, _width = queries.shape
            *_, key_tokens, _width = keys.shape
            has_all_tokens = query_tokens == key_tokens == TOKENS  # the number of tokens of a run
            if has_all_tokens:
                observer.note_product(queries, keys)
                observer.note_softmax(visible=None, scores=None)
        return result

    def _record_product(self, queries: Any, transposed_keys: Any, result: Any) -> None:
        """Record a product if it is one of queries and keys, by its shapes.

        Args:
            queries: The first factor: queries are [..., tokens, width].
            transposed_keys: The second factor: transposed keys are [..., width, tokens].
            result: The product.
        """
        if _is_scores(queries, transposed_keys, result):
            # keys after those of the tokens are compressed ones (DeepSeek V4)
            keys = transposed_keys.transpose(-1, -2)[..., :TOKENS, :]
            self.observer.note_product(queries, keys)

    def _record_einsum(self, equation: str, first: Any, second: Any, result: Any) -> None:
        """Record an einsum if it is a product of queries and keys, such as bhqd,bhkd->bhqk.

        In this example, q is the token of the query, k that of the key, and d the width of a head.
        A model may use other letters. They are found by their places: the last two letters of the
        result are the two tokens, and the width is the one letter of both factors that the result
        lacks.

        Args:
            equation: The equation.
            first: The first factor, which has the queries: [b, h, q, d] in the example.
            second: The second factor, which has the keys: [b, h, k, d].
            result: The product: [b, h, q, k].
        """
        match = re.fullmatch(r"(\w+),(\w+)->(\w+)", equation.replace(" ", ""))
        if match is None:
            return
        is_token_by_token = result.shape[-2:] == (TOKENS, TOKENS)
        if not is_token_by_token:
            return

        # "bhqd", "bhkd" and "bhqk" in the example
        first_letters, second_letters, result_letters = match.groups()
        query_token = result_letters[-2]
        key_token = result_letters[-1]
        if query_token not in first_letters or key_token not in second_letters:
            return
        in_both_factors = set(first_letters) & set(second_letters)  # {"b", "h", "d"}
        summed = in_both_factors - set(result_letters)  # {"d"}
        if len(summed) != 1:
            return

        (width,) = summed
        queries = _put_last(first, first_letters, query_token, width)
        keys = _put_last(second, second_letters, key_token, width)
        self.observer.note_product(queries, keys)

    def _record_softmax(self, scores: Any) -> None:
        """Record the softmax of scores, [..., tokens, keys], and which of them are masked."""
        is_of_tokens = scores.dim() >= 3 and scores.shape[-2] == TOKENS
        # other keys may come after those of the tokens: a sink (gpt-oss), or compressed ones
        has_keys_of_tokens = scores.shape[-1] in (TOKENS, TOKENS + 1)
        has_more_keys = scores.dim() >= 4 and scores.shape[-1] > TOKENS
        if is_of_tokens and (has_keys_of_tokens or has_more_keys):
            of_first_head = scores[..., :TOKENS].reshape(-1, TOKENS, TOKENS)[0]
            self.observer.note_softmax(of_first_head > LEAST_VISIBLE_SCORE, scores)


def _put_last(tensor: Any, letters: str, token: str, width: str) -> Any:
    """Return a tensor with its axes of tokens and of the width last: bqhd becomes bhqd.

    Args:
        tensor: A tensor with a letter of einsum for each axis.
        letters: These letters, such as "bqhd".
        token: The letter of its tokens, such as "q".
        width: The letter of the width of a head, such as "d".
    """
    others = [letters.index(letter) for letter in letters if letter not in (token, width)]
    return tensor.permute(*others, letters.index(token), letters.index(width))


def _is_scores(first: Any, second: Any, result: Any) -> bool:
    """Whether a product has the shapes of queries by transposed keys, with a row for each token."""
    factors = (first, second)
    if not all(isinstance(item, torch.Tensor) and item.dim() >= 3 for item in factors):
        return False
    # a first factor with a column for each token is the weights after the softmax
    if first.shape[-1] in (TOKENS, TOKENS + 1):
        return False
    if result.shape[-2:] == (TOKENS, TOKENS):
        return True
    has_more_keys = result.dim() >= 4 and result.shape[-1] > TOKENS
    return bool(has_more_keys and result.shape[-2] == TOKENS)


def spread(context: int) -> list[int]:
    """Return `TOKENS` positions from 0 to the last one of a context, ever further apart.

    The near ones show fast frequencies, and the far ones show slow frequencies precisely.
    """
    last = max(context - 1, TOKENS - 1)
    positions = [0]
    for index in range(1, TOKENS):
        position = round(last ** (index / (TOKENS - 1)))
        positions.append(max(positions[-1] + 1, position))
    return positions


# overrides


def keep_outputs(name: str, output: torch.Tensor) -> None:
    """Replace no output: the override of an undisturbed run."""
    return None


def randomize(names: Iterable[str]) -> Override:
    """Return an override that gives random numbers, the same for every token, in some modules.

    Args:
        names: The modules by their names inside a layer.
    """
    chosen = set(names)

    def override(name: str, output: torch.Tensor) -> torch.Tensor | None:
        return random_numbers(name, output) if name in chosen else None

    return override


def random_numbers(name: str, output: torch.Tensor) -> torch.Tensor:
    """Return random numbers in place of an output, the same for every token and in every run.

    Args:
        name: The name of the module; modules of other names get other numbers.
        output: Its output.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    shape = _shape_of_one_token(output)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float32)
    return numbers.expand(output.shape).contiguous().to(output.dtype)


def numbers_of_rows(output: torch.Tensor) -> torch.Tensor:
    """Return the number of each row of a projection's weight, from 1, in place of its output.

    A row of the weight makes an element of the last dimension of the output.
    """
    rows = torch.arange(1.0, output.shape[-1] + 1)
    return rows.expand(output.shape).contiguous().to(output.dtype)


def _shape_of_one_token(output: torch.Tensor) -> list[int]:
    """Return the shape of an output with 1 in place of the number of tokens."""
    shape = list(output.shape)
    for index, size in enumerate(shape[:-1]):
        if size == TOKENS:
            shape[index] = 1
    return shape
