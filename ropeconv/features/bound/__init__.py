"""The smallest rope_theta for a length, and the longest distance that a model supports."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "bound": (
            "ropeconv.features.bound.command",
            "Find the smallest rope_theta for a context length, or the longest distance that a"
            " model supports.",
        )
    },
    functions={"bound": "ropeconv.features.bound.bound"},
)
