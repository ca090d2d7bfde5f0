"""The behaviour of runtimes by version and model family: `data/*.toml`, and the code that applies
it.
"""
