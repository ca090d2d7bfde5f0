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
    """Raise an error where llama.cpp computes a layer in another way than transformers.

    Which layers have a window, rotate, and make keys follows from the header in llama.cpp, and from
    config.json in transformers. For an architecture that has no windows in llama.cpp, the plan
    warns, and no error is raised.

    Args:
        header: The header of the converted model.
        sizes: The sizes of the model.
        family: The family of the model.
        spec: The RoPE of the checkpoint, with the kind and window of each layer.

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
            raise _error_on_layers(f"{flags} = {shown(part.get(flags))}", file.arch, rotates)


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
            raise _error_on_layers(change, arch, f"llama.cpp computes {computed}")


def _makers_in_llamacpp(file: ArchKeys, count: int) -> list[int]:
    """Return for each layer the number of the layer whose keys it uses in llama.cpp.

    Usually a layer uses its own keys. In some architectures, such as Gemma 3n's, only the first N
    layers make keys. A later layer with a window uses the keys of layer N - 1 or N - 2, whichever
    has a window too, and a later layer without a window the keys of the layer without a window.
    With N = 20 and 22 layers, of which the last has no window, the result may be
    [0, ..., 19, 18, 19].

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
    """Raise UnsupportedBake where attention of a layer would use other keys in llama.cpp.

    In models such as Gemma 3n, the last layers compute no attention keys and values; they use the
    keys and values of an earlier layer.

    Args:
        file: The metadata of the GGUF file.
        family: The family of the model.
        makers: For each layer of the model, the number of the layer whose keys it uses. [0, 1, 1]
            means that layer 2 uses the keys of layer 1.
    """
    arch = file.arch
    layer_count = len(makers)
    layers_with_own_keys = [layer for layer, maker in enumerate(makers) if maker == layer]
    own_keys_count = len(layers_with_own_keys)

    makers_in_llamacpp = _makers_in_llamacpp(file, layer_count)
    for layer, (maker, maker_in_llamacpp) in enumerate(
        zip(makers, makers_in_llamacpp, strict=True)
    ):
        if maker == maker_in_llamacpp:
            continue

        # the setting of the config for the message, "num_kv_shared_layers = 15 with 35 layers"
        config_key = family.cache.shared[0]
        shared_count = layer_count - own_keys_count
        setting = f"{config_key} = {shared_count} with {counted(layer_count, 'layer')}"

        # `kv_layers` is a number in llama.cpp's code, such as "20", or the name of a metadata key
        # from which llama.cpp reads the number
        is_fixed_number = arch.kv_layers.isdigit()
        if is_fixed_number:
            why = f"llama.cpp makes keys in the first {arch.kv_layers} layers"
        else:
            why = (
                f"llama.cpp uses the keys of layer {maker_in_llamacpp} in layer {layer}, and the"
                f" model those of {maker}"
            )
        raise _error_on_layers(setting, arch, why)

    # llama.cpp uses the keys of the last layer with own keys, or of the layer before it, so it
    # needs two such layers
    shares_keys = arch.shared_kv is not None
    if shares_keys and own_keys_count < 2:
        raise _error_on_layers(
            f"{own_keys_count} layer that makes keys", arch, "llama.cpp stops with fewer than two"
        )


def _check_windows(file: ArchKeys, family: Family, spec: RopeSpec, part: JsonObject) -> None:
    """Raise UnsupportedBake where a layer's sliding window differs between llama.cpp and the model.

    Args:
        file: The metadata of the GGUF file.
        family: The family of the model.
        spec: The RoPE of the checkpoint. `spec.windows` has the window of each layer in tokens, or
            None for a layer that attends to the whole context.
        part: The text part of the config.
    """
    arch = file.arch
    if arch.window is None:
        return

    layer_count = len(spec.layers)
    windows_in_llamacpp = layer_windows(file)
    windows_of_model = spec.windows or (None,) * layer_count

    # the setting of the config for the message, such as "layer_types = [...]"
    types_key = family.hooks.types_key
    layer_types = f"{types_key} = {shown(part.get(types_key))}"

    for layer, (in_llamacpp, of_model) in enumerate(
        zip(windows_in_llamacpp, windows_of_model, strict=True)
    ):
        if in_llamacpp == of_model:
            continue

        # some architectures: only models with this number of layers have windows in llama.cpp;
        # other values of `present` are "always" and "key"
        present = arch.window.present
        if present.isdigit() and layer_count != int(present):
            setting = f"{family.window.key} = {of_model} with {counted(layer_count, 'layer')}"
            why = f"llama.cpp has windows there in models of {present} layers only"
            raise _error_on_layers(setting, arch, why)

        # all other architectures
        computed = f"a window of {in_llamacpp} tokens" if in_llamacpp else "no window"
        why = f"llama.cpp computes {computed} in layer {layer} (the first is 0)"
        raise _error_on_layers(layer_types, arch, why)

    # llama.cpp does not load a file with the key of a window if no layer has a window
    has_key_of_window = window_in_use(file, layer_count)
    no_layer_has_window = not any(windows_in_llamacpp)
    if has_key_of_window and no_layer_has_window:
        why = "llama.cpp stops without a layer that has a window"
        raise _error_on_layers(layer_types, arch, why)


def _error_on_layers(change: str, arch: Arch, why: str) -> UnsupportedBake:
    """Return the error for a setting of layers that llama.cpp does not compute."""
    return UnsupportedBake(change, f"GGUF as {arch.name}", why, "keep safetensors")


def _sizes(header: GgufHeader, arch: str) -> JsonObject:
    """Return the sizes of a model by their names in llama.cpp's source.

    For example, {"n_embd": 4096, "n_head_kv": 8, "n_embd_head_k": 128, "n_ff": None, ...}. None
    means an unknown size, or a size that differs between layers.
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
    """Return whether a tensor has the shape that llama.cpp expects.

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
