"""The first layers of a checkpoint as a model of their own, with its embeddings and its head.

An encoder has no head, and gives its last hidden states.

`load_first_layers` is the function to read first. It is what a GGUF file that is cut to its first
layers computes, so that a conversion is compared with transformers without running all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...formats.disk import human
from ...loader import load_skeleton
from .engine import backbone_of, has_cache
from .first_layers import (
    VISION_AND_AUDIO,
    VOCABULARY_ROWS,
    NoLayerRuns,
    ReadTensor,
    compute_buffers,
    config_for_first_layers,
    weight_names,
    with_few_layers,
)
from .layers import PartialLoader
from .load import class_for

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import PreTrainedModel

MOST_BYTES = 4 << 30
"""The most bytes of weights, as float32, that are loaded."""


def load_first_layers(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: ReadTensor,
    loaded_as: str = "",
    layers: Sequence[int] = (0,),
    states: bool = False,
) -> PreTrainedModel:
    """Return a model of transformers with the first layers of a checkpoint, in float32.

    The model knows the first `VOCABULARY_ROWS` tokens only, both as inputs and in its logits.

    Args:
        folder: The folder of config.json.
        shapes: The shape of every tensor of the checkpoint, by name.
        read: Reads a tensor by its name, or its first rows.
        loaded_as: A model type such as "llama", with which transformers loads the checkpoint where
            it does not have the model type in config.json; empty for none.
        layers: Numbers of layers that the model must have, from 0.
        states: Whether only hidden states are wanted, for which the model needs no head.

    Raises:
        NoLayerRuns: The installed transformers or the model cannot do this.
        BadSource: transformers does not load the config.
    """
    import torch

    # a model without weights, on torch's device "meta"; no code of the checkpoint runs
    config = config_for_first_layers(folder, loaded_as, trust=False)
    short_config = with_few_layers(config, max(layers) + 1)
    model = load_skeleton(
        class_for(short_config),
        folder,
        trust=False,
        pickles=False,
        config=short_config,
        dtype="float32",
    )
    head = model.get_output_embeddings()  # gives the logits; None in an encoder
    if head is None and not states:
        raise NoLayerRuns(f"{type(model).__name__} gives no logits")

    compute_buffers(model)  # buffers that no checkpoint stores, such as rotary frequencies
    loader = PartialLoader(model, "cpu", torch.float32)
    _load_weights(model, head, shapes, read, loader)

    # a weight that is still on "meta" has no tensor in the checkpoint
    for name, weight in model.named_parameters():
        reads_text = not any(part in name for part in VISION_AND_AUDIO)
        if weight.is_meta and reads_text:
            raise NoLayerRuns(f"it has no weights for {name}")
    return model


def _load_weights(
    model: PreTrainedModel,
    head: Module | None,
    shapes: Mapping[str, tuple[int, ...]],
    read: ReadTensor,
    loader: PartialLoader,
) -> None:
    """Load the weights of the first layers of a model, and of the embeddings and the head.

    Embeddings and the head have a row for every token, and only the first `VOCABULARY_ROWS` rows
    are loaded: the tokens that run are among them. A vision or audio model does not run, and gets
    no weights.

    Args:
        model: The model without weights.
        head: The module of the model that gives the logits; None for an encoder.
        shapes: The shape of every tensor of the checkpoint, by name.
        read: Reads a tensor by its name: its first rows, or with None all rows.
        loader: Loads whole tensors into the model.

    Raises:
        NoLayerRuns: The layers are larger than `MOST_BYTES`.
    """
    import torch
    from torch import nn

    weights_by_token = _weights_by_token(model, head)
    names_in_model = weight_names(model)
    whole_tensors = []
    bytes_of_whole_tensors = 0
    # each tensor of the checkpoint belongs to a parameter of the model; their names can differ
    for tensor_name, parameter_name in loader.parameters_of(shapes).items():
        is_of_other_layer = parameter_name not in names_in_model
        is_of_vision_or_audio = any(part in parameter_name for part in VISION_AND_AUDIO)
        if is_of_other_layer or is_of_vision_or_audio:
            continue

        # layers and norms
        if parameter_name not in weights_by_token:
            whole_tensors.append(tensor_name)
            bytes_of_whole_tensors += 4 * math.prod(shapes[tensor_name])  # float32
            continue

        # embeddings and the head, such as the attribute "weight" of model.embed_tokens
        module, attribute = weights_by_token[parameter_name]
        rows = read(tensor_name, VOCABULARY_ROWS).to(torch.float32)
        setattr(module, attribute, nn.Parameter(rows, requires_grad=False))
        if isinstance(module, nn.Embedding):
            module.padding_idx = None  # torch refuses a number beyond the rows

    if bytes_of_whole_tensors > MOST_BYTES:
        raise NoLayerRuns(f"its first layers have {human(bytes_of_whole_tensors)} as float32")
    loader.load({name: read(name, None) for name in whole_tensors})

    # a head without a tensor of its own shares that of the embeddings (tie_word_embeddings)
    if head is not None and head.weight.is_meta:
        head.weight = nn.Parameter(model.get_input_embeddings().weight, requires_grad=False)


def _weights_by_token(model: PreTrainedModel, head: Module | None) -> dict[str, tuple[Module, str]]:
    """Return the weights that have a row for every token: those of the embeddings and the head.

    {"model.embed_tokens.weight": (module, "weight")}, say: by the name in the model the module that
    has the weight, and the attribute of that module.
    """
    from torch import nn

    weights: dict[str, tuple[Module, str]] = {}
    for name, module in model.named_modules():
        has_row_for_each_token = isinstance(module, nn.Embedding) or module is head
        if has_row_for_each_token:
            for attribute, _ in module.named_parameters(recurse=False):
                weights[f"{name}.{attribute}"] = (module, attribute)
    return weights


def run_first_layers(
    model: PreTrainedModel, ids: Sequence[int], positions: Sequence[int], states: bool = False
) -> Tensor:
    """Run a model with a few layers, and return its logits or its last hidden states.

    Args:
        model: The model that `load_first_layers` returns.
        ids: The tokens, all below `VOCABULARY_ROWS`, the size of the vocabulary of the model.
        positions: The position of each token.
        states: Whether to return hidden states, and not logits.

    Returns:
        The logits, float32 [tokens, VOCABULARY_ROWS], or hidden states, float32 [tokens, width].

    Raises:
        NoLayerRuns: The model does not run with a part of its layers.
    """
    import torch

    arguments: dict[str, object] = {
        "input_ids": torch.tensor([list(ids)]),
        "position_ids": torch.tensor([list(positions)]),
        "attention_mask": torch.ones((1, len(ids)), dtype=torch.long),
    }
    # Switch the key-value cache off. Every model with logits has a cache. Most encoders have none,
    # and their `forward` does not accept this argument.
    gives_logits = not states
    if gives_logits or has_cache(model):
        arguments["use_cache"] = False

    # hidden states come from the backbone, which is the model without its head
    module = model if gives_logits else backbone_of(model)
    try:
        with torch.no_grad():
            output = module(**arguments)
    except Exception as problem:  # a class that needs all its layers can raise anything
        raise NoLayerRuns(
            f"{type(model).__name__} does not run with a part of its layers"
            f" ({type(problem).__name__}: {problem})"
        ) from None
    if states:
        hidden: Tensor = output.last_hidden_state[0].float()
        return hidden
    logits: Tensor = output.logits[0, :, :VOCABULARY_ROWS].float()
    return logits
