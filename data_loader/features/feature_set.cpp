#include "features/feature_set.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "chess/fen.h"
#include "features/feature_sets.h"

namespace nnue::data {
namespace {

constexpr std::string_view kDeclaredName = "PieceSquare";
constexpr std::size_t kMaxParts = 16;

std::string quoted(std::string_view text) {
    return "'" + std::string(text) + "'";
}

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t end = std::min(text.find(separator, at), text.size());
        parts.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

template <class Set>
PieceSquareTables tables_of() {
    PieceSquareTables tables{};
    for (const int perspective : {0, 1}) {
        for (int king = 0; king < 64; ++king) {
            tables.offset[perspective][king] = Set::offset(perspective, king);
            tables.orientation[perspective][king] = static_cast<std::uint8_t>(Set::orientation(perspective, king));
        }
        for (int code = 0; code < 12; ++code) {
            const bool listed = Set::kHasKings || code < 2 * kKing;
            tables.plane[perspective][code] = listed ? 64 * Set::plane(code, perspective) : -1;
        }
    }
    return tables;
}

std::optional<FeaturePart> basic_part(std::string_view name) {
    std::optional<FeaturePart> found;
    BasicSets::for_each([&]<class Set>(int number) {
        if (name != Set::kName) return;
        found = FeaturePart{std::string(name), 0, Set::kNumFeatures, Set::kMaxActive, 0, Set::kNumVirtual, number, {}};
        if constexpr (Set::kKind == SetKind::kPieceSquare) {
            found->bucket_size = Set::kBucketSize;
            found->tables = tables_of<Set>();
        }
    });
    return found;
}

// ---- PieceSquare(planes=…,order=…,mirror=…,kings=…) -----------------------------------------------------------------

[[noreturn]] void refuse(std::string_view name, const std::string& why) {
    throw FormatError("feature set " + quoted(name) + ": " + why);
}

std::vector<int> parse_kings(std::string_view name, std::string_view text) {
    std::vector<int> kings;
    for (const std::string_view word : split(text, '.')) {
        int bucket = -1;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), bucket);
        if (error != std::errc() || end != word.data() + word.size() || bucket < 0 || bucket > 63) {
            refuse(name, "kings has " + quoted(word) + ", expected king buckets from 0 to 63");
        }
        kings.push_back(bucket);
    }
    return kings;
}

FeaturePart declared_part(std::string_view name) {
    std::map<std::string_view, std::string_view> fields{
        {"planes", "12"}, {"order", "grouped"}, {"mirror", "none"}, {"kings", {}}};
    if (name.back() != ')') refuse(name, "expected a ')' at its end");
    const std::string_view inside = name.substr(kDeclaredName.size() + 1, name.size() - kDeclaredName.size() - 2);
    for (const std::string_view field : split(inside, ',')) {
        const std::size_t equals = field.find('=');
        const auto known = fields.find(field.substr(0, equals));
        if (equals == field.npos || known == fields.end()) {
            refuse(name, "has " + quoted(field) + ", expected planes=, order=, mirror= or kings=");
        }
        known->second = field.substr(equals + 1);
    }
    const auto choose = [&](const char* key, std::initializer_list<std::string_view> choices) {
        const auto found = std::find(choices.begin(), choices.end(), fields[key]);
        if (found == choices.end()) {
            std::string expected;
            for (const std::string_view choice : choices)
                expected += (expected.empty() ? "" : ", ") + std::string(choice);
            refuse(name, std::string(key) + " is " + quoted(fields[key]) + ", expected one of " + expected);
        }
        return static_cast<int>(found - choices.begin());
    };
    const int planes = 12 - choose("planes", {"12", "11", "10"});
    const bool interleaved = choose("order", {"grouped", "interleaved"}) == 1;
    const int mirror = choose("mirror", {"none", "a-d", "e-h"});
    const std::vector<int> kings =
        fields["kings"].empty() ? std::vector<int>(64, 0) : parse_kings(name, fields["kings"]);
    const bool half = kings.size() == 32 && mirror != 0;
    if (kings.size() != 64 && !half) {
        refuse(name, "kings has " + std::to_string(kings.size()) +
                         " buckets, expected 64, or 32 where the board is mirrored");
    }
    const int buckets = 1 + *std::max_element(kings.begin(), kings.end());
    for (int bucket = 0; bucket < buckets; ++bucket) {
        if (std::find(kings.begin(), kings.end(), bucket) == kings.end()) {
            refuse(name,
                   "kings leaves bucket " + std::to_string(bucket) + " out of 0 to " + std::to_string(buckets - 1));
        }
    }

    PieceSquareTables tables{};
    for (const int perspective : {0, 1}) {
        for (int king = 0; king < 64; ++king) {
            const bool east = king % 8 >= 4;  // on files e to h
            const int flip = (mirror == 1 && east) || (mirror == 2 && !east) ? 7 : 0;
            const int orientation = (perspective ? 56 : 0) ^ flip;
            const int seen = king ^ orientation;
            const int place = half ? 4 * (seen / 8) + seen % 8 - (mirror == 2 ? 4 : 0) : seen;
            tables.orientation[perspective][king] = static_cast<std::uint8_t>(orientation);
            tables.offset[perspective][king] = 64 * planes * kings[static_cast<std::size_t>(place)];
        }
        for (int code = 0; code < 12; ++code) {
            const int type = code / 2, enemy = code % 2 ^ perspective;
            int plane = interleaved ? 2 * type + enemy : type + planes / 2 * enemy;
            // With 11 planes both kings share the last one; 5 of each side come first.
            if (planes == 11 && type != kKing) plane = interleaved ? plane : type + 5 * enemy;
            if (planes == 11 && type == kKing) plane = 10;
            tables.plane[perspective][code] = planes == 10 && type == kKing ? -1 : 64 * plane;
        }
    }
    const int max_active = planes == 10 ? kMaxPieces - 2 : kMaxPieces;
    return {
        std::string(name),      0,     64 * planes * buckets, max_active, 64 * planes, buckets > 1 ? 64 * planes : 0,
        FeaturePart::kDeclared, tables};
}

FeatureSet parse(std::string_view name) {
    FeatureSet set;
    set.name = name;
    const std::vector<std::string_view> names = split(name, '+');
    if (names.size() > kMaxParts) {
        refuse(name,
               "has " + std::to_string(names.size()) + " parts, expected no more than " + std::to_string(kMaxParts));
    }
    for (const std::string_view part_name : names) {
        std::optional<FeaturePart> part = basic_part(part_name);
        if (!part && part_name.starts_with(kDeclaredName) && part_name.substr(kDeclaredName.size()).starts_with("(")) {
            part = declared_part(part_name);
        }
        if (!part) {
            std::string known;
            for (const std::string& basic : basic_feature_sets()) known += basic + ", ";
            throw FormatError("unknown feature set " + quoted(part_name) +
                              (names.size() > 1 ? " in " + quoted(name) : std::string()) + ", expected one of " +
                              known + "PieceSquare(...), or a sum of them, A+B");
        }
        for (const FeaturePart& other : set.parts) {
            if (other.name == part->name) refuse(name, "has " + quoted(part->name) + " twice");
        }
        part->first_feature = set.num_features;
        set.num_features += part->num_features;
        set.max_active += part->max_active;
        set.parts.push_back(*std::move(part));
    }
    return set;
}

}  // namespace

const FeatureSet& feature_set(std::string_view name) {
    static std::mutex mutex;
    static std::map<std::string, std::unique_ptr<const FeatureSet>, std::less<>> known;
    const std::lock_guard lock(mutex);
    auto found = known.find(name);
    if (found == known.end()) {
        found = known.emplace(std::string(name), std::make_unique<const FeatureSet>(parse(name))).first;
    }
    return *found->second;
}

std::vector<std::string> basic_feature_sets() {
    std::vector<std::string> names;
    BasicSets::for_each([&]<class Set>(int) { names.emplace_back(Set::kName); });
    return names;
}

}  // namespace nnue::data
