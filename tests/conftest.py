"""What many tests share: a small prepared corpus, a small finished run, and the command line in this process."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import firth
from firth import cli, console, models, rng, samples, tokenizers
from firth.data.shards import Shards, write_shards
from firth.encoders.bert import Bert
from firth.tokenizers.wordpiece import WordPiece

# A shell starts background jobs with Ctrl-C ignored, and so would all processes that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)

CHINESE = "使用语言模型来预测下一个词的probability。"
TINY = (
    "encoder.bert.width=32",
    "encoder.bert.num_layers=2",
    "encoder.bert.num_heads=2",
    "encoder.bert.ffn_width=64",
    "encoder.bert.max_positions=64",
    "batches.max_length=64",
    "batches.last_length=0",
    "batches.tokens=512",
    "batches.held_out_rate=0.1",
    "train.log_every=5",
    "train.evaluate_every=20",
    "train.checkpoint_every=10",
)


class Answer(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def tiny() -> tuple[str, ...]:
    """Changes that make a recipe small enough for a test."""
    return TINY


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """English and Chinese prose, and documents that mix the two."""
    mixed = tmp_path_factory.mktemp("texts") / "mixed.txt"
    rows = [f"Sentence number {i} comes first.\n第{i}句也在这里。" for i in range(20)]
    mixed.write_text("\n\n".join(f"{row}\n{CHINESE}" if i % 5 == 0 else row for i, row in enumerate(rows)))
    return [samples.prose("en"), samples.prose("zh"), mixed]


@pytest.fixture(scope="session")
def data(texts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder of about 20,000 tokens."""
    out = tmp_path_factory.mktemp("prepared") / "data"
    firth.prepare(texts, out=out, vocab_size=1200, processes=0)
    return out


@pytest.fixture(scope="session")
def shards(data: Path) -> Shards:
    return Shards.open(data)


@pytest.fixture(scope="session")
def tokenizer(shards: Shards) -> WordPiece:
    return tokenizers.load(shards.tokenizer_folder)


@pytest.fixture(scope="session")
def long_shards(tokenizer: WordPiece, tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """120 documents of 60 sentences of 5 to 35 tokens, made of random ids: 144,000 tokens for statistics."""
    folder, key = tmp_path_factory.mktemp("long") / "data", rng.key("long documents")
    lengths = 5 + rng.below(key, 31, np.arange(120 * 60), 0)
    ids = 5 + rng.below(key, len(tokenizer.vocab) - 5, np.arange(lengths.sum()), 1)
    with write_shards(folder, tokenizer) as writer:
        writer.append(ids, ~tokenizer.continues[ids], lengths=lengths, ends=np.arange(60, 120 * 60 + 1, 60))
        writer.info = {"health": {"entropy_nats": 7.0}}
    return Shards.open(folder)


@pytest.fixture(scope="session")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 40 small steps."""
    out = tmp_path_factory.mktemp("runs") / "run"
    firth.pretrain(data, out=out, steps=40, changes=TINY, device="cpu")
    return out


@pytest.fixture(scope="session")
def models_folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that come with firth, and a small stand-in for each one that this copy of the source does not have."""
    home = tmp_path_factory.mktemp("models")
    for name in ("en-small", "zh-small"):
        if name in models.names():
            (home / name).symlink_to(models.find(name))
        else:
            firth.export(run, out=home / name, kind="quantised")
    return home


@pytest.fixture
def with_models(models_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In this test, and in processes that it starts, en-small and zh-small are there."""
    monkeypatch.setenv(models.VARIABLE, str(models_folder))
    return models_folder


@pytest.fixture
def without_models(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test no model comes with firth."""
    monkeypatch.setenv(models.VARIABLE, str(tmp_path_factory.mktemp("no-models")))


@pytest.fixture(scope="session")
def shrink() -> Callable[[Any], Any]:
    """Gives any encoder's config small numbers where it has such fields; no dropout."""
    small = {"width": 32, "num_layers": 2, "num_heads": 2, "ffn_width": 64, "max_positions": 64}
    small |= {"vocab_size": 1200, "dropout": 0.0, "attention_dropout": 0.0}
    small |= {"cell_width": 64, "filters": ((1, 8), (2, 8), (3, 16))}

    def change(config: Any) -> Any:
        return replace(config, **{f.name: small[f.name] for f in fields(config) if f.name in small})

    return change


@pytest.fixture
def small_bert(shrink: Callable[[Any], Any]) -> Callable[..., Bert]:
    """Makes a small BERT over the corpus's vocabulary, without dropout unless asked for; always the same weights."""

    def make(**changes: Any) -> Bert:
        torch.manual_seed(1)
        return Bert(replace(shrink(Bert.Config()), **changes))

    return make


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs `firth ARGUMENTS` in this process."""

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["firth", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call


@pytest.fixture
def messages(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Gives what the package has said since the last call, as the command line prints it."""

    def said() -> str:
        return capsys.readouterr().err

    with console.shown():
        yield said
