"""The tiny models that engines run, and how transformers continues a long prompt with each."""

from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from ropeconv.engines.transformers.load import load_stock
from ropeconv.features.servers.completions import Completions
from ropeconv.loader import load_tokenizer
from tests.features.servers.test_live import CONTEXT
from tests.support.baking import apply, make_plan, recipe_of
from tests.support.llamacpp import checkpoint
from tests.support.models import COMMON

from .session import Session

FACTORS = {"right": 16.0, "wrong": 8.0}
"""The factor of each output. Both declare a context of 16 times the trained one."""
LONG = 900
"""Tokens of the long prompt, about."""
NEW_TOKENS = 8
END = COMMON["eos_token_id"]
SEEDS = 20
"""Prompts that are tried."""


class TinyModels(NamedTuple):
    """A long prompt, and its continuations."""

    prompt: str
    ids: list[int]

    continued: dict[str, str]
    """By transformers, with the method, with half of its factor, and without it."""

    tokenizer: PreTrainedTokenizerBase

    def text_of(self, ids: list[int]) -> str:
        """Return the text of generated tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def make_models(session: Session, method: str, ending: str = "") -> TinyModels:
    """Write the source, and the right and the wrong output, and return a prompt for them.

    Each output is also written as a checkpoint of transformers, which continues the prompt.

    Args:
        session: Its folder gets them, and its lines the commands.
        method: The method of both.
        ending: ".gguf" for outputs as GGUF files.
    """
    source = checkpoint("llama", session.folder / "source")
    for name, factor in FACTORS.items():
        recipe = recipe_of(method, factor, context=CONTEXT)
        reference = make_plan(source, recipe, session.folder / f"hf-{name}")
        apply(reference)
        words = f"ropeconv apply source --{method} {factor:g} --context {CONTEXT} -o {name}{ending}"
        if ending:
            gguf = session.folder / f"{name}{ending}"
            apply(make_plan(source, recipe, gguf, to="gguf", outtype="f32"))
            words += " --to gguf --outtype f32"
        else:
            apply(make_plan(source, recipe, session.folder / name))
        session.say(words)

    # only its tokenizer is used, and no server
    server = Completions.__new__(Completions)
    server.tokenizer = load_tokenizer(source, False, "")
    references = {
        "method": load_stock(session.folder / "hf-right", "cpu"),
        "half of the factor": load_stock(session.folder / "hf-wrong", "cpu"),
        "no method": load_stock(session.folder / "source", "cpu"),
    }
    for seed in range(SEEDS):
        text = server.make_text(LONG, seed)
        ids = list(server.tokenizer(text).input_ids)[:LONG]
        while not server.text_of(ids):
            ids.pop()
        added = {words: continue_greedily(model, ids) for words, model in references.items()}
        # some engines stop at the end of a text, and others do not
        has_end = any(END in tokens for tokens in added.values())
        if not has_end:
            break
    continued = {}
    for words, tokens in added.items():
        continued[words] = str(server.tokenizer.decode(tokens, skip_special_tokens=True))
    return TinyModels(server.text_of(ids), ids, continued, server.tokenizer)


def continue_greedily(model: Any, ids: list[int]) -> list[int]:
    """Return the tokens that a model of transformers appends to a prompt."""
    given = list(ids)
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            given.append(int(model(torch.tensor([given])).logits[0, -1].argmax()))
    return given[len(ids) :]
