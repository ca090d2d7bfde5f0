"""The page of `ropeconv ui`. `serve` imports Gradio when it runs."""
