"""Compares the first line of `ropeconv advise` with what the publishers of models chose.

    python -m scripts.pages publishers

tests/bake/publishers.toml has the models, with the method of each publisher and its source. The
scaling is taken out of the config of a model, and `advise` is asked for the context that the
publisher declares. `first_choice` is the function to read first. The results are written to
docs/evidence/publishers.json, from which docs/methods.md has its table.
"""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ropeconv.bake.advice import NO_NEW_ANGLE

from .advice_files import advise_config, write_records

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "evidence" / "publishers.json"
MODELS = ROOT / "tests" / "bake" / "publishers.toml"
DATA = ROOT / "tests" / "data"
BASES = {"codellama/CodeLlama-7b-hf": 10_000.0, "gradientai/Llama-3-8B-Instruct-262k": 500_000.0}
"""The base of models before their publisher trained them with a larger one."""

WINDOWS: dict[str, Any] = {"LGAI-EXAONE/EXAONE-4.0-1.2B": {"sliding_window": None}}
"""What the stored config of a model leaves out. Only the EXAONE 4.0 of 32B has layers with windows
(https://arxiv.org/abs/2507.11407).
"""


class PublishedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model, and how its publisher reaches its context."""

    model: str
    """Its name in tests/data."""

    trained: int
    """The tokens before the extension."""

    context: int
    """The tokens that the publisher declares."""

    method: str
    """The method of the publisher with its value, such as `yarn 40`."""

    source: str = "rope_scaling in its config"
    """Where that stands."""


class Choice(msgspec.Struct, frozen=True):
    """The method of a publisher beside the first line of `advise`."""

    model: str
    trained: int
    context: int
    publisher: str
    source: str
    first: str
    """The first line, for the model without its scaling."""

    training: str
    """The level of the training that it needs."""

    basis: str
    """The reason for its place."""

    @property
    def agrees(self) -> bool:
        """Whether both have the same method and factor."""
        factor = self.context / self.trained
        name, _, value = self.publisher.partition(" ")
        return self.first == f"--{name} {factor:g}" and float(value) == factor


def read_models() -> list[PublishedModel]:
    """Return the models of tests/bake/publishers.toml."""
    document = tomllib.loads(MODELS.read_text("utf-8"))
    return msgspec.convert(document["models"], list[PublishedModel])


def read_reasons() -> dict[str, str]:
    """Return why `advise` differs, by the method of the publisher."""
    reasons: dict[str, str] = tomllib.loads(MODELS.read_text("utf-8"))["reasons"]
    return reasons


def published_config(model: str) -> dict[str, Any]:
    """Return the config of a model in tests/data, as it was published."""
    name = f"{model.replace('/', '--')}.json"
    for folder in ("configs", "more_configs"):
        path = DATA / folder / name
        if path.exists():
            config: dict[str, Any] = json.loads(path.read_text("utf-8"))
            return config
    entries = json.loads((DATA / "published_ropes.json").read_text("utf-8"))
    stored = next(entry["config"] for entry in entries if entry["model"] == model)
    return {**stored, **WINDOWS.get(model, {})}


def without_scaling(config: dict[str, Any], published: PublishedModel) -> dict[str, Any]:
    """Return a config as it was before the publisher extended the context."""
    changed: dict[str, Any] = {}
    if "text_config" not in config:
        # Gemma 3 leaves its length to the class
        changed["max_position_embeddings"] = published.trained
    for key, value in config.items():
        if key == "rope_scaling":
            continue
        if key in ("text_config", "language_config") and isinstance(value, dict):
            value = without_scaling(value, published)
        if key in ("rope_parameters", "full_attention") and isinstance(value, dict):
            value = _unscaled_parameters(value)
        if key in ("max_position_embeddings", "max_sequence_length"):
            value = published.trained
        if key == "rope_theta":
            value = BASES.get(published.model, value)
        changed[key] = value
    # transformers 4 writes the trained length of LongRoPE beside the declared one
    changed.pop("original_max_position_embeddings", None)
    return changed


def _unscaled_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """A RoPE dictionary of transformers 5 without the scaling."""
    if "full_attention" in parameters:
        full = _unscaled_parameters(parameters["full_attention"])
        return {**parameters, "full_attention": full}
    kept = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
    return {"rope_type": "default", **{key: parameters[key] for key in kept if key in parameters}}


def first_choice(published: PublishedModel) -> Choice:
    """Ask `advise` for the context of a publisher, for the model without its scaling."""
    config = without_scaling(published_config(published.model), published)
    first = advise_config(config, published.context)[0]
    return Choice(
        model=published.model,
        trained=published.trained,
        context=published.context,
        publisher=published.method,
        source=published.source,
        first=first.flags,
        training=first.fine_tuning.level,
        basis=first.basis,
    )


def read_choices() -> list[Choice]:
    """Return what docs/evidence/publishers.json has."""
    return msgspec.json.decode(FILE.read_bytes(), type=list[Choice])


def publisher_table(choices: Sequence[Choice], reasons: dict[str, str]) -> str:
    """Return the table of docs/methods.md: models with the same methods share a line.

    Args:
        choices: The models.
        reasons: Why `advise` differs, by the method of the publisher.
    """
    models: dict[tuple[str, str, str], list[str]] = {}
    for choice in choices:
        length = f"{choice.trained:,} to {choice.context:,}"
        name, _, _ = choice.publisher.partition(" ")
        first = "the same" if choice.agrees else f"`{choice.first}`"
        if choice.training in ("recommended", "needed"):
            first += " and fine-tuning"
        elif choice.training == "undecided":
            first += " (not decided)"
        reason = "" if choice.agrees else reasons[name]
        if choice.basis == NO_NEW_ANGLE:
            reason = "its layers that rotate see windows only, so a method adds nothing"
        row = (choice.publisher, first, reason)
        models.setdefault(row, []).append(f"{choice.model.rpartition('/')[2]} ({length})")
    lines = ["| its publisher | `advise` | models | why another one |", "|---" * 4 + "|"]
    for (publisher, first, reason), names in models.items():
        lines.append(f"| {publisher} | {first} | {', '.join(names)} | {reason} |")
    return "\n".join(lines)


def choice_sentence(choices: Sequence[Choice]) -> str:
    """How many models agree, in sentences."""
    yarn = sum(choice.first.startswith("--yarn ") for choice in choices)
    same = sum(choice.agrees for choice in choices)
    followed = sum(choice.basis == "its publisher" for choice in choices)
    return (
        f"The first line is YaRN for {yarn} of {len(choices)} published models. Method and factor"
        f" are those of the publisher for {same} of them; {followed} of these follow from a"
        " recommendation in the table of `advise`."
    )


def main() -> None:
    """Write the file."""
    write_records(FILE, [first_choice(published) for published in read_models()])


if __name__ == "__main__":
    main()
