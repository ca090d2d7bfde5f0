"""Features: what stands beside the core, a package each, which `ropeconv.rope.features` finds.

Each has its commands, its functions for Python and its tests. A feature imports the core; the core
imports no feature: it asks for the hooks that a feature names in its `Feature`.
"""
