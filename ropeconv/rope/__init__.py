"""The mathematics of rotary position embeddings. Pure: numpy and float64, no files, no torch."""
