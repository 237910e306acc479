"""Prefix masks against a padded reference, and writing with [MASK] against reading everything anew at each step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from firth import encoders, rng
from firth.checkpoint import make_objective
from firth.convert import layout as folder_layout
from firth.data.packing import pack_tokens
from firth.encoders.bert import Bert
from firth.nn.likelihood import IGNORE
from firth.nn.prefix_writing import PrefixScores, mask_targets, pair_batch
from firth.objectives.masked_lm import MaskedLM
from firth.tokenizers.wordpiece import WordPiece

LENGTHS = (5, 33, 1, 30, 17, 17, 2, 20)
PREFIXES = (2, 9, 0, 30, 1, 17, 1, 0)


def sequences() -> list[np.ndarray]:
    key = rng.key("prefixes")
    return [rng.below(key, 1200, np.arange(length), row) for row, length in enumerate(LENGTHS)]


def padded_reference(model: Any, ids: list[np.ndarray]) -> Tensor:
    """transformers over a padded batch with a mask of G x 1 x L x L; padding taken off again."""
    size = max(LENGTHS)
    steps = torch.arange(size)
    real_GL = steps < torch.tensor(LENGTHS)[:, None]
    in_prefix_GL = steps < torch.tensor(PREFIXES)[:, None]
    not_after_LL = steps[None, :] <= steps[:, None]
    seen_GLL = (in_prefix_GL[:, None, :] | not_after_LL) & real_GL[:, None, :]
    mask = torch.zeros(seen_GLL.shape).masked_fill(~seen_GLL, torch.finfo(torch.float32).min)
    padded_GL = torch.from_numpy(np.stack([np.pad(row, (0, size - len(row))) for row in ids]))
    with torch.inference_mode():
        states = model(padded_GL, attention_mask=mask[:, None]).last_hidden_state
    return states[real_GL]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["bert", "gpt"])
@pytest.mark.parametrize("index", range(3))
def test_prefix_masks_equal_a_padded_reference(kind: str, index: int, tmp_path: Path) -> None:
    torch.manual_seed(index)
    shared = {"vocab_size": 1200, "initializer_range": 0.2}
    if kind == "bert":
        sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 48}
        model: Any = BertModel(BertConfig(max_position_embeddings=64, **sizes, **shared)).eval()
    else:
        model = GPT2Model(GPT2Config(n_positions=64, n_embd=24, n_layer=3, n_head=3, **shared)).eval()
    model.save_pretrained(tmp_path)
    weights = folder_layout(model.config.model_type).read(tmp_path)
    encoder = encoders.resolve(weights.encoder_name)(weights.config).eval()
    encoder.load_state_dict(weights.encoder)
    ids = sequences()
    batch = replace(pack_tokens(ids), prefix_B=torch.tensor(PREFIXES))
    with torch.inference_mode():
        found_ND = encoder(batch).last_ND
        plain_ND = encoder(pack_tokens(ids)).last_ND
    wanted_ND = padded_reference(model, ids)
    assert float((found_ND - wanted_ND).abs().max()) < 1e-5
    assert float((found_ND - plain_ND).abs().max()) > 0.1


@pytest.fixture
def writer(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> tuple[Bert, MaskedLM]:
    encoder = small_bert(init_std=0.3, max_positions=64).eval()
    goal = make_objective("masked_lm", MaskedLM.Config(), encoder, tokenizer)
    assert isinstance(goal, MaskedLM)
    torch.nn.init.normal_(goal.head.bias)
    return encoder, goal


def brute_force(encoder: Bert, goal: MaskedLM, source: np.ndarray, target: list[int], mask: int) -> Tensor:
    """Scores of the next token of one text, read as a whole: attention computed from a dense mask, without packs."""
    ids = np.concatenate([source, target, [mask]]).astype(np.int64)
    num_source, length = len(source), len(ids)
    seen_LL = torch.zeros(length, length, dtype=torch.bool)
    for query in range(length):
        for key in range(length):
            seen_LL[query, key] = key < num_source or key <= query
    segments = torch.tensor([0] * num_source + [1] * (length - num_source))
    x_LD = encoder.embeddings(torch.from_numpy(ids), torch.arange(length), segments)
    for block in encoder.blocks:
        attention: Any = block.attention
        q, k, v = attention.qkv(x_LD).view(length, 3, attention.num_heads, -1).permute(1, 2, 0, 3)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        mixed = scores.masked_fill(~seen_LL, -torch.inf).softmax(-1) @ v
        x_LD = block.attention_norm(x_LD + attention.out(mixed.transpose(0, 1).flatten(1)))  # type: ignore[operator]
        x_LD = block.ffn_norm(x_LD + block.ffn(x_LD))  # type: ignore[operator]
    scores_V: Tensor = goal.head(x_LD[-1:], encoder.embeddings.tokens.weight)[0]
    return scores_V


def test_next_scores_equal_brute_force_through_any_search(writer: tuple[Bert, MaskedLM], tokenizer: WordPiece) -> None:
    """Texts end, are repeated as beams and change places; every score is that of the whole text read anew."""
    encoder, goal = writer
    mask = tokenizer.vocab.mask
    sources = [ids[:n] for ids, n in zip(sequences(), (4, 20, 1, 9), strict=False)]
    with torch.inference_mode():
        scores = PrefixScores(encoder, goal.head, sources, mask=mask, longest=6)
        texts: list[tuple[int, list[int]]] = [(row, []) for row in range(len(sources))]
        found_BV = scores.first()
        for step, parents in enumerate([[0, 0, 1, 3], [0, 1, 1, 2, 3], [4, 2], [1, 0, 0], [2, 1], [0]]):
            wanted_BV = torch.stack([brute_force(encoder, goal, sources[row], text, mask) for row, text in texts])
            assert float((found_BV - wanted_BV).abs().max()) < 1e-4 * float(wanted_BV.abs().max())
            tokens = [int(rng.below(rng.key("token", step), 1200, place)) for place in range(len(parents))]
            texts = [(texts[p][0], [*texts[p][1], token]) for p, token in zip(parents, tokens, strict=True)]
            found_BV = scores.next(parents, tokens)
        wanted_BV = torch.stack([brute_force(encoder, goal, sources[row], text, mask) for row, text in texts])
    assert float((found_BV - wanted_BV).abs().max()) < 1e-4 * float(wanted_BV.abs().max())
    assert float(wanted_BV.std()) > 0.1


def test_what_is_learned_is_what_is_written(writer: tuple[Bert, MaskedLM], tokenizer: WordPiece) -> None:
    """With only the last token hidden, the loss is minus the log-probability with which it is written."""
    encoder, goal = writer
    mask = tokenizer.vocab.mask
    source, target = sequences()[1], sequences()[0]
    batch = pair_batch([source], [target])
    draws_N = torch.ones(batch.num_tokens)
    draws_N[-1] = 0.0
    hidden, labels_N = mask_targets(batch, draws_N, mask=mask, rate=0.7)
    with torch.inference_mode():
        states = encoder(hidden)
        loss = cross_entropy(goal.head(states.last_ND, states.table_VD), labels_N, ignore_index=IGNORE)
        scores_V = brute_force(encoder, goal, source, target[:-1].tolist(), mask)
    assert float(loss) == pytest.approx(-float(scores_V.log_softmax(0)[target[-1]]), rel=1e-4)


def test_only_targets_are_hidden_at_their_rate() -> None:
    sources, targets = sequences()[:4] * 50, sequences()[4:] * 50
    batch = pair_batch(sources, targets)
    draws_N = torch.from_numpy(rng.uniform(rng.key("hidden"), np.arange(batch.num_tokens)))
    hidden, labels_N = mask_targets(batch, draws_N, mask=4, rate=0.7)
    is_label_N = labels_N != IGNORE
    assert torch.equal(hidden.ids_N[~is_label_N], batch.ids_N[~is_label_N])
    assert torch.equal(labels_N[is_label_N], batch.ids_N[is_label_N])
    assert (hidden.ids_N[is_label_N] == 4).all()
    assert (batch.segments_N[is_label_N] == 1).all()
    num_target = int((batch.segments_N == 1).sum())
    assert num_target == sum(map(len, targets))
    assert abs(int(is_label_N.sum()) / num_target - 0.7) < 0.03
    assert batch.prefix_B.tolist() == [len(source) for source in sources]  # type: ignore[union-attr]
