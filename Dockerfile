# The trainer on CUDA: docker build -t torch-nnue . ; docker run --gpus all -v "$PWD:/data" torch-nnue train --preset sfnnv5 …
# The compilers stay in the first stage. torch's wheel brings the CUDA libraries, so the second is Ubuntu with Python.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ make python3-dev python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3 -m venv /opt/nnue
COPY requirements requirements
RUN /opt/nnue/bin/pip install --no-cache-dir -r requirements/torch.txt \
    && /opt/nnue/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements/runtime.txt -r requirements/build.txt
COPY . .
RUN FORCE_CUDA=1 PATH="/opt/nnue/bin:$PATH" pip install --no-cache-dir --no-build-isolation --no-deps . \
    && /opt/nnue/bin/pip uninstall -y ninja pybind11 wheel

FROM ubuntu:24.04
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3 libgomp1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/nnue /opt/nnue
COPY --from=build /src/samples /opt/nnue/samples
ENV PATH="/opt/nnue/bin:$PATH" NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /data
ENTRYPOINT ["nnue"]
CMD ["info"]
