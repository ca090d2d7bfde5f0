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

    Its vocabulary is the first `VOCABULARY_ROWS` tokens of the whole one, both for inputs and for
    logits.

    Args:
        folder: The folder of its config.json.
        shapes: The shape of every tensor of the checkpoint, by name.
        read: Reads one of them.
        loaded_as: A model type such as "llama", with which transformers loads the checkpoint where
            it does not have the model type in config.json; empty for none.
        layers: Numbers of layers that the model must have, from 0.
        states: Whether only hidden states are wanted, for which the model needs no head.

    Raises:
        NoLayerRuns: The installed transformers or the model cannot do this.
        BadSource: transformers does not load the config.
    """
    import torch

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
    head = model.get_output_embeddings()
    if head is None and not states:
        raise NoLayerRuns(f"{type(model).__name__} gives no logits")

    compute_buffers(model)
    loader = PartialLoader(model, "cpu", torch.float32)
    _load_weights(model, head, shapes, read, loader)

    # a weight that is still on the meta device has no tensor in the checkpoint
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

    Layers and norms are loaded as a whole. Embeddings and the head have a row for every token, and
    only the first `VOCABULARY_ROWS` rows are loaded: the tokens that run are among them. A vision
    or audio model does not run, and gets no weights.

    Args:
        model: The model without weights.
        head: Its head, which gives the logits; None for an encoder.
        shapes: The shape of every tensor of the checkpoint, by name.
        read: Reads one of them.
        loader: Loads whole tensors into the model.

    Raises:
        NoLayerRuns: The layers are larger than `MOST_BYTES`.
    """
    import torch
    from torch import nn

    parameters_by_token = _parameters_by_token(model, head)
    names_in_model = weight_names(model)
    whole_tensors = []
    size = 0  # of these tensors, in bytes
    for tensor, parameter in loader.parameters_of(shapes).items():
        if parameter not in names_in_model:  # it is of a layer that is left out
            continue
        if any(part in parameter for part in VISION_AND_AUDIO):
            continue
        if parameter not in parameters_by_token:
            whole_tensors.append(tensor)
            size += 4 * math.prod(shapes[tensor])  # float32
            continue

        # such as the weight of model.embed_tokens
        module, key = parameters_by_token[parameter]
        rows = read(tensor, VOCABULARY_ROWS).to(torch.float32)
        setattr(module, key, nn.Parameter(rows, requires_grad=False))
        if isinstance(module, nn.Embedding):
            module.padding_idx = None  # torch refuses one beyond the rows
    if size > MOST_BYTES:
        raise NoLayerRuns(f"its first layers have {human(size)} as float32")
    loader.load({tensor: read(tensor, None) for tensor in whole_tensors})

    # a head without weights in the checkpoint has those of the embeddings (tie_word_embeddings)
    if head is not None and head.weight.is_meta:
        head.weight = nn.Parameter(model.get_input_embeddings().weight, requires_grad=False)


def _parameters_by_token(
    model: PreTrainedModel, head: Module | None
) -> dict[str, tuple[Module, str]]:
    """Return the weights with a row for every token, those of embeddings and of the head.

    {"model.embed_tokens.weight": (module, "weight")}, say: by the name in the model the module that
    has the weight, and the name of the weight in that module.
    """
    from torch import nn

    by_token: dict[str, tuple[Module, str]] = {}
    for name, module in model.named_modules():
        has_row_for_each_token = isinstance(module, nn.Embedding) or module is head
        if has_row_for_each_token:
            for key, _ in module.named_parameters(recurse=False):
                by_token[f"{name}.{key}"] = (module, key)
    return by_token


def run_first_layers(
    model: PreTrainedModel, ids: Sequence[int], positions: Sequence[int], states: bool = False
) -> Tensor:
    """Return the logits of a model of `load_first_layers`, or its last hidden states.

    Args:
        model: The model.
        ids: The tokens, below `VOCABULARY_ROWS`, which is the size of its vocabulary.
        positions: The position of each token.
        states: Whether to return hidden states.

    Returns:
        The logits, float32 [tokens, VOCABULARY_ROWS], or hidden states, float32 [tokens, width].

    Raises:
        NoLayerRuns: The model does not run with a part of its layers.
    """
    import torch

    given: dict[str, object] = {
        "input_ids": torch.tensor([list(ids)]),
        "position_ids": torch.tensor([list(positions)]),
        "attention_mask": torch.ones((1, len(ids)), dtype=torch.long),
    }
    # switch the key-value cache off. A model with logits has one; most encoders do not, and their
    # `forward` accepts no such argument
    if not states or has_cache(model):
        given["use_cache"] = False
    module = backbone_of(model) if states else model
    try:
        with torch.no_grad():
            output = module(**given)
    except Exception as problem:  # of any kind, from a class that needs all its layers
        raise NoLayerRuns(
            f"{type(model).__name__} does not run with a part of its layers"
            f" ({type(problem).__name__}: {problem})"
        ) from None
    if states:
        hidden: Tensor = output.last_hidden_state[0].float()
        return hidden
    logits: Tensor = output.logits[0, :, :VOCABULARY_ROWS].float()
    return logits
