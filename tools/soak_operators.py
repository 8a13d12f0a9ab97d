"""Whether operators or steps of training keep memory: `python tools/soak_operators.py [CALLS]`, by default 100,000
calls of each recorded call, and as many steps of a small net on the CPU. Status 1 where more than 16 bytes of a call or
a step stay in use. tests/faults/test_operators.py makes a few calls of each."""

import subprocess
import sys
from pathlib import Path

FAULTS = Path(__file__).resolve().parents[1] / "tests" / "faults"
sys.path.insert(0, str(FAULTS))

from operator_soak import BOUND, kept_by  # noqa: E402


def kept_by_a_step(steps: int) -> float:
    import torch

    from nnue_trainer import PerspectiveTransformer
    from nnue_trainer.data import Batch
    from nnue_trainer.optim.fused_optimizer import FusedOptimizer
    from nnue_trainer.optim.parts import Part
    from nnue_trainer.optim.update_rule import UpdateRule

    torch.set_num_threads(1)
    net = PerspectiveTransformer(64, 16, "pairwise", psqt_buckets=2)
    parts = [Part(name, parameter) for name, parameter in net.named_parameters()]
    optimizer = FusedOptimizer(parts, UpdateRule(), torch.tensor(0.001))
    batch, bucket = Batch.allocate(32, 4), torch.zeros(32, dtype=torch.int64)
    for rows in (batch.white, batch.black):
        rows.fill_(-1)[:, 0] = torch.arange(32, dtype=torch.int32)
    batch.black_to_move.zero_()

    def step() -> None:
        out, psqt = net(batch, bucket)
        loss = out.square().sum() + psqt.sum()
        loss.backward()
        optimizer.step(loss)

    return kept_by(step, steps, 1)


if __name__ == "__main__":
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    failed = subprocess.run([sys.executable, FAULTS / "operator_soak.py", str(calls)], check=False).returncode
    kept = kept_by_a_step(calls)
    print(f"a step of training: {kept:+.1f} bytes in use after each step")
    sys.exit(failed or kept > BOUND)
