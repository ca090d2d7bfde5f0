"""Patch the modules of a loaded model of transformers to compute a schedule.

`patch` overwrites frequencies and factors, and returns what undoes it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BadSource
from ...models.config import text_paths
from ...models.parts import KeyPath
from ...rope.errors import RopeconvError
from ...rope.forms import Vector
from ...rope.schedule import LogN, QueryScaling, Schedule
from .layers import change_weights

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import PreTrainedModel

Undo = Callable[[], None]

PATCHES = "_ropeconv_patches"
"""Attribute of a patched model with a stack of what undoes each of its patches, in order."""

COMPUTED = ("rope_init_fn", "config")
"""Attributes of a rotary module from which it computes its frequencies at every forward pass."""

ROUNDED_BY = 1.37
"""The factor of `round_weights`; any that is not a power of two, which would not round."""


def patch(
    model: PreTrainedModel,
    schedule: Schedule,
    mla: bool,
    scale: LogN | QueryScaling | None = None,
    queries: str = "",
) -> Undo:
    """Make a loaded model compute a schedule: its frequencies, attention factor and other scales.

    Args:
        model: The model of transformers, loaded from the source.
        schedule: The schedule of its extended layers. If it has two lists, as LongRoPE, each
            forward pass uses the one that its last position asks for.
        mla: Whether the source has multi-head latent attention.
        scale: The query scaling, None for none.
        queries: The end of the name of the last module before the rotation that outputs queries,
            needed with `scale`.

    Returns:
        A function that undoes it.

    Raises:
        BadSource: The model has no modules of the known shape.
    """
    parts = list(rotary_modules(model))
    if not parts:
        raise BadSource(
            f"{type(model).__name__} has no rotary module in its language model that can be"
            " overwritten; run the model another way"
        )
    with ExitStack() as stack:
        for module, prefix in parts:
            _overwrite_rotary(stack, module, prefix, schedule)
        if mla:
            _scale_latent_attention(stack, model, schedule.softmax_scale)
        if scale is not None:
            scale_queries(stack, model, scale, queries)
        current = stack.pop_all()

    # a patch remembers what was there before it, so only the latest one can be undone: the last of
    # this list
    patches: list[ExitStack] = vars(model).setdefault(PATCHES, [])
    patches.append(current)

    def undo() -> None:
        """Restore the model, once; later calls do nothing."""
        if current not in patches:
            return
        if patches[-1] is not current:
            raise RopeconvError(
                "the model was patched again after this patch; undo the later one first"
            )
        patches.pop().close()

    return undo


def rotary_modules(model: PreTrainedModel) -> Iterator[tuple[Module, str]]:
    """Yield the rotary modules of the extended layers, and where the frequencies are in each.

    Those of other parts, such as a tower for images or a talker, are not among them.

    The place is the prefix of the buffer `inv_freq`: "full_attention_" in a module with a buffer
    for each layer type, empty in a module with one.
    """
    for name, module in _rotary_modules_of_text(model):
        # modules of layers with a window, which keep their RoPE (Gemma 3 before transformers 5)
        if name.endswith(("_local", "_unscaled")) or "sliding_attention" in name:
            continue
        prefix = _extended_prefix(module)
        if hasattr(module, f"{prefix}inv_freq"):
            yield module, prefix


def _rotary_modules_of_text(model: PreTrainedModel) -> list[tuple[str, Module]]:
    """Return all rotary modules of the language model of a model, with their names."""
    rotary = []
    for name, module in model.named_modules():
        if "RotaryEmbedding" in type(module).__name__:
            rotary.append((name, module))
    return _modules_of_text(model, rotary)


def _modules_of_text(
    model: PreTrainedModel, modules: Iterable[tuple[str, Module]]
) -> list[tuple[str, Module]]:
    """Return those of some modules that belong to the language model of a model.

    A module belongs to the part of the config from which it was made, such as `text_config` or
    `audio_config`. Where none was made from the config of the language model, those count that were
    made from the config around it.

    Args:
        model: The model of transformers.
        modules: Modules of it with their names.
    """
    paths = _ConfigPaths(model)
    if paths.is_text_model:
        return [pair for pair in modules if not _is_of_images(pair[0])]
    paths_of_text = text_paths(model.config.to_dict())
    in_text = []
    around_text = []
    for name, module in modules:
        path = paths.of_module(name)
        if path in paths_of_text:
            in_text.append((name, module))
        elif any(text[: len(path)] == path for text in paths_of_text) and not _is_of_images(name):
            around_text.append((name, module))
    return in_text or around_text


def _is_of_images(name: str) -> bool:
    """Whether the name of a module says that it is for images, where its config does not tell."""
    return "vision" in name or "visual" in name


class _ConfigPaths:
    """Finds the part of a model's config from which each of its modules was made."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._configs: list[tuple[KeyPath, Any]] = []
        self._add_config((), model.config)
        # by the id of a config; the model keeps the configs, so that no id is used again
        self._paths: dict[int, KeyPath | None] = {}

    @property
    def is_text_model(self) -> bool:
        """Whether the config has no parts, so that the model is a language model as a whole."""
        return len(self._configs) == 1

    def of_module(self, name: str) -> KeyPath:
        """Return the keys of the config of a module, or of the closest module around it with one.

        A module without a known config belongs to the whole model, whose path is empty.
        """
        while name:
            config = getattr(self._model.get_submodule(name), "config", None)
            path = self._path_of(config)
            if path is not None:
                return path
            name = name.rpartition(".")[0]
        return ()

    def _add_config(self, path: KeyPath, config: Any) -> None:
        """Add a config of transformers and those inside it."""
        self._configs.append((path, config))
        for key, value in vars(config).items():
            if hasattr(value, "to_dict") and hasattr(value, "model_type"):
                self._add_config((*path, key), value)

    def _path_of(self, config: Any) -> KeyPath | None:
        """Return the keys of a config; None for one that the model's config does not have."""
        if not hasattr(config, "to_dict"):
            return None
        if id(config) not in self._paths:
            self._paths[id(config)] = self._find(config)
        return self._paths[id(config)]

    def _find(self, config: Any) -> KeyPath | None:
        """Search the config among those of the model: the same object, or else an equal one."""
        for path, known in self._configs:
            if known is config:
                return path
        # some classes, and transformers before version 5, give a part a copy of its config
        for path, known in self._configs:
            if type(known) is type(config) and known.to_dict() == config.to_dict():
                return path
        return None


def _extended_prefix(module: Module) -> str:
    """Return the prefix of the buffer with the frequencies that are extended, such as "".

    Gemma 3 and others have a set of frequencies for each layer type in one module, such as
    full_attention_inv_freq. That of the layers that see the whole context is extended, and not that
    of layers with a window, which DeepSeek V4 calls "main".
    """
    prefixes: list[str] = []
    for buffer, _ in module.named_buffers():
        # dynamic types keep a copy of the first frequencies: original_inv_freq
        if buffer.endswith("inv_freq") and "original" not in buffer:
            prefixes.append(buffer.removesuffix("inv_freq"))

    # a module with one set of frequencies has the prefix ""; where all sets are for layers with a
    # window, the first is extended
    for prefix in prefixes:
        has_window = "sliding" in prefix or prefix == "main_"
        if not has_window:
            return prefix
    return prefixes[0] if prefixes else ""


def _scale_latent_attention(stack: ExitStack, model: PreTrainedModel, softmax_scale: float) -> None:
    """Set the softmax scale of multi-head latent attention, which `stack` undoes.

    Args:
        stack: Restores the modules when it is closed.
        model: The model of transformers.
        softmax_scale: The factor on all logits, beside the 1 / sqrt(head_dim) of every attention.
    """
    named_attentions = []
    for name, module in model.named_modules():
        if hasattr(module, "scaling") and hasattr(module, "qk_head_dim"):
            named_attentions.append((name, module))
    attentions = [module for _, module in _modules_of_text(model, named_attentions)]

    def scaling_of(attention: Module) -> float:
        return float(attention.qk_head_dim**-0.5 * softmax_scale)

    _set_attribute(stack, attentions, "scaling", scaling_of)


def nudge(schedule: Schedule) -> Schedule:
    """Return a schedule with every frequency moved by 2 ulp of float32, up or down at random.

    Validation allows this difference.
    """
    steps = np.random.default_rng(0).choice([-2, 2], len(schedule.inv_freq))
    steps *= schedule.inv_freq > 0  # 2 ulp below 0 is negative
    # positive floats are ordered like their bits as integers: bits + 2 is the number 2 ulp above
    bits = schedule.inv_freq.astype(np.float32).view(np.int32)
    moved = (bits + steps.astype(np.int32)).view(np.float32)
    return replace(schedule, inv_freq=moved.astype(np.float64))


def round_weights(model: PreTrainedModel, stored: Mapping[str, str]) -> None:
    """Replace each weight w of a loaded model by round(w * f) / f, for a factor f of 1.37.

    Some outputs store w * f, rounded to the dtype of the file, for a factor f that belongs to
    their RoPE. So they differ from the source by rounding too. A source with such weights shows
    how large that difference is.

    Args:
        model: The model of transformers.
        stored: The dtype of each weight in its file, as safetensors names it, by the name of the
            weight; other weights stay.
    """
    import torch

    types = {"BF16": torch.bfloat16, "F16": torch.float16}

    def round_weight(name: str, weight: Tensor) -> Tensor:
        if name not in stored:
            return weight
        stored_dtype = types.get(stored[name], weight.dtype)
        scaled = (weight.float() * ROUNDED_BY).to(stored_dtype)
        return (scaled.float() / ROUNDED_BY).to(weight.dtype)

    change_weights(model, round_weight)


def scale_queries(
    stack: ExitStack, model: PreTrainedModel, scale: LogN | QueryScaling, queries: str
) -> None:
    """Multiply the queries of every layer by a function of their position.

    Some long-context methods do so, such as log-n. A factor on a whole query commutes with its
    rotation, so it may come before. The positions are those that the rotary module receives.

    Args:
        stack: Restores the model when it is closed.
        model: The model of transformers.
        scale: The query scaling, which gives the factor at a position.
        queries: The end of the name of the module whose output is multiplied, such as "q_proj".

    Raises:
        BadSource: The model does not have these modules.
    """
    import torch

    named_projections = []
    for name, module in model.named_modules():
        if queries and name.endswith(queries):
            named_projections.append((name, module))
    projections = [module for _, module in _modules_of_text(model, named_projections)]
    rotary = _rotary_modules_of_text(model)
    if not projections or not rotary:
        raise BadSource(
            f"{type(model).__name__} has no module for its queries; run the model another way"
        )

    # projections are not given the positions, but a rotary module runs before them in each pass and
    # is: it remembers them here, as the only entry
    latest_positions: list[Tensor] = []

    def remember_positions(
        module: Module, args: tuple[Tensor, ...], given: dict[str, Tensor]
    ) -> None:
        positions = _positions(args, given)
        if positions.dim() > 2:  # sections of positions, which are equal for text
            positions = positions[0]
        latest_positions[:] = [positions]

    def multiply(module: Module, args: tuple[object, ...], output: Tensor) -> Tensor:
        (positions,) = latest_positions
        numbers = scale.scale(positions.cpu().numpy()).astype(np.float32)
        factor = torch.from_numpy(numbers).to(output.device)
        # [batch, tokens] gets a dimension of 1 for each further one of the queries, such as heads
        while factor.dim() < output.dim():
            factor = factor[..., None]
        return (output * factor).to(output.dtype)

    # rotary modules inside of layers may get other positions, as in DeepSeek V4, where they rotate
    # compressed keys; an encoder-decoder model has one for each half
    outside_layers = []
    for name, module in rotary:
        is_in_layer = any(part.isdigit() for part in name.split("."))
        if not is_in_layer:
            outside_layers.append(module)
    for module in outside_layers or [module for _, module in rotary]:
        hook = module.register_forward_pre_hook(remember_positions, with_kwargs=True)
        stack.callback(hook.remove)
    for module in projections:
        stack.callback(module.register_forward_hook(multiply).remove)


def _overwrite_rotary(stack: ExitStack, module: Module, prefix: str, schedule: Schedule) -> None:
    """Make one rotary module compute the frequencies and the attention factor of a schedule.

    A forward pass takes frequencies from the buffer inv_freq and multiplies cosines and sines by
    attention_scaling. Both are replaced, and so is all by which the module would write its own
    frequencies back: the copy original_inv_freq and the rope_type of dynamic types, and the
    function by which Phi 3.5 MoE computes them anew in every pass.

    Args:
        stack: Restores the module when it is closed.
        module: The rotary module.
        prefix: "full_attention_", say, in a module with a buffer for each layer type, called
            full_attention_inv_freq; empty in a module with one, called inv_freq.
        schedule: The frequencies and the attention factor that it computes from now on.
    """
    import torch

    # remember the attributes that are overwritten, so that the stack can restore them
    buffer = f"{prefix}inv_freq"
    original_buffer = f"{prefix}original_inv_freq"
    scaling = f"{prefix}attention_scaling"
    names = [buffer, original_buffer, scaling, "rope_type"]
    computes_each_pass = "rope_init_fn" in vars(module)  # Phi 3.5 MoE
    if computes_each_pass:
        names += COMPUTED
    old = {name: getattr(module, name) for name in names if hasattr(module, name)}
    for name, value in old.items():
        stack.callback(setattr, module, name, value)

    def use_frequencies(module: Module, inv_freq: Vector) -> None:
        """Put frequencies into every place from which a forward pass may take them.

        Args:
            module: The module, or the one that `copy.deepcopy` of the model made of it.
            inv_freq: The frequencies.
        """
        device = getattr(module, buffer).device
        new = torch.from_numpy(inv_freq.astype(np.float32)).to(device)
        setattr(module, buffer, new)
        if original_buffer in old:
            setattr(module, original_buffer, new.clone())
        if computes_each_pass:
            module.rope_init_fn = lambda config: (new, schedule.attention_factor)

    # the frequencies and the attention factor
    if computes_each_pass:
        # the module reads its config in each pass; all of the model shares that one, and servers
        # read it, so that a copy is changed
        module.config = copy.copy(module.config)
        module.config.rope_parameters = {**module.config.rope_parameters, "rope_type": "default"}
    use_frequencies(module, schedule.inv_freq)
    setattr(module, scaling, schedule.attention_factor)

    # the type; any but "default" may write its own frequencies back at every forward pass
    old_type = old.get("rope_type")
    if isinstance(old_type, dict):  # by layer type: {"full_attention": "yarn", ...}
        layer_type = prefix.removesuffix("_")
        module.rope_type = {**old_type, layer_type: "default"}
    else:
        module.rope_type = "default"

    # attributes that the module did not have are deleted when the stack is closed
    for name in (scaling, "rope_type"):
        if name not in old:
            stack.callback(delattr, module, name)
    if schedule.short_inv_freq is not None:
        _switch_short_and_long(stack, module, schedule, schedule.short_inv_freq, use_frequencies)


def _switch_short_and_long(
    stack: ExitStack,
    module: Module,
    schedule: Schedule,
    short: Vector,
    use: Callable[[Module, Vector], None],
) -> None:
    """Make a rotary module use LongRoPE's short list of frequencies for short inputs.

    A forward pass whose last position is within the original context uses it, and any other pass
    the long list.

    Args:
        stack: Restores the module when it is closed.
        module: The rotary module.
        schedule: The schedule, with the long list as `inv_freq`.
        short: The short list, [rotary_dim / 2] in radians per token.
        use: Makes a module compute with a list.
    """

    def choose_list(module: Module, args: tuple[Tensor, ...], given: dict[str, Tensor]) -> None:
        last_position = int(_positions(args, given).max())
        if last_position >= schedule.original_context:
            use(module, schedule.inv_freq)
        else:
            use(module, short)

    stack.callback(module.register_forward_pre_hook(choose_list, with_kwargs=True).remove)


def _positions(args: tuple[Tensor, ...], given: dict[str, Tensor]) -> Tensor:
    """Return the position ids among the arguments of a rotary module."""
    return given["position_ids"] if "position_ids" in given else args[1]


def _set_attribute(
    stack: ExitStack, modules: Iterable[Module], name: str, value: Callable[[Module], float]
) -> None:
    """Set an attribute of modules to what `value` computes for each; `stack` undoes it."""
    for module in modules:
        stack.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value(module))


def attention_modules(model: PreTrainedModel) -> list[Module]:
    """Return the attention modules of the text part of a model with a softmax scale, `scaling`."""
    attentions = []
    for name, module in model.named_modules():
        is_attention = "Attention" in type(module).__name__
        has_scale = isinstance(getattr(module, "scaling", None), float)
        if is_attention and has_scale:
            attentions.append((name, module))
    return [module for _, module in _modules_of_text(model, attentions)]


def scale_scores(stack: ExitStack, model: PreTrainedModel, factor: float) -> None:
    """Multiply all attention scores by `factor`, which `stack` undoes.

    The factor commutes with the rotation of queries and keys, so a model computes its RoPE as
    before.
    """
    _set_attribute(
        stack, attention_modules(model), "scaling", lambda module: module.scaling * factor
    )


ALL = 1 << 31  # more keys than any cache holds


def indexers(model: PreTrainedModel) -> list[Module]:
    """Return the indexers of a model: modules with the number of keys to choose, `index_topk`."""
    return [
        module for module in model.modules() if isinstance(getattr(module, "index_topk", None), int)
    ]


def compresses(model: PreTrainedModel) -> bool:
    """Return whether attention compresses runs of keys into one, as that of DeepSeek V4 does.

    It does so by their index and not by their position, so a sequence with gaps in its positions is
    another one in chunks.
    """
    return any(hasattr(module, "compress_rate") for module in model.modules())


WINDOWS = (
    "sliding_window",
    "window_size",  # GPT-Neo; with other words before it in Inkling 2, RecurrentGemma and Doge
    "window_len",  # BLT
    "chunk_size",  # Llama 4; the parts in which a Mamba layer is computed
    "block_size",  # the blocks of keys that MiniMax M3 chooses from
    "local_attention",  # ModernBERT
)
"""How the names of settings end that are a number of tokens which attention sees at once."""


def sees_all_keys(model: PreTrainedModel, tokens: int) -> bool:
    """Return whether every token of a sequence may attend to all tokens before it.

    Windows, chunks of attention, compressed keys and indexers count tokens, whatever their
    positions are: with a window of 128 tokens, a sequence of 512 tokens is masked, and one of 128
    at the same positions is not.

    Args:
        model: The model of transformers.
        tokens: The length of the sequence.
    """
    if compresses(model):
        return False
    if any(int(module.index_topk) < tokens for module in indexers(model)):
        return False

    return not has_window(vars(model.config.get_text_config()), tokens)


def has_window(settings: Mapping[str, object], tokens: int) -> bool:
    """Return whether a setting of a model limits attention to fewer tokens than a sequence has.

    Args:
        settings: The settings of its language model, as in config.json.
        tokens: The length of the sequence.
    """
    for name, value in settings.items():
        if name.endswith(WINDOWS) and isinstance(value, int) and 0 < value < tokens:
            return True
    return False


def choose_all_keys(stack: ExitStack, model: PreTrainedModel) -> None:
    """Make every indexer choose all keys, which `stack` undoes.

    A choice is discrete: two right results whose scores differ by rounding may see other keys, and
    then differ by much.
    """
    _set_attribute(stack, indexers(model), "index_topk", lambda module: ALL)
