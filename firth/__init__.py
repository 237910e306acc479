"""firth: from raw text to language models, and from models to answers.

    import firth
    firth.prepare(["texts/"], out="data")
    firth.pretrain("data", recipe="bert", size="mini", out="run", steps=1000)
    model = firth.load("run")
    model.fill("The [MASK] is open.")

Names are resolved on use, so that importing firth costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from firth.cpu import configure

__version__ = "0.1.0"
configure()  # before torch computes anything: it reads these settings once

if TYPE_CHECKING:
    from firth.errors import FirthError
    from firth.inference.model import Model, load
    from firth.pipeline import (
        check,
        embed,
        evaluate,
        extend,
        fill,
        finetune,
        generate,
        import_model,
        info,
        predict,
        prepare,
        pretrain,
        senses,
    )
    from firth.tour import demo
    from firth.types import Fill, Generated, Prediction
    from firth.words import analogy, duplicates, evaluate_words, export, keywords, map_words, neighbours, ratios

_HOMES = {
    "firth.errors": ("FirthError",),
    "firth.pipeline": (
        "check",
        "embed",
        "evaluate",
        "extend",
        "fill",
        "finetune",
        "generate",
        "import_model",
        "info",
        "predict",
        "prepare",
        "pretrain",
        "senses",
    ),
    "firth.inference.model": ("Model", "load"),
    "firth.tour": ("demo",),
    "firth.types": ("Fill", "Generated", "Prediction"),
    "firth.words": (
        "analogy",
        "duplicates",
        "evaluate_words",
        "export",
        "keywords",
        "map_words",
        "neighbours",
        "ratios",
    ),
}
__all__ = [
    "Fill",
    "FirthError",
    "Generated",
    "Model",
    "Prediction",
    "analogy",
    "check",
    "demo",
    "duplicates",
    "embed",
    "evaluate",
    "evaluate_words",
    "export",
    "extend",
    "fill",
    "finetune",
    "generate",
    "import_model",
    "info",
    "keywords",
    "load",
    "map_words",
    "neighbours",
    "predict",
    "prepare",
    "pretrain",
    "ratios",
    "senses",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'firth' has no attribute '{name}'")
