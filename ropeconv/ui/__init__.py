"""The page of `ropeconv ui`, which is a Space as well. `serve` and `serve_space` import Gradio when they run."""
