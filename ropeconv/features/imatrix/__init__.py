"""Importance matrices, which say how large the inputs of each weight are for a text."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "imatrix": (
            "ropeconv.features.imatrix.command",
            "Compute an importance matrix from a text, for `apply --imatrix`.",
        )
    },
    functions={"imatrix": "ropeconv.features.imatrix.collecting"},
)
