// Data formats, and the list from which all other code takes them.
//
// A format is one file, formats/<format>.cpp, which puts it on the list (RegisteredFormat). The file has the format's
// name, recognises files in the format, and reads and writes positions; no other file depends on the format. Most
// formats are made up of records of one size (fixed_records.h) or of lines (lines.h), and then the file is a codec: two
// functions for one position. Layouts to the byte: docs/data-formats.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/stream.h"

namespace nnue::data {

class PositionReader;  // reader.h
class PositionWriter;  // writer.h
class PositionFile;    // position_file.h

// The reaction to an error in a file.
enum class OnBad {
    kError,  // the first thing that is wrong ends the reading
    kSkip,   // it is left out and counted
};

// How the numbers of a file are changed as it is read, into internal units from the side to move's view.
struct ScoreChanges {
    double scale = 1;                                           // factor of every score
    bool turn_white_scores = false, turn_black_scores = false;  // negated if that side is to move
    bool turn_white_results = false, turn_black_results = false;

    bool operator==(const ScoreChanges&) const = default;
    // Returns the number of scores that were clamped.
    std::uint64_t apply(std::span<Record> records) const;
};

// Settings of some formats, by name: a format's own file defines them and checks their values.
using ReadSettings = std::map<std::string, std::string>;

// How a file is read.
struct ReadOptions {
    ReadOptions(OnBad what = OnBad::kError) : on_bad(what) {}  // NOLINT: most readers need no more than this

    OnBad on_bad;
    ReadSettings settings;
};

// Where the chunks of a sound file are: its format, and PositionFile::layout().
struct FileLayout {
    std::string format;
    std::vector<std::uint8_t> chunks;
};

struct OpenOptions {
    // kSkip: a record, or a binpack's chunk, that is cut off by the end of the file is left out, and torn_end() states
    // so.
    OnBad on_bad = OnBad::kError;
    // The size of a chunk in formats without chunks; the order of every training run depends on these numbers.
    std::size_t records_per_chunk = std::size_t{1} << 15;  // of formats of fixed records
    std::size_t bytes_per_chunk = std::size_t{1} << 20;    // of text and plain: positions that begin in this many bytes
    // Called now and then while a large file is indexed; what it throws ends that.
    std::function<void()> poll;
    ReadSettings settings = {};
    ScoreChanges changes = {};
    // Found by an earlier opening of the same bytes: the file is not read for it again.
    const FileLayout* layout = nullptr;
};

struct WriterOptions {
    bool join_chains = true;     // off: every position of a binpack is a separate chain, as in shuffled files
    bool shredder_fens = false;  // castling rights of FENs as files of rooks, HAha, also those of standard chess
};

// The first bytes of a file; all of it if `whole`.
struct Head {
    std::span<const std::uint8_t> bytes;
    bool whole;

    std::string_view text() const;  // after a byte-order mark
    bool is_text() const;
    std::string_view first_line() const;          // without space before it
    std::string_view first_content_line() const;  // the first that is not a comment, "#…" or "//…"
};

struct Match {
    enum Kind {
        kNo,
        kCut,     // sound, but the file ends inside a record
        kMaybe,   // sound
        kMarked,  // it has the mark of the format, so no other format is tried
    } kind;
    std::string why_not;
};

struct DataFormat {
    const char* name;
    const char* suffix;  // of files that are written in it
    const char* about;   // one line
    const char* line;    // what its first line looks like; null: it is not made up of lines
    Match (*match)(const Head& head);
    std::unique_ptr<PositionReader> (*open_reader)(ByteStream stream, const ReadOptions& options);
    std::unique_ptr<PositionFile> (*open_file)(InputFile file, const OpenOptions& options);
    // Writes to the open file `fd`, which stays the caller's; `path` is for messages. Null: the format is only read.
    std::unique_ptr<PositionWriter> (*open_writer)(const std::string& path, int fd, const WriterOptions& options);
    // The bytes of a position as they stand in a file: what a tool keeps beside the record, so that a file of the same
    // format gets every byte back. 0: a record holds all that the format does.
    std::size_t original_size = 0;
    // Those of them that are free for the author of the file.
    std::size_t spare_begin = 0, spare_end = 0;
    // Castling rights are those of standard chess: king on e1 or e8, rooks in the corners.
    bool only_standard_castling = false;
    // Scores are evaluations in pawns or centipawns, which the setting "pawn" converts to internal units (pawns.h). In
    // all other formats, scores are numbers without a stated unit, and a record gets them unchanged.
    bool scores_in_pawns = false;
};

// Puts a format on the list while the library is loaded: its file has a static object of this class. Two formats of one
// name end the program.
struct RegisteredFormat {
    explicit RegisteredFormat(const DataFormat& format);
};

// All formats, by name.
std::span<const DataFormat* const> formats();

// Throws FormatError, with the names there are, for an unknown one.
const DataFormat& find_format(std::string_view name);

// A writer to the open file `fd`. Throws FormatError for a format that is only read.
std::unique_ptr<PositionWriter> open_writer(std::string_view format, const std::string& path, int fd,
                                            const WriterOptions& options = {});

// The number of bytes that detect_format() should see of a file.
inline constexpr std::size_t kFormatHead = 64 << 10;

// The format that a file with this head is in. Throws FormatError naming `path` if it is in none, or could be in more
// than one. An empty file counts as binpack.
const DataFormat& detect_format(const Head& head, const std::string& path);

// The number of positions in which something was dropped or changed because the format has no room for it.
struct Losses {
    std::uint64_t moves = 0;          // the move
    std::uint64_t castling = 0;       // castling rights
    std::uint64_t en_passant = 0;     // the en-passant square
    std::uint64_t rule50 = 0;         // the rule-50 counter: dropped, or cut to the largest value there is
    std::uint64_t ply = 0;            // the ply: dropped, or changed by one to fit the side to move
    std::uint64_t black_to_move = 0;  // read back with the colours swapped, as white to move
    std::uint64_t scores = 0;         // −32768, cut to −32767 where the view changes
    std::uint64_t chess960 = 0;       // the whole position, with castling rights of Chess960, as the user chose
    std::uint64_t left_out = 0;       // the whole position, since the format holds none without a legal move
    std::uint64_t spare = 0;          // bytes that are free in the format that was read, and were not 0

    void operator+=(const Losses& other);
};

// One kind of loss: its name, where it is counted, and what happened to "N positions", for the user.
struct LossRow {
    const char* name;
    std::uint64_t Losses::*count;
    const char* words;
};
std::span<const LossRow> loss_rows();

}  // namespace nnue::data
