"""Later data about runtimes than the installed ropeconv shipped with."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "update-data": (
            "ropeconv.features.updates.command",
            "Fetch later data about runtimes, without a new ropeconv.",
        )
    }
)
