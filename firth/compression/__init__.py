"""A model in, a smaller or faster one out, with proof: one method a file, and one gate that measures them all.

`method.py` says what a method is, `compressing.py` what happens around it, `gate.py` what is measured. A new
method is one file and one line in `TABLE`.
"""

from typing import TYPE_CHECKING

from firth.config import resolve as _resolve

if TYPE_CHECKING:
    from firth.compression.method import Method

TABLE = {
    "heads": "firth.compression.heads:PruneHeads",
    "ffn": "firth.compression.ffn:PruneFeedForward",
    "vocabulary": "firth.compression.vocabulary:PruneVocabulary",
    "layers": "firth.compression.layers:DropLayers",
    "low-rank": "firth.compression.low_rank:LowRank",
    "share": "firth.compression.sharing:ShareLayers",
    "int8": "firth.compression.int8:ServeInt8",
    "weights": "firth.compression.few_bits:FewBits",
    "onnx": "firth.compression.onnx_export:ExportOnnx",
    "distil": "firth.compression.distil:Distil",
    "pkd": "firth.compression.pkd:PatientDistillation",
    "distilbert": "firth.compression.distilbert:DistilBert",
    "minilm": "firth.compression.minilm:MiniLM",
    "tinybert": "firth.compression.tinybert:TinyBert",
    "mobilebert": "firth.compression.mobilebert:MobileBert",
    "ensemble": "firth.compression.ensemble:Ensemble",
    "bilstm": "firth.compression.simple_students:SimpleStudent",
    "vectors": "firth.compression.vectors:CopiedVectors",
    "theseus": "firth.compression.theseus:Theseus",
    "layerdrop": "firth.compression.layerdrop:LayerDrop",
    "magnitude": "firth.compression.pruning:MagnitudePruning",
    "movement": "firth.compression.pruning:MovementPruning",
    "quantise-aware": "firth.compression.quantise_aware:QuantiseAware",
}


def resolve(name: str) -> "type[Method]":
    """The class of a method, imported only now."""
    method: type[Method] = _resolve(TABLE, name, "method")
    return method
