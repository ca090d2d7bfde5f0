"""One model for several contexts, with its weights stored once."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "profiles": (
            "ropeconv.features.profiles.command",
            "Write one model for several contexts, with its weights stored once.",
        )
    },
    functions={"profiles": "ropeconv.features.profiles.writing"},
)
