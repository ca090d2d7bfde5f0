"""The mathematics of rotary position embeddings in numpy and float64, without files or torch."""
