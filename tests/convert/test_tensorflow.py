"""TensorFlow 1 checkpoints, written here byte by byte after the format's description, and read without TensorFlow."""

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth.convert.bundle import Bundle
from firth.convert.checksum import crc32c, masked
from firth.convert.tensorflow import translate
from firth.convert.weight_files import read_tensors
from firth.errors import BadConfig, BadInput, Damaged, Unsupported

TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
ROWS_A_BLOCK = 7


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def block(rows: list[tuple[bytes, bytes]]) -> bytes:
    out, restarts, before = b"", [], b""
    for i, (key, value) in enumerate(rows):
        shared = 0
        if i % 4 == 0:  # here a key stands in full
            restarts.append(len(out))
        else:
            shared = next((n for n, (a, b) in enumerate(zip(key, before, strict=False)) if a != b), len(before))
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return out + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def write_checkpoint(prefix: Path, arrays: Mapping[str, np.ndarray]) -> None:
    data, rows = b"", [(b"", field(1, 1) + field(3, field(1, 1)))]
    for name, array in sorted(arrays.items()):
        raw = array.tobytes()
        shape = b"".join(field(2, field(1, size)) for size in array.shape)
        entry = field(1, TYPES[array.dtype.name]) + field(2, shape) + field(4, len(data)) + field(5, len(raw))
        rows.append((name.encode(), entry + varint(6 << 3 | 5) + struct.pack("<I", masked(crc32c(raw)))))
        data += raw
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    index, pointers = b"", []
    for start in range(0, len(rows), ROWS_A_BLOCK):
        part = rows[start : start + ROWS_A_BLOCK]
        pointers.append((part[-1][0], varint(len(index)) + varint(len(one := block(part)))))
        index += one + b"\0" + struct.pack("<I", masked(crc32c(one + b"\0")))
    handles = []
    for one in (block([]), block(pointers)):
        handles.append(varint(len(index)) + varint(len(one)))
        index += one + b"\0" + struct.pack("<I", masked(crc32c(one + b"\0")))
    footer = b"".join(handles).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    prefix.with_name(f"{prefix.name}.index").write_bytes(index + footer)


def tensorflow_name(name: str) -> str:
    """Hugging Face's name of a tensor -> TensorFlow's."""
    kind = "kernel" if "dense" in name or re.search(r"query|key|value", name) else "gamma"
    name = re.sub(r"LayerNorm\.bias$", "LayerNorm/beta", re.sub(r"_embeddings\.weight$", "_embeddings", name))
    name = name.replace("cls.predictions.bias", "cls/predictions/output_bias")
    name = re.sub(r"seq_relationship\.(weight|bias)$", r"seq_relationship/output_\1", name)
    name = name.replace("output_weight", "output_weights")
    return re.sub(r"layer\.(\d+)", r"layer_\1", name.replace(".weight", f".{kind}")).replace(".", "/")


@pytest.fixture
def source(run: Path, tmp_path: Path) -> Path:
    """A finished run as Google published BERT, with an optimizer's variables beside the weights."""
    folder = tmp_path / "uncased_L-2"
    folder.mkdir()
    config = json.loads((run / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_bytes((run / "vocab.txt").read_bytes())
    arrays: dict[str, np.ndarray] = {"global_step": np.array(40, np.int64)}
    for theirs, tensor in read_tensors(run).items():
        name = tensorflow_name(theirs)
        arrays[name] = tensor.numpy().T.copy() if name.endswith("kernel") else tensor.numpy()
        arrays[f"{name}/adam_m"] = np.zeros(3, np.float32)
    write_checkpoint(folder / "bert_model.ckpt", arrays)
    return folder


@pytest.mark.parametrize(
    ("data", "wanted"),
    [(b"", 0), (b"a", 0xC1D04330), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
)
def test_published_checksums(data: bytes, wanted: int) -> None:
    assert crc32c(data) == wanted


@pytest.mark.parametrize("size", [3, 4, 2047, 2048, 4097, 100_003])
def test_lanes_do_not_change_a_checksum(size: int) -> None:
    data = bytes(i * 131 % 251 for i in range(size))
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    assert crc32c(data) == register ^ 0xFFFFFFFF


def test_a_checkpoint_becomes_the_same_model(source: Path, run: Path, command: Callable[..., Any]) -> None:
    out = source.parent / "out"
    done = command("import", source, "--out", out, "--uncased", "--json")
    assert done.code == 0, done.err
    ours, theirs = read_tensors(run), read_tensors(out)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    texts = ["A text, and more.", "一句话。"]
    assert np.array_equal(firth.load(run).embed(texts), firth.load(out).embed(texts))


def test_a_bare_vocabulary_needs_a_word_on_case(source: Path, command: Callable[..., Any]) -> None:
    done = command("import", source, "--out", source.parent / "out")
    assert done.code == 2
    assert "add --cased or --uncased" in done.err
    (source / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(BadConfig, match="leave out `cased=`"):
        firth.import_model(source, out=source.parent / "out", cased=False)
    firth.import_model(source, out=source.parent / "out")


def test_types_and_shapes(tmp_path: Path) -> None:
    arrays = {f"t/{name}": np.arange(24).reshape(2, 3, 4).astype(name) for name in TYPES}
    arrays |= {"scalar": np.array(7, np.int64), "empty": np.zeros((0, 5), np.float32)}
    write_checkpoint(tmp_path / "x.ckpt", arrays)
    bundle = Bundle(tmp_path / "x.ckpt")
    assert bundle.entries.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(bundle.read(name), array)
        assert bundle.read(name).dtype == array.dtype
        assert bundle.read(name).shape == array.shape


def test_names() -> None:
    assert translate("bert/encoder/layer_11/attention/self/query/kernel") == (
        "bert.encoder.layer.11.attention.self.query.weight"
    )
    assert translate("bert/embeddings/LayerNorm/gamma") == "bert.embeddings.LayerNorm.weight"
    assert translate("cls/predictions/output_bias") == "cls.predictions.bias"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_an_altered_byte_is_noticed(source: Path, share: float) -> None:
    path = source / "bert_model.ckpt.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 1
    path.write_bytes(data)
    # The tensor is named by what the checkpoint calls it.
    with pytest.raises(Damaged, match=r"the tensor (bert|cls)/\S+ .*checksum differs"):
        firth.import_model(source, out=source.parent / "out", cased=False)


def test_a_damaged_index(source: Path) -> None:
    path = source / "bert_model.ckpt.index"
    whole = path.read_bytes()
    for place in range(0, len(whole) - 48, 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises((Damaged, Unsupported), match=r"bert_model.ckpt.index"):
            Bundle(source / "bert_model.ckpt")
    path.write_bytes(whole[100:])
    with pytest.raises(Damaged, match="cut short or damaged"):
        Bundle(source / "bert_model.ckpt")
    path.write_bytes(whole[:-100])
    with pytest.raises(BadInput, match="is not the index of a TensorFlow checkpoint"):
        Bundle(source / "bert_model.ckpt")


def test_missing_files_are_named(source: Path) -> None:
    data, config = source / "bert_model.ckpt.data-00000-of-00001", source / "bert_config.json"
    content = data.read_bytes()
    data.write_bytes(content[:1000])
    with pytest.raises(Damaged, match="cut short"):
        firth.import_model(source, out=source.parent / "out", cased=False)
    data.unlink()
    with pytest.raises(BadInput, match="data-00000-of-00001 does not exist"):
        firth.import_model(source, out=source.parent / "out", cased=False)
    config.unlink()
    with pytest.raises(BadInput, match=r"no bert_config.json"):
        firth.import_model(source, out=source.parent / "out", cased=False)
    (source / "another.ckpt.index").write_bytes(b"")
    with pytest.raises(BadInput, match="has 2 checkpoints"):
        firth.import_model(source, out=source.parent / "out", cased=False)
