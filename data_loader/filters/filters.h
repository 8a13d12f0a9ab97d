// Which positions are trained on: the usual filters in their usual order. docs/data.md, "Filters".
//
// A filter is a struct in filters.cpp and its place in the list there. Everything that others need of it is in
// its row: recipes, command line, Python module and saved states take names, types, defaults and limits from the table.
//
// A decision is a function of (key, number of the position in its chunk), so threads and other filters do not change
// it. State (the entry before) starts anew with each chunk, for the same reason; that of piece_counts, which lasts for
// the whole run, belongs to who has the chunks in their order.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "chess/types.h"

namespace nnue::data {

enum class FilterType { kBool, kInt, kFloat };

struct FilterRow {
    const char* name;
    FilterType type;
    double off;          // with this value it drops nothing
    double preset;       // the value in a recipe that does not name it
    double least, most;  // limits of the value
    const char* doc;     // one line
    bool uses_flags;     // reads the flags of a position (RecordFlag)
    bool drops_scored;   // false: it drops positions without a score, and no others
    bool is_last;        // it works on one chunk after the other, after all other filters: piece_counts.h
};

// Lists of numbers that filters take beside their value.
enum FilterCurve : std::size_t { kSoftPlyKnots, kPieceCountsCurve, kNumFilterCurves };

struct FilterCurveRow {
    const char* name;
    std::size_t group;               // 1: as many numbers as in the preset; 2: any number of pairs
    std::span<const double> preset;  // in a recipe that does not name it
    const char* doc;                 // one line
};

// All filters, in the order in which they run.
std::span<const FilterRow> filters();
std::span<const FilterCurveRow> filter_curves();

// A value for each filter. To begin with, all are off.
class FilterOptions {
  public:
    FilterOptions();

    // Throws FormatError for a filter that does not exist and a value beyond its limits.
    void set(std::string_view name, double value);
    // Pairs are one after the other. Throws FormatError for a curve that does not exist or has other numbers.
    void set_curve(std::string_view name, std::vector<double> numbers);

    std::span<const double> curve(FilterCurve curve) const { return curves_[curve]; }
    double value(std::size_t filter) const { return values_[filter]; }
    bool is_on(std::size_t filter) const { return values_[filter] != filters()[filter].off; }
    // Whether they can drop any position of a chunk in which `unscored` have no score. If not, they need not be run.
    // Leaves out piece_counts, as filter_records does.
    bool drops_any(std::size_t unscored) const;
    bool keeps_piece_counts() const;  // whether piece_counts is on
    bool needs_flags() const;

  private:
    std::vector<double> values_;
    std::vector<std::vector<double>> curves_;
};

struct FilterCounts {
    std::uint64_t read = 0, kept = 0;
    std::vector<std::uint64_t> dropped;  // by filter; empty: none by any
    std::uint64_t dropped_by_user = 0;   // by filters in Python

    FilterCounts& operator+=(const FilterCounts& other);
    // These count positions that were kept so far:
    void drop_by_piece_counts(std::uint64_t positions);
    void drop_by_user(std::uint64_t positions);
};

// The flags (RecordFlag) of sound records.
void compute_flags(std::span<const Record> records, std::uint8_t* flags);

// Applies all filters but piece_counts: moves what is kept to the front of `records` and returns how many that is.
// `flags` may be null unless needs_flags().
// `kept`, unless null, gets 1 or 0 for each record.
std::size_t filter_records(const FilterOptions& options, std::uint64_t key, std::span<Record> records,
                           const std::uint8_t* flags, FilterCounts& counts, std::uint8_t* kept = nullptr);

// The share that soft_ply keeps of a ply, with these points (x, y one after the other) and all from `full` on.
double soft_ply_chance(std::span<const double> knots, int ply, double full);

// Probability of loss, draw and win (index result + 1) for a score at a ply, both of the side to move.
std::array<double, 3> wdl_model(int score, int ply);

// The same from the material on the board, as in the viriformat crate.
std::array<double, 3> wdl_material_model(int score, const Record& record);

// Material of the side to move less the other's, in internal units.
int material_balance(const Record& record);

}  // namespace nnue::data
