"""Checks whether a converted model has the keys, tensors and layers that llama.cpp needs.

`demands.json` is written by `scripts/llamacpp/demands.py` from llama.cpp's source, commit 0c1e570.
"""

from collections.abc import Sequence
from functools import cache
from itertools import zip_longest

import msgspec

from ...errors import BadSource, UnsupportedBake
from ...formats.gguf.header import GgufHeader
from ...formats.jsontext import JsonObject
from ...formats.package_data import package_data
from ...models.family import Family
from ...models.layers import key_layers
from ...rope.errors import counted, shown
from ...rope.spec import RopeSpec
from ...runtimes.llamacpp.archs import Arch, find_arch
from ...runtimes.llamacpp.layers import (
    layer_kinds,
    layer_windows,
    layers_with_attention,
    window_in_use,
)
from ...runtimes.llamacpp.scaling import ArchKeys
from .conversions import ModelSizes, value_of
from .hparams import heads_of_layers

SIZES = {
    "n_embd": "embedding_length",
    "n_vocab": "vocab_size",
    "n_head": "attention.head_count",
    "n_head_kv": "attention.head_count_kv",
    "n_embd_head_k": "attention.key_length",
    "n_embd_head_v": "attention.value_length",
    "n_ff": "feed_forward_length",
    "n_ff_exp": "expert_feed_forward_length",
    "n_expert": "expert_count",
    "n_rot": "rope.dimension_count",
}
"""The key of each size in llama.cpp's source."""


class Demands(msgspec.Struct, frozen=True):
    """The keys and tensors that the loader of an architecture needs."""

    keys: tuple[str, ...]
    """Keys without a default, without the name of the architecture."""

    required: dict[str, str]
    """Tensors that must be there, with their shapes.

    The dimensions of a shape are expressions of SIZES or "?". Names with {} are of every layer.
    """

    optional: dict[str, tuple[str, ...]]
    """Tensors that may be there, each with its possible shapes."""

    float32: tuple[str, ...]
    """Tensors that llama.cpp's converter always keeps in F32."""


@cache
def demands() -> dict[str, Demands]:
    """Return the demands of all architectures by name."""
    return package_data("convert/to_gguf/demands.json", dict[str, Demands])


def check_demands(header: GgufHeader, arch: str) -> None:
    """Check that a converted model has the keys and the tensors with which llama.cpp loads it.

    Args:
        header: The header of the converted model.
        arch: The name of its architecture.

    Raises:
        BadSource: For an absent key or tensor, and for a tensor of another shape.
        UnsupportedBake: For tensors that llama.cpp does not use.
    """
    demand = demands()[arch]
    for key in demand.keys:
        if f"{arch}.{key}" not in header.values:
            raise BadSource(f"config.json has no {key}, which llama.cpp needs for {arch}; add it")
    _check_required(header, arch, demand)
    _check_shapes(header, arch, demand)


def _check_required(header: GgufHeader, arch: str, demand: Demands) -> None:
    """Raise BadSource where a tensor is absent that llama.cpp needs, in any layer.

    Args:
        header: The header of the converted model.
        arch: The name of its architecture.
        demand: The keys and tensors that llama.cpp needs for it.
    """
    # layers that predict further tokens do not have all tensors of the others
    blocks = header.values[f"{arch}.block_count"].decode()
    layers = blocks - header.get(f"{arch}.nextn_predict_layers", 0)
    for general in demand.required:
        names = [general]
        if "{}" in general:
            names = [general.format(layer) for layer in range(layers)]
        for name in names:
            if name not in header.tensors:
                raise BadSource(
                    f"the checkpoint has no {name}, which llama.cpp needs for {arch}; download it"
                    " again, or keep safetensors where its config switches that off"
                )


def _check_shapes(header: GgufHeader, arch: str, demand: Demands) -> None:
    """Raise for a tensor that llama.cpp does not load, or loads with another shape.

    Args:
        header: The header of the converted model.
        arch: The name of its architecture.
        demand: The keys and tensors that llama.cpp needs for it.
    """
    sizes = _sizes(header, arch)
    for name, tensor in header.tensors.items():
        # the shapes that llama.cpp accepts, such as ("n_embd, n_embd_k_gqa",)
        general = general_name(name)  # blk.{}.attn_q.weight for blk.3.attn_q.weight
        shapes: tuple[str, ...]
        if general in demand.required:
            shapes = (demand.required[general],)
        else:
            shapes = demand.optional.get(general, ())
        if not shapes:
            why = "llama.cpp computes without such weights"
            raise UnsupportedBake(name, f"GGUF as {arch}", why, "keep safetensors")
        if not any(_fits(tensor.shape, shape, sizes) for shape in shapes):
            raise BadSource(
                f"{name} has the shape {list(tensor.shape)}, and llama.cpp's {arch} wants"
                f" {shapes[0]} by the sizes in config.json; the config is of another checkpoint or"
                " of a variant that llama.cpp does not know"
            )


def check_layers(header: GgufHeader, sizes: ModelSizes, family: Family, spec: RopeSpec) -> None:
    """Check that every layer is in llama.cpp what it is in the checkpoint.

    llama.cpp derives from the header which layers have a window, rotate, and make keys, and
    transformers from config.json. An architecture without any windows is not refused: the plan
    warns.

    Args:
        header: The header of the converted model.
        sizes: The sizes of the checkpoint.
        family: Its family.
        spec: Its RoPE, with the kind and window of each layer.

    Raises:
        UnsupportedBake: Where a layer differs in its window, in its rotation, in the layer whose
            keys it uses, or in its number of key heads.
    """
    text_config = sizes.config
    arch = find_arch(header.get("general.architecture"))
    arch_keys = ArchKeys(header, arch)

    _check_windows(arch_keys, family, spec, text_config)
    _check_rotation(arch_keys, family, spec, text_config)
    _check_shared_keys(arch_keys, family, key_layers(text_config, family, len(spec.layers)))
    if not arch.mla:  # latent attention caches keys of one head, whatever the config says
        _check_key_heads(arch_keys, heads_of_layers(sizes, family))


def _check_rotation(file: ArchKeys, family: Family, spec: RopeSpec, part: JsonObject) -> None:
    """Raise UnsupportedBake where llama.cpp rotates other layers."""
    kinds = layer_kinds(file)
    for layer, (kind, expected) in enumerate(zip(kinds, spec.layers, strict=True)):
        stands_still = kind == "none"
        should_stand_still = expected == "none"
        if stands_still != should_stand_still:
            flags = family.layers.flags or family.hooks.types_key
            does = "does not rotate" if stands_still else "rotates"
            rotates = f"llama.cpp {does} layer {layer} (the first is 0)"
            raise _other_layers(f"{flags} = {shown(part.get(flags))}", file.arch, rotates)


def _check_key_heads(file: ArchKeys, wanted: Sequence[int]) -> None:
    """Raise UnsupportedBake where llama.cpp computes with another number of key heads.

    Args:
        file: The keys of the GGUF file.
        wanted: The key heads of each layer in the checkpoint.
    """
    arch = file.arch
    layer_count = len(wanted)

    # llama.cpp takes the heads of queries where a file has no key (llama-model.cpp)
    heads = file.get("attention.head_count_kv")
    if heads is None:
        heads = file.get("attention.head_count")

    # the key is one number for all layers, or a list where the architecture reads one
    is_list = isinstance(heads, list)
    if is_list and arch.heads_by_layer:
        heads_in_llamacpp = heads
    else:
        heads_in_llamacpp = [heads] * layer_count

    has_attention = layers_with_attention(file, layer_count)
    for layer, wanted_heads in enumerate(wanted):
        if not has_attention[layer]:
            continue
        computed = heads_in_llamacpp[layer]
        if computed != wanted_heads:
            change = f"{counted(wanted_heads, 'head')} of keys in layer {layer} (the first is 0)"
            raise _other_layers(change, arch, f"llama.cpp computes {computed}")


def _makers_in_llamacpp(file: ArchKeys, count: int) -> list[int]:
    """For each of `count` layers, the layer that makes its keys in llama.cpp.

    Usually that is the layer itself. In some architectures, such as that of Gemma 3n, only the
    first N layers make keys. The later ones use those of layer N - 1 or N - 2: one of these has a
    window and the other has not, and each later layer takes the one of its own kind. With N = 20
    and 22 layers, of which the last has no window, the result may be [0, ..., 19, 18, 19].

    Args:
        file: The keys of the GGUF file.
        count: The number of layers.
    """
    arch = file.arch
    makers = list(range(count))
    if not arch.shared_kv:
        return makers

    # N: `kv_layers` is this number itself, such as "20", or the name of a key of the file with the
    # number of layers that make no keys
    is_fixed = arch.kv_layers.isdigit()
    if is_fixed:
        first_sharing = int(arch.kv_layers)
    else:
        first_sharing = count - file.whole(arch.kv_layers, 0)

    # `shared_kv` says how many layers before N the keys come from, for both kinds of layers
    windows = layer_windows(file)
    for layer in range(max(first_sharing, 0), count):
        if windows[layer]:
            makers[layer] = first_sharing - arch.shared_kv.window
        else:
            makers[layer] = first_sharing - arch.shared_kv.other
    return makers


def _check_shared_keys(file: ArchKeys, family: Family, makers: Sequence[int]) -> None:
    """Raise UnsupportedBake where llama.cpp uses the keys of other layers.

    In models such as Gemma 3n, the last layers compute no keys and values, and use those of an
    earlier layer.

    Args:
        file: The keys of the GGUF file.
        family: The family of the model.
        makers: For each layer of the model, the number of the layer that makes its keys: its own
            number, or that of an earlier layer.
    """
    arch = file.arch
    layer_count = len(makers)
    layers_with_own_keys = [layer for layer, maker in enumerate(makers) if maker == layer]
    with_own_keys = len(layers_with_own_keys)

    makers_in_llamacpp = _makers_in_llamacpp(file, layer_count)
    for layer, maker in enumerate(makers):
        maker_in_llamacpp = makers_in_llamacpp[layer]
        if maker == maker_in_llamacpp:
            continue

        # the config key that says how many layers use the keys of others, num_kv_shared_layers
        shared_key = family.cache.shared[0]
        without_own_keys = layer_count - with_own_keys
        setting = f"{shared_key} = {without_own_keys} with {counted(layer_count, 'layer')}"

        # `kv_layers` in the table of architectures is either a number of layers that is fixed in
        # llama.cpp's code, such as "20", or a metadata key from which llama.cpp reads it
        number_is_fixed = arch.kv_layers.isdigit()
        if number_is_fixed:
            why = f"llama.cpp makes keys in the first {arch.kv_layers} layers"
        else:
            why = (
                f"llama.cpp uses the keys of layer {maker_in_llamacpp} in layer {layer}, and the"
                f" model those of {maker}"
            )
        raise _other_layers(setting, arch, why)

    # layers without keys of their own take those of the last layer that makes keys, or of the one
    # before that, so llama.cpp needs two of these
    shares_keys = arch.shared_kv is not None
    if shares_keys and with_own_keys < 2:
        raise _other_layers(
            f"{with_own_keys} layer that makes keys", arch, "llama.cpp stops with fewer than two"
        )


def _check_windows(file: ArchKeys, family: Family, spec: RopeSpec, part: JsonObject) -> None:
    """Raise UnsupportedBake where llama.cpp has a sliding window in other layers, or another size.

    Args:
        file: The keys of the GGUF file.
        family: The family of the model.
        spec: The RoPE of the checkpoint, with the window of each layer.
        part: The text part of the config.
    """
    arch = file.arch
    if arch.window is None:
        return

    # the window of each layer in llama.cpp, and in the checkpoint; None for the whole context
    count = len(spec.layers)
    windows = layer_windows(file)
    expected_windows = spec.windows or (None,) * count
    types_key = family.hooks.types_key  # such as layer_types
    layer_types = f"{types_key} = {shown(part.get(types_key))}"

    # the first layer with another window than in the checkpoint
    for layer, (window, expected) in enumerate(zip(windows, expected_windows, strict=True)):
        if window == expected:
            continue
        # `present` in the table of architectures says which models have windows: "always", "key",
        # or only models with a certain number of layers, such as "40"
        present = arch.window.present
        if present.isdigit() and count != int(present):
            setting = f"{family.window.key} = {expected} with {counted(count, 'layer')}"
            why = f"llama.cpp has windows there in models of {present} layers only"
            raise _other_layers(setting, arch, why)
        has = f"a window of {window} tokens" if window else "no window"
        why = f"llama.cpp computes {has} in layer {layer} (the first is 0)"
        raise _other_layers(layer_types, arch, why)

    # all layers have the same window in both; but a file that states a window, of which no layer
    # makes use, is refused by llama.cpp
    states_window = window_in_use(file, count)
    no_layer_has_it = not any(windows)
    if states_window and no_layer_has_it:
        raise _other_layers(layer_types, arch, "llama.cpp stops without a layer that has a window")


def _other_layers(change: str, arch: Arch, why: str) -> UnsupportedBake:
    """The error for a config whose layers llama.cpp computes otherwise."""
    return UnsupportedBake(change, f"GGUF as {arch.name}", why, "keep safetensors")


def _sizes(header: GgufHeader, arch: str) -> JsonObject:
    """The sizes of a model under their names in llama.cpp's source; None where not known.

    A size that differs between layers is not known either. For example:
    {"n_embd": 4096, "n_head_kv": 8, "n_embd_head_k": 128, "n_embd_k_gqa": 1024, "n_ff": None, ...}
    """
    sizes: dict[str, int | None] = {}
    for name, key in SIZES.items():
        sizes[name] = None
        if f"{arch}.{key}" in header.values:
            value = header.values[f"{arch}.{key}"].decode()
            if isinstance(value, int):  # else a list with a number for each layer
                sizes[name] = value

    if sizes["n_expert"] is None:  # a model without experts has no key
        sizes["n_expert"] = 0
    if f"{arch}.attention.key_length_swa" in header.values:
        # heads of layers with a window have another width, so there is no size for all
        sizes["n_embd_head_k"] = None
        sizes["n_embd_head_v"] = None

    # the width of all key heads together (k), and of all value heads (v)
    heads = sizes["n_head_kv"]
    for letter in ("k", "v"):
        width_of_head = sizes[f"n_embd_head_{letter}"]
        width_of_all = None
        if width_of_head and heads:
            width_of_all = width_of_head * heads
        sizes[f"n_embd_{letter}_gqa"] = width_of_all
    sizes["n_embd_gqa"] = sizes["n_embd_v_gqa"]  # as load_tensors in llama.cpp names it
    return sizes


def general_name(name: str) -> str:
    """Return the name of a tensor with {} for the number of its layer."""
    start, _, rest = name.partition(".")
    number, _, end = rest.partition(".")
    if start == "blk" and number.isdigit():
        return f"blk.{{}}.{end}"
    return name


def _fits(shape: tuple[int, ...], demand: str, sizes: JsonObject) -> bool:
    """Whether the shape of a tensor is the one that llama.cpp wants.

    Args:
        shape: The shape of the tensor, fastest dimension first.
        demand: The shape in llama.cpp's source, such as "n_embd, n_ff", with "?" for any size.
        sizes: The sizes by these names, None for a size that is not known.
    """
    expected: list[int | None] = []
    for name in demand.split(", "):
        expected.append(None if name == "?" else value_of(sizes, name))

    # trailing dimensions of 1 may be left out on both sides
    for actual, wanted in zip_longest(shape, expected, fillvalue=1):
        if wanted is not None and wanted != actual:
            return False
    return True
