"""Encoders: batch -> states. One file for each forward pass."""

from typing import Any

from firth.config import resolve as _resolve

TABLE = {
    "one_hot": "firth.encoders.one_hot:OneHot",
    "topics": "firth.encoders.topics:Topics",
    "static": "firth.encoders.static:Static",
    "bag": "firth.encoders.bag:Bag",
    "elmo": "firth.encoders.elmo:Elmo",
    "awd_lstm": "firth.encoders.awd_lstm:AwdLstm",
    "bilstm": "firth.encoders.bilstm:BiLstm",
    "gpt": "firth.encoders.gpt:GPT",
    "bert": "firth.encoders.bert:Bert",
    "albert": "firth.encoders.albert:Albert",
    "transformer": "firth.encoders.transformer:Transformer",
    "t5": "firth.encoders.t5:T5",
    "bart": "firth.encoders.bart:Bart",
    "xlnet": "firth.encoders.xlnet:XLNet",
    "mpnet": "firth.encoders.mpnet:MPNet",
    "deberta": "firth.encoders.deberta:Deberta",
    "nomic_bert": "firth.encoders.nomic_bert:NomicBert",
    "modernbert": "firth.encoders.modernbert:ModernBert",
}

CONFIGS = {
    "one_hot": "firth.encoders.tables:OneHotConfig",
    "topics": "firth.encoders.tables:TopicsConfig",
    "static": "firth.encoders.tables:StaticConfig",
    "bag": "firth.encoders.tables:BagConfig",
}
"""Configs that can be imported without their encoder, and so without torch."""


def resolve(name: str) -> Any:
    """The class of an encoder, imported only now."""
    return _resolve(TABLE, name, "encoder")


def name_of(encoder: object) -> str:
    """The name of an encoder's class in the table."""
    cls = type(encoder)
    wanted = f"{cls.__module__}:{cls.__qualname__}"
    return next(name for name, path in TABLE.items() if path == wanted)
