"""A schedule as edits of a checkpoint or GGUF file: encodings, folds, and conversion to and from GGUF."""

from . import encodings as _encodings  # noqa: F401  registers them
