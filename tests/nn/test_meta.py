"""Networks without weights."""

import subprocess
import sys

from firth.encoders.bert import Bert
from firth.nn.meta import on_meta_device


def test_names_and_shapes_are_those_of_the_real_network() -> None:
    config = Bert.Config(vocab_size=50, width=16, num_layers=2, num_heads=2, ffn_width=32, max_positions=12)
    real = {name: weight.shape for name, weight in Bert(config).named_parameters()}
    with on_meta_device():
        empty = Bert(config)
    assert {name: weight.shape for name, weight in empty.named_parameters()} == real
    assert all(weight.is_meta for weight in empty.parameters())


def test_a_model_is_loaded_without_torchs_compiler() -> None:
    program = "import sys, firth; firth.load('en-small'); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
