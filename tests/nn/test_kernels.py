"""The GPU's own attention kernel, run on the CPU by Triton's interpreter, against the grouped path."""

import importlib.util
import subprocess
import sys

import pytest

PROGRAM = """
import torch
from firth.nn.attention import Fused, attend
from firth.nn.kernels import short_attention
from firth.nn.layout import Layout

torch.manual_seed(0)
bounds = torch.tensor([0, 5, 64, 65, 128, 1, 33, 0, 0]).cumsum(0).int()
for causal in (False, True):
    qkv = torch.randn(int(bounds[-1]), 3, 2, 16, requires_grad=True)
    grad = torch.randn(int(bounds[-1]), 2, 16)
    layout = Layout(bounds, 128, len(qkv))
    reference = attend(Fused(qkv), layout, layout, causal=causal)
    (wanted,) = torch.autograd.grad(reference, qkv, grad)
    out = short_attention(qkv, bounds, causal)
    (found,) = torch.autograd.grad(out, qkv, grad)
    torch.testing.assert_close(out, reference, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
print("equal")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_short_attention_and_its_gradient_equal_the_grouped_path() -> None:
    # A process of its own: the interpreter is chosen when the kernels are defined.
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr
