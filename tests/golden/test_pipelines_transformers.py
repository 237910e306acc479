"""Fine-tuned folders in `transformers.pipeline`, sentence-transformers and onnxruntime: the same answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import samples

transformers = pytest.importorskip("transformers")
TEXTS = ["A fine day, and everyone was happy.", "The worst film of the year.", "James Watt lived in Glasgow."]
TRAIN = {
    "classify": samples.labelled("classify", "en"),
    "tag": samples.labelled("entities", "en"),
    "answer": samples.labelled("answers", "en"),
}


def tuned(run: Path, out: Path, task: str, *changes: str) -> Path:
    settings = ("epochs=2", "batch_size=16", "train.optim.rate=1e-3", *changes)
    firth.finetune(run, out=out, task=task, train=TRAIN[task], device="cpu", changes=settings)
    return out


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_text_classification(run: Path, tmp_path: Path, mode: str) -> None:
    folder = tuned(run, tmp_path / "run", "classify", f"transfer.mode={mode}")
    theirs = transformers.pipeline("text-classification", model=str(folder), device="cpu")(TEXTS, top_k=None)
    for made, rows in zip(firth.load(folder).predict(TEXTS), theirs, strict=True):
        scores = {row["label"]: row["score"] for row in rows}
        assert scores.keys() == made.probabilities.keys()
        for label, score in scores.items():
            assert abs(score - made.probabilities[label]) < 1e-5


def test_token_classification(run: Path, tmp_path: Path) -> None:
    folder = tuned(run, tmp_path / "run", "tag", "epochs=8")
    pipeline = transformers.pipeline(
        "token-classification", model=str(folder), device="cpu", aggregation_strategy="first"
    )
    for text, made in zip(TEXTS, firth.load(folder).predict(TEXTS), strict=True):
        found = [(row["entity_group"], row["start"], row["end"]) for row in pipeline(text)]
        assert found == [(span.label, span.start, span.end) for span in made.spans]
    assert firth.load(folder).predict(TEXTS[2:])[0].spans


def test_question_answering(run: Path, tmp_path: Path) -> None:
    """transformers 5 has no pipeline for it any more: its class gives the same scores, and the best span is ours."""
    folder = tuned(run, tmp_path / "run", "answer")
    question = "Who lived in Glasgow?"
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(question, TEXTS[2], return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0]
    with torch.inference_mode():
        reply = model(**encoded)
    in_passage = encoded["token_type_ids"][0].bool() & (offsets[:, 1] > 0)
    rows = in_passage.nonzero().flatten().tolist()
    scores: dict[tuple[int, int], float] = {}
    for first in rows:
        for last in rows:
            if first <= last:
                scores[first, last] = float(reply.start_logits[0, first] + reply.end_logits[0, last])
    first, last = max(scores, key=scores.__getitem__)
    [made] = firth.load(folder).predict([(question, TEXTS[2])])
    best = made.candidates[0]  # type: ignore[attr-defined]
    assert TEXTS[2][int(offsets[first, 0]) : int(offsets[last, 1])] == best.text


def test_export_to_sentence_transformers_with_proof(run: Path, tmp_path: Path, command: Any) -> None:
    library = pytest.importorskip("sentence_transformers")
    found = firth.export(run, out=tmp_path / "st", kind="sentence-transformers")
    assert found["texts"] == 50
    assert isinstance(found["difference"], float)
    assert found["difference"] < 1e-5
    vectors = library.SentenceTransformer(str(tmp_path / "st"), device="cpu").encode(TEXTS)
    assert np.abs(firth.load(run).embed(TEXTS, pooling="mean") - vectors).max() < 1e-5


def test_export_to_onnx_with_proof(run: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = tuned(run, tmp_path / "run", "classify")
    found = firth.export(folder, out=tmp_path / "onnx", kind="onnx")
    assert found["difference"] < 1e-4  # type: ignore[operator]
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "onnx")
    encoded = tokenizer(TEXTS, padding=True, return_tensors="np")
    (logits,) = session.run(["logits"], {name: values.astype(np.int64) for name, values in encoded.items()})
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wanted = np.array([list(made.probabilities.values()) for made in firth.load(folder).predict(TEXTS)])
    assert np.abs(shares - wanted).max() < 1e-5
