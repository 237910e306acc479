"""The vector head of a model: how a text becomes one vector. A file of the model's folder.

The vector has two parts, each scaled to length 1, side by side. The first needs no pass through the encoder: it is the
sum of one row for each token of the text. The row of token t has two parts itself,

    w_t (e_t P + b)    its meaning        w_t s r_t    the token itself

with e_t its row of the model's input embedding, w_t its weight, P a projection, b minus the common mean, projected, s a
scale and r_t random signs that are drawn from the number of the token. Signs of two tokens are nearly orthogonal, so
the second adds to a cosine how many tokens two texts share, whatever their embeddings (Achlioptas 2003). The weights
resemble inverse document frequencies (Arora et al. 2017), the projection a whitening (Su et al. 2021).

The second part is the encoder's last state of the first token, centred and projected: what the text is about, also
where two texts share no word. Its weight says how long it is, compared with the first part. A head may have the first
part alone. All of it is learned from text without labels (`firth/finetuning/vector_head.py`), and
`firth/inference/head_embedding.py` computes the vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from firth import rng
from firth.errors import Damaged
from firth.files import write_bytes

VECTOR_HEAD = "vector_head.safetensors"
"""The name of the file."""
NAMES = ("token_weights", "projection", "bias", "own_scales")
CONTEXT_NAMES = ("context_projection", "context_bias", "context_weight")


@dataclass(frozen=True, eq=False)
class ContextPart:
    """The part of a vector that the encoder computes. D is the encoder's width, K the width of the part."""

    projection_DK: np.ndarray
    bias_K: np.ndarray
    """Minus the mean state, projected."""
    weight: float
    """The length of this part, where the part of the tokens has length 1."""

    def vectors(self, states_BD: np.ndarray) -> np.ndarray:
        """This part of the vectors of texts with these states."""
        projected_BK = states_BD @ self.projection_DK + self.bias_K
        lengths_B1 = np.linalg.norm(projected_BK, axis=1, keepdims=True)
        return np.asarray(self.weight * projected_BK / np.maximum(lengths_B1, 1e-12), np.float32)


@dataclass(frozen=True, eq=False)
class VectorHead:
    """What a model needs besides its input embedding.

    E is the embedding's width, D that of the projection, R the number of a token's signs.
    """

    token_weights_V: np.ndarray
    """The weight of each token; 0 for special tokens."""
    projection_ED: np.ndarray
    bias_D: np.ndarray
    own_scales_R: np.ndarray
    """What a token's signs are multiplied by."""
    context: ContextPart | None = None
    """The part that the encoder computes; None for a head that adds up rows of tokens alone."""

    @property
    def token_width(self) -> int:
        """The width of the part that needs no encoder."""
        return len(self.bias_D) + len(self.own_scales_R)

    @property
    def width(self) -> int:
        """The width of a vector."""
        context_width = 0 if self.context is None else len(self.context.bias_K)
        return self.token_width + context_width

    def fits(self, num_tokens: int, table_width: int, encoder_width: int) -> bool:
        """Whether it was made for so many tokens, an input embedding and an encoder of these widths."""
        if self.context is not None and len(self.context.projection_DK) != encoder_width:
            return False
        return (num_tokens, table_width) == (len(self.token_weights_V), len(self.projection_ED))

    def rows(self, table_VE: np.ndarray) -> np.ndarray:
        """The row of each token, V x (D + R). The table may have more rows than there are tokens."""
        num_tokens = len(self.token_weights_V)
        meanings_VD = table_VE[:num_tokens] @ self.projection_ED + self.bias_D
        own_VR = token_signs(num_tokens, len(self.own_scales_R)) * self.own_scales_R
        unweighted = np.concatenate([meanings_VD, own_VR], 1)
        return np.asarray(self.token_weights_V[:, None] * unweighted, np.float32)


def token_signs(num_tokens: int, count: int) -> np.ndarray:
    """For each token `count` signs, 1 or -1 as int8, always the same ones."""
    key = rng.key("vector head", "signs")
    # A draw has 64 bits, each of which is a sign.
    num_draws = -(-count // 64)
    tokens_V1 = np.arange(num_tokens)[:, None]
    draws = rng.bits(key, tokens_V1, np.arange(num_draws))
    draw_bytes = draws.astype("<u8").view(np.uint8)
    bits = np.unpackbits(draw_bytes, axis=1, bitorder="little")[:, :count]
    return 2 * bits.astype(np.int8) - 1


def write_vector_head(folder: Path, head: VectorHead) -> None:
    """Writes the head into a model's folder, in half precision."""
    from safetensors.numpy import save  # imports torch, if it is there

    arrays = {
        "token_weights": head.token_weights_V,
        "projection": head.projection_ED,
        "bias": head.bias_D,
        "own_scales": head.own_scales_R,
    }
    if head.context is not None:
        arrays["context_projection"] = head.context.projection_DK
        arrays["context_bias"] = head.context.bias_K
        arrays["context_weight"] = np.array([head.context.weight])
    stored: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        stored[name] = np.ascontiguousarray(array, np.float16)
    write_bytes(folder / VECTOR_HEAD, save(stored))


def read_vector_head(folder: Path) -> VectorHead | None:
    """The head of a model's folder; None if it has none."""
    path = folder / VECTOR_HEAD
    if not path.exists():
        return None
    from safetensors.numpy import load_file  # imports torch, if it is there

    try:
        stored = load_file(path)
    except SafetensorError as error:
        raise Damaged(f"{path} cannot be read ({error}); make it again with `firth vectors`.") from None
    # Heads made before tokens had signs are heads without signs.
    stored.setdefault("own_scales", np.zeros(0, np.float16))
    context = None
    if any(name in stored for name in CONTEXT_NAMES):
        projection_DK, bias_K, weight = _take(path, stored, CONTEXT_NAMES)
        context = ContextPart(projection_DK, bias_K, float(weight[0]))
    token_weights_V, projection_ED, bias_D, own_scales_R = _take(path, stored, NAMES)
    if stored:
        raise _lacks(path, NAMES)
    return VectorHead(token_weights_V, projection_ED, bias_D, own_scales_R, context)


def _take(path: Path, stored: dict[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
    """Takes the arrays of these names out of those that a file holds, in single precision."""
    if not stored.keys() >= set(names):
        raise _lacks(path, names)
    taken = []
    for name in names:
        half = stored.pop(name)
        taken.append(half.astype(np.float32))
    return taken


def _lacks(path: Path, names: Sequence[str]) -> Damaged:
    return Damaged(f"{path} does not hold {', '.join(names)}; make it again with `firth vectors`.")
