"""Studies that train small models and measure what the documentation claims; see README.md."""
