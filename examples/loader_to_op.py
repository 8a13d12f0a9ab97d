"""From a data file to a model in plain PyTorch: loader → padded index rows → operator → model. No trainer."""

import sys

import torch
from torch import nn

from nnue_trainer import FeatureTransformer
from nnue_trainer.data import Loader, feature_set

device = "cuda" if torch.cuda.is_available() else "cpu"
features = feature_set("Chess768")
transformer, output = FeatureTransformer(features.num_features, 64).to(device), nn.Linear(128, 1).to(device)
optimizer = torch.optim.Adam([*transformer.parameters(), *output.parameters()], lr=1e-3)
path = sys.argv[1] if len(sys.argv) > 1 else "samples/train.binpack"
for step, batch in enumerate(Loader(path, features, 1024, pin_memory=device == "cuda")):
    b = batch.to(device, non_blocking=True)
    white, black = transformer(b.white), transformer(b.black)  # index rows int32 [1024, 32], −1 padded → [1024, 64]
    black_first = b.black_to_move.bool()[:, None]
    accumulators = torch.where(black_first, torch.cat([black, white], 1), torch.cat([white, black], 1))
    prediction = torch.sigmoid(output(accumulators.clamp(0, 1)).squeeze(1))
    target = 0.7 * torch.sigmoid(b.score / 410) + 0.3 * (b.result + 1) / 2  # both from the side to move's view
    loss = (prediction - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step:3d}  rows {list(b.white.shape)}  loss {loss.item():.4f}")
