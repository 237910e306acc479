"""AllenNLP's ELMo: `options.json` and weights in hdf5, as the program that trained it wrote them.

In: a folder with both. Out: firth's encoder with these weights, and a tokenizer that reads characters. There are three
differences. Their gates have another order (input, candidate, forget, output). The 1 that they add to the forget gate
is not in the file. Their character ids begin at 0, firth's at 1.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from firth.encoders.elmo import NUM_CHARACTERS, Elmo
from firth.errors import BadInput, Damaged, Unsupported, absent
from firth.files import read_json
from firth.tokenizers.characters import Characters

OPTIONS = "*options.json"
DIRECTIONS = ("RNN_0", "RNN_1")
"""Forward and backward."""


def find(folder: Path) -> Path | None:
    """The weights of an ELMo in a folder; None if it has none."""
    files = sorted({*folder.glob("*weights*.hdf5"), *folder.glob("*weights*.h5")})
    if not files:
        # Not AllenNLP's usual name: any hdf5 file will do.
        files = sorted(folder.glob("*.hdf5"))
    options = list(folder.glob(OPTIONS))
    if len(options) != 1 or not files:
        return None
    if len(files) > 1:
        raise BadInput(f"{folder} has several files of weights, such as {files[0].name} and {files[1].name}; keep one.")
    return files[0]


def load(weights: Path) -> tuple[Elmo, Characters]:
    """The encoder from a file of weights and the options in its folder, and a tokenizer without a list of words."""
    options = next(iter(weights.parent.glob(OPTIONS)))
    tokenizer = Characters.of((), Characters.Config())
    config = _config(options, vocab_size=len(tokenizer.vocab))
    encoder = Elmo(config)
    tensors = _Renaming(weights, _read(weights)).tensors(config)
    _check_fit(weights, options, tensors, encoder.state_dict())
    encoder.load_state_dict(tensors)
    return encoder.eval(), tokenizer


def _check_fit(weights: Path, options: Path, tensors: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Raises if a tensor is missing, has another shape than the options ask for, or is unknown."""
    for name, tensor in wanted.items():
        if name not in tensors:
            found = "missing"
        elif tensors[name].shape != tensor.shape:
            found = f"of the shape {tuple(tensors[name].shape)}"
        else:
            continue
        raise Damaged(f"{weights} does not fit {options.name}: {name} is {found}, not {tuple(tensor.shape)}.")
    unknown = sorted(tensors.keys() - wanted.keys())
    if unknown:
        raise Unsupported(f"{weights} has {unknown[0]}, which {options.name} does not describe.")


def _config(path: Path, *, vocab_size: int) -> Elmo.Config:
    """The encoder's config from `options.json`."""
    options = read_json(path)
    try:
        lstm = options["lstm"]
        cnn = options["char_cnn"]
        if lstm["cell_clip"] != lstm["proj_clip"] or not lstm["use_skip_connections"]:
            raise Unsupported(f"{path} asks for two different clips or no skip connections, which firth does not have.")
        if cnn["n_characters"] not in (NUM_CHARACTERS - 1, NUM_CHARACTERS):
            raise Unsupported(f"{path} has {cnn['n_characters']} characters; firth reads the {NUM_CHARACTERS} of ELMo.")
        return Elmo.Config(
            vocab_size=vocab_size,
            width=2 * lstm["projection_dim"],  # both directions side by side
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
    """All arrays of an hdf5 file, as float32."""
    try:
        import h5py
    except ImportError:
        raise absent("h5py", extra="convert", user=f"{path}") from None
    found: dict[str, np.ndarray] = {}

    def visit(name: str, value: object) -> None:
        if isinstance(value, h5py.Dataset):
            found[name] = np.asarray(value[...], np.float32)

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except OSError as error:
        raise Damaged(f"{path} cannot be read as hdf5 ({error}); fetch it again.") from None
    return found


class _Renaming:
    """AllenNLP's arrays -> tensors with firth's names and in firth's order."""

    def __init__(self, path: Path, arrays: dict[str, np.ndarray]) -> None:
        self.path = path
        self.arrays = arrays

    def tensors(self, config: Elmo.Config) -> dict[str, Tensor]:
        """All arrays with firth's names; those with an unknown name keep it."""
        tensors = self._words(config)
        for layer in range(config.num_layers):
            tensors.update(self._lstm_layer(layer, config))
        # `_take` has removed all known arrays. The caller refuses what remains.
        for name, array in self.arrays.items():
            tensors[name] = torch.from_numpy(array)
        return tensors

    def _take(self, name: str) -> Tensor:
        if name not in self.arrays:
            raise Damaged(f"{self.path} lacks {name}; fetch it again.")
        return torch.from_numpy(self.arrays.pop(name))

    def _words(self, config: Elmo.Config) -> dict[str, Tensor]:
        """The character embeddings, convolutions and highway layers."""
        padding_row = torch.zeros(1, config.character_width)
        character_rows = self._take("char_embed")
        tensors = {"words.characters.weight": torch.cat([padding_row, character_rows])}
        for i in range(len(config.filters)):
            # 1 x size x channels x filters -> filters x channels x size
            weight = self._take(f"CNN/W_cnn_{i}").squeeze(0).permute(2, 1, 0)
            tensors[f"words.filters.{i}.weight"] = weight
            tensors[f"words.filters.{i}.bias"] = self._take(f"CNN/b_cnn_{i}")
        for i in range(config.num_highways):
            for ours, theirs in (("change", "transform"), ("gate", "carry")):
                # Their matrices are inputs x outputs.
                matrix = self._take(f"CNN_high_{i}/W_{theirs}").T
                layer = f"words.highways.{i}.{ours}"
                tensors[f"{layer}.weight"] = matrix
                tensors[f"{layer}.bias"] = self._take(f"CNN_high_{i}/b_{theirs}")
        tensors["words.project.weight"] = self._take("CNN_proj/W_proj").T
        tensors["words.project.bias"] = self._take("CNN_proj/b_proj")
        return tensors

    def _lstm_layer(self, layer: int, config: Elmo.Config) -> dict[str, Tensor]:
        """The LSTMs of one layer, forward and backward stacked."""
        weights: list[Tensor] = []
        projections: list[Tensor] = []
        biases: list[Tensor] = []
        for direction in DIRECTIONS:
            cell = f"{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            weights.append(_reorder_gates(self._take(f"{cell}/W_0")))
            projections.append(self._take(f"{cell}/W_P_0"))
            biases.append(_reorder_gates(self._take(f"{cell}/B")))
        # Their matrix has the input's rows first, then those of the previous state.
        weights_2DF = torch.stack(weights)
        input_width = weights_2DF.shape[1] - config.width // 2
        bias_24F = torch.stack(biases).view(2, 4, -1)
        bias_24F[:, 1] += 1  # the forget gate
        return {
            f"blocks.{layer}.input_2DF": weights_2DF[:, :input_width],
            f"blocks.{layer}.recurrent_2DF": weights_2DF[:, input_width:],
            f"blocks.{layer}.project_2FD": torch.stack(projections),
            f"blocks.{layer}.bias": bias_24F.flatten(),
        }


def _reorder_gates(weights: Tensor) -> Tensor:
    """Input, candidate, forget, output -> input, forget, candidate, output."""
    input_gate, candidate, forget_gate, output_gate = weights.chunk(4, -1)
    return torch.cat([input_gate, forget_gate, candidate, output_gate], -1)
