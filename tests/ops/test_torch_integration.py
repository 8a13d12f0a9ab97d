"""Autograd, fake kernels, autocast, torch.compile, CUDA graphs, streams: the op as a citizen of torch."""

import threading
import warnings
from typing import Any

import pytest
import torch
from sample_inputs import Sample, make_sample, reference_forward
from typed import grad_of

from nnue_trainer import ops
from nnue_trainer.ops import functional


@pytest.fixture
def deterministic_mode() -> None:
    torch.use_deterministic_algorithms(True)


def call(sample: Sample, deterministic: bool | None = None) -> torch.Tensor:
    return functional.feature_transformer(sample.indices, sample.weight, sample.bias, sample.values, deterministic)


@pytest.mark.parametrize("deterministic", [False, True, None])
@pytest.mark.parametrize("values", [False, True], ids=["ones", "values"])
def test_gradcheck(device: torch.device, values: bool, deterministic: bool | None) -> None:
    sample = make_sample(6, 4, 9, 5, values=values, dtype=torch.float64, device=device).requires_grad()
    arguments: tuple[Any, ...] = sample.arguments  # gradcheck takes None too, which its types lack
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(
            lambda i, v, w, b: torch.ops.nnue.feature_transformer_forward(i, v, w, b, deterministic),
            arguments,
            nondet_tol=0.0 if deterministic or device.type == "cpu" else 1e-12,
        )


@pytest.mark.parametrize("values", [False, True], ids=["ones", "values"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_opcheck(device: torch.device, dtype: torch.dtype, values: bool) -> None:
    sample = make_sample(values=values, dtype=dtype, device=device).requires_grad()
    # Deterministic: opcheck compares bits of two backward passes.
    torch.library.opcheck(torch.ops.nnue.feature_transformer_forward.default, (*sample.arguments, True))
    sample = make_sample(values=values, dtype=dtype, device=device)
    grad_output = torch.randn(37, 40, device=device).to(dtype)
    torch.library.opcheck(
        torch.ops.nnue.feature_transformer_backward.default,
        (grad_output, *sample.arguments[:3], 50, [True, True, values], True),
    )


def test_double_backward_says_so(device: torch.device) -> None:
    sample = make_sample(device=device).requires_grad()
    (grad,) = torch.autograd.grad(call(sample).square().sum(), sample.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="no derivative of its own"):
        grad.sum().backward()


def test_only_asked_gradients(device: torch.device) -> None:
    sample = make_sample(values=True, device=device)
    sample.bias.requires_grad_()
    call(sample).sum().backward()
    assert sample.weight.grad is None
    torch.testing.assert_close(sample.bias.grad, torch.full_like(sample.bias, 37))


def test_indices_changed_before_backward(device: torch.device) -> None:
    """The backward relies on the forward's check of the indices; autograd guards that they are still the same."""
    sample = make_sample(device=device).requires_grad()
    out = call(sample)
    sample.indices[1, 0] = 10**6
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("values", [False, True], ids=["ones", "values"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile(device: torch.device, values: bool, dynamic: bool) -> None:
    @torch.compile(fullgraph=True, dynamic=dynamic)
    def step(i: torch.Tensor, v: torch.Tensor | None, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return functional.feature_transformer(i, w * 2, b, v, deterministic=True).clamp(0, 1).square()

    for rows in (37, 21):
        ours = make_sample(rows, values=values, device=device).requires_grad()
        eager = make_sample(rows, values=values, device=device).requires_grad()
        out = step(*ours.arguments)
        expected = functional.feature_transformer(
            eager.indices, eager.weight * 2, eager.bias, eager.values, deterministic=True
        )
        expected = expected.clamp(0, 1).square()
        torch.testing.assert_close(out, expected)
        out.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(ours.weight.grad, eager.weight.grad)
        torch.testing.assert_close(ours.bias.grad, eager.bias.grad)
        if values:
            torch.testing.assert_close(grad_of(ours.values), grad_of(eager.values))


def test_export(device: torch.device) -> None:
    class Net(torch.nn.Module):
        def forward(self, i: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return functional.feature_transformer(i, w, b).relu()

    sample = make_sample(device=device)
    arguments = (sample.indices, sample.weight, sample.bias)
    program = torch.export.export(Net(), arguments)
    torch.testing.assert_close(program.module()(*arguments), Net()(*arguments))


def test_fake_tensors_check_arguments() -> None:
    with torch._subclasses.FakeTensorMode():
        sample = make_sample(values=True)
        assert call(sample).shape == (37, 40)
        with pytest.raises(RuntimeError, match=r"indices: found torch\.int64, expected int32"):
            torch.ops.nnue.feature_transformer_forward(sample.indices.long(), None, sample.weight, sample.bias)
        assert functional.feature_transformer(sample.indices.long(), sample.weight, sample.bias).shape == (37, 40)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_runs_in_float32(device: torch.device, dtype: torch.dtype) -> None:
    sample = make_sample(dtype=dtype, device=device).requires_grad()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = call(sample)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), reference_forward(sample), rtol=1e-5, atol=1e-5)
    out.sum().backward()
    assert sample.weight.grad is not None
    assert sample.weight.grad.dtype == dtype
    # Master weights in float32 stay what they are.
    wide = make_sample(device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        torch.testing.assert_close(call(wide), torch.ops.nnue.feature_transformer_forward(*wide.arguments))


# ---- determinism --------------------------------------------------------------------------------------------------


def gradients(sample: Sample, grad_output: torch.Tensor, deterministic: bool | None) -> list[torch.Tensor]:
    sample = sample.requires_grad()
    call(sample, deterministic).backward(grad_output)
    tensors = (sample.weight, sample.bias, sample.values)
    return [t.grad for t in tensors if t is not None and t.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("values", [False, True], ids=["ones", "values"])
def test_deterministic_backward(device: torch.device, values: bool, dtype: torch.dtype) -> None:
    # Few features in many rows: atomics would all but surely differ.
    sample = make_sample(4096, 32, 200, 256, values=values, dtype=dtype, device=device)
    grad_output = torch.randn(4096, 256, device=device).to(dtype)
    first = gradients(sample, grad_output, True)
    for _ in range(3):
        for a, b in zip(first, gradients(sample, grad_output, True), strict=True):
            assert torch.equal(a, b)


@pytest.mark.usefixtures("deterministic_mode")
def test_deterministic_follows_torch(device: torch.device) -> None:
    sample = make_sample(4096, 32, 200, 256, device=device)
    grad_output = torch.randn(4096, 256, device=device)
    by_mode = gradients(sample, grad_output, None)
    for a, b in zip(by_mode, gradients(sample, grad_output, True), strict=True):
        assert torch.equal(a, b)


def test_deterministic_is_decided_by_the_forward(device: torch.device) -> None:
    """The mode counts where the op is called, not where autograd gets to it; and the op takes it as an argument."""
    seen: list[bool | None] = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.nnue.feature_transformer_backward.default:
                seen.append(args[6])
            return func(*args, **(kwargs or {}))

    for mode, argument, expected in (
        (True, None, True),
        (False, None, None),
        (False, True, True),
        (True, False, False),
    ):
        sample = make_sample(device=device).requires_grad()
        torch.use_deterministic_algorithms(mode)
        try:
            out = call(sample, argument)
        finally:
            torch.use_deterministic_algorithms(False)
        with Spy():
            out.sum().backward()
        assert seen.pop() is expected


def test_cpu_is_the_same_for_any_thread_count() -> None:
    sample = make_sample(3000, 32, 500, 200, values=True)
    grad_output = torch.randn(3000, 200)
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        results.append([call(sample), *gradients(sample, grad_output, None)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


# ---- CUDA ----------------------------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
def test_cuda_graph(cuda: torch.device, deterministic: bool) -> None:
    sample = make_sample(256, 16, 100, 64, values=True, device=cuda)
    grad_output = torch.randn(256, 64, device=cuda)

    def step() -> tuple[torch.Tensor, ...]:
        out = torch.ops.nnue.feature_transformer_forward(*sample.arguments)
        return out, *torch.ops.nnue.feature_transformer_backward(
            grad_output, *sample.arguments[:3], 100, [True, True, True], deterministic
        )

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    other = make_sample(256, 16, 100, 64, values=True, device=cuda, seed=5)
    for mine, theirs in zip(sample.arguments, other.arguments, strict=True):
        assert mine is not None
        assert theirs is not None
        mine.copy_(theirs)
    graph.replay()
    for a, b in zip(captured, step(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    # An illegal index in a replay touches nothing it must not, and is reported afterwards.
    sample.indices[1, 2] = 12345
    graph.replay()
    with pytest.raises(RuntimeError, match="index 12345 in row 1"):
        ops.raise_index_errors()
    ops.raise_index_errors()  # once


@pytest.mark.cuda
def test_cuda_graph_is_the_first_call(cuda: torch.device) -> None:
    """In a fresh process the very first call may be inside a capture: nothing may be allocated the plain way."""
    import subprocess
    import sys

    code = """
import torch
from nnue_trainer import ops
w, b = torch.ones(10, 8, device="cuda"), torch.zeros(8, device="cuda")
i = torch.zeros(4, 2, dtype=torch.int32, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = ops.feature_transformer_forward(i, w, b)
graph.replay()
assert (out == 2).all()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.cuda
def test_index_check_modes(cuda: torch.device) -> None:
    sample = make_sample(device=cuda)
    good = torch.ops.nnue.feature_transformer_forward(*sample.arguments)
    bad = sample.indices.clone()
    bad[1, 0] = 10**9
    before = ops.set_index_check("async")
    try:
        assert before == "sync"
        out = ops.feature_transformer_forward(bad, sample.weight, sample.bias)  # does not raise, and skips the entry
        torch.cuda.synchronize()
        torch.testing.assert_close(out[0], good[0])
        torch.testing.assert_close(out[1] + sample.weight[sample.indices[1, 0]], good[1])
        with pytest.raises(RuntimeError, match=r"feature_transformer_forward: .*index 1000000000 in row 1.*earlier"):
            ops.feature_transformer_forward(sample.indices, sample.weight, sample.bias)
        ops.feature_transformer_forward(sample.indices, sample.weight, sample.bias)
        ops.set_index_check("off")
        ops.feature_transformer_forward(bad, sample.weight, sample.bias)
        ops.raise_index_errors()
    finally:
        ops.set_index_check("sync")
    with pytest.raises(ValueError, match="found 'loud', expected sync, async or off"):
        ops.set_index_check("loud")  # type: ignore[arg-type]


@pytest.mark.cuda
def test_checks_while_another_thread_captures(cuda: torch.device) -> None:
    """In CUDA's strictest mode, a thread that waits for its check in the wrong mode would end the other's capture."""
    sample, stream = make_sample(device=cuda), torch.cuda.Stream()
    bad = sample.indices.clone()
    bad[1, 0] = 10**9
    found: list[str] = []

    def check() -> None:
        with torch.cuda.stream(stream):
            for indices in (sample.indices, bad, sample.indices):
                try:
                    ops.feature_transformer_forward(indices, sample.weight, sample.bias)
                    found.append("")
                except RuntimeError as error:
                    found.append(str(error))

    # A capture begins with empty_cache(), and no memory may be allocated from the driver during it: while this output
    # lives, torch keeps the rest of its segment for the outputs of the thread.
    with torch.cuda.stream(stream):
        kept = ops.feature_transformer_forward(sample.indices, sample.weight, sample.bias)
    check()
    torch.cuda.synchronize()
    graph, x = torch.cuda.CUDAGraph(), torch.ones(8, device=cuda)
    with torch.cuda.graph(graph, capture_error_mode="global"):
        y = x * 2
        thread = threading.Thread(target=check)
        thread.start()
        thread.join()
    graph.replay()
    assert (y == 2).all()
    del kept
    assert found[:3] == found[3:]
    assert found[0] == found[2] == ""
    assert "index 1000000000 in row 1" in found[1]


@pytest.mark.cuda
def test_streams(cuda: torch.device) -> None:
    """The current stream is used: work on two streams is ordered by events alone, and comes out right."""
    sample = make_sample(2048, 32, 500, 512, device=cuda)
    expected = torch.ops.nnue.feature_transformer_forward(*sample.arguments)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            weight = sample.weight * 2
            results.append(torch.ops.nnue.feature_transformer_forward(sample.indices, None, weight, sample.bias * 2))
    torch.cuda.synchronize()
    for result in results:
        torch.testing.assert_close(result, expected * 2)


@pytest.mark.cuda
def test_cpu_and_cuda_agree(cuda: torch.device) -> None:
    here, there = (make_sample(500, 32, 900, 320, values=True, device=d) for d in ("cpu", cuda))
    torch.testing.assert_close(call(here), call(there).cpu(), rtol=1e-5, atol=1e-5)
    grad_output = torch.randn(500, 320)
    for a, b in zip(gradients(here, grad_output, None), gradients(there, grad_output.to(cuda), None), strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-4, atol=1e-4)
