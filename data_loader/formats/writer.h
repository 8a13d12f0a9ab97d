// The one interface for writing positions, whatever the format.
#pragma once

#include <span>

#include "chess/types.h"
#include "formats/format.h"

namespace nnue::data {

class PositionWriter {
  public:
    explicit PositionWriter(const DataFormat& format) : format_(format) {}
    virtual ~PositionWriter() = default;

    const DataFormat& format() const { return format_; }

    // Throws FormatError for a record that is not sound or a file that cannot be written.
    virtual void write(std::span<const Record> records) = 0;

    // `write` for records that come from a file of this format, with the bytes that they had there
    // (DataFormat::original_size for each; all zero where a record has none). A record that is unchanged gets these
    // bytes back, and one that was changed the spare ones among them.
    virtual void write_originals(std::span<const Record> records, const std::uint8_t* originals) {
        static_cast<void>(originals);
        write(records);
    }

    // Writes what is still buffered. The file is complete only after this.
    virtual void finish() = 0;

    std::uint64_t positions() const { return positions_; }
    const Losses& losses() const { return losses_; }

  protected:
    std::uint64_t positions_ = 0;
    Losses losses_;

  private:
    const DataFormat& format_;
};

// Multiplies every score except kScoreNone by `factor`, rounded to the nearest integer, halves away from zero. Scores
// beyond ±32767 are clamped, and one that would become kScoreNone becomes the next smaller; returns their number.
std::uint64_t scale_scores(std::span<Record> records, double factor);

// Negates scores, or results, of positions with white to move, with black to move, or both. Scores of kScoreNone stay;
// −32768 becomes 32767. Returns the number of these.
enum class Viewed { kScores, kResults };
std::uint64_t turn_view(std::span<Record> records, Viewed what, bool white, bool black);

}  // namespace nnue::data
