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
MOST_PARAMETERS = 50_000_000
"""Models with fewer parameters than this are computed."""
TOKENS = (5, 6, 7, 8, 9, 10)


def ask(config: Answer, question: Answer) -> Answer:
    """Return the RoPE that mlx-lm computes from a config.json, for every layer.

    Args:
        config: The whole config.json.
        question: {"trained": 4096, "context": 16384}, the trained length and the context in tokens.

    Returns:
        The frequencies and factors, under keys that the docstring of `probe_protocol` explains.
    """
    # `watch_pass` runs the model on some tokens, and stores the calls of mlx's RoPE in each layer
    model = build_model(config)
    layers = list(model.layers)
    assert layers, "it has no layers"
    watch = watch_pass(model, layers)

    # the RoPE of each layer; a layer without such a call does not rotate
    ropes: list[Answer | None] = []
    for number in range(len(layers)):
        rope = None
        if number in watch.calls:
            rope = read_rope(watch, watch.calls[number], question)
        ropes.append(rope)
    assert any(ropes), "no layer rotates"

    # the model class, the factor on logits, and the factor on the query at the last position, in
    # the seven digits of float32
    other_keys: Answer = {"class": type(model).__module__, "scaling": logit_scale(watch, layers)}
    if watch.query_scale is not None:
        last_position = question["context"] - 1
        other_keys["query_scale"] = float(f"{watch.query_scale(last_position):.7g}")

    # `mixed`: mlx-lm reads a prompt in several passes of prefill_step_size tokens (generate_step in
    # mlx_lm/generate.py), so frequencies that depend on the length change within a prompt
    return probe_protocol.answer(ropes, mixed=True, **other_keys)


def build_model(config: Answer) -> Any:
    """Return the model that mlx-lm makes of a config.json, without weights.

    The steps are those of mlx-lm's `load_model`.

    Args:
        config: The whole config.json, as a dict.

    Raises:
        NoModel: For a model type that mlx-lm does not have.
        Refused: Where mlx-lm fails, with the stage: "config" for reading the config, "load" for
            making the model.
    """
    # mlx-lm reads a config from a folder
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        config = utils.load_config(Path(folder))

    # find the classes of the model and of its settings
    model_type = config.get("model_type", "")
    try:
        model_class, settings_class = utils._get_classes(config=config)
    except ValueError as error:
        module_name = utils.MODEL_REMAPPING.get(model_type, model_type)
        if importlib.util.find_spec(f"mlx_lm.models.{module_name}") is None:
            raise probe_protocol.NoModel(f"it has no model for {model_type}") from None
        raise probe_protocol.Refused("config", error) from error
    except SystemExit:
        # models/olmo.py, which is for the first OLMo, ends the process where the package hf_olmo is
        # missing; transformers has another model of this type
        raise probe_protocol.NoModel(
            f"{model_type} is another model there, and needs a package of its own"
        ) from None

    # make the settings, then the model
    try:
        settings = settings_class.from_dict(config)
    except Exception as error:
        raise probe_protocol.Refused("config", error) from error
    try:
        model = model_class(settings)
    except Exception as error:
        raise probe_protocol.Refused("load", error) from error
    model.eval()
    return model


class Watch:
    """Notes which layer of a model calls which rope, while tokens pass through the model."""

    def __init__(self, layers: dict[int, int], indexers: set[int]) -> None:
        """Prepare a record of the calls of mx.fast.rope and of mlx's attention in a model.

        While the model runs, the method `rope` replaces mx.fast.rope, and the method `attention`
        replaces mx.fast.scaled_dot_product_attention. Each stores its arguments here and calls the
        function of mlx. The function `watching` makes and undoes the replacement.

        Args:
            layers: The numbers of the decoder layers by their ids (Python's `id`).
            indexers: The ids of RoPE modules whose calls are not stored: modules of sparse
                attention that only choose the tokens to attend to.
        """
        self.layers = layers
        self.indexers = indexers

        # the number of the layer that is running
        self.layer: int | None = None
        # for each layer, the calls of mx.fast.rope: the module, such as an nn.RoPE, and the width
        # of a head
        self.calls: dict[int, list[tuple[Any, int]]] = {}
        # for each layer, the factors on logits that attention was called with
        self.scales: dict[int, list[float]] = {}
        # in models with a factor on queries: a function that returns the factor at a position
        self.query_scale: Callable[[int], float] | None = None

        # the position at which `rope` rotates, in place of the position that it is called with;
        # None to rotate at the given position, while the model runs
        self.position: int | None = None

        # the functions of mlx
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


QUERY_SCALE_FUNCTION = "_get_llama_4_attn_scale"
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
        if name.startswith(MODEL_FILES) and hasattr(module, QUERY_SCALE_FUNCTION):
            files_with_scale.append(module)
    real_scale: Any = None
    if files_with_scale:
        real_scale = getattr(files_with_scale[0], QUERY_SCALE_FUNCTION)

    mx.fast.rope = watch.rope
    mx.fast.scaled_dot_product_attention = watch.attention
    for layer_class, original in originals.items():
        layer_class.__call__ = noting_layer(watch, original)
    for module in files_with_scale:
        setattr(module, QUERY_SCALE_FUNCTION, note_query_scale(watch, real_scale))
    try:
        yield
    finally:
        mx.fast.rope = watch.real_rope
        mx.fast.scaled_dot_product_attention = watch.real_attention
        for layer_class, original in originals.items():
            layer_class.__call__ = original
        for module in files_with_scale:
            setattr(module, QUERY_SCALE_FUNCTION, real_scale)


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


def note_query_scale(watch: Watch, real_scale: Any) -> Any:
    """Return a replacement for the function with which a model scales its queries.

    When the model calls it, it notes the scale in the watch, and returns the same as the function.

    Args:
        watch: The watch, whose `query_scale` becomes a function from a position to the factor.
        real_scale: The function of the model, _get_llama_4_attn_scale(size, offset, ...). It
            returns the factors at `size` positions, of which the first is `offset`. The other
            arguments are settings of the model.
    """

    def replacement(size: int, offset: Any, *settings: Any, **named_settings: Any) -> Any:
        def scale_at(position: int) -> float:
            one_position = real_scale(1, position, *settings, **named_settings)
            return float(one_position.item())

        watch.query_scale = scale_at
        return real_scale(size, offset, *settings, **named_settings)

    return replacement


def watch_pass(
    model: Any,
    layers: list[Any],
    run: Callable[[Any, Any], Any] = lambda model, tokens: model(tokens),
    kind: type[Watch] = Watch,
) -> Any:
    """Run a model on a few tokens, and return a record of the calls of mlx's RoPE in each layer.

    For layer 0 of a Llama, `watch.calls` has two calls of an nn.RoPE: for queries and for keys.

    Args:
        model: The model.
        layers: The layers of the model.
        run: Runs the model on tokens; for a multimodal model, only its language model.
        kind: The class of the result, `Watch` or a subclass that records more.

    Raises:
        Refused: Where the model fails.
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
            if sum(sizes) < MOST_PARAMETERS:
                mx.eval(getattr(result, "logits", result))
        except Exception as error:
            raise probe_protocol.Refused("forward", error) from error
    return watch


def read_rope(watch: Watch, calls: list[tuple[Any, int]], question: Answer) -> Answer:
    """Return the RoPE of one layer: its frequencies, its attention factor, and its pairs.

    Args:
        watch: The watch, which replaces mx.fast.rope while the rotation is read.
        calls: The calls of mlx's RoPE in the layer, one for queries and one for keys; a layer that
            uses the keys of an earlier layer has only the first. A call is the module that rotates
            and the width of a head.
        question: {"trained": 4096, "context": 16384}, the lengths in tokens at which the rotation
            is read.

    Raises:
        AssertionError: Where queries and keys are not rotated by the same module.
    """
    # queries and keys must be rotated by the same module, such as an nn.RoPE
    module, head_dim = calls[0]
    assert len(calls) <= 2, f"{len(calls)} calls"
    for other_module, other_head_dim in calls:
        assert other_module is module, f"calls {calls}"
        assert other_head_dim == head_dim, f"calls {calls}"
    assert module is not None, "the rope belongs to no module"
    assert not module.children(), f"{type(module).__name__} rotates in parts of its own"

    # an input as long as the context
    long_matrix = rotate_units(watch, module, head_dim, question["context"])
    long_inv_freq, long_factor, pairs = read_matrix(long_matrix)

    # an input of the trained length
    short_matrix = rotate_units(watch, module, head_dim, question["trained"])
    short_inv_freq, short_factor, short_pairs = read_matrix(short_matrix)
    assert short_pairs == pairs, "its pairs depend on the length"

    rope = probe_protocol.rope(long_inv_freq, long_factor, short_inv_freq, short_factor)
    return {**rope, "pairs": pairs}


def rotate_units(watch: Watch, module: Any, head_dim: int, length: int) -> Any:
    """Return the rotation matrix of a RoPE module at position 1, [head_dim, head_dim].

    Row i is the rotated unit vector i. At position 1 the angle of a rotation is its frequency.

    Args:
        watch: The watch, which replaces mx.fast.rope while the module runs.
        module: The module that rotates, such as an nn.RoPE.
        head_dim: The width of a head.
        length: The length of the input in tokens, by which some modules choose their frequencies.
    """
    unit_vectors = mx.eye(head_dim, dtype=mx.float32).reshape(1, head_dim, 1, head_dim)

    # The module is called for the last position, so that it chooses the frequencies for this
    # length. It passes the frequencies and the position to mx.fast.rope. `watch.rope` replaces that
    # function, and rotates with these frequencies at the position `watch.position`.
    mx.fast.rope = watch.rope
    watch.position = 1
    last_position = length - 1
    try:
        rotated = module(unit_vectors, offset=last_position).astype(mx.float32)
        return np.array(rotated).reshape(head_dim, head_dim)
    finally:
        mx.fast.rope = watch.real_rope
        watch.position = None


def read_matrix(matrix: Any) -> tuple[list[float], float, str]:
    """Return the frequencies, the attention factor and the kind of pairs of a rotation matrix.

    A pair of dimensions (a, b) rotates by an angle x, and is multiplied by the attention factor A.
    The rows and columns a and b of the matrix then have A [[cos x, sin x], [-sin x, cos x]].
    Dimensions that do not rotate have rows of the unit matrix.

    Args:
        matrix: The rotation at position 1, [head_dim, head_dim], with the rotated unit vector i in
            row i.

    Returns:
        The frequencies, the attention factor, and "half" for pairs (i, i + head_dim / 2), as in
        transformers' Llama, or "interleaved" for pairs (2 i, 2 i + 1).

    Raises:
        AssertionError: For a matrix that rotates in another way.
    """
    # the kind of pairs, from the dimension that rotates together with dimension 0
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

    # The cosine and the sine of each pair. The numbers of the pairs are copied into a unit matrix,
    # which must be the given matrix in the end: then nothing else rotates.
    cosines = []
    sines = []
    rebuilt_matrix = np.eye(len(matrix), dtype=matrix.dtype)
    for a, b in pairs:
        assert matrix[a, a] == matrix[b, b], "no rotation"
        assert matrix[a, b] == -matrix[b, a], "no rotation"
        cosines.append(float(matrix[a, a]))
        sines.append(float(matrix[a, b]))
        numbers_of_pair = np.ix_((a, b), (a, b))
        rebuilt_matrix[numbers_of_pair] = matrix[numbers_of_pair]
    assert (rebuilt_matrix == matrix).all(), "rotates more than pairs"

    # the angles and the common factor of these cosines and sines; at position 1, an angle is a
    # frequency
    inv_freq, factor = probe_protocol.from_cos_sin(cosines, sines)
    rounded_factor = float(f"{factor:.7g}")  # float32 has seven digits
    return inv_freq, rounded_factor, layout


def count_rotating(matrix: Any) -> int:
    """Return the number of dimensions of a head that a rotation matrix rotates.

    These must be the first dimensions of the head. Dimensions with the frequency 0 count as
    rotating in a head whose pairs are (i, i + head_dim / 2).

    Args:
        matrix: The rotation, [head_dim, head_dim], with the rotated unit vector i in row i.
    """
    # the dimensions whose row differs from the unit matrix
    head_dim = len(matrix)
    unit_matrix = np.eye(head_dim, dtype=matrix.dtype)
    rotating = [i for i in range(head_dim) if (matrix[i] != unit_matrix[i]).any()]
    count = len(rotating)

    # A head of 8 dimensions has the pairs (0, 4), (1, 5), (2, 6), (3, 7). If the last two pairs
    # have the frequency 0, the dimensions 0, 1, 4, 5 rotate: the first dimensions of each half. All
    # 8 dimensions count then.
    first_of_low_half = list(range(count // 2))
    first_of_high_half = [i + head_dim // 2 for i in first_of_low_half]
    has_pairs_of_frequency_0 = count < head_dim and rotating == [
        *first_of_low_half,
        *first_of_high_half,
    ]
    if has_pairs_of_frequency_0:
        count = head_dim
    else:
        assert rotating == list(range(count)), f"rotates dimensions {rotating}"
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
