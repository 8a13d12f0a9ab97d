"""Data files rescored by a net, so that another net can learn from a stronger one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnue_trainer import _data
from nnue_trainer.data.files import PositionWriter, Progress, StrPath, format_for, read_files
from nnue_trainer.data.reading import ReadingOptions, check_score_scale
from nnue_trainer.data.transform import Report, check_outputs
from nnue_trainer.export.evaluate import Evaluator
from nnue_trainer.files.atomic import check_all_new

LARGEST_SCORE = 32001
"""The next larger number means "no score"."""


def rescore(
    inputs: Sequence[StrPath],
    output: StrPath,
    evaluator: Evaluator,
    *,
    to: str | None = None,
    score_scale: float = 1.0,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    reading: ReadingOptions | None = None,
) -> Report:
    """Writes all positions of `inputs`, one file after the other, each with the net's evaluation times `score_scale` as
    its score; positions without a score get one, too, but a PGN reader leaves out those without an evaluation. Scores
    are clamped to ±`LARGEST_SCORE`, with a count.

    The output is complete or absent. `progress` takes the bytes done and their total. `reading`: how the files
    are read.
    """
    check_score_scale(score_scale)
    format = format_for(output, to)
    check_outputs(inputs, [output], overwrite)
    report = Report()
    with PositionWriter(output, format) as writer:
        for reader, blocks in read_files(inputs, skip_bad=skip_bad, progress=progress, **(reading or {})):
            for block in blocks:
                evaluations = evaluator.evaluate(block.records, every_stack=False).score
                if score_scale != 1:
                    evaluations = np.rint(evaluations * score_scale).astype(np.int64)
                report.cut_scores += _data.set_scores(block.records, evaluations)
                writer.write_block(block)
            report.add_reader(reader, keeps_scores=False)
        report.add_writer(writer)
        check_all_new([output], overwrite)
    return report
