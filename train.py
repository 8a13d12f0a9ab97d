"""Trains a net: `python train.py --config configs/quickstart.yaml [key=value …]`, the same as `nnue train`."""

import sys

from nnue_trainer.cli.main import main

if __name__ == "__main__":
    sys.argv.insert(1, "train")
    main()
