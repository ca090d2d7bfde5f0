"""The behaviour of runtimes by version and family: `data/*.toml`, and the code that applies it."""
