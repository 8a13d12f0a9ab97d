"""The layer with one set of weights per bucket, against eight layers of torch's."""

import torch
from torch.nn import functional as F

from nnue_trainer.modules.stacked_linear import StackedLinear


def test_every_position_gets_its_own_stack_and_nothing_of_the_others():
    layer = StackedLinear(8, 6, 5).double()
    with torch.no_grad():
        layer.weight.normal_()
        layer.bias.normal_()
        layer.weight[3].fill_(torch.inf)  # no position is in bucket 3: it must not be seen
    x = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    bucket = torch.arange(40) % 8
    bucket[bucket == 3] = 4
    out = layer(x, bucket)
    expected = torch.stack([F.linear(row, layer.weight[b], layer.bias[b]) for row, b in zip(x, bucket, strict=True)])
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, layer.bias, grad)[0]
    torch.testing.assert_close(found, torch.zeros(8, 5, dtype=torch.float64).index_add(0, bucket, grad))
