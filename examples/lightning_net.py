"""Your own net in PyTorch Lightning, with our operator, data loader and optimiser and Lightning's loop and checkpoints.
python lightning_net.py DATA.binpack EPOCHS [CHECKPOINT_TO_RESUME]     (pip install pytorch-lightning)"""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from nnue_trainer import Batch, Loader, losses, nets, optim, registry
from nnue_trainer.files import checkpoint

NET = Path(__file__).resolve().parent / "extending" / "my_net.py"  # any NnueModel will do


class Epochs(Loader):
    """A loader with epochs of 30 batches. Because it has a length, Lightning does not prefetch, so its
    checkpoints have the exact position in the data. A loader has its own threads and needs no DataLoader."""

    def __len__(self) -> int:
        return 30

    def __iter__(self) -> Iterator[Batch]:
        return itertools.islice(super().__iter__(), len(self))


class LightningOptimizer(torch.optim.Optimizer):
    """`optim.Optimizer` with torch's interface. It keeps its virtual rows, weight limits and non-finite guard."""

    def __init__(self, ours: optim.Optimizer, model: nets.NnueModel) -> None:
        super().__init__(model.parameters(), {"lr": ours.lr.item()})
        self.ours = ours

    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]  # Lightning passes a closure
        with torch.enable_grad():
            loss = closure()  # the forward and the backward pass
        self.ours.set_lr(self.param_groups[0]["lr"])  # schedulers write it there
        self.ours.step(loss)
        return loss

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"ours": self.ours.state_dict(), "good_steps": self.ours.good_steps()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ours.load_state_dict(state.pop("ours"), good_steps=state.pop("good_steps"))
        super().load_state_dict(state)


class LightningNet(pl.LightningModule):
    def __init__(self, model: nets.NnueModel) -> None:
        super().__init__()
        self.model, self.loss = model, losses.SigmoidLoss()

    def training_step(self, batch: Batch, _: int) -> Tensor:
        score = self.model(batch) * self.model.score_scale  # [B], engine units
        loss = losses.mean(*self.loss.terms(score, batch.score, batch.result, lam=0.8))
        self.log("loss", loss, prog_bar=True, batch_size=len(batch))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return LightningOptimizer(optim.Optimizer(self.model, optim.AdamW(lr=1e-3)), self.model)


def main(data: str, epochs: int, resume: str | None = None) -> None:
    pl.seed_everything(1)
    registry.load_plugin(NET)
    model = nets.build({"kind": "my_net.py:TwoLayers", "hidden": 32})
    loader = Epochs([data], model.feature_set, 1024, shuffle_buffer=100_000, seed=1, repeat=True)
    save_often = pl.callbacks.ModelCheckpoint(every_n_train_steps=20, save_top_k=-1)
    pl.Trainer(max_epochs=epochs, callbacks=[save_often]).fit(LightningNet(model), loader, ckpt_path=resume)
    checkpoint.save("net.safetensors", checkpoint.Checkpoint(model.architecture, {"model": model.state_dict()}))
    print(f"nnue export net.safetensors net.nnue --plugin {NET}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
