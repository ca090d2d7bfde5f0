"""The effect of an extension on a model: losses and retrieval beyond the trained context, measured
in an engine.
"""
