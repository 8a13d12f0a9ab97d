"""Integer forwards that are subtly wrong are refused before the first step, and when a run is resumed."""

import contextlib
import copy
import math
import threading
from dataclasses import replace

import pytest
import torch

from nnue_trainer import nets, registry
from nnue_trainer.errors import UserError
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.nets.integer_forward import IntegerForward
from nnue_trainer.training import integer_check
from nnue_trainer.training.integer_check import _views, check_integers, start_check

NETS = {
    "layered": {
        "kind": "layered",
        "inputs": "Chess768",
        "output_buckets": {"count": 2},
        "hidden": 16,
        "activation": "crelu",
        "psqt": True,
        "layers": [{"outputs": 8, "activation": "screlu"}, {"outputs": 4, "activation": "crelu"}],
    },
    "sfnnv5": {"kind": "sfnnv5", "l1": 32},
}


@pytest.fixture(params=NETS)
def model(request: pytest.FixtureRequest) -> NnueModel:
    torch.manual_seed(0)
    return nets.build(nets.parse(NETS[request.param], "net"))


def forward_of(model: NnueModel) -> IntegerForward:
    assert model.net is not None
    forward = model.net.integer_forward()
    assert forward is not None
    return forward


def wrongs(forward: IntegerForward) -> dict[str, IntegerForward]:
    """Each of them wrong in one place."""
    found = {
        "psqt": replace(forward, first=replace(forward.first, psqt=())),
        "clip": replace(forward, first=replace(forward.first, clip=forward.first.clip // 2)),
        "multiply": replace(forward, multiply=forward.multiply * 51, divide=forward.divide * 50),
    }
    for number, layer in enumerate(forward.layers):
        for field in ("shift", "divide"):
            if (field == "shift" and not layer.activated) or (field == "divide" and number):
                continue
            layers = [*forward.layers]
            layers[number] = (
                replace(layer, shift=layer.shift + 1) if field == "shift" else replace(layer, divide=2 * layer.divide)
            )
            found[f"{field} of layer {number}"] = replace(forward, layers=tuple(layers))
    return found


def test_a_right_one_passes(model: NnueModel) -> None:
    check_integers(model)


def test_a_wrong_one_is_refused(model: NnueModel, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Checkpoint(model.architecture, {"model": {k: v.clone() for k, v in model.state_dict().items()}})
    for forward in wrongs(forward_of(model)).values():
        monkeypatch.setattr(type(model.net), "integer_forward", lambda self, forward=forward: forward)
        for resumed in (None, saved):
            with pytest.raises(UserError, match=r"differ by|cannot be evaluated in integers"):
                start_check(model, resumed, "x.safetensors")()


def test_in_a_thread_it_checks_the_weights_of_its_start(model: NnueModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training may change the model meanwhile; the caller that waits gets the result of the check."""
    wrong, later = wrongs(forward_of(model))["clip"], copy.deepcopy(model)
    wait = start_check(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    wait()
    monkeypatch.setattr(type(model.net), "integer_forward", lambda self: wrong)
    wait = start_check(later)
    with pytest.raises(UserError, match="differ by"):
        wait()


def test_a_model_that_moves_first_is_not_copied(model: NnueModel, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [parameter.data_ptr() for parameter in model.parameters()]
    assert [view.data_ptr() for view in _views(model).values() if isinstance(view, torch.nn.Parameter)] == before
    checked: list[NnueModel] = []

    def check(copied: NnueModel) -> None:
        checked.append(copied)
        check_integers(copied)

    monkeypatch.setattr(integer_check, "check_integers", check)
    wait = start_check(model, moves=True)
    model.double()  # to other memory, as to another device
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    wait()
    assert [parameter.data_ptr() for parameter in checked[0].parameters()] == before


def test_a_net_of_a_plugin_is_in_one_thread_at_a_time(model: NnueModel, monkeypatch: pytest.MonkeyPatch) -> None:
    two = threading.Barrier(2)

    def check(*_: object) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            two.wait(0.5 if registry.foreign_modules() else 60)

    monkeypatch.setattr(integer_check, "_check", check)
    check_integers(model)
    assert not two.broken
    monkeypatch.setattr(registry, "foreign_modules", lambda: frozenset({"plugin"}))
    check_integers(model)
    assert two.broken
