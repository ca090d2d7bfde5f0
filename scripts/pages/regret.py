"""Measures how good the first line of `ropeconv advise` is on a model that it has not seen.

    python -m scripts.pages regret

For each study without training, `advise` runs on a config with the RoPE of its model, with a table
of evidence from which all studies of that model are taken out. Its first line that was measured on
the model is compared with the best one. `measure_regret` is the function to read first. It writes
docs/evidence/regret.json, from which docs/evaluating.md has its table and sentences.
"""

from collections.abc import Sequence
from statistics import mean
from typing import Any
from unittest.mock import patch

import msgspec

from ropeconv.bake.evidence import BASE, EvidenceTable, Study
from ropeconv.bake.items import RecordItem
from ropeconv.bake.proof import prove

from .advice_files import advise_config, write_records
from .evidence import FOLDER, record, table

FILE = FOLDER / "regret.json"
REAL = ("SmolLM2-135M", "gemma-3-270m")
"""The models that somebody uses, as keys of SHAPES."""
TRAINED = {"Llama-0.14M": 128, "three Llamas": 128, "four Llamas": 128}
"""The trained lengths of small models, before any scaling, by the beginning of their names."""
SHAPES = {
    "SmolLM2-135M": {"head_dim": 64, "rope_theta": 100_000.0},
    "gemma-3-270m": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "head_dim": 256,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Llama-0.14M": {"head_dim": 32, "rope_theta": 10_000.0},
    "three Llamas": {"head_dim": 32, "rope_theta": 10_000.0},
    "four Llamas": {"head_dim": 32, "rope_theta": 1_000.0},
    "Qwen3-0.14M": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 32,
        "rope_theta": 1_000_000.0,
    },
    "Gemma3-0.14M": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "head_dim": 32,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
"""Config keys of the RoPE of each model, by the beginning of its name. Models of one name that were
trained further with a scaling are the same model."""
SCALED = {"llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}, "yarn": {}, "linear": {}}
"""Config keys of the scalings that small models were trained with, beside their factor of 4."""


class Regret(msgspec.Struct, frozen=True):
    """The loss of the first line of `advise` on a model that its table does not have."""

    model: str
    """The model."""

    name: str
    """Its key in SHAPES."""

    factor: float
    """The wanted length over the trained one."""

    on_top: str
    """The scaling that it was trained with and keeps; empty for none."""

    first: str
    """The first line that was measured on the model."""

    best: str
    """The method with the lowest loss."""

    lost: float
    """The loss of the first line minus that of the best one, in nats per token."""

    error: float | None
    """The standard error of that difference; None where only means are known."""

    drawn: float
    """The same of a method drawn at random: the mean over all that were measured."""

    by_frequencies: float
    """The same of the first line where the table has no measurement at all."""


def measure_regret(evidence: EvidenceTable, items: Sequence[RecordItem]) -> list[Regret]:
    """Leave one model out after another, and ask `advise` about it.

    Studies of other units than nats, of fine-tuned models, of unknown models and of a single method
    are passed over.

    Args:
        evidence: The table of `advise`.
        items: The public record, from which the errors are.
    """
    regrets = []
    for study in evidence.studies:
        name = _name_of(study)
        if study.fine_tuned or "nats" not in study.unit or not name:
            continue
        losses = {method: loss for method, loss in study.beyond.items() if method != BASE}
        if len(losses) < 2:
            continue
        best = min(losses, key=lambda method: losses[method])

        others = tuple(other for other in evidence.studies if _name_of(other) != name)
        first = first_line(study, name, others)
        unmeasured = first_line(study, name, ())
        regrets.append(
            Regret(
                model=study.model,
                name=name,
                factor=study.factor,
                on_top=study.on_top,
                first=first,
                best=best,
                lost=round(losses[first] - losses[best], 4),
                error=_error_of(study, first, best, items),
                drawn=round(mean(losses.values()) - losses[best], 4),
                by_frequencies=round(losses[unmeasured] - losses[best], 4),
            )
        )
    return regrets


def _name_of(study: Study) -> str:
    """The key in SHAPES of the model of a study; empty where it has none."""
    for name in SHAPES:
        if study.model.startswith(name):
            return name
    return ""


def first_line(study: Study, name: str, others: tuple[Study, ...]) -> str:
    """Return the first method of `advise` that a study has, by a table of other studies.

    Args:
        study: The study, of a model and factor.
        name: The key in SHAPES of its model.
        others: The studies of the table.
    """
    config = config_of(study, name)
    evidence = EvidenceTable(studies=others, recommendations=())
    context = round(study.factor * config["max_position_embeddings"])
    with patch("ropeconv.bake.evidence.evidence", lambda: evidence):
        lines = advise_config(config, context)
    return next(line.method.name for line in lines if line.method.name in study.beyond)


def config_of(study: Study, name: str) -> dict[str, Any]:
    """Return a config with the RoPE of the model of a study. Its other sizes change nothing."""
    trained = TRAINED.get(name, study.trained)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": trained,
        **SHAPES[name],
    }
    if study.on_top:
        config["max_position_embeddings"] = 4 * trained
        config["rope_scaling"] = {
            "rope_type": study.on_top,
            "factor": 4.0,
            "original_max_position_embeddings": trained,
            **SCALED[study.on_top],
        }
    return config


def _error_of(study: Study, first: str, best: str, items: Sequence[RecordItem]) -> float | None:
    """Return the standard error of the paired difference of two methods, from the items of a study.

    It is None for one and the same method, and for studies that have no items.

    Args:
        study: The study.
        first: The first method of `advise`.
        best: The method with the lowest loss.
        items: The public record.
    """
    model, _, _ = study.model.partition(" (")
    length = round(study.factor * study.trained)
    rows: dict[str, dict[Any, RecordItem]] = {first: {}, best: {}}
    for item in items:
        is_loss = (item.measure, item.metric, item.length) == ("growth", "loss", length)
        is_of_study = item.model == model and item.factor == study.factor
        if is_loss and is_of_study and item.method in rows:
            rows[item.method][item.place] = item
    proof = prove(rows[first], rows[best])
    if first == best or study.source != "docs/evidence/items" or proof is None:
        return None
    return None if proof.error is None else round(proof.error, 4)


def read_regrets() -> list[Regret]:
    """Return what docs/evidence/regret.json has."""
    return msgspec.json.decode(FILE.read_bytes(), type=list[Regret])


def regret_table(regrets: Sequence[Regret]) -> str:
    """Return the table of docs/evaluating.md, with a line for each study."""
    lines = [
        "| model | on top of | factor | first line | best | behind the best | a random method |"
        " by frequencies only |",
        "|---" * 8 + "|",
    ]
    for one in regrets:
        lost = f"{one.lost:.3f}"
        if one.error is not None:
            lost += f" ± {one.error:.3f}"
        lines.append(
            f"| {one.model} | {one.on_top} | {one.factor:g} | {one.first} | {one.best} | {lost} |"
            f" {one.drawn:.3f} | {one.by_frequencies:.3f} |"
        )
    return "\n".join(lines)


def regret_sentence(regrets: Sequence[Regret]) -> str:
    """Return sentences on the table: how often the first line is best, and how far it is behind."""
    models = list(dict.fromkeys(one.name for one in regrets))
    hits = sum(one.first == one.best for one in regrets)
    largest = max(one.lost for one in regrets)
    means = [
        mean(getattr(one, name) for one in regrets) for name in ("lost", "drawn", "by_frequencies")
    ]
    lost, drawn, by_frequencies = (f"{value:.3f}" for value in means)
    small = len(models) - len(REAL)
    return (
        f"The first line is the best one in {hits} of {len(regrets)} studies, and otherwise at most"
        f" {largest:.3f} nats behind it. In the mean it is {lost} nats behind, a method drawn at"
        f" random {drawn}, and the first line by frequencies only {by_frequencies}. There are only"
        f" {len(models)} models: {', '.join(REAL)}, and {small} kinds of models"
        " below a million parameters, which learned nothing but the manual of Python."
    )


def main() -> None:
    """Write the file."""
    write_records(FILE, measure_regret(table(), record()))


if __name__ == "__main__":
    main()
