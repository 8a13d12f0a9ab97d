// A description of feature sets, for callers without the type at compile time. The name of a set describes all of it.
//
// A set is one part or the sum of several, "A+B+C": their indices follow one another, and so do their entries in a row.
// A part is one of the built-in sets (feature_sets.h, general_sets.h), a set from outside (appended.h), or a
// piece-square set that its own name describes:
//
//     PieceSquare(planes=12,order=grouped,mirror=a-d,kings=0.1.2.3. ...,states=eQ:1,virtual=both)
//
// Everything that is given such a name, operators and exported graphs included, makes the same set from it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "features/appended.h"

namespace nnue::data {

// Counts pieces on the board for the state of a row: min(count, most) moves the row by that many strides.
struct StateCounter {
    std::int32_t stride;     // features
    std::uint16_t codes[2];  // by perspective: bit c is set where pieces of code c count
    std::uint16_t most;      // 0: this counter is not used, nor are those after it
};

constexpr int kMaxCounters = 2;
constexpr int kMaxStates = 4;

// A piece-square set as numbers: a piece of code c on square s gives a perspective p, whose own king stands on k, the
// feature offset[p][k] + state + plane[p][c] + (s ^ orientation[p][k]); none if the plane is negative. `state` is
// what the counters add.
struct PieceSquareTables {
    std::int32_t offset[2][64];
    std::int32_t plane[2][12];  // 64 · plane
    StateCounter counters[kMaxCounters];
    std::uint8_t orientation[2][64];

    bool has_states() const { return counters[0].most > 0; }
};

struct FeaturePart {
    std::string name;
    int first_feature;  // in the whole set
    int num_features;
    int max_active;    // the most entries that a row can have
    int bucket_size;   // features per bucket (those of a row all lie in one); 0: the part is unbucketed
    int num_virtual;   // virtual rows of a factoriser for each virtual_span features, feature r of which shares row r
                       // mod num_virtual; 0: none
    int virtual_span;  // a multiple of num_virtual; num_features where all features share the same virtual rows
    int basic;         // its place in BasicSets, or kDeclared

    static constexpr int kDeclared = -1;

    bool is_piece_square() const { return bucket_size > 0; }
    // Only for piece-square parts.
    PieceSquareTables tables{};
};

// Appends the features of n sound records (32 bytes each) to their rows, or throws BadFeatures.
using AppendFeatures = std::function<void(const std::uint8_t* records, std::size_t n, const AppendRows& rows)>;

// Thrown where a set gives a row that does not fit its own description.
struct BadFeatures : std::exception {
    std::int64_t position;
    std::string text;
    BadFeatures(std::int64_t at, std::string why) : position(at), text(std::move(why)) {}
    const char* what() const noexcept override { return text.c_str(); }
};

// A part of a set whose features come last in the rows, after those of all other parts, wherever its indices begin.
struct AppendedPart {
    std::string name;
    int first_feature;
    SetDescription is;
    std::shared_ptr<const AppendFeatures> append;
};

struct FeatureSet {
    std::string name;
    std::vector<FeaturePart> parts;
    std::vector<AppendedPart> appended;
    int num_features = 0;
    int max_active = 0;

    // Whether it is a single part that the hot loops support, for which they have a faster form.
    bool is_single() const { return parts.size() == 1 && appended.empty(); }
    // Appends the features of the appended parts of n sound records; throws BadFeatures. `rows.first_feature` is
    // ignored.
    void append(const std::uint8_t* records, std::size_t n, AppendRows rows) const {
        for (const AppendedPart& part : appended) {
            if (n == 0) return;
            rows.first_feature = part.first_feature;
            (*part.append)(records, n, rows);
        }
    }
};

// The set of that name, which lives as long as the program. Throws FormatError for a wrong name.
const FeatureSet& feature_set(std::string_view name);

// Makes a set from outside known by its name, which may then be part of a sum. It replaces an earlier set of that name
// for all later calls. Throws FormatError for impossible sizes.
void add_feature_set(const std::string& name, const SetDescription& is, AppendFeatures append);

// The set of a shared library that was made of a header (CompiledSet). Throws FormatError for any other.
void add_compiled_feature_set(const std::string& name, const std::string& library);

// The address of a symbol in a shared library, which stays loaded. Throws FormatError if there is none; `what` is the
// set that the message names.
void* symbol_of_library(const std::string& library, const char* symbol, const std::string& what);

// The features of a version of Full_Threats, [12, 64, 12, 64] by attacker, its square, victim and its square, as a
// perspective sees them whose king stands on the files a to d; −1 for none. Empty for any other set.
std::vector<std::int32_t> threat_features(std::string_view name);

// The names of the built-in sets.
std::vector<std::string> basic_feature_sets();

}  // namespace nnue::data
