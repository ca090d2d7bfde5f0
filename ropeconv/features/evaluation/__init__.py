"""Measurements of methods on a model, and the search for better frequencies."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "eval": (
            "ropeconv.features.evaluation.command",
            "Measure loss and retrieval of a model with several methods, before anything is"
            " written.",
        ),
        "evidence compare": (
            "ropeconv.features.evaluation.evidence_command",
            "Compare two rows of a stored evaluation on the items that both have.",
        ),
        "evidence add": (
            "ropeconv.features.evaluation.evidence_command",
            "Check a file of measurements, and add its items to the public record.",
        ),
        "tune": (
            "ropeconv.features.evaluation.tune.command",
            "Search for frequencies that beat the built-in methods on your text, and write them as"
            " a recipe.",
        ),
    },
    functions={
        "Result": "ropeconv.features.evaluation.result",
        "SearchSettings": "ropeconv.features.evaluation.tune.tuning",
        "Sizes": "ropeconv.features.evaluation.evaluation",
        "TuningResult": "ropeconv.features.evaluation.tune.result",
        "evaluate": "ropeconv.features.evaluation.measuring",
        "evaluate_model": "ropeconv.features.evaluation.evaluation",
        "tune": "ropeconv.features.evaluation.measuring",
        "tune_model": "ropeconv.features.evaluation.tune.tuning",
    },
    hooks={
        "rank_methods": "ropeconv.features.evaluation.ranking:rank_methods",
        "show_evaluation": "ropeconv.features.evaluation.views:show_evaluation",
    },
)
