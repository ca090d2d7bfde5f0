"""How the RoPE of two models differs, and whether models and adapters fit together."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "compare": (
            "ropeconv.features.compare.command",
            "Show how the RoPE of two models differs, or whether models and adapters fit together.",
        )
    },
    functions={
        "compare": "ropeconv.features.compare.comparing",
        "side_by_side": "ropeconv.features.compare.side_by_side",
    },
)
