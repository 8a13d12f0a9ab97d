"""Filters in Python that a recipe names: what they keep, what order depends on, mistakes in one line."""

from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from nnue_trainer.base.arrays import Records
from nnue_trainer.data import Filters, RecordLoader, fields
from nnue_trainer.data.filters import FILTERS, Filter
from nnue_trainer.data.filters.base import UserFilter, identity
from nnue_trainer.data.filters.pieces import Pieces
from nnue_trainer.errors import UserError
from nnue_trainer.schema import section


@section
class Wrong(Filter):
    """Returns the answers that it was made with."""

    answer: str
    """what to do wrong"""

    def keep(self, records: Records) -> npt.NDArray[np.bool_]:
        if self.answer == "raise":
            raise KeyError(3)
        return np.ones(len(records) + (self.answer == "length"), int if self.answer == "dtype" else bool)


@pytest.fixture
def sample(project_root):
    return project_root / "samples" / "val.binpack"


def records(path, **options) -> Records:
    return np.concatenate([batch.numpy().copy() for batch in RecordLoader(path, 4096, shuffle=False, **options)])


def test_they_keep_what_the_loader_gives(sample):
    everything = records(sample, drop_last=False)
    extra = Filters(extra=[Pieces(least=5, most=20), Pieces(most=12)])
    counts = fields.piece_counts(everything)
    expected = everything[(counts >= 5) & (counts <= 12)]
    assert 0 < len(expected) < len(everything)
    np.testing.assert_array_equal(records(sample, drop_last=False, filters=extra), expected)
    own = Filters(extra=[Pieces(least=5)])
    loaded = records(sample, drop_last=False, filters=own, user_filter=lambda r: fields.piece_counts(r) <= 12)
    np.testing.assert_array_equal(loaded, expected)


def test_an_error_of_theirs_is_not_a_bad_chunk(sample):
    """skip_bad_chunks is for damaged files: a filter that fails ends the run with its own words."""

    def fails(records):
        raise ValueError("no such thing")

    loader = RecordLoader(sample, 512, user_filter=fails, skip_bad_chunks=True)
    with pytest.raises(
        UserError, match=r"user filter: .*test_extra_filters\.py:\d+: .*fails: ValueError: no such thing"
    ):
        next(iter(loader))


def test_they_come_after_the_compiled_filters_and_are_counted(sample):
    everything = records(sample, drop_last=False)
    quiet, _ = Filters(quiet=True).apply(everything)
    kept, counts = Filters(quiet=True, extra=[Pieces(most=12)]).apply(everything)
    np.testing.assert_array_equal(kept, quiet[fields.piece_counts(quiet) <= 12])
    assert counts.kept == len(kept)
    assert counts.dropped["user_filter"] == len(quiet) - len(kept)
    loader = RecordLoader(sample, 512, shuffle=False, drop_last=False, filters=Filters(extra=[Pieces(most=12)]))
    assert sum(len(batch) for batch in loader) < len(everything)
    assert set(loader.filter_counts().dropped) == {"user_filter"}


def test_the_order_depends_on_them(sample):
    """A state of one filter is not accepted for that of another; the error has its name and value."""
    state = RecordLoader(sample, 64, filters=Filters(extra=[Pieces(most=12)])).state_dict()
    assert state["order"]["user_filter"] == [{"kind": "pieces", "least": 2, "most": 12}]
    RecordLoader(sample, 64, filters=Filters(extra=[Pieces(most=12)])).load_state_dict(state)
    with pytest.raises(UserError, match=r"loader state: user_filter was \[.*12.*now it is \[.*13"):
        RecordLoader(sample, 64, filters=Filters(extra=[Pieces(most=13)])).load_state_dict(state)


def test_identity_names_files_without_their_folder():
    Wrong.kind = "some/folder/wrong.py:Wrong"
    assert identity(Filters(extra=[Wrong(answer="x")]).with_extra()) == [{"kind": "wrong.py:Wrong", "answer": "x"}]
    assert identity(cast("UserFilter", len)).endswith("builtins.len")
    assert identity(None) is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("raise", r"test_extra_filters\.py:\d+: Wrong\.keep: KeyError: 3"),
        ("length", r"test_extra_filters\.py: Wrong\.keep returned ndarray of bool \[31\], expected bool \[30\]"),
        ("dtype", r"test_extra_filters\.py: Wrong\.keep returned ndarray of int64 \[30\], expected bool \[30\]"),
    ],
)
def test_mistakes_name_the_filter(sample, answer, message):
    Wrong.kind = "wrong"
    filters = Filters(extra=[Wrong(answer=answer)])
    with pytest.raises(UserError, match=message):
        filters.apply(records(sample)[:30])
    with pytest.raises(UserError, match="^user filter: .*" + message.split(r" \[")[0]):
        next(iter(RecordLoader(sample, 64, filters=filters)))


def test_recipes_name_them():
    assert FILTERS.parse({"kind": "pieces", "most": 7}, trusted=False) == Pieces(most=7)
