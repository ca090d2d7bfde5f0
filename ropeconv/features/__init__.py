"""Features: a package for each thing that the main job does not need.

Each has its commands and its functions for Python, and names them in a `Feature`
(`ropeconv.rope.features`). A feature imports the core; the core imports none of them, and asks for
their hooks.
"""
