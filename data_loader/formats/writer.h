// The one interface for writing positions, whatever the format.
#pragma once

#include <span>

#include "chess/types.h"
#include "formats/format.h"

namespace nnue::data {

class PositionWriter {
  public:
    virtual ~PositionWriter() = default;

    // Throws FormatError for a record that is not sound or a file that cannot be written.
    virtual void write(std::span<const Record> records) = 0;

    // Writes what is still buffered. The file is complete only after this.
    virtual void finish() = 0;

    std::uint64_t positions() const { return positions_; }
    const Losses& losses() const { return losses_; }

  protected:
    std::uint64_t positions_ = 0;
    Losses losses_;
};

// Multiplies every score except kScoreNone by `factor`, rounded to the nearest integer, halves away from zero. Scores
// beyond ±32767 are cut; returns how many were.
std::uint64_t scale_scores(std::span<Record> records, double factor);

}  // namespace nnue::data
