"""The feature transformer as a plain PyTorch op: no trainer, no data files."""

import torch

from nnue_trainer import FeatureTransformer

indices = torch.tensor([[3, 17, 42, -1], [5, -1, -1, -1]], dtype=torch.int32)  # active features; -1 ends a row
target = torch.tensor([[0.25], [-0.5]])
net = torch.nn.Sequential(FeatureTransformer(768, 64), torch.nn.Hardtanh(0, 1), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for step in range(101):
    loss = torch.nn.functional.mse_loss(net(indices), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step:3d}  loss {loss.item():.6f}")
