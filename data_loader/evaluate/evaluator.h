// Evaluates positions with the integers of any net that can be described, bit for bit as the engine does.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "chess/types.h"
#include "evaluate/forward.h"
#include "evaluate/kernels.h"
#include "features/feature_set.h"
#include "pipeline/kernels.h"

namespace nnue::data {

// Index rows of n positions: max_active entries each, the first −1 ends a row.
struct IndexRows {
    const std::int32_t* white;
    const std::int32_t* black;
    const std::uint8_t* black_to_move;
    const std::uint8_t* piece_count;
    const std::uint8_t* material;  // as in a batch
    std::size_t n, max_active;
};

// The caller's memory for n positions. With every_stack, psqt and positional have n · stacks entries; otherwise n,
// those of the stack in use, which `stack` names.
struct Evaluations {
    std::int64_t* stack;
    std::int64_t* psqt;
    std::int64_t* positional;
    std::int64_t* score;
    bool every_stack;
};

struct EvaluateOptions {
    int threads = 0;  // at most this many; ≤ 0: one per CPU
    // Called by the calling thread every `poll_every`. What it throws ends the work.
    std::function<void()> poll = {};
    const Kernels* kernels = nullptr;  // null: the best that this CPU can run
    std::chrono::milliseconds poll_every{100};
};

class Evaluator {
  public:
    // The tensors must outlive the evaluator. Throws FormatError if the description is inconsistent, or if its
    // sums may not fit 64 bits.
    explicit Evaluator(Forward forward);
    ~Evaluator();
    Evaluator(Evaluator&&) noexcept;

    // Records that are not sound, and indices that are not features, are a FormatError naming the position.
    void evaluate(std::span<const Record> records, const Evaluations& out, const EvaluateOptions& options = {}) const;
    void evaluate(const IndexRows& rows, const Evaluations& out, const EvaluateOptions& options = {}) const;

    // Which of the first activations are not 0: `columns()` bytes, 0 or 1, for each record, the side to move first.
    void first_active(std::span<const Record> records, std::uint8_t* out, const EvaluateOptions& options = {}) const;

    const FeatureSet& features() const;
    int num_stacks() const;
    std::size_t columns() const;  // first activations

  private:
    class Impl;
    std::unique_ptr<const Impl> impl_;
};

}  // namespace nnue::data
