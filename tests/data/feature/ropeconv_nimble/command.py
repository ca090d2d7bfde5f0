"""`ropeconv hello`: greets a model."""

import typer

import ropeconv

app = typer.Typer(add_completion=False)


@app.command("hello")
def hello(model: str) -> None:
    """Greet a model, with its context length."""
    print(f"Hello {model}, of {ropeconv.inspect(model).context:,} tokens.")
