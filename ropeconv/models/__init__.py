"""Model families (`data/*.toml`), and read access to models.

Models are folders, repositories on the Hub, Meta's layout and GGUF files.
"""
