"""What goes into the linear layers of a model: second moments of their inputs on real texts.

In: a job. Out: for each linear layer of the blocks the sum of x x' over its inputs x. The texts are the rows that the
method may learn from, as the task reads them; without such rows the sample texts that come with firth.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from firth.compression.method import CompressionJob
from firth.compression.structure import block_sizes, input_layer
from firth.data.items import all_windows, pack_windows, text_sequences
from firth.data.packing import pack_tokens
from firth.inference.precision_choice import sample_sequences
from firth.tasks.predicting import BATCH_TOKENS, token_batches
from firth.tensors import Batch, Encoder

DAMPING = 0.01
"""Added to the second moments of the kept inputs, as a share of their mean: the rows must represent other texts."""


def calibration_batches(job: CompressionJob, *, max_rows: int) -> Iterator[Batch]:
    """Batches of the texts, of similar length each."""
    rows = job.examples.get("train", ())[:max_rows]
    tokenizer = job.original.tokenizer
    if rows and job.task:
        items = job.head.encode(rows, tokenizer, max_length=job.max_length, training=True)
        windows = all_windows(items)
        for numbers in token_batches([len(window) for window in windows], BATCH_TOKENS):
            yield pack_windows([windows[number] for number in numbers])
        return
    max_length = job.original.encoder.max_positions
    sequences = sample_sequences(tokenizer, max_length)
    if rows:
        texts = [example.texts[0] for example in rows]
        sequences = text_sequences(texts, tokenizer, max_length=max_length)
    for numbers in token_batches([len(sequence) for sequence in sequences], BATCH_TOKENS):
        yield pack_tokens([sequences[number] for number in numbers])


def moments_before(job: CompressionJob, encoder: Encoder, layer: str, *, max_rows: int) -> dict[str, Tensor]:
    """The second moments of the inputs of one layer of every block, such as `ffn.down`."""
    names = [input_layer(encoder, number, layer) for number in range(len(block_sizes(encoder)))]
    return input_moments(encoder, calibration_batches(job, max_rows=max_rows), names)


def input_moments(encoder: Encoder, batches: Iterable[Batch], layers: Iterable[str] = ()) -> dict[str, Tensor]:
    """For each linear layer of the blocks, or only those named, the sum of x x' over its inputs."""
    wanted = set(layers)
    moments: dict[str, Tensor] = {}
    handles = []
    for name, module in encoder.named_modules():
        if name.startswith("blocks.") and isinstance(module, nn.Linear) and (not wanted or name in wanted):
            moments[name] = torch.zeros(module.in_features, module.in_features, dtype=torch.float64)
            handles.append(module.register_forward_pre_hook(_adding(moments[name])))
    try:
        with torch.inference_mode():
            for batch in batches:
                encoder(batch)
    finally:
        for handle in handles:
            handle.remove()
    return moments


def _adding(moments_DD: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A hook that adds the moments of a layer's inputs."""

    def add(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x_ND = inputs[0]
        moments_DD.add_((x_ND.T @ x_ND).double())

    return add


def kept_columns(weight_ED: Tensor, kept: Tensor, moments_DD: Tensor | None) -> Tensor:
    """The columns of the kept inputs, refitted if the second moments of the inputs are known."""
    if moments_DD is None or len(kept) == weight_ED.shape[1]:
        return weight_ED[:, kept]
    return refitted(weight_ED, moments_DD, kept)


def refitted(weight_ED: Tensor, moments_DD: Tensor, kept: Tensor) -> Tensor:
    """The columns of the kept inputs, changed so that they stand in for the removed ones as well as they can.

    Least squares: W_K + W_R M_RK M_KK^-1, with K the kept and R the removed inputs and M the second moments. Where kept
    and removed inputs are not correlated, nothing changes.
    """
    is_removed = torch.ones(weight_ED.shape[1], dtype=torch.bool)
    is_removed[kept] = False
    removed = is_removed.nonzero()[:, 0]
    moments_KK = moments_DD[kept][:, kept]
    damping = DAMPING * moments_KK.diagonal().mean() + 1e-12
    damped_KK = moments_KK + damping * torch.eye(len(kept), dtype=torch.float64)
    moments_KR = moments_DD[kept][:, removed]
    # How each removed input is predicted from the kept ones.
    predicted_KR = torch.cholesky_solve(moments_KR, torch.linalg.cholesky(damped_KK))
    added_EK = weight_ED[:, removed].double() @ predicted_KR.T
    return (weight_ED[:, kept].double() + added_EK).float()
