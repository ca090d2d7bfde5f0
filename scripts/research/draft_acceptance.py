"""Measures how many tokens of a draft its target accepts beyond their trained lengths, with and
without `--draft`.

    python -m scripts.research.draft_acceptance [STEPS]

A target of two layers is trained on windows of 64 tokens, and a draft of one layer on 32, as the
heads of published models are trained on less than their targets. The target is extended to 256
tokens with YaRN. A token counts as accepted if the draft would choose it as the target does, after
the same unseen text. Then transformers generates with the draft (`assistant_model`), which must not
change the text; fewer passes of the target mean more accepted tokens.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import ropeconv

from .reproduction.text import corpus
from .reproduction.training import Training, train

CONTEXT, TRAINED, SHORTER = 256, 64, 32
RANGES = ((0, 32), (32, 64), (64, 128), (128, 256))
PROMPT, NEW, DRAFTED = 160, 80, 4


@contextmanager
def passes(model: Any) -> Iterator[list[int]]:
    """Count the forward passes of a model."""
    counted: list[int] = []
    hook = model.register_forward_hook(lambda *_: counted.append(1))
    try:
        yield counted
    finally:
        hook.remove()


def accepted(target: Any, draft: Any, windows: torch.Tensor) -> list[float]:
    """The share of tokens that a draft chooses as its target does, by range of positions."""
    with torch.inference_mode():
        same = target(windows).logits.argmax(-1) == draft(windows).logits.argmax(-1)
    return [float(same[:, start:stop].float().mean()) for start, stop in RANGES]


def generated(target: Any, draft: Any, windows: torch.Tensor) -> tuple[int, int]:
    """Generate texts greedily with a draft, and count.

    Args:
        target: The target.
        draft: The draft, which proposes DRAFTED tokens for each pass of the target.
        windows: Token ids, [texts, tokens], whose beginnings are the prompts.

    Returns:
        The new tokens, and the passes of the target that they took.

    Raises:
        AssertionError: The text is another one than without the draft.
    """
    draft.generation_config.num_assistant_tokens = DRAFTED
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    options = {"max_new_tokens": NEW, "do_sample": False, "use_cache": True}
    tokens = 0
    target_passes = 0
    for window in windows:
        prompt = window[None, :PROMPT]
        alone = target.generate(prompt, **options)
        with passes(target) as counted:
            together = target.generate(prompt, assistant_model=draft, **options)
        assert torch.equal(alone, together), "the draft changed the text"
        tokens += together.shape[1] - PROMPT
        target_passes += len(counted)
    return tokens, target_passes


def main(steps: int = 400) -> None:
    """Train a target and a draft, extend the draft in four ways, and print the accepted shares."""
    texts = {name: text for name, text in topics.items() if len(text) > 500}
    texts_read = corpus(texts, CONTEXT + 1, 24)
    windows = torch.from_numpy(texts_read.test[:, :CONTEXT])
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, length, layers, base in (("target", TRAINED, 2, 1e5), ("draft", SHORTER, 1, 1e4)):
            training = Training(
                length=length, steps=steps, layers=layers, heads=2, tiled=0.0, base=base
            )
            model = train(
                training, texts_read.train, texts_read.vocabulary, heard=lambda step, loss: None
            )
            model.config.bos_token_id = None
            model.config.eos_token_id = None
            model.save_pretrained(root / name)

        # `draft=` writes the draft beside the target, into out-draft
        out = root / "out"
        ropeconv.apply(root / "target", yarn=CONTEXT / TRAINED, draft=root / "draft", out=out)
        ropeconv.apply(root / "draft", yarn=CONTEXT / TRAINED, out=root / "factor")
        ropeconv.apply(root / "draft", linear=CONTEXT / SHORTER, out=root / "linear")
        drafts = {
            "as published": root / "draft",
            "with --draft": root / "out-draft",
            "the factor of the target": root / "factor",
            "linear, a wrong method": root / "linear",
        }

        target = AutoModelForCausalLM.from_pretrained(out).eval()
        ranges = [f"{start}-{stop}" for start, stop in RANGES]
        print(" | ".join(["draft", *ranges, "tokens per pass of the target"]))
        for title, place in drafts.items():
            draft = AutoModelForCausalLM.from_pretrained(place).eval()
            shares = [f"{share:.3f}" for share in accepted(target, draft, windows)]
            tokens, target_passes = generated(target, draft, windows[:8])
            print(" | ".join([title, *shares, f"{tokens / target_passes:.2f}"]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
