"""A model's folder beside its weights: settings, tokenizer, our own notes, the card, and the manifest, written last.

Without torch, so that a table of vectors can be saved by who made it without torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from firth import __version__
from firth.convert import HEAD, own
from firth.convert.mapped import WORD_ROWS, write_arrays
from firth.convert.row_quantised import QUANTISED
from firth.convert.sentence_transformers import remove_modules
from firth.convert.vector_head import VECTOR_HEAD
from firth.files import MANIFEST, JsonObject, write_bytes, write_json, write_manifest
from firth.tokenizers import Tokenizer

FORMAT = 1
WEIGHTS = "model.safetensors"
FILES = ("config.json", "firth.json", "README.md")
"""What every model folder has besides its weights; the tokenizer names its own files."""
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
"""What a folder of LoRA's low-rank matrices has in place of weights, as peft names them."""
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt")
"""What a tokenizer may have."""
WRITTEN = (WEIGHTS, QUANTISED, *ADAPTER, *FILES, *TOKENIZERS, HEAD, VECTOR_HEAD, WORD_ROWS, MANIFEST, "generator")
"""Files and folders that a killed process may have left half of."""


def begin(folder: Path) -> None:
    """Makes the folder; what a model that was here before had and the next one may not have is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_modules(folder)
    for stale in (MANIFEST, HEAD, QUANTISED, VECTOR_HEAD, *ADAPTER):
        (folder / stale).unlink(missing_ok=True)


def finish(
    folder: Path,
    *,
    settings: Mapping[str, object],
    tokenizer: Tokenizer,
    notes: Mapping[str, object],
    text: str,
    extra_files: Iterable[str] = (),
    max_length: int | None = None,
    weights: str = WEIGHTS,
) -> None:
    """Writes all but weights, each file atomically; `weights` and `extra_files` are files that are there already."""
    write_json(folder / "config.json", settings)
    files = tokenizer.save(folder, max_length=max_length)
    write_json(folder / "firth.json", {"format": FORMAT, "firth": __version__, **notes})
    write_bytes(folder / "README.md", text.encode())
    made = [WORD_ROWS] if (folder / WORD_ROWS).exists() else []
    write_manifest(folder, [weights, *FILES, *files, *made, *extra_files])


def save_table(
    folder: Path,
    name: str,
    *,
    shape: object,
    arrays: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    info: JsonObject,
) -> None:
    """The folder of an encoder without context, from the arrays that it is made of."""
    begin(folder)
    write_arrays(folder / WEIGHTS, own.named(arrays))
    width = f", width {shape.width}" if hasattr(shape, "width") else ""
    count = sum(array.size for array in arrays.values())
    encoder = name.title().replace("_", "") + width  # as its class is called
    text = card(encoder, parameters=count, tokens=len(tokenizer.vocab), info=info)
    settings = own.settings(name, shape, goals=())
    finish(folder, settings=settings, tokenizer=tokenizer, notes={**info, "goals": {}}, text=text)


def card(
    encoder: str,
    *,
    parameters: int,
    tokens: int,
    info: JsonObject,
    goals: Sequence[str] = (),
    question: str = "",
) -> str:
    """The model card: what this is, where it comes from, how to use it; `question` is a line that asks it something."""
    facts: dict[str, object] = {
        "Encoder": encoder,
        "Parameters": f"{parameters:,}",
        "Vocabulary": f"{tokens:,} tokens",
        "Heads": ", ".join(goals) or "none",
    }
    for key, value in info.items():
        if isinstance(value, str | int | float):
            facts.setdefault(key.replace("_", " ").capitalize(), value)
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    held_out = info.get("held_out", {})
    scores = "\n".join(f"| {name} | {value:.4f} |" for name, value in held_out.items())
    measured = f"\n## Held-out documents\n\n| figure | value |\n|---|---|\n{scores}\n" if scores else ""
    sources = "\n".join(f"- {source}" for source in info.get("sources", ()))
    text = f"\n## Text and licences\n\n{sources}\n" if sources else ""
    return (
        f"# A model made by firth\n\n| | |\n|---|---|\n{rows}\n{measured}{text}\n## Use\n\n```python\nimport firth\n\n"
        f'model = firth.load("FOLDER")\n{question}model.embed(["a text", "another"])\n```\n'
    )
