"""File formats as bytes: safetensors, shard indices, GGUF, JSON, lists of numbers; and copies of
files.
"""
