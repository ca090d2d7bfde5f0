"""Runs of many models, as a plan file says, and their executors."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "run": (
            "ropeconv.features.run.command",
            "Run apply, validate, eval and push for many models, as a plan file says"
            " (docs/running.md).",
        )
    },
    functions={"run": "ropeconv.features.run.running"},
    hooks={"open_spread": "ropeconv.features.run.evaluation:open_spread_by_name"},
    requires=("evaluation",),
)
