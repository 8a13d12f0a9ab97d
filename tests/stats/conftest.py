"""Every test of statistics runs on the CPU, and on CUDA where there is a device and a library for it."""

from operator_fixtures import cuda, device, emulator, forget_compiled  # noqa: F401
