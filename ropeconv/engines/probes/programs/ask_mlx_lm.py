"""Ask mlx-lm what it computes from a config, on a CPU or on Metal.

The model is built as `mlx_lm.utils.load_model` builds it, without weights. A few tokens go through
it while `mx.fast.rope` and `mx.fast.scaled_dot_product_attention` are watched, so a layer has the
rope that its attention applies to queries and keys. That object is then called on unit vectors: the
matrix that comes back gives pairs, angles and the factor.

mlx is lazy: the pass builds the whole graph, with every check of shapes, and computes nothing
unless asked. So models of any size are passed; only small ones are computed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm import utils

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import probe_protocol

    Answer = dict[str, Any]
else:  # a program has only this folder on its path
    import probe_protocol

VERSION = importlib.metadata.version("mlx-lm")
SMALL = 50_000_000
"""Models with fewer parameters than this are computed."""
TOKENS = (5, 6, 7, 8, 9, 10)


def ask(config: Answer, question: Answer) -> Answer:
    """Return the frequencies and factors that mlx-lm computes from a config, for every layer.

    The docstring of `probe_protocol` explains the keys of a question and of an answer.

    Args:
        config: The whole config.json.
        question: The trained length and the context, in tokens.
    """
    model = build(config)
    layers = list(model.layers)
    assert layers, "it has no layers"
    watch = watch_pass(model, layers)

    # the rope of each layer, by its number; a layer without a noted call does not rotate
    ropes: list[Answer | None] = []
    for number in range(len(layers)):
        rope = None
        if number in watch.calls:
            rope = read_rope(watch, watch.calls[number], question)
        ropes.append(rope)
    assert any(ropes), "no layer rotates"

    more: Answer = {"class": type(model).__module__, "scaling": logit_scale(watch, layers)}
    if watch.query_scale is not None:  # in seven digits, those of float32
        last_position = question["context"] - 1
        more["query_scale"] = float(f"{watch.query_scale(last_position):.7g}")
    # generate_step computes a prompt in chunks of prefill_step_size (mlx_lm/generate.py)
    return probe_protocol.answer(ropes, mixed=True, **more)


def build(config: Answer) -> Any:
    """Return the model that mlx-lm makes of a config, by the same steps as its `load_model`.

    Raises NoModel where it has no class for the model, and Refused where that fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        config = utils.load_config(Path(folder))

    # the class of the model, and its settings from the config
    model_type = config.get("model_type", "")
    try:
        kind, arguments = utils._get_classes(config=config)
    except ValueError as error:
        name = utils.MODEL_REMAPPING.get(model_type, model_type)
        if importlib.util.find_spec(f"mlx_lm.models.{name}") is None:
            raise probe_protocol.NoModel(f"it has no model for {model_type}") from None
        raise probe_protocol.Refused("config", error) from error
    except SystemExit:  # models/olmo.py ends the process where its package is missing
        raise probe_protocol.NoModel(
            f"{model_type} is another model there, and needs a package of its own"
        ) from None
    try:
        settings = arguments.from_dict(config)
    except Exception as error:
        raise probe_protocol.Refused("config", error) from error
    try:
        model = kind(settings)
    except Exception as error:
        raise probe_protocol.Refused("load", error) from error
    model.eval()
    return model


class Watch:
    """Notes which layer of a model calls which rope, while tokens pass through the model."""

    def __init__(self, layers: dict[int, int], indexers: set[int]) -> None:
        """Prepare to note calls, which begins when `watching` puts this in place of the functions.

        While tokens pass through a model, `rope` and `attention` stand for two functions of mlx:
        they note the call, and then call the real function.

        Args:
            layers: The number of each decoder layer by its id.
            indexers: The ids of ropes to leave out: those of modules that only choose the tokens
                which attention then sees (sparse attention).
        """
        self.layers = layers
        self.indexers = indexers

        # what is noted in the pass
        self.layer: int | None = None
        """The layer that is running."""
        self.calls: dict[int, list[tuple[Any, int]]] = {}
        """By layer, the module of each call of a rope, such as an nn.RoPE, and the head's width."""
        self.scales: dict[int, list[float]] = {}
        """By layer, the factors on logits."""
        self.query_scale: Callable[[int], float] | None = None
        """A function from a position to the factor on its query, in models that have one."""

        # afterwards each module is called alone, to read its rotation
        self.position: int | None = None
        """The position at which mx.fast.rope then rotates; None in the pass."""

        # the functions for which the watch stands, which it calls, and which `watching` puts back
        self.real_rope = mx.fast.rope
        self.real_attention = mx.fast.scaled_dot_product_attention

    def rope(self, x: mx.array, *args: Any, **kwargs: Any) -> Any:
        """Stand for mx.fast.rope: note the call, or rotate at the position that is read."""
        if self.position is not None:
            kwargs["offset"] = self.position
        elif self.layer is not None:
            owner = sys._getframe(1).f_locals.get("self")
            if id(owner) not in self.indexers:
                self.calls.setdefault(self.layer, []).append((owner, x.shape[-1]))
        return self.real_rope(x, *args, **kwargs)

    def attention(self, *args: Any, **kwargs: Any) -> Any:
        """Stand for mx.fast.scaled_dot_product_attention: note the factor on logits."""
        if self.layer is not None:
            self.scales.setdefault(self.layer, []).append(float(kwargs["scale"]))
        return self.real_attention(*args, **kwargs)


QUERY_SCALE = "_get_llama_4_attn_scale"
"""The function of a model file that returns the factor on queries by position."""
MODEL_FILES = ("mlx_lm.models.", "mlx_vlm.models.")
"""How the names of modules begin that have it."""


@contextmanager
def watching(watch: Watch, layers: list[Any]) -> Iterator[None]:
    """Let a watch see the calls of functions of mlx, and which layer is running, inside this block.

    Args:
        watch: The watch.
        layers: The layers of the model. Python looks up `__call__` in a class and not in an object,
            so that their classes are patched.
    """
    layer_classes = {type(layer) for layer in layers}
    originals = {layer_class: layer_class.__call__ for layer_class in layer_classes}

    # modules of models with a factor on queries, which have the same function for it
    files_with_scale = []
    for name, module in list(sys.modules.items()):
        if name.startswith(MODEL_FILES) and hasattr(module, QUERY_SCALE):
            files_with_scale.append(module)
    real_scale: Any = None
    if files_with_scale:
        real_scale = getattr(files_with_scale[0], QUERY_SCALE)

    mx.fast.rope = watch.rope
    mx.fast.scaled_dot_product_attention = watch.attention
    for layer_class, original in originals.items():
        layer_class.__call__ = noting_layer(watch, original)
    for module in files_with_scale:
        setattr(module, QUERY_SCALE, noting_scale(watch, real_scale))
    try:
        yield
    finally:
        mx.fast.rope = watch.real_rope
        mx.fast.scaled_dot_product_attention = watch.real_attention
        for layer_class, original in originals.items():
            layer_class.__call__ = original
        for module in files_with_scale:
            setattr(module, QUERY_SCALE, real_scale)


def noting_layer(watch: Watch, original: Any) -> Any:
    """Return the `__call__` of a class of layers that also notes which layer is running.

    Args:
        watch: The watch, whose `layer` is the number of the running layer.
        original: The `__call__` of the class, which is called.
    """

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        watch.layer = watch.layers.get(id(layer))
        try:
            return original(layer, *args, **kwargs)
        finally:
            watch.layer = None

    return call


def noting_scale(watch: Watch, real_scale: Any) -> Any:
    """Return a function that stands for QUERY_SCALE, and notes the factor at every position.

    Args:
        watch: The watch, whose `query_scale` becomes a function from a position to the factor.
        real_scale: The function of the model, which is called.
    """

    # the arguments behind the position are the settings of the model
    def scale(size: int, offset: Any, *args: Any, **kwargs: Any) -> Any:
        def scale_at(position: int) -> float:
            return float(real_scale(1, position, *args, **kwargs).item())

        watch.query_scale = scale_at
        return real_scale(size, offset, *args, **kwargs)

    return scale


def watch_pass(
    model: Any,
    layers: list[Any],
    run: Callable[[Any, Any], Any] = lambda model, tokens: model(tokens),
    kind: type[Watch] = Watch,
) -> Any:
    """Pass a few tokens through a model, and return a watch that saw which layer called which rope.

    In `watch.calls`, layer 0 of a Llama has two calls of its nn.RoPE: for queries and for keys.

    Raises Refused where the model fails.

    Args:
        model: The model.
        layers: Its layers.
        run: Passes tokens through the model, and returns the result; for a multimodal model, it
            calls the language model in it.
        kind: The class of the watch that is returned, `Watch` or one that notes more.
    """
    layer_numbers = {id(layer): number for number, layer in enumerate(layers)}
    # the indexers of sparse attention rotate too, but only to choose tokens: their ropes are known
    # by their ids, and left out
    ropes_of_indexers = set()
    for layer in layers:
        for module in layer.modules():
            if "Indexer" in type(module).__name__:
                ropes_of_indexers.add(id(getattr(module, "rope", None)))
    watch = kind(layer_numbers, ropes_of_indexers)

    with watching(watch, layers):
        try:
            # mlx is lazy: this builds the graph only, in which all functions are called that are
            # watched. A small model is computed as well, which shows errors of kernels.
            result = run(model, mx.array([TOKENS]))
            sizes = [math.prod(value.shape) for _, value in tree_flatten(model.parameters())]
            if sum(sizes) < SMALL:
                mx.eval(getattr(result, "logits", result))
        except Exception as error:
            raise probe_protocol.Refused("forward", error) from error
    return watch


def read_rope(watch: Watch, calls: list[tuple[Any, int]], question: Answer) -> Answer:
    """Return the RoPE of one layer: frequencies, factor and pairs, in the form of an answer.

    The module that rotates is called with unit vectors, and the result is its rotation matrix.

    Args:
        watch: The calls that were noted while tokens passed the model.
        calls: The calls of the layer, each a module and the width of a head: for queries and for
            keys, or for queries only in a layer that takes the keys of an earlier one.
        question: The context and the trained length, at both of which the rotation is read.

    Raises AssertionError unless queries and keys share one rope.
    """
    owner, size = calls[0]
    assert len(calls) <= 2, f"{len(calls)} calls"
    assert all(caller is owner and dim == size for caller, dim in calls), f"calls {calls}"
    assert owner is not None, "the rope belongs to no module"
    assert not owner.children(), f"{type(owner).__name__} rotates in parts of its own"

    long, factor, pairs = read_matrix(rotate_units(watch, owner, size, question["context"]))
    short, short_factor, short_pairs = read_matrix(
        rotate_units(watch, owner, size, question["trained"])
    )
    assert short_pairs == pairs, "its pairs depend on the length"
    return {**probe_protocol.rope(long, factor, short, short_factor), "pairs": pairs}


def rotate_units(watch: Watch, owner: Any, size: int, length: int) -> Any:
    """Return the rotation matrix of a rope at position 1, [head_dim, head_dim].

    Row i is the unit vector i after its rotation.

    Args:
        watch: The watch, whose `rope` replaces mx.fast.rope here.
        owner: The module that rotates, such as an nn.RoPE.
        size: head_dim.
        length: The length of the sequence, by which some modules choose their frequencies.
    """
    # the offset tells the module how long the sequence is, by which it chooses frequencies; the
    # watch then rotates at position 1 with these
    unit = mx.eye(size, dtype=mx.float32).reshape(1, size, 1, size)
    mx.fast.rope = watch.rope
    watch.position = 1
    try:
        turned = owner(unit, offset=length - 1).astype(mx.float32)
        return np.array(turned).reshape(size, size)
    finally:
        mx.fast.rope = watch.real_rope
        watch.position = None


def read_matrix(matrix: Any) -> tuple[list[float], float, str]:
    """Return the frequencies, the attention factor and the pairs of a rotation matrix.

    With the angle x of a pair and the attention factor A, the pair of dimensions (a, b) has the
    four numbers A [[cos x, sin x], [-sin x, cos x]] in the rows and columns a and b. Dimensions
    that do not rotate have the rows of the unit matrix.

    The pairs are "half" where dimension i turns with i + head_dim / 2, as in Llama of transformers,
    and "interleaved" where 2 i turns with 2 i + 1. Raises AssertionError for any other matrix.

    Args:
        matrix: [head_dim, head_dim], with the rotated unit vector i in row i.
    """
    # dimension 0 shows how the rotating ones are paired: with the one half of them further, or its
    # neighbour
    dims = count_rotating(matrix)
    off_diagonal = matrix - np.diag(np.diag(matrix))
    partner = int(np.abs(off_diagonal[0]).argmax())
    if partner == dims // 2:
        layout = "half"
        pairs = [(i, i + dims // 2) for i in range(dims // 2)]
    else:
        layout = "interleaved"
        assert partner == 1, f"dimension 0 is paired with {partner} of {dims}"
        pairs = [(2 * i, 2 * i + 1) for i in range(dims // 2)]

    cosines = []
    sines = []
    of_pairs_only = np.eye(len(matrix), dtype=matrix.dtype)
    for a, b in pairs:
        assert matrix[a, a] == matrix[b, b], "no rotation"
        assert matrix[a, b] == -matrix[b, a], "no rotation"
        cosines.append(float(matrix[a, a]))
        sines.append(float(matrix[a, b]))
        numbers_of_pair = np.ix_((a, b), (a, b))
        of_pairs_only[numbers_of_pair] = matrix[numbers_of_pair]
    # nothing but the numbers of the pairs may differ from the unit matrix
    assert (of_pairs_only == matrix).all(), "rotates more than pairs"

    inv_freq, factor = probe_protocol.from_cos_sin(cosines, sines)
    return inv_freq, float(f"{factor:.7g}"), layout


def count_rotating(matrix: Any) -> int:
    """Return how many dimensions of a head rotate, which are the first ones of it.

    Pairs with the frequency 0 stand still, and count nevertheless where they lie between others.

    Args:
        matrix: [head_dim, head_dim], with the rotated unit vector i in row i.
    """
    # a dimension rotates where its row is not that of the unit matrix
    size = len(matrix)
    unit = np.eye(size, dtype=matrix.dtype)
    rotated = [i for i in range(size) if (matrix[i] != unit[i]).any()]
    count = len(rotated)

    # In a head of 8 with the pairs (i, i + 4), of which the slowest two have the frequency 0, the
    # dimensions 0, 1, 4, 5 rotate. These are the first of each half: then all dimensions count.
    first_of_low_half = list(range(count // 2))
    first_of_high_half = [i + size // 2 for i in first_of_low_half]
    has_still_pairs = count < size and rotated == [*first_of_low_half, *first_of_high_half]
    if has_still_pairs:
        count = size
    else:
        assert rotated == list(range(count)), f"rotates dimensions {rotated}"
    assert count > 0, "rotates nothing"
    assert count % 2 == 0, f"rotates {count} dimensions"
    return count


def logit_scale(watch: Watch, layers: list[Any]) -> float:
    """Return the factor on the logits of attention. Raises AssertionError where layers differ."""
    # those of the calls of mx.fast.scaled_dot_product_attention, in seven digits
    distinct = set()
    for scales in watch.scales.values():
        for scale in scales:
            distinct.add(f"{scale:.7g}")

    # attention that is written out calls no such function, as in Gemma 2: its module has the factor
    if not distinct:
        for layer in layers:
            for module in layer.modules():
                is_attention = "Attention" in type(module).__name__
                if is_attention and isinstance(getattr(module, "scale", None), float):
                    distinct.add(f"{module.scale:.7g}")
    assert len(distinct) == 1, f"scales {distinct}"
    return float(distinct.pop())
