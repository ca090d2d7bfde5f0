"""The browser page."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "ui": (
            "ropeconv.features.ui.command",
            "Open the browser page, to inspect, extend and publish models without a command line.",
        )
    },
)
