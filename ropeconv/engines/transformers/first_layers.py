"""The attention of the first layer of each kind, run with its own weights and no others.

A method changes attention only, so one layer of each kind (with and without a sliding window, with
and without RoPE) shows what a checkpoint computes: folded weights, stored frequencies, attention
factors, and scales of queries and of the softmax are in it. The model is built on torch's meta
device, with few layers. Its backbone runs with layers that only record what they receive, and then
one layer runs until its attention has its output. MLPs and experts never run, so they are not read:
the attention of a layer of Llama 2 7B has 134 MB in bfloat16.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BadSource
from ...loader import keep_layers, load_skeleton, read_json
from ...rope.errors import RopeconvError
from .engine import backbone_of
from .layers import PartialLoader, drop_weights, loads_in_parts, outermost_lists
from .load import class_for, read_config

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel

VOCABULARY_ROWS = 1024
"""Rows of an embedding that are read; the tokens that run are among them."""
MOST_NUMBERS_OF_NORM = 1 << 20
"""Numbers in the largest tensor that is taken for a norm; a head for logits has more."""
KEYS_OF_LAYER_KINDS = ("layer_types", "no_rope_layers")
"""Keys of a config whose lists have a value for each layer, on which its attention depends."""
VISION_AND_AUDIO = ("vision", "visual", "audio")
"""Parts of the names of modules that read images or sound."""
EXPERTS = ".experts."
"""Part of the names of tensors of experts: a mixture has up to 276,480 of them (Kimi K2)."""

ReadTensor = Callable[[str, int | None], "Tensor"]
"""Returns a tensor of a checkpoint by its name. With a number it returns that many first rows."""
ALL_ROWS = None
"""The second argument of `ReadTensor` for a whole tensor."""


class NoLayerRuns(RopeconvError):
    """No layer of a model can run on its own. The message is a clause that says why."""


class LayerFails(NoLayerRuns):
    """The code of a layer has raised an error, or does not take the weights of the checkpoint."""


@dataclass(frozen=True)
class LayerKind:
    """Layers whose attention is the same but for its weights."""

    layer: int
    """The first of them, from 0."""

    name: str
    """Its number and type, such as "5 (full_attention)"."""


class _HasOutput(BaseException):
    """The attention of a layer has its output, which no class may catch as an error of its own."""

    def __init__(self, output: Tensor) -> None:
        self.output = output


class _Recorded(BaseException):
    """The last layer has received its input."""


class FirstLayers:
    """The model of a checkpoint, of which the attention of single layers runs, in float32.

    Args:
        folder: The folder of its config.json.
        names: The names of all tensors of the checkpoint.
        read: Reads one of them.
        loaded_as: The model type with which transformers loads it; empty for its own.
        trust: Whether to run the modelling file of the checkpoint.
        layers: Numbers of layers that are known to differ, besides those that the class shows.

    Raises:
        NoLayerRuns: The installed transformers or the model cannot do this.
        BadSource: transformers does not load the config.
    """

    model: PreTrainedModel

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        read: ReadTensor,
        loaded_as: str = "",
        trust: bool = False,
        layers: Sequence[int] = (0,),
    ) -> None:
        """Build the first layers of a model, with the weights of the embeddings.

        The weights of a layer are loaded when it runs.

        Args:
            folder: The folder of config.json.
            names: The names of all tensors of the checkpoint.
            read: Reads a tensor of the checkpoint, or its first rows.
            loaded_as: A model type such as "llama", with which transformers loads the checkpoint;
                empty for the model type in config.json.
            trust: Whether to run the modelling file in the folder.
            layers: Numbers of layers that differ in a way that their class does not show, such as
                by frequencies in the checkpoint.

        Raises:
            NoLayerRuns: The installed transformers or the model cannot do this.
        """
        import torch
        from transformers.utils import logging

        logging.disable_progress_bar()
        config = config_for_first_layers(folder, loaded_as, trust)
        layers_needed = max(layers) + 1
        self.model = _build_without_weights(folder, config, layers_needed, trust)
        self._read = read
        self._numbers_of_other_layers = layers
        self._loader = PartialLoader(self.model, "cpu", torch.float32)

        # The name of the parameter that each tensor of the checkpoint is loaded into. Tensors of
        # layers that the model lacks are left out, and those of experts, which never run.
        names_in_model = weight_names(self.model)
        without_experts = [name for name in names if EXPERTS not in name]
        self._parameter_by_tensor = {}
        for tensor, parameter in self._loader.parameters_of(without_experts).items():
            if parameter in names_in_model:
                self._parameter_by_tensor[tensor] = parameter

        # the decoder layers with attention, with their names, such as model.layers.0
        modules_of_decoder = set(self.model.get_decoder().modules())
        self._layers = []
        for name, module in outermost_lists(self.model):  # members of a torch.nn.ModuleList
            reads_text = not any(part in name for part in VISION_AND_AUDIO)
            is_decoder_layer = module in modules_of_decoder and reads_text
            if is_decoder_layer and attention_of(module) is not None:
                self._layers.append((name, module))
        if not self._layers:
            raise NoLayerRuns(f"{type(self.model).__name__} has no list of layers with attention")
        self._load_embeddings_and_norms()

    @property
    def kinds(self) -> list[LayerKind]:
        """The kinds of layers that differ in their attention, in the order of their first layers.

        Gemma 3 has two kinds: LayerKind(layer=0, name="0 (sliding_attention)") and
        LayerKind(layer=5, name="5 (full_attention)").
        """
        config = self.model.config.get_text_config()
        layer_types = getattr(config, "layer_types", None) or ()
        kinds: dict[tuple[object, ...], LayerKind] = {}
        for number, (_, layer) in enumerate(self._layers):
            # layers of one class with the same settings, such as the same head_dim, are one kind
            settings = _attention_settings(layer)
            # a layer that differs in another way, such as by its frequencies, is a kind of its own
            if number in self._numbers_of_other_layers:
                settings = (*settings, number)
            if settings in kinds:
                continue

            # a name for people, such as "5 (full_attention)"
            labels = []
            if number < len(layer_types):
                labels.append(layer_types[number])
            attention = _attention_or_layer(layer)
            if not getattr(attention, "use_rope", True):
                labels.append("without RoPE")
            name = str(number)
            if labels:
                name = f"{number} ({', '.join(labels)})"
            kinds[settings] = LayerKind(layer=number, name=name)
        return list(kinds.values())

    @contextmanager
    def with_weights(self, layer: int) -> Iterator[None]:
        """Let a layer load its weights when it runs, and drop them at the end of the block.

        Only the parts that run are loaded: norms and attention, but no MLP.

        Args:
            layer: The number of the layer, from 0.
        """
        layer_name, module = self._layers[layer]
        attention_name = f"{layer_name}.{attention_of(module)}"
        self._loaded_parameters: set[str] = set()  # names, to load each weight once
        handles = []
        for name, part in module.named_modules(prefix=layer_name):
            # Attention may read the weights of modules inside it without calling these modules, so
            # it loads them too. Every other module loads only its own weights.
            is_attention = name == attention_name
            load_weights = partial(self._load_weights_of, name, is_attention)
            handles.append(part.register_forward_pre_hook(load_weights))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            drop_weights(module)

    def _load_weights_of(
        self, name: str, with_submodules: bool, module: Module, inputs: object
    ) -> None:
        """Load the weights of a module from the checkpoint. It is a forward pre-hook of the module.

        Args:
            name: The name of the module, such as model.layers.0.self_attn.
            with_submodules: Whether to load the weights of the modules inside it too.
            module: The module.
            inputs: The inputs of the module, which are not used.
        """
        # parameters that no earlier hook has loaded, by their full names
        empty_weights = {}
        for key, weight in module.named_parameters(recurse=with_submodules):
            full_name = f"{name}.{key}"
            if full_name not in self._loaded_parameters:
                empty_weights[full_name] = weight

        # one or more tensors of the checkpoint make up a parameter
        tensors = {}
        for tensor, parameter in self._parameter_by_tensor.items():
            if parameter in empty_weights:
                tensors[tensor] = self._read(tensor, ALL_ROWS)
        if tensors:
            self._loader.load(tensors)
        self._loaded_parameters |= empty_weights.keys()

        # transformers replaces the object of each weight that it loads. A weight that is still the
        # same object has no tensor in the checkpoint (the lambdas of DiffLlama), and torch would
        # compute with whatever is in its memory.
        for key, weight in module.named_parameters(recurse=with_submodules):
            full_name = f"{name}.{key}"
            is_still_empty = weight is empty_weights.get(full_name)
            if not is_still_empty:
                continue
            if full_name in self._parameter_by_tensor.values():
                raise LayerFails(f"its weights do not fit {full_name} of its config.json")
            raise NoLayerRuns(f"it has no weights for {full_name}")

    def attention(self, ids: Sequence[int], positions: Sequence[int], layer: int) -> Tensor:
        """Return what the attention of a layer adds for each token, [tokens, hidden_size].

        Args:
            ids: The tokens, below `vocabulary`, which the layer sees as its embeddings.
            positions: The position of every token, rising; gaps are allowed.
            layer: The number of the layer; `with_weights` must be entered with it.

        Raises:
            NoLayerRuns: The layer cannot run on its own.
        """
        import torch

        name, module = self._layers[layer]
        args, keywords = self._input_of(ids, positions, layer)
        attention = _attention_or_layer(module)

        # what follows attention in the layer, such as its MLP, has no weights here: stop before it,
        # by an exception that carries the output
        def stop(module: Module, inputs: object, output: Any) -> None:
            if isinstance(output, (tuple, list)):
                output = output[0]
            raise _HasOutput(output)

        handle = attention.register_forward_hook(stop)
        try:
            with torch.no_grad():
                module(*args, **keywords)
        except _HasOutput as done:
            output = done.output
        except NoLayerRuns:
            raise
        except Exception as problem:  # of any kind, from a class that needs the layers before it
            raise LayerFails(
                f"{name} does not run on its own ({type(problem).__name__}: {problem})"
            ) from None
        else:
            raise NoLayerRuns(f"{name} does not call its attention")
        finally:
            handle.remove()
        # [1, tokens, hidden_size], but some classes have no dimension for the batch
        if output.dim() == 3:
            return output[0]
        return output.reshape(-1, output.shape[-1])

    def by_parameter(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return values of tensors by the parameter that each of them belongs to."""
        return {self._parameter_by_tensor.get(name, name): value for name, value in values.items()}

    @property
    def vocabulary(self) -> int:
        """The number of tokens that can be read."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def _input_of(
        self, ids: Sequence[int], positions: Sequence[int], layer: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Run the backbone without its layers, and return the arguments of one of them."""
        # the classes of transformers differ in whether a layer returns a tensor or a tuple
        for as_tuple in (False, True):
            recorded = self._record(ids, positions, layer, as_tuple)
            if recorded is not None:
                return recorded
        raise NoLayerRuns(f"{type(self.model).__name__} does not pass states from layer to layer")

    def _record(
        self, ids: Sequence[int], positions: Sequence[int], layer: int, as_tuple: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Run a backbone whose layers compute nothing, and return what it gives one of them.

        The arguments of a layer (the hidden states, the mask, cosines and sines) are computed by
        the backbone, so no code of the model's class is repeated here. In place of every layer runs
        `record`, which notes its arguments and returns the hidden states that it was given, so that
        the wanted layer gets the embeddings. There it raises `_Recorded`, which ends the pass.

        A layer of some classes returns its states, and of others a tuple that begins with them.
        Which of the two is right is seen at the second layer. States [1, tokens, width] that the
        backbone takes for a tuple arrive there as [tokens, width], and a tuple that it takes for
        states arrives as a tuple or fails.

        Args:
            ids: The tokens, below `vocabulary`, which the layer sees as its embeddings.
            positions: The position of every token, rising; gaps are allowed.
            layer: The number of the layer whose arguments are returned.
            as_tuple: Whether `record` returns a tuple. The caller tries False first, then True.

        Returns:
            The positional and the keyword arguments of the layer; None where `as_tuple` is wrong
            for this class, or so many layers are not called.

        Raises:
            NoLayerRuns: The backbone fails with both.
        """
        import torch

        backbone = backbone_of(self.model)
        recorded: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        shapes_of_states = set()

        # in place of `forward` of every layer
        def record(*args: Any, **keywords: Any) -> Any:
            states = args[0] if args else keywords["hidden_states"]
            shapes_of_states.add(states.shape)
            recorded.append((args, keywords))
            is_wanted_layer = len(recorded) > layer
            if is_wanted_layer:
                raise _Recorded
            if as_tuple:
                return (states,)
            return states

        inputs: dict[str, Any] = {
            "input_ids": torch.tensor([list(ids)]),
            "position_ids": torch.tensor([list(positions)]),
            # without a mask, transformers takes a gap for the beginning of another sequence
            "attention_mask": torch.ones((1, len(ids)), dtype=torch.long),
            # Molmo 2 drops a mask of ones, but with a cache it takes no gap for a beginning
            "use_cache": hasattr(backbone, "language_model"),
        }
        with ExitStack() as stack:
            for _, module in self._layers:
                module.forward = record
                stack.callback(delattr, module, "forward")
            try:
                with torch.no_grad():
                    backbone(**inputs)
            except _Recorded:
                if len(shapes_of_states) > 1:  # a dimension was lost on the way
                    return None
                return recorded[layer]
            except Exception as problem:  # of any kind
                # the backbone may have failed by states in place of a tuple, which is tried next
                if not as_tuple:
                    return None
                raise NoLayerRuns(
                    f"{type(self.model).__name__} does not run without its layers"
                    f" ({type(problem).__name__}: {problem})"
                ) from None
        return None  # the pass ended before the wanted layer was called

    def _load_embeddings_and_norms(self) -> None:
        """Load the weights outside the layers: the first rows of the embeddings, and the norms.

        The weights of a layer are loaded later, when it runs.
        """
        import torch
        from torch import nn

        model = self.model
        compute_buffers(model)  # buffers that no checkpoint stores, such as rotary frequencies

        # the embeddings by the names of their weights, and the name of the weight of the head
        embedding_by_weight = {}
        head_weight = ""
        for name, module in model.named_modules():
            if isinstance(module, nn.Embedding):
                embedding_by_weight[f"{name}.weight"] = module
            elif module is model.get_output_embeddings():
                head_weight = f"{name}.weight"

        layer_prefixes = tuple(f"{name}." for name, _ in self._layers)
        norms = {}
        # `tensor` is a name in the checkpoint, `parameter` is the name in the model
        for tensor, parameter in self._parameter_by_tensor.items():
            is_of_layer = parameter.startswith(layer_prefixes)
            is_of_vision_or_audio = any(part in parameter for part in VISION_AND_AUDIO)
            if is_of_layer or is_of_vision_or_audio or parameter == head_weight:
                continue

            # embeddings: the first rows are enough, since the tokens that run are among them
            if parameter in embedding_by_weight:
                embedding = embedding_by_weight[parameter]
                rows = self._read(tensor, VOCABULARY_ROWS).to(torch.float32)
                embedding.weight = nn.Parameter(rows, requires_grad=False)
                embedding.padding_idx = None  # torch refuses a number beyond the rows
                continue

            # norms are small; a large tensor is a head for another purpose, which never runs
            size = model.get_parameter_or_buffer(parameter).numel()
            if size <= MOST_NUMBERS_OF_NORM:
                norms[tensor] = self._read(tensor, ALL_ROWS)
        self._loader.load(norms)


def _build_without_weights(
    folder: Path, config: PretrainedConfig, layers_needed: int, trust: bool
) -> PreTrainedModel:
    """Return the model of a config without weights, with few layers where its class allows that.

    Args:
        folder: The folder of the checkpoint.
        config: The config of the checkpoint.
        layers_needed: The model has at least this many layers.
        trust: Whether to run the modelling file of the checkpoint.
    """
    short_config = with_few_layers(config, layers_needed)
    try:
        return load_skeleton(
            class_for(short_config),
            folder,
            trust=trust,
            pickles=False,
            config=short_config,
            dtype="float32",
        )
    except BadSource:
        # Gemma 3n: the class reads settings of a layer that the short config lacks, and fails. So
        # the model is built with all layers.
        return load_skeleton(
            class_for(config),
            folder,
            trust=trust,
            pickles=False,
            config=config,
            dtype="float32",
        )


def attention_of(layer: Module) -> str | None:
    """Return the name of the attention in a layer; None for a layer without one."""
    for name, module in layer.named_modules():
        if name and "Attention" in type(module).__name__:
            return str(name)
    return None


def _attention_or_layer(layer: Module) -> Module:
    """Return the attention in a layer; the layer itself where it has none."""
    name = attention_of(layer)
    return layer if name is None else layer.get_submodule(name)


def _attention_settings(layer: Module) -> tuple[object, ...]:
    """Return the classes and the settings of a layer and its attention.

    They are equal for two layers of one kind: (LlamaDecoderLayer, LlamaAttention, ("head_dim",
    128), ("sliding_window", 4096)), say. A setting is an attribute with a number, a text or a flag.
    """
    attention = _attention_or_layer(layer)
    settings: list[object] = [type(layer), type(attention)]
    for module in (layer, attention):
        for key, value in sorted(vars(module).items()):
            is_setting = isinstance(value, (bool, int, float, str, type(None)))
            is_private = key.startswith("_")
            if is_setting and not is_private and key != "layer_idx":
                settings.append((key, value))
    return tuple(settings)


def config_for_first_layers(folder: Path, loaded_as: str, trust: bool) -> PretrainedConfig:
    """Return the config of a checkpoint whose first layers can be loaded without the others.

    Args:
        folder: The folder of its config.json.
        loaded_as: The model type with which transformers loads it; empty for its own.
        trust: Whether to run the configuration file of the checkpoint.

    Raises:
        NoLayerRuns: The installed transformers cannot do this, or the model is quantised or has an
            encoder and a decoder.
    """
    if not loads_in_parts():
        raise NoLayerRuns("this needs transformers 5")
    if read_json(folder / "config.json").get("quantization_config"):
        raise NoLayerRuns("its weights are quantised")
    config = read_config(folder, loaded_as, trust)
    if getattr(config, "is_encoder_decoder", False):
        raise NoLayerRuns("it has an encoder and a decoder")
    return config


def weight_names(model: PreTrainedModel) -> set[str]:
    """Return the names of all parameters and buffers of a model."""
    names = {name for name, _ in model.named_parameters()}
    names |= {name for name, _ in model.named_buffers()}
    return names


def compute_buffers(model: PreTrainedModel) -> None:
    """Compute what a model on the meta device has that no checkpoint stores, such as frequencies.

    These are the two steps by which from_pretrained of transformers 5 does it: buffers move from
    meta to the CPU, and the class computes them.
    """
    model._move_missing_keys_from_meta_to_device(set(), {"": "cpu"}, None, None)
    model._initialize_missing_keys(False)


def with_few_layers(config: PretrainedConfig, least: int = 1) -> PretrainedConfig:
    """Return a copy of a config with its first layers: as few as contain every kind of attention.

    With windows in five of six layers, these are the first six.

    Args:
        config: The config of a model.
        least: The number of layers that are needed at least.
    """
    config = copy.deepcopy(config)
    text = config.get_text_config()
    all_layers = getattr(text, "num_hidden_layers", 1)
    layers_needed = least
    for key in KEYS_OF_LAYER_KINDS:
        kinds = getattr(text, key, None)  # such as ["sliding_attention", "full_attention"]
        if not isinstance(kinds, list) or len(kinds) != all_layers:
            continue
        for kind in set(kinds):
            first_layer_of_kind = kinds.index(kind)
            layers_needed = max(layers_needed, first_layer_of_kind + 1)

    keep_layers(text, layers_needed)
    return config
