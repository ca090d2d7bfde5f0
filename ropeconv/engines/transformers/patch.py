"""Patches the modules of a loaded model of transformers to compute a schedule."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import BadSource
from ...rope.errors import RopeconvError
from ...rope.forms import Vector
from ...rope.schedule import LogN, QueryScaling, Schedule
from ...rope.spec import RopeSpec
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

ROUNDED_BY = 1.37  # any number that is not a power of two


def patch(
    model: PreTrainedModel,
    schedule: Schedule,
    before: RopeSpec,
    scale: LogN | QueryScaling | None = None,
    queries: str = "",
) -> Undo:
    """Makes a loaded model compute a schedule, and returns a function that undoes it.

    model: of transformers, loaded from the source. schedule: what its extended layers compute then;
    of LongRoPE's two lists, the one for the last position of each forward pass. before: the RoPE of
    the source. scale: the query scaling, None for none. queries: the end of the name of the last
    module before the rotation that outputs queries, needed with `scale`.

    Raises BadSource where the model has no modules of the known shape.
    """
    parts = list(rotary_modules(model))
    if not parts:
        raise BadSource(
            f"{type(model).__name__} has no rotary module that can be overwritten; run the model"
            " another way"
        )
    with ExitStack() as stack:
        for module, prefix in parts:
            _overwrite(stack, module, prefix, schedule)
        if before.mla:
            heads = [
                m for m in model.modules() if hasattr(m, "scaling") and hasattr(m, "qk_head_dim")
            ]
            _set(
                stack,
                heads,
                "scaling",
                lambda head: head.qk_head_dim**-0.5 * schedule.softmax_scale,
            )
        if scale is not None:
            scale_queries(stack, model, scale, queries)
        current = stack.pop_all()
    patches: list[ExitStack] = vars(model).setdefault(PATCHES, [])
    patches.append(current)

    def undo() -> None:
        if current not in patches:
            return
        if patches[-1] is not current:
            raise RopeconvError(
                "the model was patched again after this patch; undo the later one first"
            )
        patches.pop().close()

    return undo


def rotary_modules(model: PreTrainedModel) -> Iterator[tuple[Module, str]]:
    """The rotary modules of the extended layers of a model, each with the prefix of the names of
    its frequencies.
    """
    for name, module in model.named_modules():
        if "RotaryEmbedding" not in type(module).__name__ or "vision" in name or "visual" in name:
            continue
        if name.endswith(("_local", "_unscaled")) or "sliding_attention" in name:
            continue
        buffers = [str(key) for key, _ in module.named_buffers()]
        sets = [
            key.removesuffix("inv_freq")
            for key in buffers
            if key.endswith("inv_freq") and "original" not in key
        ]
        whole = [prefix for prefix in sets if "sliding" not in prefix and prefix != "main_"]
        prefix = (whole or sets or [""])[
            0
        ]  # of the layers that see the whole context; empty for one set
        if hasattr(module, f"{prefix}inv_freq"):
            yield module, prefix


def nudged(schedule: Schedule) -> Schedule:
    """The schedule with every frequency moved by 2 ulp of float32, up or down at random, the
    allowed difference.
    """
    signs = np.random.default_rng(0).choice([-2, 2], len(schedule.inv_freq))
    signs *= schedule.inv_freq > 0  # 2 ulp below 0 is negative
    moved = schedule.inv_freq.astype(np.float32).view(np.int32) + signs.astype(np.int32)
    return replace(schedule, inv_freq=moved.view(np.float32).astype(np.float64))


def round_weights(model: PreTrainedModel, stored: Mapping[str, str]) -> None:
    """Rounds weights of a loaded model as a fold does: scaled, rounded to the stored dtype, and
    scaled back.

    model: of transformers. stored: the dtype of each weight in its file, as safetensors names it,
    by the name of the weight; other weights stay.
    """
    import torch

    types = {"BF16": torch.bfloat16, "F16": torch.float16}

    def rounded(name: str, weight: Tensor) -> Tensor:
        if name not in stored:
            return weight
        scaled = (weight.float() * ROUNDED_BY).to(types.get(stored[name], weight.dtype))
        return (scaled.float() / ROUNDED_BY).to(weight.dtype)

    change_weights(model, rounded)


def scale_queries(
    stack: ExitStack, model: PreTrainedModel, scale: LogN | QueryScaling, queries: str
) -> None:
    """Multiplies the queries of every layer by a function of their position, at the output of the
    module `queries`.

    stack: undoes it. model: of transformers. scale: the query scaling. queries: the end of the
    module's name. A factor on a whole query commutes with its rotation, so it may come before. The
    positions are those that the rotary module receives. Raises BadSource where the model does not
    have these modules.
    """
    import torch

    positions: list[Tensor] = []

    def remember(module: Module, args: tuple[Tensor, ...], given: dict[str, Tensor]) -> None:
        current = _positions(args, given)
        positions[:] = [
            current[0] if current.dim() > 2 else current
        ]  # sections of positions, which are equal for text

    def multiply(module: Module, args: tuple[object, ...], output: Tensor) -> Tensor:
        ids = positions[0]
        factor = torch.from_numpy(scale.scale(ids.cpu().numpy()).astype(np.float32)).to(
            output.device
        )
        return (output * factor.reshape(*factor.shape, *[1] * (output.dim() - 2))).to(output.dtype)

    projections = [
        module for name, module in model.named_modules() if queries and name.endswith(queries)
    ]
    rotary = [module for module in model.modules() if "RotaryEmbedding" in type(module).__name__]
    if not projections or not rotary:
        raise BadSource(
            f"{type(model).__name__} has no module for its queries; run the model another way"
        )
    hooks = [rotary[0].register_forward_pre_hook(remember, with_kwargs=True)]
    hooks += [module.register_forward_hook(multiply) for module in projections]
    for hook in hooks:
        stack.callback(hook.remove)


def _overwrite(stack: ExitStack, module: Module, prefix: str, schedule: Schedule) -> None:
    """Overwrites frequencies and attention factor of one rotary module. stack: undoes it.

    `rope_type` becomes "default", since the dynamic types write their own frequencies back at every
    forward pass.
    """
    import torch

    names = [
        f"{prefix}inv_freq",
        f"{prefix}original_inv_freq",
        f"{prefix}attention_scaling",
        "rope_type",
    ]
    computes = "rope_init_fn" in vars(module)  # at every forward pass (Phi 3.5 MoE)
    old = {
        name: getattr(module, name)
        for name in (*names, *COMPUTED * computes)
        if hasattr(module, name)
    }
    added = [name for name in (names[2], "rope_type") if name not in old]
    device = old[names[0]].device
    for name, value in old.items():
        stack.callback(setattr, module, name, value)

    def use(inv_freq: Vector) -> None:
        new = torch.from_numpy(inv_freq.astype(np.float32)).to(device)
        setattr(module, names[0], new)
        if names[1] in old:
            setattr(module, names[1], new.clone())
        if computes:
            module.rope_init_fn = lambda config: (new, schedule.attention_factor)

    if computes:
        module.config = copy.copy(module.config)
        module.config.rope_parameters = {**module.config.rope_parameters, "rope_type": "default"}
    use(schedule.inv_freq)
    setattr(module, names[2], schedule.attention_factor)
    if isinstance(old.get("rope_type"), dict):
        module.rope_type = {**old["rope_type"], prefix.removesuffix("_"): "default"}
    else:
        module.rope_type = "default"
    for name in added:
        stack.callback(delattr, module, name)
    _switch(stack, module, schedule, use)


def _switch(
    stack: ExitStack, module: Module, schedule: Schedule, use: Callable[[Vector], None]
) -> None:
    """Makes a module use LongRoPE's short list in forward passes in which no position reaches the
    original context.
    """
    short = schedule.short_inv_freq
    if short is None:
        return

    def before(module: Module, args: tuple[Tensor, ...], given: dict[str, Tensor]) -> None:
        last = int(_positions(args, given).max())
        use(schedule.inv_freq if last >= schedule.original_context else short)

    stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)


def _positions(args: tuple[Tensor, ...], given: dict[str, Tensor]) -> Tensor:
    """The position ids among the arguments of a rotary module."""
    return given["position_ids"] if "position_ids" in given else args[1]


def _set(
    stack: ExitStack, modules: Iterable[Module], name: str, value: Callable[[Module], float]
) -> None:
    """Sets an attribute of modules. stack: undoes it. value: from a module to its new value."""
    for module in modules:
        stack.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value(module))


def attention_modules(model: PreTrainedModel) -> list[Module]:
    """The attention modules of the text part of a model that have a softmax scale of their own,
    `scaling`.
    """
    return [
        module
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__ and "vision" not in name and "visual" not in name
        if isinstance(getattr(module, "scaling", None), float)
    ]


def scale_scores(stack: ExitStack, model: PreTrainedModel, factor: float) -> None:
    """Multiplies all attention scores by `factor`. stack: undoes it.

    The factor commutes with the rotation of queries and keys, so a model computes its RoPE as
    before.
    """
    _set(stack, attention_modules(model), "scaling", lambda module: module.scaling * factor)


ALL = 1 << 31  # more keys than any cache holds


def indexers(model: PreTrainedModel) -> list[Module]:
    """The indexers of a model: modules with the number of keys to choose, `index_topk`."""
    return [
        module for module in model.modules() if isinstance(getattr(module, "index_topk", None), int)
    ]


def compresses(model: PreTrainedModel) -> bool:
    """Whether attention compresses runs of keys into one, by their index and not by their position
    (DeepSeek V4).

    A sequence with gaps in its positions is then another one in chunks.
    """
    return any(hasattr(module, "compress_rate") for module in model.modules())


def choose_all_keys(stack: ExitStack, model: PreTrainedModel) -> None:
    """Makes every indexer choose all keys. stack: undoes it.

    A choice is discrete: two right results whose scores differ by rounding may see other keys, and
    then differ by much.
    """
    _set(stack, indexers(model), "index_topk", lambda module: ALL)
