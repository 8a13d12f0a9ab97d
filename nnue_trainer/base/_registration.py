"""Registers everything about an operator of `torch.ops.nnue` except its kernels: fake kernels, derivatives, vmap.

`torch.library.register_autograd` supports reverse mode only: it silently drops the tangents of forward mode, and
torch.func refuses its functions. So the operators register their own Autograd kernel here. An operator that has no
formula for a transform raises an error that names what to call instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import once_differentiable

from nnue_trainer.base import _library

Formula = Callable[..., tuple[Any, ...]]
"""(saved tensors, gradient of each output or None) → gradients of the inputs"""

# (which arguments need a gradient, the arguments, output or outputs) → tensors to be saved, and the formula, which may
# hold none itself. Outputs among the saved tensors have no gradient.
Derive = Callable[[Sequence[bool], tuple[Any, ...], Any], tuple[Sequence[Tensor | None], Formula]]

# (operator, its arguments without tangents, their tangents or None) → tangents of the outputs
ForwardMode = Callable[[Any, tuple[Any, ...], tuple[Tensor | None, ...]], Any]

# Torch has only this level of forward mode. `forward_ad` itself reads the level from a variable that a compiled graph
# does not set.
_LEVEL = 0

_libraries: list[torch.library.Library] = []  # the registrations live as long as these objects


unpack_dual: Callable[..., tuple[Tensor, Tensor | None]] = torch._VF._unpack_dual
"""`forward_ad.unpack_dual` without a call in Python: operators are called in each step"""


def expect(op: str, argument: str, correct: bool, found: object, expected: str) -> None:
    """For fake kernels. The kernels check everything again; this raises the error while tracing, before one runs."""
    if not correct:
        raise RuntimeError(f"{op}: {argument}: found {found}, expected {expected}")


def split_tangent(value: Any) -> tuple[Any, Tensor | None]:
    """A tensor without its tangent of forward mode, and the tangent; of anything else the value itself, and None."""
    if not isinstance(value, Tensor):
        return value, None
    primal, tangent = forward_ad.unpack_dual(value, level=_LEVEL)  # type: ignore[no-untyped-call]
    return (value, None) if tangent is None else (primal, tangent)


def _join(primal: Any, tangents: Any) -> Any:
    if isinstance(primal, Tensor):
        return primal if tangents is None else forward_ad.make_dual(primal, tangents, level=_LEVEL)  # type: ignore[no-untyped-call]
    return type(primal)(_join(p, t) for p, t in zip(primal, tangents, strict=True))


def refuse_cuda(name: str, load: Callable[[], _library.Libraries] = _library.load) -> None:
    """If there is no library of the operator's CUDA kernel, registers an error for CUDA tensors that names the reason.
    `load` loads its libraries."""
    reason = load().cuda_error

    def refused(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"nnue: found a CUDA tensor, but the CUDA operator library is not available: {reason}")

    if reason is not None:
        torch.library.impl(name, "CUDA", refused)


def register_fakes(
    fakes: Mapping[str, Callable[..., Any]], load: Callable[[], _library.Libraries] = _library.load
) -> None:
    """Registers the fake kernels of operators "nnue::…", and calls `refuse_cuda` for each. RuntimeError if there is no
    CPU library."""
    _library.require(load)
    for name, fake in fakes.items():
        torch.library.register_fake(name, fake)
        refuse_cuda(name, load)


def _operator(name: str) -> Any:
    """The operator "namespace::name"."""
    namespace, short = name.split("::")
    return getattr(getattr(torch.ops, namespace), short).default


def _with_defaults(op: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    # The dispatcher leaves out trailing arguments that equal their default.
    return (*arguments, *(p.default_value for p in op._schema.arguments[len(arguments) :]))


class _Derivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[[Sequence[bool]], Any], *arguments: Any) -> Any:
        output, saved, ctx.formula = run(ctx.needs_input_grad[1:])
        ctx.save_for_backward(*saved)
        if isinstance(output, tuple):
            kept = set(map(id, saved))
            ctx.mark_non_differentiable(*[each for each in output if id(each) in kept])
        ctx.set_materialize_grads(False)  # a saved output would get a gradient of zeros, as large as itself
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        if grads.count(None) == len(grads):
            return (None,) * len(ctx.needs_input_grad)
        return None, *ctx.formula(ctx.saved_tensors, *grads)


class _DerivedOnce(_Derivative):
    backward: Any = staticmethod(once_differentiable(_Derivative.backward))


def differentiable(run: Callable[[Sequence[bool]], Any], *arguments: Any, once: bool = True) -> Any:
    """The result of `run`, with a derivative by `arguments`. It is called with which of these need a gradient, and
    gives the output or outputs, tensors to be saved, and a `Formula`, as a `Derive` does. `once`: the operators of the
    formula have no derivatives, so a second derivative is an error."""
    # Function.apply would start again with the outermost of torch.func's transforms.
    return super(torch.autograd.Function, _DerivedOnce if once else _Derivative).apply(run, *arguments)  # type: ignore[no-untyped-call]


def register_autograd(name: str, derive: Derive, forward_mode: ForwardMode) -> None:
    """Registers the derivatives of the operator `name`, "nnue::…".

    Args:
        derive: called after the operator, if a gradient is needed.
        forward_mode: called with the operator, its arguments and their tangents, at least one of which is not None;
            returns the tangent of each output, or None for an output that has none.
    """
    op = _operator(name)
    defaults = tuple(p.default_value for p in op._schema.arguments)

    def below(keyset: Any, arguments: tuple[Any, ...]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    def kernel(keyset: Any, *arguments: Any) -> Any:
        # The dispatcher leaves out trailing arguments that equal their default.
        arguments = (*arguments, *defaults[len(arguments) :])
        for each in arguments:
            if isinstance(each, Tensor) and unpack_dual(each, level=_LEVEL)[1] is not None:
                primals, tangents = zip(*map(split_tangent, arguments), strict=True)
                return _join(op(*primals), forward_mode(op, primals, tangents))
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)):
            return below(keyset, arguments)

        def run(needs: Sequence[bool]) -> Any:
            # A Function switches both modes off, but the outer transforms need them.
            with torch.enable_grad(), _set_fwd_grad_enabled(True):
                output = below(keyset, arguments)
            return output, *derive(needs, arguments, output)

        # Inside a transform of torch.func this kernel runs for one level of the transforms, as torch's own do.
        in_transform = torch._C._are_functorch_transforms_active()
        with enable_single_level_autograd_function() if in_transform else nullcontext():
            return differentiable(run, *arguments, once=False)

    library: Any = torch.library.Library(op.namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    library.impl(op, kernel, "Autograd", with_keyset=True)
    _libraries.append(library)


def register_reverse_mode(forward: str, backward: Sequence[str], derive: Derive, *, instead: str) -> None:
    """Registers operators that have reverse mode and nothing else: `derive` gives the backward of `forward`, which
    calls the operators `backward`. Everything else raises an error, which contains `instead`: what to do."""
    for name in (forward, *backward):
        derivative = derive if name == forward else no_derivative(name)
        register_autograd(name, derivative, refuse(name, "forward mode", instead))
        register_vmap(name, refuse(name, "vmap", instead))


def writes_only(*_: object, **__: object) -> None:
    """The fake kernel of an operator that only writes into tensors that it is given."""


VmapRule = Callable[..., tuple[Any, Any]]  # as for `torch.library.register_vmap`


def register_vmap(name: str, rule: VmapRule | None = None) -> None:
    """Registers what vmap does with the operator `name`: it calls `rule`, or without one the operator for each element.

    The rule has the form that `torch.library.register_vmap` expects, but it always gets all arguments, including those
    that equal their default.
    """
    op = _operator(name)
    rule = one_by_one(name) if rule is None else rule

    def with_all(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        if info.batch_size == 0:
            raise RuntimeError(f"{name}: vmap: found a batch dimension of size 0, expected at least 1")
        every = _with_defaults(op, arguments)
        return rule(info, (*in_dims, *(None,) * (len(every) - len(in_dims))), *every)

    torch.library.register_vmap(name, with_all)


def one_by_one(name: str) -> VmapRule:
    """The vmap rule that calls the operator `name`, which takes no list of tensors, once per element."""
    op = _operator(name)

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        def of_element(number: int) -> list[Any]:
            pairs = zip(arguments, in_dims, strict=True)
            return [v.select(dim, number) if isinstance(v, Tensor) and dim is not None else v for v, dim in pairs]

        calls = [op(*of_element(number)) for number in range(info.batch_size)]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls), 0
        stacked = tuple(torch.stack(outputs) for outputs in zip(*calls, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


def refuse(name: str, transform: str, instead: str) -> Callable[..., Any]:
    """A formula that raises an error: the operator `name` has none for `transform`."""

    def formula(*_: Any) -> Any:
        raise RuntimeError(f"{name}: {transform}: the operator has no formula for it; {instead}")

    return formula


def no_derivative(name: str) -> Derive:
    """The derivative of a backward operator, which has none: it raises an error when it is used."""

    def formula(*_: Any) -> Any:
        raise RuntimeError(
            f"{name}: it has no derivative of its own (double backward); for second derivatives use forward mode over "
            "the gradient (torch.func.hessian, torch.func.jvp), for first ones leave out create_graph=True"
        )

    return lambda *_: ((), formula)
