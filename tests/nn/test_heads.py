"""ULMFiT's head: columns that all texts share say nothing to it, and a text's scores are its own."""

import torch

from firth.nn.heads import HiddenHead, Standardised


def texts(num: int) -> torch.Tensor:
    """Vectors that are alike but for a hundredth of their length."""
    torch.manual_seed(3)
    return 10 + torch.arange(6.0) + 0.1 * torch.randn(num, 6)


def test_what_all_texts_share_is_taken_off_and_the_rest_is_scaled() -> None:
    norm, x_BD = Standardised(6), texts(640)
    for batch in x_BD.split(16):
        norm(batch)
    out_BD = norm.eval()(x_BD)
    torch.testing.assert_close(out_BD.mean(0), torch.zeros(6), rtol=0, atol=0.25)
    torch.testing.assert_close(out_BD.std(0), torch.ones(6), rtol=0, atol=0.2)
    before = norm.mean_D.clone()
    norm(x_BD + 5)
    assert torch.equal(norm.mean_D, before)  # only training looks


def test_a_text_is_scored_the_same_in_any_company() -> None:
    head = HiddenHead(6, 2)
    head(texts(32))
    x_BD = texts(40)
    alone = torch.cat([head.eval()(row[None]) for row in x_BD])
    torch.testing.assert_close(head(x_BD), alone)
    head.train()
    x_BD.requires_grad_()
    head(x_BD)[0].sum().backward()
    assert x_BD.grad is not None
    assert x_BD.grad[0].abs().sum() > 0
    assert x_BD.grad[1:].abs().sum() == 0


def test_one_text_is_enough_to_begin_with() -> None:
    norm = Standardised(6)
    for row in texts(5):
        assert norm(row[None]).abs().max() < 5**0.5 + 1e-3


def test_half_precision_stays_half() -> None:
    assert Standardised(6)(texts(8).bfloat16()).dtype == torch.bfloat16
