"""Conformance vectors: tiny models with the answers that an engine should give, and a test."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "vectors": (
            "ropeconv.features.vectors.command",
            "Write a tiny model with a method, its expected logits, and a test for any engine.",
        )
    },
    functions={"vectors": "ropeconv.features.vectors.vectors"},
    requires=("identify",),
)
