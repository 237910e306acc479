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

__version__ = "0.1.0"

if TYPE_CHECKING:
    from firth.errors import FirthError
    from firth.pipeline import check, demo, embed, evaluate, fill, finetune, info, predict, prepare, pretrain
    from firth.serve.predictor import Model, load
    from firth.types import Fill, Prediction

_HOMES = {
    "firth.errors": ("FirthError",),
    "firth.pipeline": (
        "check",
        "demo",
        "embed",
        "evaluate",
        "fill",
        "finetune",
        "info",
        "predict",
        "prepare",
        "pretrain",
    ),
    "firth.serve.predictor": ("Model", "load"),
    "firth.types": ("Fill", "Prediction"),
}
__all__ = [
    "Fill",
    "FirthError",
    "Model",
    "Prediction",
    "check",
    "demo",
    "embed",
    "evaluate",
    "fill",
    "finetune",
    "info",
    "load",
    "predict",
    "prepare",
    "pretrain",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'firth' has no attribute '{name}'")
