// What a feature set is, for callers that do not know it at compile time: its name says all of it.
//
// A set is one part or the sum of several, "A+B+C": their indices follow one another, and so do their entries in a row.
// A part is one of the basic sets (feature_sets.h, where adding one is adding a struct), or a piece-square set that its
// own name describes:
//
//     PieceSquare(planes=12,order=grouped,mirror=a-d,kings=0.1.2.3. ...)
//
// Everybody who is given such a name, operators and exported graphs included, makes the same set of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nnue::data {

// A piece-square set as numbers: a piece of code c on square s gives a perspective p, whose own king stands on k, the
// feature offset[p][k] + plane[p][c] + (s ^ orientation[p][k]); none where the plane is negative.
struct PieceSquareTables {
    std::int32_t offset[2][64];
    std::int32_t plane[2][12];  // 64 · plane
    std::uint8_t orientation[2][64];
};

struct FeaturePart {
    std::string name;
    int first_feature;  // in the whole set
    int num_features;
    int max_active;   // entries of a row, at the most
    int bucket_size;  // features of a king bucket: those of a row lie in one; 0: the part is not bucketed
    int num_virtual;  // virtual rows of a factoriser: feature r of the part shares row r mod num_virtual; 0: none
    int basic;        // its place in BasicSets, or kDeclared

    static constexpr int kDeclared = -1;

    bool is_piece_square() const { return bucket_size > 0; }
    // Of a piece-square part.
    PieceSquareTables tables{};
};

struct FeatureSet {
    std::string name;
    std::vector<FeaturePart> parts;
    int num_features = 0;
    int max_active = 0;
};

// The set of that name, which lives as long as the program. Throws FormatError that says what is wrong with the name.
const FeatureSet& feature_set(std::string_view name);

// The names of the basic sets, in the order of BasicSets.
std::vector<std::string> basic_feature_sets();

}  // namespace nnue::data
