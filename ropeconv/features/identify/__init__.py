"""Name the mistake that a runtime makes, by what it computes."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "identify": (
            "ropeconv.features.identify.command",
            "Say what a runtime computes: the method, or which known mistake in its place.",
        )
    },
    functions={"identify": "ropeconv.features.identify.identifying"},
    hooks={"identify_output": "ropeconv.features.identify.identifying:identify_comparison"},
)
