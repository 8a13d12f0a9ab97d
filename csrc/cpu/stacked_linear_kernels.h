// Kernels of the linear layers with stacks, compiled once for every instruction set level (for_each_isa.h).
//
// A call works on a few positions of one stack. What does not fill a vector is padded with zeros in a buffer, so no
// loop runs over single elements. Each element of a result is one sum, in the order of inputs, outputs or positions,
// cut into pieces at fixed places: its bits do not depend on the width of a vector.

#include "row_sum_kernels.h"

namespace {

using Floats = Vector<float>;
constexpr int kFloats = static_cast<int>(kLanes<float>);

// Outputs of P positions from some of the inputs: out[p] += Σ x[p][i] · weight[i].
template <int P>
[[gnu::always_inline]] inline void add_outputs(const float* const* x, const float* weight, int64_t pitch, int64_t first,
                                               int64_t end, float (*out)[stacked_linear::kOutputs]) {
    constexpr int V = stacked_linear::kOutputs / kFloats;
    Floats sum[P][V] = {};
    for (int64_t i = first; i < end; ++i) {
        Floats w[V];
        for (int v = 0; v < V; ++v) load(weight + i * pitch + v * kFloats, w[v]);
        for (int p = 0; p < P; ++p) {
            for (int v = 0; v < V; ++v) sum[p][v] += w[v] * x[p][i];
        }
    }
    for (int p = 0; p < P; ++p) {
        for (int v = 0; v < V; ++v) {
            Floats total;
            load(out[p] + v * kFloats, total);
            store(out[p] + v * kFloats, total + sum[p][v]);
        }
    }
}

// Gradients of V vectors of inputs of P positions: out[p] = Σ gradient[p][o] · weight[o].
template <int P, int V>
[[gnu::always_inline]] inline void input_gradients(const float* gradient, int64_t pitch, const float* weight,
                                                   int64_t outputs, float* const* out) {
    Floats sum[P][V] = {};
    for (int64_t o = 0; o < outputs; ++o) {
        Floats w[V];
        for (int v = 0; v < V; ++v) load(weight + o * stacked_linear::kInputs + v * kFloats, w[v]);
        for (int p = 0; p < P; ++p) {
            for (int v = 0; v < V; ++v) sum[p][v] += w[v] * gradient[p * pitch + o];
        }
    }
    for (int p = 0; p < P; ++p) {
        for (int v = 0; v < V; ++v) store(out[p] + v * kFloats, sum[p][v]);
    }
}

// Gradients of O outputs' weights for one vector of inputs: out[o] += Σ gradient[b][o] · x[b].
template <int O>
[[gnu::always_inline]] inline void add_weight_gradients(const float* gradient, int64_t pitch,
                                                        const float (*x)[stacked_linear::kInputs], int64_t positions,
                                                        float (*out)[stacked_linear::kInputs]) {
    Floats sum[O] = {};
    for (int64_t b = 0; b < positions; ++b) {
        Floats values;
        load(x[b], values);
        for (int o = 0; o < O; ++o) sum[o] += values * gradient[b * pitch + o];
    }
    for (int o = 0; o < O; ++o) {
        Floats total;
        load(out[o], total);
        store(out[o], total + sum[o]);
    }
}

}  // namespace

// The places [begin, end) of the order by stack, at most kPositions of one stack. `weight` [I, padded O] is transposed.
inline void stacked_forward(const stacked_linear::Forward& a, const float* weight, const float* bias, int64_t begin,
                            int64_t end) {
    using namespace stacked_linear;
    constexpr int P = 8 * kFloats / kOutputs;
    const int64_t count = end - begin;
    const float* x[kPositions];
    alignas(64) float out[kPositions][kOutputs];
    for (int64_t p = 0; p < count; ++p) x[p] = a.x + a.order[begin + p] * a.inputs;
    for (int64_t o = 0; o < a.outputs; o += kOutputs) {
        const int64_t wide = std::min(kOutputs, a.outputs - o);
        for (int64_t p = 0; p < count; ++p) {
            for (int64_t c = 0; c < kOutputs; ++c) out[p][c] = c < wide ? bias[o + c] : 0.0f;
        }
        for (int64_t i = 0; i < a.inputs; i += kPiece) {
            const int64_t last = std::min(i + kPiece, a.inputs);
            int64_t p = 0;
            for (; p + P <= count; p += P) add_outputs<P>(x + p, weight + o, a.padded_outputs, i, last, out + p);
            for (; p < count; ++p) add_outputs<1>(x + p, weight + o, a.padded_outputs, i, last, out + p);
        }
        for (int64_t p = 0; p < count; ++p) {
            float* const to = a.output + a.order[begin + p] * a.outputs + o;
            for (int64_t c = 0; c < wide; ++c) to[c] = out[p][c];
        }
    }
}

// Gradients of x at the places [begin, end), at most kPositions of one stack with the weights `weight` [O, I]. `tile`
// is scratch, [O, kInputs].
inline void stacked_input_gradients(const stacked_linear::Backward& a, const float* weight, float* tile, int64_t begin,
                                    int64_t end) {
    using namespace stacked_linear;
    constexpr int V = kBytes == 64 ? 4 : 2, P = 4;
    constexpr int64_t kStep = V * kFloats;
    const int64_t count = end - begin;
    alignas(64) float buffers[P][kStep];  // for the last columns, where they are fewer than a step
    for (int64_t i = 0; i < a.inputs; i += kInputs) {
        const int64_t wide = std::min(kInputs, a.inputs - i);
        for (int64_t o = 0; o < a.outputs; ++o) {
            std::copy_n(weight + o * a.inputs + i, wide, tile + o * kInputs);
            std::fill_n(tile + o * kInputs + wide, kInputs - wide, 0.0f);
        }
        for (int64_t c = 0; c < wide; c += kStep) {
            const bool whole = c + kStep <= wide;
            int64_t p = 0;
            const auto to = [&](int64_t q) { return a.grad_x + a.order[begin + p + q] * a.inputs + i + c; };
            const auto gradients = [&]<int Q>(std::integral_constant<int, Q>) {
                float* out[Q];
                for (int q = 0; q < Q; ++q) out[q] = whole ? to(q) : buffers[q];
                input_gradients<Q, V>(a.gradient + (begin + p) * a.padded_outputs, a.padded_outputs, tile + c,
                                      a.outputs, out);
                if (whole) return;
                for (int q = 0; q < Q; ++q) std::copy_n(buffers[q], wide - c, to(q));
            };
            for (; p + P <= count; p += P) gradients(std::integral_constant<int, P>());
            for (; p < count; ++p) gradients(std::integral_constant<int, 1>());
        }
    }
}

// Gradients of the weights of one stack, whose places are [begin, end), for the inputs [first, first + kInputs).
inline void stacked_weight_gradients(const stacked_linear::Backward& a, float* grad_weight, int64_t first,
                                     int64_t begin, int64_t end) {
    using namespace stacked_linear;
    constexpr int O = kBytes == 64 ? 16 : 8;
    const int64_t wide = std::min(kInputs, a.inputs - first);
    alignas(64) float x[kPositions][kInputs], total[kOutputs][kInputs];
    // A piece of positions is read again for each padded vector of outputs. There are few outputs, so mostly one
    // vector.
    for (int64_t o = 0; o < a.outputs; o += kOutputs) {
        std::fill_n(&total[0][0], kOutputs * kInputs, 0.0f);
        for (int64_t piece = begin; piece < end; piece += kPositions) {
            const int64_t count = std::min(kPositions, end - piece);
            for (int64_t b = 0; b < count; ++b) {
                const float* const from = a.x + a.order[piece + b] * a.inputs + first;
                std::copy_n(from, wide, x[b]);
                std::fill_n(x[b] + wide, kInputs - wide, 0.0f);
            }
            for (int64_t part = 0; part < kOutputs; part += O) {
                for (int64_t c = 0; c < wide; c += kFloats) {
                    add_weight_gradients<O>(a.gradient + piece * a.padded_outputs + o + part, a.padded_outputs,
                                            reinterpret_cast<const float(*)[kInputs]>(&x[0][c]), count,
                                            reinterpret_cast<float(*)[kInputs]>(&total[part][c]));
                }
            }
        }
        for (int64_t c = 0; c < std::min(kOutputs, a.outputs - o); ++c) {
            std::copy_n(total[c], wide, grad_weight + (o + c) * a.inputs + first);
        }
    }
}
