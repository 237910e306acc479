"""allennlp's ELMo: `options.json` and weights in hdf5, as the program that trained it wrote them.

In: a folder with both. Out: our encoder with these weights, and a tokenizer that reads characters. Their gates come in
another order (input, candidate, forget, output), the 1 they add to the forget gate is not in the file, and their
characters begin at 0 where ours begin at 1.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth.encoders.elmo import NUM_CHARACTERS, Elmo
from firth.errors import BadInput, Damaged, Unsupported
from firth.files import read_json
from firth.tokenizers.characters import Characters

OPTIONS = "options.json"
DIRECTIONS = ("RNN_0", "RNN_1")
LSTM = "{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{name}"


def find(folder: Path) -> Path | None:
    """The weights of an ELMo's folder."""
    files = sorted({*folder.glob("*weights*.hdf5"), *folder.glob("*weights*.h5")}) or sorted(folder.glob("*.hdf5"))
    options = [*folder.glob("*options.json")]
    if len(options) != 1 or not files:
        return None
    if len(files) > 1:
        raise BadInput(f"{folder} has several files of weights, such as {files[0].name} and {files[1].name}; keep one.")
    return files[0]


def load(weights: Path) -> tuple[Elmo, Characters]:
    """The encoder of these weights and of the options beside them, with a tokenizer that has no list of words."""
    options = next(iter(weights.parent.glob("*options.json")))
    tokenizer = Characters.of((), Characters.Config())
    encoder = Elmo(_config(options, vocab_size=len(tokenizer.vocab)))
    tensors = dict(_renamed(_read(weights), weights, encoder.config))
    wanted = encoder.state_dict()
    for name, tensor in wanted.items():
        if name not in tensors or tensors[name].shape != tensor.shape:
            found = f"of the shape {tuple(tensors[name].shape)}" if name in tensors else "missing"
            raise Damaged(f"{weights} does not fit {options.name}: {name} is {found}, not {tuple(tensor.shape)}.")
    if strange := sorted(tensors.keys() - wanted.keys()):
        raise Unsupported(f"{weights} has {strange[0]}, which {options.name} does not tell of.")
    encoder.load_state_dict(tensors)
    return encoder.eval(), tokenizer


def _config(path: Path, *, vocab_size: int) -> Elmo.Config:
    options = read_json(path)
    try:
        lstm, cnn = options["lstm"], options["char_cnn"]
        if lstm["cell_clip"] != lstm["proj_clip"] or not lstm["use_skip_connections"]:
            raise Unsupported(f"{path} asks for two different clips or no skip connections, which firth does not have.")
        if cnn["n_characters"] not in (NUM_CHARACTERS - 1, NUM_CHARACTERS):
            raise Unsupported(f"{path} has {cnn['n_characters']} characters; firth reads the {NUM_CHARACTERS} of ELMo.")
        return Elmo.Config(
            vocab_size=vocab_size,
            width=2 * lstm["projection_dim"],
            num_layers=lstm["n_layers"],
            cell_width=lstm["dim"],
            clip=float(lstm["cell_clip"]),
            character_width=cnn["embedding"]["dim"],
            filters=tuple((size, count) for size, count in cnn["filters"]),
            num_highways=cnn["n_highway"],
            max_characters=cnn["max_characters_per_token"],
            activation=cnn["activation"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is not an ELMo's: {error!r} is wrong or missing.") from None


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        import h5py
    except ImportError:
        raise Unsupported(f"{path} needs h5py: pip install 'firth[convert]'.") from None
    found: dict[str, np.ndarray] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, h5py.Dataset):
            found[name] = np.asarray(value[...], np.float32)

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except OSError as error:
        raise Damaged(f"{path} cannot be read as hdf5 ({error}); fetch it again.") from None
    return found


def _renamed(arrays: dict[str, np.ndarray], path: Path, config: Elmo.Config) -> Iterator[tuple[str, Tensor]]:
    """All arrays under our names; those with a name nobody knows keep it."""

    def take(name: str) -> Tensor:
        if name not in arrays:
            raise Damaged(f"{path} lacks {name}; fetch it again.")
        return torch.from_numpy(arrays.pop(name))

    nothing = torch.zeros(1, config.character_width)
    yield "words.characters.weight", torch.cat([nothing, take("char_embed")])
    for i in range(len(config.filters)):
        yield f"words.filters.{i}.weight", take(f"CNN/W_cnn_{i}").squeeze(0).permute(2, 1, 0)
        yield f"words.filters.{i}.bias", take(f"CNN/b_cnn_{i}")
    for i in range(config.num_highways):
        for ours, theirs in (("change", "transform"), ("gate", "carry")):
            yield f"words.highways.{i}.{ours}.weight", take(f"CNN_high_{i}/W_{theirs}").T
            yield f"words.highways.{i}.{ours}.bias", take(f"CNN_high_{i}/b_{theirs}")
    yield "words.project.weight", take("CNN_proj/W_proj").T
    yield "words.project.bias", take("CNN_proj/b_proj")
    for layer in range(config.num_layers):
        names = [LSTM.format(direction=d, layer=layer, name="{}") for d in DIRECTIONS]
        weights = torch.stack([_gates(take(name.format("W_0"))) for name in names])
        below = weights.shape[1] - config.width // 2
        yield f"blocks.{layer}.input_2DF", weights[:, :below]
        yield f"blocks.{layer}.recurrent_2DF", weights[:, below:]
        yield f"blocks.{layer}.project_2FD", torch.stack([take(name.format("W_P_0")) for name in names])
        bias_24F = torch.stack([_gates(take(name.format("B"))) for name in names]).view(2, 4, -1)
        bias_24F[:, 1] += 1
        yield f"blocks.{layer}.bias", bias_24F.flatten()
    yield from ((name, torch.from_numpy(array)) for name, array in arrays.items())


def _gates(weights: Tensor) -> Tensor:
    """Input, candidate, forget, output -> input, forget, candidate, output."""
    first, candidate, forget, last = weights.chunk(4, -1)
    return torch.cat([first, forget, candidate, last], -1)
