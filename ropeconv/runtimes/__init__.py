"""What runtimes do with a config, by version and model family: `data/*.toml`, and the code that applies it."""
