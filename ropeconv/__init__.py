"""ropeconv: bake a RoPE context extension into a checkpoint, and prove that stock runtimes compute it."""

__version__ = "0.1.0"
