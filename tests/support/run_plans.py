"""Plan files of `run`, and a place with tiny models and a text."""

from pathlib import Path


def models(folder: Path, names: str = "abc") -> Path:
    """A folder with tiny models that have a tokenizer, and a text."""
    # not in the workers that tests start, where torch takes seconds
    from .llamacpp import checkpoint

    for name in names:
        checkpoint("llama", folder / "models" / name)
    words = Path(__file__).with_name("llamacpp.py").read_text().split()
    (folder / "text.txt").write_text(" ".join(f"{word} {word[::-1]}" for word in words))
    return folder


def plan_text(
    tasks: str, more: str = "", sources: str = '"models/?"', recipes: str = '"yarn:4", "mixed:4"'
) -> str:
    listed = ", ".join(f'"{task}"' for task in tasks.split())
    return f"sources = [{sources}]\nrecipes = [{recipes}]\ntasks = [{listed}]\n{more}"
