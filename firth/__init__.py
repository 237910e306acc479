"""firth: from raw text to language models, and from models to answers.

    import firth
    firth.prepare(["texts/"], out="data")
    firth.pretrain("data", recipe="bert", size="mini", out="run", steps=1000)
    model = firth.load("run")
    model.fill("The [MASK] is open.")

Names are imported on first use, so that importing firth costs nothing.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from firth.cpu import configure

__version__ = "0.1.0"
configure()  # before torch computes anything: it reads these settings once
logging.getLogger("firth").addHandler(logging.NullHandler())  # silent unless a program configures logging

if TYPE_CHECKING:
    from firth.errors import FirthError
    from firth.inference.model import Model, load
    from firth.model_files import compress, export, extend, import_model
    from firth.pipeline import check, evaluate, finetune, pretrain, tune
    from firth.planning.planned import plan
    from firth.preparing import prepare
    from firth.tour import demo, serve
    from firth.types import Fill, Generated, Prediction, Rewritten

__all__ = [
    "Fill",
    "FirthError",
    "Generated",
    "Model",
    "Prediction",
    "Rewritten",
    "check",
    "compress",
    "demo",
    "evaluate",
    "export",
    "extend",
    "finetune",
    "import_model",
    "load",
    "plan",
    "prepare",
    "pretrain",
    "serve",
    "tune",
]
_MODULES = {
    "firth.errors": ("FirthError",),
    "firth.inference.model": ("Model", "load"),
    "firth.model_files": ("compress", "export", "extend", "import_model"),
    "firth.pipeline": ("check", "evaluate", "finetune", "pretrain", "tune"),
    "firth.planning.planned": ("plan",),
    "firth.preparing": ("prepare",),
    "firth.tour": ("demo", "serve"),
    "firth.types": ("Fill", "Generated", "Prediction", "Rewritten"),
}
"""The public names by the module that defines them."""


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'firth' has no attribute '{name}'")


def __dir__() -> list[str]:
    """The public names too, which are not imported yet: Tab completes them."""
    return sorted({*globals(), *__all__})
