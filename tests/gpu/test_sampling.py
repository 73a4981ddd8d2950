"""The sampling kernels on an accelerator against the same on the CPU."""

from __future__ import annotations

import pytest
import torch

from kernels.sampling import argmax_rows, draw, score

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def test_tokens_on_the_device_are_those_on_the_host() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, vocab_size = 256, 49_152
    logits = torch.randn(rows, vocab_size, generator=generator) * torch.linspace(0.1, 5, rows)[:, None]
    inputs = {
        "peaks": logits.amax(1),
        "temperatures": torch.rand(rows, generator=generator) + 0.5,
        "uniform": torch.rand(rows, generator=generator, dtype=torch.float64),
        "top_k": torch.randint(1, 60_000, (rows,), generator=generator),
        "top_p": torch.rand(rows, generator=generator, dtype=torch.float64),
        "min_p": torch.rand(rows, generator=generator) * 0.001,
    }
    host = draw(logits.clone(), **inputs)
    device = draw(logits.cuda(), **{name: value.cuda() for name, value in inputs.items()})
    # The two compute exp differently in the last bit: a draw next to a boundary may fall on the other side.
    assert (host == device.cpu()).float().mean() >= 0.98
    assert torch.equal(argmax_rows(logits.cuda())[0].cpu(), argmax_rows(logits)[0])


def test_log_probabilities_on_the_device_are_those_on_the_host() -> None:
    logits = torch.randn(256, 49_152, generator=torch.Generator().manual_seed(1)) * 4
    host, device = score(logits, 5), score(logits.cuda(), 5)
    assert torch.allclose(host[0], device[0].cpu(), atol=1e-5)
    assert torch.equal(host[2], device[2].cpu())
