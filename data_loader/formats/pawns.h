// Formats whose scores are evaluations in pawns or centipawns: conversion to internal units.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "formats/codec.h"
#include "formats/format.h"

namespace nnue::data {

inline constexpr int kLargestEvaluation = 31999;  // below 32002, which means "no score"
inline constexpr const char* kClampedEvaluations = "evaluations of 31999 internal units or more, read as 31999";

class PawnUnit {
  public:
    // Reads the setting "pawn", internal units per pawn. Throws FormatError for a value that is not a usable number.
    explicit PawnUnit(const ReadSettings& settings) {
        const auto found = settings.find("pawn");
        if (found == settings.end()) return;
        char* end = nullptr;
        pawn_ = std::strtod(found->second.c_str(), &end);
        if (*end || !(pawn_ > 0 && pawn_ <= 10000)) {
            throw FormatError("pawn " + quoted(found->second) + ", expected internal units per pawn, at most 10000");
        }
    }

    // Internal units of an evaluation in pawns: rounded to nearest, clamped to ±kLargestEvaluation. Readers count
    // these, since scores from about 31,750 on also stand for mates.
    std::int16_t internal(double pawns) const {
        return static_cast<std::int16_t>(
            std::clamp(std::round(pawns * pawn_), -double{kLargestEvaluation}, double{kLargestEvaluation}));
    }

  private:
    double pawn_ = kDefaultPawn;

    static constexpr double kDefaultPawn = 208;  // Stockfish up to version 15
};

}  // namespace nnue::data
