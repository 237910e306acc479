"""The GPU's own attention kernels, run on the CPU by Triton's interpreter, against the grouped path."""

import importlib.util
import subprocess
import sys

import pytest

SHORT = """
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

BIASED = """
import torch
from triton.runtime import interpreter

# Some versions of the interpreter cannot take the end of a loop from a tensor, with some versions of numpy.
patch_tensor = interpreter._patch_lang_tensor


def patch_index_too(tensor, *scope):
    patch_tensor(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.item())


interpreter._patch_lang_tensor = patch_index_too

from firth.nn.attention import DistanceBias, Fused, attend
from firth.nn.bias_kernels import biased_attention
from firth.nn.layout import Layout

torch.manual_seed(0)
longest = 150
bounds = torch.tensor([0, 5, 64, 65, 128, 1, 33, longest, 0, 0]).cumsum(0).int()
for causal in (False, True):
    qkv = torch.randn(int(bounds[-1]), 3, 2, 16, requires_grad=True)
    table = torch.randn(2 * longest - 1, 2, requires_grad=True)
    grad = torch.randn(int(bounds[-1]), 2, 16)
    layout = Layout(bounds, longest, len(qkv))
    bias = DistanceBias(table, longest)
    reference = attend(Fused(qkv), layout, layout, causal=causal, bias=bias, scale=0.7)
    wanted = torch.autograd.grad(reference, (qkv, table), grad)
    out, _ = biased_attention(qkv, table.T, bounds, longest, causal, 0.7)
    found = torch.autograd.grad(out, (qkv, table), grad)
    torch.testing.assert_close(out, reference, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[0], wanted[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], wanted[1], atol=1e-4, rtol=1e-5)
print("equal")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("program", [SHORT, BIASED], ids=["short", "biased"])
def test_attention_and_its_gradient_equal_the_grouped_path(program: str) -> None:
    # A process of its own: the interpreter is chosen when the kernels are defined.
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr
