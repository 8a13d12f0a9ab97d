"""`python -m nnue_trainer` is the `nnue` command."""

from nnue_trainer.cli.main import main

if __name__ == "__main__":
    main()
