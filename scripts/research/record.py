"""Measures every method on small models that are trained for it: items of the public record.

    python -m scripts.research.record [MODELS [FOLDER [HIDDEN LAYERS [LENGTH BASE [FAMILY]]]]]

Each model is a Llama (of 0.71M parameters by default) that learns 128 tokens of the manual of
Python, and to find needles: its windows hide values whose cues ask for them. LENGTH trains with
others, BASE with another rope_theta, and FAMILY is `qwen3` (with norms of queries and keys) or
`gemma3_text` (whose first layers see only half of the length, with a theta of 10,000). It is
measured without further training at 4, 2 and 8 times, up to 1,024 tokens, on texts that it has not
seen:

- the loss of the last 64 tokens of a text after 128 to 1,024 tokens, one item per text;
- needles at five depths, one question per text and depth.

Then each Llama of 128 tokens is trained with 512 tokens and a scaling of 4, and measured at 1,024
tokens with methods on top of that. A model takes about ten minutes on an idle core.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import ropeconv
from ropeconv.bake.items import RecordItem, write_items
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.forms import Plain
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.spec import RopeSpec

from .on_top import SCALINGS, trained_longer, with_rope
from .reproduction.measuring import predict, with_needles
from .reproduction.text import Corpus, corpus, manual
from .reproduction.training import Training, build, sizes, train

FACTORS = (4, 2, 8)
TEXTS = 16
LONGEST = 1024
"""Tokens of a text."""
STEPS = 400
"""Steps of training, of 1,024 tokens each."""
TARGETS = 64
"""Tokens at the end of a text whose loss is measured."""
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
NEAREST = 8
"""Tokens between a needle and its cue at depth 1."""
ON_TOP = ("yarn", "llama3", "ntk", "linear", "by-parts", "mixed")
FOLDER = Path("docs/evidence/items")
NAMES = {"llama": "Llama", "qwen3": "Qwen3", "gemma3_text": "Gemma3"}
"""The names of models by their family, before their size."""


def build_family(family: str, training: Training, vocabulary: int) -> Any:
    """An untrained model of a family, with the shape and the seed of a training."""
    if family == "llama":
        return build(training, vocabulary)
    settings: dict[str, Any] = {
        "rope_parameters": {"rope_type": "default", "rope_theta": training.base}
    }
    if family == "gemma3_text":
        kinds = ["sliding_attention"] * (training.layers - 1) + ["full_attention"]
        local = {"rope_type": "default", "rope_theta": 10_000.0}
        settings = {
            "layer_types": kinds,
            "sliding_window": training.length // 2,
            "query_pre_attn_scalar": training.head_dim,
            "rope_parameters": {
                "full_attention": settings["rope_parameters"],
                "sliding_attention": local,
            },
        }
    torch.manual_seed(training.seed)
    config = AutoConfig.for_model(family, **sizes(training, vocabulary), **settings)
    return AutoModelForCausalLM.from_config(config)


def methods(training: Training, factor: int) -> Iterator[tuple[str, ropeconv.Recipe]]:
    """Every method that has a form for a factor, with its recipe for a model of this training."""
    spec = RopeSpec(
        training.head_dim, training.head_dim, Plain(training.base), training.length, training.length
    )
    for name, kind in REGISTRY.items():
        try:
            method = kind.for_context(spec, factor * training.length)
        except RopeconvError:
            continue
        if method is not None and name not in ("dynamic", "theta-bound"):
            yield name, ropeconv.Recipe(method)


def size_of(model: Any, seed: int) -> str:
    """The name of a model by its family and parameters, and its seed: `Llama-0.71M 0`."""
    parameters = sum(weight.numel() for weight in model.parameters())
    return f"{NAMES[model.config.model_type]}-{parameters / 1e6:.2f}M {seed}"


class Measuring:
    """Makes the items of one model."""

    def __init__(
        self,
        text: Corpus,
        size: str,
        trained: int,
        identity: str,
        on_top: str = "",
        sliding_window: int = 0,
    ):
        """Name the model in its items.

        Args:
            text: Texts that it has not seen.
            size: Its name and its seed, such as "Llama-0.71M 0".
            trained: The trained length in tokens.
            identity: A digest of its training.
            on_top: The rope type of the scaling that it was trained on with; empty for none.
            sliding_window: The tokens that most of its layers see, if others see all; else 0.
        """
        self.text = text
        model, seed = size.split()
        name = f"{model}-{trained}-seed{seed}"
        if on_top:
            name = f"{model}-{trained}-{on_top}-seed{seed}"
        self.shared: dict[str, Any] = {
            "model": name,
            "identity": identity,
            "trained": trained,
            "on_top": on_top,
            "sliding_window": sliding_window,
            "runtime": "transformers",
            "dtype": "float32",
            "sample": text.sha256[:16],
        }

    def of_row(self, method: str, factor: int | None) -> dict[str, Any]:
        """Return the fields that all items of a row have."""
        row = method if factor is None else f"{method}:{factor}"
        return {**self.shared, "row": row, "method": method, "factor": factor}

    def items(
        self, model: Any, method: str, factor: int | None, recipe: Any, lengths: list[int]
    ) -> Iterator[RecordItem]:
        """Yield the losses of a row at each length, an item for each text.

        Args:
            model: The model.
            method: The name of the method; "base" for none.
            factor: Its factor; None for none.
            recipe: Its recipe; None for none.
            lengths: The lengths in tokens.
        """
        of_row = self.of_row(method, factor)
        longest = self.text.test.shape[1]
        for length in lengths:
            # the same tokens at the end, after fewer tokens or more
            ids = self.text.test[:, longest - length - 1 :]
            losses = predict(model, ids, recipe, last=TARGETS).loss.mean(1)
            for name, loss in zip(self.text.names, losses, strict=True):
                yield RecordItem(
                    measure="growth",
                    metric="loss",
                    length=length,
                    text=name,
                    window=0,
                    value=round(float(loss), 6),
                    **of_row,
                )

    def needles(
        self, model: Any, method: str, factor: int | None, recipe: Any, lengths: list[int]
    ) -> Iterator[RecordItem]:
        """Yield the answers of a row to needles at each depth and length, an item for each text.

        Args:
            model: The model.
            method: The name of the method; "base" for none.
            factor: Its factor; None for none.
            recipe: Its recipe; None for none.
            lengths: The lengths in tokens.
        """
        of_row = self.of_row(method, factor)
        for length in lengths:
            pieces = self.text.test[:, :length]
            for number, depth in enumerate(DEPTHS):
                # from the beginning of the text, depth 0, to NEAREST tokens before the cue, depth 1
                distance = round((1 - depth) * (length - 2 - NEAREST)) + NEAREST
                distance -= distance % 2  # training has needles at even distances
                asked = with_needles(pieces, distance, self.text.vocabulary, seed=number)
                right = predict(model, asked, recipe, last=1).right[:, 0]
                for name, answer in zip(self.text.names, right, strict=True):
                    yield RecordItem(
                        measure="needle",
                        metric="exact",
                        length=length,
                        text=name,
                        window=number,
                        depth=depth,
                        value=float(answer),
                        **of_row,
                    )


def measure_plain(model: Any, training: Training, text: Corpus) -> Iterator[list[RecordItem]]:
    """Yield the items of a model without scaling: unchanged, and with all methods at each factor.

    Args:
        model: The model.
        training: Its training.
        text: Texts that it has not seen.

    Yields:
        The items of the unchanged model, and then those of each factor.
    """
    trained = training.length
    description = repr(asdict(training))
    if model.config.model_type != "llama":
        description += model.config.model_type
    identity = sha256(description.encode()).hexdigest()
    size = size_of(model, training.seed)
    sliding_window = getattr(model.config, "sliding_window", None) or 0
    measuring = Measuring(text, size, trained, identity, sliding_window=sliding_window)
    factors = [factor for factor in FACTORS if factor * trained <= LONGEST]
    every_length = [trained, *(factor * trained for factor in factors)]
    unchanged = list(measuring.items(model, "base", None, None, every_length))
    unchanged += measuring.needles(model, "base", None, None, every_length)
    yield unchanged
    for factor in factors:
        lengths = [trained, factor * trained]
        items: list[RecordItem] = []
        for name, recipe in methods(training, factor):
            items += measuring.items(model, name, factor, recipe, lengths)
            items += measuring.needles(model, name, factor, recipe, lengths[1:])
        yield items


def measure_on_top(model: Any, kind: str, seed: int, text: Corpus) -> Iterator[RecordItem]:
    """The items of a model that is trained on with a scaling. kind: of the scaling."""
    longer = trained_longer(model, kind, text, seed, needles=0.5)
    identity = sha256(f"{kind} {seed} 512".encode()).hexdigest()
    measuring = Measuring(text, size_of(model, seed), 512, identity, kind)
    yield from measuring.items(longer, "base", None, None, [512, 1024])
    yield from measuring.needles(longer, "base", None, None, [512, 1024])
    for name in ON_TOP:
        data = {"method": name, "parameters": {"factor": 2.0}, "on_top": True}
        recipe = ropeconv.Recipe.from_dict(data)
        yield from measuring.items(longer, name, 2, recipe, [512, 1024])
        yield from measuring.needles(longer, name, 2, recipe, [1024])


def main(
    models: str = "3",
    folder: str = str(FOLDER),
    hidden: str = "128",
    layers: str = "3",
    length: str = "128",
    base: str = "10000",
    family: str = "llama",
) -> None:
    """Train the models, and write a file of items for each.

    Args:
        models: How many, each with another seed.
        folder: Where the files are written.
        hidden: Their hidden size.
        layers: Their layers.
        length: The trained length.
        base: The base of RoPE.
        family: The architecture, "llama" or another that `build_family` knows.
    """
    text = corpus(manual(), LONGEST + 1, TEXTS)
    for seed in range(int(models)):
        training = Training(
            seed=seed,
            base=float(base),
            length=int(length),
            needles=1.0,
            tiled=0.0,
            steps=STEPS,
            hidden=int(hidden),
            layers=int(layers),
            heads=int(hidden) // 32,
        )
        model = train(training, text.train, text.vocabulary, make=partial(build_family, family))
        items: list[RecordItem] = []
        for part in measure_plain(model, training, text):  # a run that is stopped has some
            items += part
            write_items(items, Path(folder) / f"{items[0].model}.jsonl.gz")

        print(f"seed {seed}: {len(items):,} items", flush=True)
        if family != "llama" or training.length != 128:
            continue
        plain = with_rope(model, {"rope_type": "default"}, training.length)
        for kind in SCALINGS:
            on_top = list(measure_on_top(plain, kind, seed, text))
            write_items(on_top, Path(folder) / f"{on_top[0].model}.jsonl.gz")
            print(f"seed {seed}, {kind}: {len(on_top):,} items", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
