"""File formats as bytes, and copies of files.

The formats are safetensors, shard indices, GGUF, JSON, and lists of numbers.
"""
