"""A program that asks a transformers installation what it computes from a config.

It runs as `python probe_program.py`, so that any version on PYTHONPATH can be asked. It imports
transformers at once, while its caller plans and copies, and answers a line of JSON on stdin,
{"path": folder, "context": n, "own": false, "as": ""}, by a line on stdout. own: run the modelling
file in the folder, which the caller has written or trusts. as: the model type with which a config
is read whose own model type this installation does not have. A line {"model_type": name} starts the
import of the code of that model, and gets no answer. The answer holds, per rotary module of the
text model, the frequencies and attention factor that it applies at the last position of the context
and at the first ones, taken from its buffers after a forward pass. A model with an encoder and a
decoder is asked as a whole, and both have to compute the same.
"""

from __future__ import annotations

import gc

# a quarter of the imports: 4.1 in place of 5.5 s of CPU for the Llama of transformers 5.23
gc.disable()

import contextlib
import copy
import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parents[2]))  # behind the packages that the installation has
from ropeconv.loader import load_class, load_config, make_config, make_model
from ropeconv.rope.errors import RopeconvError

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PretrainedConfig


def main() -> None:
    """Answers the questions on stdin until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ["HF_HUB_OFFLINE"] = "1"
    with contextlib.suppress(Exception):
        importlib.import_module("transformers.modeling_utils")
    for line in sys.stdin:
        question = json.loads(line)
        if "model_type" in question:
            with contextlib.suppress(Exception):
                name = question["model_type"]
                importlib.import_module(f"transformers.models.{name}.modeling_{name}")
            continue
        try:
            if question.get("own"):
                answer = ask_own(question["path"], question["context"])
            else:
                answer = ask(question["path"], question["context"], question.get("as", ""))
        except Exception as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        with contextlib.suppress(Exception):
            answer["transformers"] = version()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    answers.close()
    os._exit(0)  # interpreter shutdown takes half a second after these imports


def version() -> str:
    """The version of transformers."""
    import transformers

    return str(transformers.__version__)


def ask(path: str, context: int, stands_for: str) -> dict[str, object]:
    """The answer for a folder: frequencies and attention factor per rotary module of the text model
    of its config.

    stands_for: the model type of a config whose own is not known here; empty to read it unchanged.
    """
    config, read_as = read(Path(path), stands_for)
    text = (
        config.get_text_config()
        if hasattr(config, "get_text_config")
        else getattr(config, "text_config", config)
    )
    halves = getattr(config, "is_encoder_decoder", False)
    if halves:
        text = config
    try:
        model = build(shrunk(text))
    except ValueError:  # a class that misses, in few layers, a module it names
        model = build(text)
    modules: dict[str, object] = {}
    for name, module in model.named_modules():
        if "RotaryEmbedding" in type(module).__name__:
            answers = dict(look(module, name, context))
            differ = [
                label for label in answers if modules.get(label, answers[label]) != answers[label]
            ]
            if differ and halves:
                raise ValueError(
                    f"its encoder and its decoder compute different {differ[0]} frequencies"
                )
            modules.update(answers)
    if not modules:
        raise ValueError(f"{type(model).__name__} has no rotary module")
    return {"modules": modules, "class": type(model).__name__, "read_as": read_as}


def read(folder: Path, stands_for: str) -> tuple[PretrainedConfig, str]:
    """The config in a folder, and the model type that was put in the place of its own. stands_for:
    as for `ask`.
    """
    from transformers import CONFIG_MAPPING

    whole = json.loads((folder / "config.json").read_bytes())
    if stands_for:
        holder = whole["thinker_config"] if isinstance(whole.get("thinker_config"), dict) else whole
        part = holder["text_config"] if isinstance(holder.get("text_config"), dict) else whole
        unknown = [
            config for config in (part, whole) if config.get("model_type") not in CONFIG_MAPPING
        ]
        if unknown:
            return make_config(part, stands_for), stands_for
    try:
        return load_config(folder, trust=False), ""
    except RopeconvError:
        if whole.get("model_type") in CONFIG_MAPPING:
            raise
        raise LookupError(f"it has no model type {whole.get('model_type')}") from None


def ask_own(path: str, context: int) -> dict[str, object]:
    """The answer for a folder whose frequencies are stored in a tensor and read by its own
    modelling file.
    """
    from safetensors.torch import load_file

    config = load_config(Path(path), trust=True)
    model = load_class(config, "AutoModel", Path(path))
    rotary = sys.modules[model.__module__].StoredRope(config)
    with open(os.path.join(path, "model.safetensors.index.json"), encoding="utf-8") as index:
        shard = json.load(index)["weight_map"]["model.rotary_emb.inv_freq"]
    rotary.inv_freq = load_file(os.path.join(path, shard))["model.rotary_emb.inv_freq"]
    return {"modules": dict(look(rotary, "model.rotary_emb", context)), "class": model.__name__}


def build(text: PretrainedConfig) -> Module:
    """The text model of a config on the meta device, without weights, but with its rotary modules
    on the CPU.
    """
    import torch
    from transformers import PreTrainedModel

    PreTrainedModel.init_weights = lambda self: None
    model_class = class_of(text)
    for member in vars(sys.modules[model_class.__module__]).values():
        if isinstance(member, type) and "RotaryEmbedding" in member.__name__:
            on_cpu(member)
    try:
        with torch.device("meta"):
            return make_model(model_class, text)
    except NotImplementedError:  # a class that looks at its own parameters while it is built
        return make_model(model_class, text)


def class_of(text: PretrainedConfig) -> type[Module]:
    """The class of the text model of a config: of AutoModel, or the one in its modelling file that
    takes the config.
    """
    from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

    for auto in (AutoModel, AutoModelForCausalLM):
        with contextlib.suppress(
            KeyError, ValueError
        ):  # it names classes that are not there (Voxtral Realtime)
            known = auto._model_mapping[type(text)]
            first: type[Module] = known[0] if isinstance(known, (tuple, list)) else known
            return first
    code = importlib.import_module(type(text).__module__.replace(".configuration_", ".modeling_"))
    return next(
        member
        for name, member in vars(code).items()
        if name.endswith("Model")
        and isinstance(member, type)
        and issubclass(member, PreTrainedModel)
        and getattr(member, "config_class", None) is type(text)
        and not name.endswith("PreTrainedModel")
    )


def on_cpu(rotary: type[Module]) -> None:
    """Makes a rotary class compute its frequencies on the CPU, also inside a meta device."""
    import torch

    original = rotary.__init__
    if getattr(original, "on_cpu", False):
        return

    def init(self: Module, *args: object, **kwargs: object) -> None:
        with torch.device("cpu"):
            original(self, *args, **kwargs)

    init.on_cpu = True  # type: ignore[attr-defined]
    rotary.__init__ = init


def shrunk(text: PretrainedConfig) -> PretrainedConfig:
    """A copy of a text config, or of one with an encoder and a decoder, with as few layers as show
    every kind.
    """
    text = copy.deepcopy(text)
    halves = getattr(text, "is_encoder_decoder", False) and hasattr(text, "encoder")
    for part in (
        [half.get_text_config() for half in (text.encoder, text.decoder)] if halves else [text]
    ):
        kinds = getattr(part, "layer_types", None)
        count = getattr(part, "num_hidden_layers", 1)
        keep = (
            min(count, 1 + max((kinds.index(kind) for kind in set(kinds)), default=0))
            if kinds
            else min(count, 1)
        )
        part.num_hidden_layers = keep
        for name in ("layer_types", "no_rope_layers", "mlp_layer_types"):
            if isinstance(getattr(part, name, None), list):
                with contextlib.suppress(
                    AttributeError
                ):  # a property that follows the number of layers
                    setattr(part, name, getattr(part, name)[:keep])
    return text


def look(module: Module, name: str, context: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yields (label, answer) per set of frequencies in a rotary module; the label is "global" or
    "local".

    name: of the module in its model, which shows whether it is local. context: in tokens.
    """
    kinds = [
        key[: -len("_inv_freq")]
        for key in dict(module.named_buffers())
        if key.endswith("_inv_freq")
    ]
    kinds = [kind for kind in kinds if not kind.endswith("original")]
    if not kinds:
        local = name.endswith(("_local", "_unscaled")) or "sliding_attention" in name
        yield "local" if local else "global", run(module, None, context)
    for kind in kinds:
        local = ("sliding" in kind or kind == "main") and len(kinds) > 1
        yield "local" if local else "global", run(module, kind, context)


def run(module: Module, kind: str | None, context: int) -> dict[str, object]:
    """The answer for one set of frequencies: at the end of the context, at position 1, and the
    attention factor.

    kind: the layer type of the set, None for a module with one set. context: in tokens.
    """
    buffer = "inv_freq" if kind is None else f"{kind}_inv_freq"
    forward(module, kind, [0, 1])
    short = getattr(module, buffer).double().tolist()
    attention_factor = forward(module, kind, [0, context - 1])
    inv_freq = getattr(module, buffer).double().tolist()
    return {"inv_freq": inv_freq, "short": short, "attention_factor": attention_factor}


def forward(module: Module, kind: str | None, positions: list[int]) -> float:
    """Runs a rotary module at positions from 0 on, and returns its attention factor, which is cos
    at position 0.
    """
    import torch

    states = torch.zeros(1, len(positions), 2)
    extra = {} if kind is None else {"layer_type": kind}
    ids = torch.tensor([positions])
    try:
        result = module(states, ids, **extra)
    except (IndexError, RuntimeError):
        try:
            result = module(
                states, ids[None].expand(3, 1, -1), **extra
            )  # sections of positions (Qwen VL)
        except RuntimeError:
            result = module(states, seq_len=positions[-1] + 1)  # before 4.48, in some families
    first = result[0] if isinstance(result, tuple) else result.abs()
    return float(first.reshape(-1, first.shape[-1])[0, 0])


if __name__ == "__main__":
    main()
