"""Model families (`data/*.toml`), and read access to models: folders, the Hub, Meta's layout, GGUF
files.
"""
