"""The table of kernels: its rows, and that the operators follow it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from command import nnue

from nnue_trainer.base import _library
from nnue_trainer.errors import UserError
from nnue_trainer.modules.layer_stacks import FirstOutputs, Integers, LayerStacks
from nnue_trainer.modules.stacked_linear import StackedLinear
from nnue_trainer.ops import capabilities
from nnue_trainer.ops.capabilities import CPU, Choice, Machine, gpu, set_cuda_kernels
from nnue_trainer.ops.perspectives import number_of, perspective_transformer
from nnue_trainer.ops.reference import StackLayer

H100, RTX_4090, TURING, VOLTA = gpu(90), gpu(89), gpu(75), gpu(70)
LAYERS = LayerStacks(1024, 8, (StackLayer(16, 15, "dual", 1.0), StackLayer(32, 32, "crelu", 1.0)))
WIDE = (StackLayer(32, 32, "dual", 1.0), StackLayer(64, 64, "crelu", 1.0))  # 66 KB of a tile
FP32, FP16, BF16, FP64 = torch.float32, torch.float16, torch.bfloat16, torch.float64


@pytest.mark.parametrize(
    ("machine", "arguments", "kernels", "reason"),
    [
        (H100, (BF16, 24576, 1024, 768), "hopper", ""),
        (H100, (BF16, 24576, 1024, 769), "portable", "more than 768 features"),
        (H100, (BF16, 300 * 64, 1024, 64), "portable", "more than 255 king buckets"),
        (H100, (BF16, 300 * 64, 1024, 64, 255 * 64), "hopper", ""),
        (H100, (BF16, 2**20 + 768, 1024, 768, 768), "portable", "2^20 or more features"),
        (H100, (FP32, 768, 1024, None), "portable", "no king buckets"),
        (H100, (FP32, 768, 1000, 768), "torch", "not a multiple of 16"),
        (H100, (FP64, 768, 1024, 768), "torch", "dtype of the weights"),
        (H100, (FP32, 0, 1024, 768), "torch", "no features"),
        (H100, (FP32, 768, -1, 768), "hopper", ""),  # a plan
        (gpu(90, 78), (FP32, 768, 64, 768), "hopper", ""),
        (H100._replace(code=5), (FP32, 768, 64, 768), "portable", "without the kernels of compute capability 9.0"),
        (H100._replace(code=4), (FP32, 768, 64, None), "torch", "no code for this GPU"),
        (H100._replace(code=0), (FP32, 768, 64, 768), "torch", "not loaded"),
        (RTX_4090, (FP16, 768, 64, 768), "portable", "need compute capability 9.0"),
        (gpu(100), (FP16, 768, 64, 768), "portable", "need compute capability 9.0"),
        (TURING, (BF16, 768, 64, 768), "portable", "need compute capability 9.0"),
        (VOLTA, (FP16, 768, 64, 768), "torch", "below 7.5"),
        (CPU, (FP16, 768, 62, 768), "cpu", ""),
        (CPU, (FP16, 768, 63, 768), "torch", "odd"),
        (None, (FP32, 768, 64, 768), "torch", "CPUs and CUDA only"),
    ],
)
def test_transformer(machine: Machine | None, arguments: Any, kernels: str, reason: str) -> None:
    check(capabilities.transformer(machine, *arguments), kernels, reason)


@pytest.mark.parametrize(("mode", "kernels"), [("auto", "hopper"), ("portable", "portable"), ("none", "torch")])
def test_what_is_forbidden_is_not_chosen(mode: Any, kernels: str) -> None:
    before = set_cuda_kernels(mode)
    try:
        found = capabilities.transformer(H100, FP32, 768, 64, 768)
    finally:
        set_cuda_kernels(before)
    check(found, kernels, "" if mode == "auto" else "NNUE_CUDA_KERNELS")


def layers(**changes: Any) -> LayerStacks:
    from dataclasses import replace

    return replace(LAYERS, **changes)


@pytest.mark.parametrize(
    ("machine", "of", "dtype", "kernels", "reason"),
    [
        (RTX_4090, LAYERS, BF16, "tiles", ""),
        (RTX_4090, LAYERS, FP64, "torch", "inputs of the layers"),
        (RTX_4090, layers(integers=Integers()), BF16, "tiles", ""),
        (RTX_4090, layers(integers=Integers()), FP16, "torch", "float32 and bfloat16 only"),
        (RTX_4090, layers(inputs=1032), FP32, "torch", "not a multiple of 16"),
        (RTX_4090, layers(hidden=(StackLayer(33, 33, "crelu", 1.0),)), FP32, "torch", "more than 32 outputs"),
        (RTX_4090, layers(hidden=(StackLayer(32, 32, "dual", 1.0), StackLayer(512, 512, "crelu", 1.0))), FP32, "torch",
         "shared memory"),
        (RTX_4090, layers(hidden=(StackLayer(8, 8, "crelu", 1.0), StackLayer(2**20, 1, "crelu", 1.0))), FP32, "torch",
         "shared memory"),
        (RTX_4090, layers(stacks=65), FP32, "torch", "64 stacks"),
        (RTX_4090, layers(hidden=(StackLayer(8, 8, "crelu", 1.0),) * 9), FP32, "torch", "more than 9 layers"),
        (RTX_4090, layers(hidden=()), FP32, "one_pass", ""),
        (RTX_4090, layers(hidden=(), inputs=4096), FP32, "one_pass", ""),
        (RTX_4090, layers(hidden=(), inputs=4112), FP32, "tiles", "16 KB"),
        (RTX_4090, layers(hidden=(), inputs=4112), BF16, "one_pass", ""),
        (TURING, LAYERS, FP32, "tiles", ""),
        (TURING, layers(hidden=()), BF16, "one_pass", ""),
        (TURING, layers(hidden=WIDE), FP32, "torch", "99 KB of shared memory (64 KB on 7.5)"),
        (RTX_4090, layers(hidden=WIDE), FP32, "tiles", ""),
        (VOLTA, LAYERS, FP32, "torch", "below 7.5"),
        (CPU, layers(stacks=65), FP32, "cpu", ""),
        (CPU, LAYERS, BF16, "torch", "float32 only"),
    ],
)  # fmt: skip
def test_stacks(machine: Machine, of: LayerStacks, dtype: torch.dtype, kernels: str, reason: str) -> None:
    check(capabilities.stacks(machine, of, dtype), kernels, reason)


@pytest.mark.parametrize(
    ("machine", "changes", "kernels", "reason"),
    [
        (H100, {"weight_dtype": FP16}, "torch", "weights of the layers are not float32"),
        (H100, {"is_aligned": False}, "torch", "not aligned to 16 bytes"),
        (H100, {"wide_sums": True}, "torch", "computed in float64"),
        (H100, {"mode": "autocast"}, "tiles", ""),
        (H100, {"mode": "compiled"}, "torch", "torch.compile"),
        (H100, {"mode": "onnx"}, "torch", "torch.onnx"),
        (H100, {"mode": "transformed"}, "torch", "torch.func"),
        (CPU, {"mode": "autocast"}, "torch", "autocast"),
        (CPU, {"mode": "compiled"}, "cpu", ""),
        (CPU, {"mode": "onnx"}, "torch", "torch.onnx"),
        (CPU, {"is_aligned": False}, "cpu", ""),
    ],
)
def test_how_the_layers_are_called(machine: Machine, changes: Any, kernels: str, reason: str) -> None:
    check(capabilities.stacks(machine, LAYERS, **changes), kernels, reason)


@pytest.mark.parametrize("machine", [H100, RTX_4090, CPU])
def test_what_the_plain_operator_computes(machine: Machine) -> None:
    sizes = (FP32, 768, 64, 768)
    check(capabilities.transformer(machine, *sizes, output_dtype=FP64), "torch", "dtype of the output")
    check(capabilities.transformer(machine, *sizes, has_values=True), "torch", "features have values")
    assert capabilities.transformer(machine, *sizes, output_dtype=BF16).kernels != "torch"


def test_one_layer() -> None:
    check(capabilities.layer(CPU, FP32, FP32), "cpu", "")
    check(capabilities.layer(CPU, FP32, FP64), "torch", "float32 only")
    check(capabilities.layer(H100, FP32, FP32), "torch", "all layers together")


@pytest.mark.parametrize("mode", ["plain", "autocast", "compiled", "onnx"])
def test_modes_of_the_transformer(mode: Any) -> None:
    check(capabilities.transformer(H100, FP32, 768, 64, 768, mode=mode), "hopper", "")
    check(capabilities.transformer(CPU, FP32, 768, 64, mode="transformed"), "torch", "torch.func")


def test_the_mode_of_a_call() -> None:
    x = torch.ones(2)
    assert capabilities.mode_of(x, None) == "plain"
    with torch.autocast("cpu", torch.bfloat16):
        assert capabilities.mode_of(x) == "autocast"
    with torch.autograd.forward_ad.dual_level():
        assert capabilities.mode_of(x, torch.autograd.forward_ad.make_dual(x, x)) == "transformed"
    found: list[str] = []

    def looked_at(t: torch.Tensor) -> torch.Tensor:
        found.append(capabilities.mode_of(t))
        return t.sum()

    torch.func.grad(looked_at)(x)
    assert found == ["transformed"]


@pytest.mark.parametrize(
    ("transformer", "stacks", "changes", "kernels", "reason"),
    [
        ("hopper", "tiles", {}, "rows", ""),
        ("hopper", "tiles", {"bound": 256.0}, "whole", "1/64 to 255"),
        ("hopper", "tiles", {"num_outputs": 1040}, "whole", "not a multiple of 64"),
        ("hopper", "tiles", {"activation": number_of("crelu")}, "whole", "not pairwise"),
        ("portable", "tiles", {}, "whole", "portable kernels"),
        ("portable", "one_pass", {"hidden": 0}, "factors", ""),
        ("hopper", "one_pass", {"hidden": 0}, "factors", ""),
        ("hopper", "one_pass", {"hidden": 0, "activation": number_of("screlu")}, "rows", ""),
        ("hopper", "one_pass", {"hidden": 0, "activation": number_of("crelu"), "bound": 256.0}, "factors", ""),
        ("hopper", "tiles", {"hidden": 0, "activation": number_of("crelu")}, "factors", ""),
        ("hopper", "tiles", {"hidden": 0, "has_psqt": True}, "whole", "PSQT"),
        ("hopper", "tiles", {"hidden": 0, "divided": True}, "whole", "divided columns"),
        ("hopper", "tiles", {"divided": True}, "rows", ""),
        ("hopper", "tiles", {"is_needed": False}, "whole", "not trained, or the batch is empty"),
        ("hopper", "torch", {}, "whole", "computed by torch"),
        ("torch", "tiles", {}, "whole", "computed by torch"),
        ("cpu", "cpu", {}, "whole", "on a CPU"),
    ],
)
def test_between(transformer: str, stacks: str, changes: Any, kernels: str, reason: str) -> None:
    pairwise = number_of("pairwise")
    shape = {"num_outputs": 1024, "hidden": 2, "activation": pairwise, "bound": 1.0, "has_psqt": False} | changes
    check(capabilities.between(transformer, stacks, BF16, BF16, **shape), kernels, reason)


def test_between_dtypes() -> None:
    shape: Any = {"num_outputs": 64, "hidden": 1, "activation": 3, "bound": 256.0, "has_psqt": True}
    check(capabilities.between("hopper", "tiles", FP32, FP32, **shape), "rows", "")
    check(capabilities.between("hopper", "tiles", FP32, BF16, **shape), "whole", "dtype is not that of the output")
    check(capabilities.between("hopper", "tiles", FP16, FP16, **shape), "whole", "float16")
    one: Any = {"num_outputs": 64, "hidden": 0, "activation": 1, "bound": 1.0, "has_psqt": False}
    for dtype, kernels in ((BF16, "rows"), (FP16, "factors"), (FP32, "factors")):
        check(capabilities.between("hopper", "one_pass", dtype, dtype, **one), kernels, "")


def test_update() -> None:
    check(capabilities.update(H100, 60_000, 2), "late", "")
    check(capabilities.update(H100, 24_576, 4), "late", "")  # SFNNv16 with RangerLite
    for tensors, positions in ((3, 0), (3, 32_768)):  # SFNNv5 with AdamW
        check(capabilities.update(H100, 24_576, tensors, positions), "late", "")
    for tensors, positions in ((3, 32_769), (2, 1)):
        check(capabilities.update(H100, 24_576, tensors, positions), "every_row", "most are in every batch")
    check(capabilities.update(H100, 24_576, 4, 65_536), "late", "")
    check(capabilities.update(CPU, 10, 2), "late", "")


def test_least_late_rows_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNUE_LEAST_LATE_ROWS", "20000")
    check(capabilities.update(H100, 24_576, 3), "late", "NNUE_LEAST_LATE_ROWS")
    check(capabilities.update(H100, 19_999, 9), "every_row", "NNUE_LEAST_LATE_ROWS")
    monkeypatch.setenv("NNUE_LEAST_LATE_ROWS", "abc")
    with pytest.raises(UserError, match="NNUE_LEAST_LATE_ROWS: found 'abc', expected a whole number of rows"):
        capabilities.update(H100, 24_576, 3)
    check(capabilities.update(CPU, 10, 2), "late", "")


def test_matrix_step() -> None:
    check(capabilities.matrix_step(RTX_4090, 64, 1024), "operators", "")
    check(capabilities.matrix_step(H100, 1024, 64), "operators", "")
    check(capabilities.matrix_step(H100, 65, 65), "torch", "more than 64 rows")
    check(capabilities.matrix_step(TURING, 52, 1024), "operators", "")
    check(capabilities.matrix_step(TURING, 53, 1024), "torch", "(52 on 7.5)")
    check(capabilities.matrix_step(VOLTA, 16, 1024), "torch", "below 7.5")
    check(capabilities.matrix_step(CPU, 16, 1024), "torch", "on a CPU")


def check(found: Choice, kernels: str, reason: str) -> None:
    assert found.kernels == kernels
    assert (reason in found.reason) if reason else not found.reason


def test_every_reason_has_a_text_of_its_own() -> None:
    texts = _library.as_text(torch.ops.nnue._kernel_reasons()).splitlines()
    assert texts[0] == ""
    assert len(set(texts)) == len(texts) > 30


def test_a_wrong_machine_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="_row_update: machine: found 3 numbers, expected capability"):
        torch.ops.nnue._row_update([90, 132, 7], 5, 3, 16_384)


# ---- what the operators do -------------------------------------------------------------------------------------------


class Calls(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("width", [15, 16])
@pytest.mark.parametrize("dtype", [FP32, FP16, FP64], ids=str)
def test_the_cpu_runs_what_the_table_says(dtype: torch.dtype, width: int) -> None:
    rows = torch.tensor([[3, 1, -1], [0, -1, -1]], dtype=torch.int32)
    weight, bias = torch.randn(5, width, dtype=dtype), torch.zeros(width, dtype=dtype)
    with Calls() as calls:
        perspective_transformer(rows, rows, torch.tensor([0, 1]).byte(), weight, bias, activation="crelu")
    fused = any("_perspective_transformer_forward" in name for name in calls.names)
    assert fused == (capabilities.transformer(CPU, dtype, 5, width).kernels == "cpu")


@pytest.mark.parametrize("dtype", [FP32, FP64], ids=str)
def test_the_cpu_runs_the_layers_that_the_table_says(dtype: torch.dtype) -> None:
    stacks = LayerStacks(16, 3, (StackLayer(4, 4, "crelu", 1.0),))
    linears = [StackedLinear(3, 16, 4).to(dtype), StackedLinear(3, 4, 1).to(dtype)]
    with Calls() as calls:
        stacks.forward(FirstOutputs(torch.rand(6, 16, dtype=dtype), None, torch.arange(6) % 3), linears)
    own = any("_stacked_linear_forward" in name for name in calls.names)
    assert own == (capabilities.stacks(CPU, stacks, dtype).kernels == "cpu")


@pytest.mark.cuda
def test_a_gpu_is_described(cuda: torch.device) -> None:
    machine = capabilities.machine_of(cuda)
    assert machine is not None
    major, minor = torch.cuda.get_device_capability()
    properties = torch.cuda.get_device_properties(cuda)
    assert machine[:2] == (10 * major + minor, properties.multi_processor_count)


def test_no_other_place_has_the_limits(project_root: Path) -> None:
    """The choice is made in csrc/capabilities.h alone."""
    sources = [*(project_root / "nnue_trainer").rglob("*.py"), project_root / "nnue_trainer/include/nnue/operators.h"]
    for source in sources:
        if "engine" not in source.name:
            found = re.search(r"bucket_size <= 768|255 \* bucket_size", source.read_text())
            assert found is None, source


# ---- nnue explain ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["sfnnv5", "sfnnv16", "buckets", "simple", "layered"])
@pytest.mark.parametrize("machine", [CPU, H100, RTX_4090, TURING, VOLTA], ids=["cpu", "9.0", "8.9", "7.5", "7.0"])
def test_every_preset_is_explained(preset: str, machine: Machine) -> None:
    from nnue_trainer import config
    from nnue_trainer.files import presets
    from nnue_trainer.training.assembly import explain

    parts = {part.name: part for part in explain(config.load(presets.path(preset), []), machine)}
    wanted = {CPU: "cpu", H100: "hopper", RTX_4090: "portable", TURING: "portable", VOLTA: "torch"}[machine]
    if machine == H100 and preset in ("simple",):
        wanted = parts["transformer"].kernels  # no king buckets
    assert parts["transformer"].kernels == wanted
    assert parts["machine"].kernels == str(machine)
    assert capabilities.machine_of(torch.device("cpu")) == CPU  # what explain pretends has an end


def test_rounding_and_ranks_are_explained() -> None:
    from nnue_trainer import config
    from nnue_trainer.files import presets
    from nnue_trainer.training.assembly import explain

    aware = "model.quantisation={qat: true, qat_from: 0.5}"
    recipe = config.load(presets.path("sfnnv5"), [aware])
    parts = {part.name: part for part in explain(recipe, H100, ranks=2)}
    assert parts["gradient between"].kernels == parts["gradient between, rounded"].kernels == "rows"
    assert parts["sharding"].kernels == "columns"
    alone = {part.name: part for part in explain(recipe, H100)}
    assert alone["gradient between"].kernels == alone["gradient between, rounded"].kernels == "rows"
    odd = config.load(presets.path("sfnnv5"), ["model.l1=1056"])
    divided = {part.name: part for part in explain(odd, H100, ranks=3)}
    assert divided["sharding"].kernels == "columns"
    assert "not a multiple of 64" in divided["gradient between"].reason
    one_layer = {part.name: part for part in explain(config.load(presets.path("buckets"), []), H100, ranks=2)}
    assert one_layer["gradient between"].kernels == "whole"


def test_autocast_on_a_cpu_is_explained() -> None:
    from nnue_trainer import config
    from nnue_trainer.files import presets
    from nnue_trainer.training.assembly import explain

    recipe = config.load(presets.path("sfnnv5"), ["training.precision=mixed"])
    layers = next(part for part in explain(recipe, CPU) if part.name == "layers")
    assert (layers.kernels, layers.reason) == ("torch", "on a CPU, autocast uses torch's operators for the layers")


def test_rounding_takes_no_autocast_on_a_cpu() -> None:
    from nnue_trainer import config, nets
    from nnue_trainer.data import expand, records_from_fens
    from nnue_trainer.files import presets
    from nnue_trainer.training.assembly import explain

    recipe = config.load(
        presets.path("sfnnv5"), ["training.precision=mixed", "model.quantisation.qat=true", "model.l1=32"]
    )
    parts = {part.name: part for part in explain(recipe, CPU)}
    assert parts["layers, rounded"] == ("layers, rounded", "cpu", "")
    model = nets.build(recipe.model)
    batch = expand(records_from_fens(["4k3/8/8/8/8/8/P7/4K3 b - - 0 1"]), model.feature_set)
    with Calls() as calls, torch.autocast("cpu", torch.bfloat16), model.rounding(True):
        model(batch)
    assert any("_stacked_linear_forward" in name for name in calls.names)


def test_what_keeps_the_loss_apart_is_explained() -> None:
    from nnue_trainer import config
    from nnue_trainer.files import presets
    from nnue_trainer.training.assembly import explain

    weights = "position_weight={kind: knots, by: pieces, knots: [[2, 1.0], [32, 2.0]]}"
    parts = {part.name: part for part in explain(config.load(presets.path("sfnnv5"), [weights]), H100)}
    assert (parts["gradient between"].kernels, parts["loss"].kernels) == ("whole", "torch")
    assert parts["loss"].reason == "position_weight: positions have weights"


@pytest.mark.parametrize("optimizer", ["{kind: torch, name: RAdam}", "{kind: muon}", "{kind: schedule_free}"])
def test_every_optimizer_is_explained(optimizer: str) -> None:
    from nnue_trainer import config
    from nnue_trainer.files import presets
    from nnue_trainer.training.assembly import explain

    recipe = config.load(presets.path("sfnnv5"), [f"optimizer={optimizer}"])
    parts = {part.name: part for part in explain(recipe, RTX_4090)}
    assert parts["update"].kernels == ("torch" if "torch" in optimizer else "operators")
    matrices = [part for name, part in parts.items() if name.endswith(".weight")]
    assert {part.kernels for part in matrices} == ({"operators"} if "muon" in optimizer else set())


def test_the_command_prints_the_parts() -> None:
    found = nnue("explain", "--preset", "sfnnv5", "--gpu", "8.9").splitlines()
    assert found[0].split(maxsplit=1) == ["machine", "a GPU of compute capability 8.9 with 128 multiprocessors"]
    wanted = re.compile(r"transformer +portable +the faster kernels need compute capability 9\.0$")
    assert any(wanted.match(line) for line in found)
    parts = json.loads(nnue("explain", "--preset", "sfnnv5", "--gpu", "9.0:114", "--json"))
    assert {"name": "gradient between", "kernels": "rows", "reason": ""} in parts
    assert nnue("explain", "--preset", "sfnnv5", "--device", "cpu").startswith("machine")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "sfnnv5", "--gpu", "ada"], "--gpu: found 'ada', expected a compute capability such as 8.9"),
        (["--preset", "sfnnv5", "--gpu", "8.9", "--device", "cpu"], "--device and --gpu exclude each other"),
        (["--gpu", "8.9"], "expected a RECIPE or --preset NAME"),
        (["--preset", "sfnnv5", "--device", "tpu"], "training.device"),
    ],
)
def test_the_command_refuses(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        nnue("explain", *arguments)
