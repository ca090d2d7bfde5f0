"""Asks a transformers installation what it makes of a config. A program of its own: it imports nothing of ropeconv.

It runs as `python probe.py MODEL_TYPE`, so that any version on PYTHONPATH can be asked. It imports transformers while
its caller still copies files, then answers one line of JSON per line of JSON on stdin: {"path": folder, "context": n}.
The answer holds, per rotary module of the text model, the frequencies and amplitude that it applies at the last
position of the context and at the first ones, taken from its buffers after a forward pass.
"""

import gc

gc.disable()  # halves the time of the imports

import contextlib
import importlib
import json
import logging
import os
import sys
import warnings


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ["HF_HUB_OFFLINE"] = "1"
    with contextlib.suppress(Exception):
        importlib.import_module(f"transformers.models.{sys.argv[1]}.modeling_{sys.argv[1]}")
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = ask(question["path"], question["context"])
        except Exception as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        answers.write(json.dumps({"transformers": version()} | answer) + "\n")
        answers.flush()
    answers.close()
    os._exit(0)  # interpreter shutdown takes half a second after these imports


def version() -> str:
    import transformers

    return str(transformers.__version__)


def ask(path: str, context: int) -> dict:
    """Frequencies per rotary module of the text model of a folder's config."""
    import torch
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path)
    text = config.get_text_config() if hasattr(config, "get_text_config") else getattr(config, "text_config", config)
    shrink(text)
    with torch.device("meta"):
        model = build(text)
    modules = {}
    for name, module in model.named_modules():
        if "RotaryEmbedding" not in type(module).__name__ or not hasattr(module, "config"):
            continue
        for label, answer in look(type(module)(config=module.config), name, context, torch):
            modules[label] = answer
    if not modules:
        raise ValueError(f"{type(model).__name__} has no rotary module that reads a config")
    return {"modules": modules, "class": type(model).__name__}


def build(text):
    """The text model of a config, whichever Auto class knows it."""
    from transformers import AutoModel, AutoModelForCausalLM

    try:
        return AutoModel.from_config(text)
    except ValueError:
        return AutoModelForCausalLM.from_config(text)


def shrink(text) -> None:
    """As few layers as show every kind of layer."""
    kinds = getattr(text, "layer_types", None)
    count = getattr(text, "num_hidden_layers", 1)
    keep = min(count, 1 + max((kinds.index(kind) for kind in set(kinds)), default=0)) if kinds else min(count, 1)
    text.num_hidden_layers = keep
    for name in ("layer_types", "no_rope_layers", "mlp_layer_types"):
        if isinstance(getattr(text, name, None), list):
            setattr(text, name, getattr(text, name)[:keep])


def look(module, name, context, torch):
    """(label, answer) per set of frequencies in a rotary module; label "global" or "local"."""
    kinds = [key[: -len("_inv_freq")] for key in dict(module.named_buffers()) if key.endswith("attention_inv_freq")]
    kinds = [kind for kind in kinds if not kind.endswith("original")]
    if not kinds:
        local = name.endswith("_local") or "sliding_attention" in name
        yield "local" if local else "global", run(module, None, context, torch)
    for kind in kinds:
        yield "local" if kind == "sliding_attention" else "global", run(module, kind, context, torch)


def run(module, kind, context, torch):
    """Frequencies and amplitude at the end of the context, and frequencies inside the trained part."""
    buffer = "inv_freq" if kind is None else f"{kind}_inv_freq"
    forward(module, kind, [0, 1], torch)
    short = getattr(module, buffer).to(torch.float64).tolist()
    amplitude = forward(module, kind, [0, context - 1], torch)
    return {"inv_freq": getattr(module, buffer).to(torch.float64).tolist(), "short": short, "amplitude": amplitude}


def forward(module, kind, positions, torch):
    """Runs the module; the amplitude is the length of (cos, sin) at position 0."""
    states = torch.zeros(1, len(positions), 2)
    extra = {} if kind is None else {"layer_type": kind}
    ids = torch.tensor([positions])
    try:
        result = module(states, ids, **extra)
    except (IndexError, RuntimeError):
        result = module(states, ids[None].expand(3, 1, -1), **extra)  # sections of positions (Qwen VL)
    first = result[0] if isinstance(result, tuple) else result.abs()
    return float(first.reshape(-1, first.shape[-1])[0, 0])


if __name__ == "__main__":
    main()
