// From records to index rows, whatever the parts of the feature set are.
#pragma once

#include "pipeline/kernels.h"

namespace nnue::data {

// Expands n sound records, record order[i] into row i (order may be null: record i). Throws FormatError with the FEN of
// a position for which a set from outside gives a wrong row. `with` are the kernels for the built-in parts.
void expand_positions(const Record* records, const std::uint32_t* order, std::size_t n, const FeatureSet& set,
                      const BatchRows& rows, const Kernels& with = kernels());

// Expands any records, record i into row i, on several threads (0: one per CPU). Throws FormatError "record <i>: <why>"
// for one that is not sound, and as expand_positions.
void expand_records(std::span<const Record> records, const FeatureSet& set, const BatchRows& rows, int threads = 1);

}  // namespace nnue::data
