#include "features/feature_set.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "base/system.h"
#include "chess/fen.h"
#include "features/feature_sets.h"
#include "features/general_sets.h"

namespace nnue::data {
namespace {

constexpr std::string_view kDeclaredName = "PieceSquare";
constexpr std::size_t kMaxParts = 16;

std::string quoted(std::string_view text) {
    return "'" + std::string(text) + "'";
}

// The parts of a text between separators; those inside of parentheses do not count.
std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    std::size_t begin = 0;
    int depth = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
        depth += (text[at] == '(') - (text[at] == ')');
        if (text[at] == separator && depth <= 0) {
            parts.push_back(text.substr(begin, at - begin));
            begin = at + 1;
        }
    }
    parts.push_back(text.substr(begin));
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
    if constexpr (Set::kHasStates) std::copy_n(Set::counters(), kMaxCounters, tables.counters);
    return tables;
}

std::optional<FeaturePart> basic_part(std::string_view name) {
    std::optional<FeaturePart> found;
    BasicSets::for_each([&]<class Set>(int number) {
        if (name != Set::kName) return;
        found = FeaturePart{std::string(name), 0,      Set::kNumFeatures,
                            Set::kMaxActive,   0,      Set::kNumVirtual,
                            Set::kNumFeatures, number, {}};
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

// The pieces that a set counts: "eQ:1", "eR:1.eQ:1", "eReQ:3". Pieces are o or e (own, enemy) and a letter. The states
// are numbers of mixed radix, the first counter's digit being the highest; a state is `bucket_size` features.
int parse_states(std::string_view name, std::string_view text, int bucket_size, PieceSquareTables& tables) {
    constexpr std::string_view kLetters = "PNBRQ";
    const std::vector<std::string_view> words = split(text, '.');
    const auto wrong = [&](std::string_view word) {
        refuse(name, "states has " + quoted(word) +
                         ", expected one or two counters such as eQ:1 or oReR:3 (o, e: own, enemy; P N B R Q; the most "
                         "that is counted), joined by a point");
    };
    if (words.size() > kMaxCounters) wrong(text);
    int states = 1;
    for (std::size_t number = words.size(); number-- > 0;) {
        const std::string_view word = words[number];
        const std::size_t colon = word.find(':');
        int most = 0;
        if (colon == word.npos || colon == 0 || colon % 2) wrong(word);
        const auto [end, error] = std::from_chars(word.data() + colon + 1, word.data() + word.size(), most);
        if (error != std::errc() || end != word.data() + word.size() || most < 1 || most >= kMaxStates) wrong(word);
        StateCounter& counter = tables.counters[number];
        for (std::size_t at = 0; at < colon; at += 2) {
            const std::size_t type = kLetters.find(word[at + 1]);
            if ((word[at] != 'o' && word[at] != 'e') || type == kLetters.npos) wrong(word);
            for (const unsigned perspective : {0u, 1u}) {
                const unsigned code = 2 * static_cast<unsigned>(type) + ((word[at] == 'e') ^ perspective);
                counter.codes[perspective] = static_cast<std::uint16_t>(counter.codes[perspective] | 1u << code);
            }
        }
        counter.most = static_cast<std::uint16_t>(most);
        counter.stride = states * bucket_size;
        states *= most + 1;
    }
    if (words.size() == 2 && tables.counters[0].codes[0] == tables.counters[1].codes[0]) {
        refuse(name, "states counts the same pieces twice, in " + quoted(words[0]) + " and " + quoted(words[1]) +
                         ": some of its states cannot occur; expected different pieces");
    }
    if (states > kMaxStates) {
        refuse(name,
               "states gives " + std::to_string(states) + " states, expected at most " + std::to_string(kMaxStates));
    }
    return states;
}

FeaturePart declared_part(std::string_view name) {
    std::map<std::string_view, std::string_view> fields{{"planes", "12"}, {"order", "grouped"}, {"mirror", "none"},
                                                        {"kings", {}},    {"states", {}},       {"virtual", "both"}};
    if (name.back() != ')') refuse(name, "expected a ')' at its end");
    const std::string_view inside = name.substr(kDeclaredName.size() + 1, name.size() - kDeclaredName.size() - 2);
    std::set<std::string_view> given;
    for (const std::string_view field : split(inside, ',')) {
        const std::size_t equals = field.find('=');
        const auto known = fields.find(field.substr(0, equals));
        if (equals == field.npos || known == fields.end()) {
            refuse(name, "has " + quoted(field) + ", expected planes=, order=, mirror=, kings=, states= or virtual=");
        }
        if (!given.insert(known->first).second) {
            refuse(name, "has " + std::string(known->first) + "= twice; expected each field once");
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
    const int order = choose("order", {"grouped", "interleaved", "enemy-first", "interleaved-enemy-first"});
    const bool interleaved = order % 2 == 1, enemy_first = order >= 2;
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
                   "kings does not use bucket " + std::to_string(bucket) + " of 0 to " + std::to_string(buckets - 1));
        }
    }

    PieceSquareTables tables{};
    const int bucket_size = 64 * planes;
    const int states = fields["states"].empty() ? 1 : parse_states(name, fields["states"], bucket_size, tables);
    if (buckets * states > 255) {
        refuse(name, "kings and states give " + std::to_string(buckets * states) + " buckets, expected at most 255");
    }
    for (const int perspective : {0, 1}) {
        for (int king = 0; king < 64; ++king) {
            const bool east = king % 8 >= 4;  // on files e to h
            const int flip = (mirror == 1 && east) || (mirror == 2 && !east) ? 7 : 0;
            const int orientation = (perspective ? 56 : 0) ^ flip;
            const int seen = king ^ orientation;
            const int place = half ? 4 * (seen / 8) + seen % 8 - (mirror == 2 ? 4 : 0) : seen;
            tables.orientation[perspective][king] = static_cast<std::uint8_t>(orientation);
            tables.offset[perspective][king] = states * bucket_size * kings[static_cast<std::size_t>(place)];
        }
        for (int code = 0; code < 12; ++code) {
            const int type = code / 2, second = code % 2 ^ perspective ^ enemy_first;
            int plane = interleaved ? 2 * type + second : type + planes / 2 * second;
            // With 11 planes both kings share the last one; 5 of each side come first.
            if (planes == 11 && type != kKing) plane = interleaved ? plane : type + 5 * second;
            if (planes == 11 && type == kKing) plane = 10;
            tables.plane[perspective][code] = planes == 10 && type == kKing ? -1 : 64 * plane;
        }
    }
    const int max_active = planes == 10 ? kMaxPieces - 2 : kMaxPieces;
    const int num_features = bucket_size * buckets * states;
    // Rows that differ in the king bucket lie a multiple of states · bucket_size apart, those of one king bucket lie
    // together.
    const int shared = choose("virtual", {"both", "kings", "states"});
    int num_virtual = shared == 1 ? states * bucket_size : bucket_size;
    const int span = shared == 2 ? states * bucket_size : num_features;
    if (num_virtual == span) num_virtual = 0;  // nothing would be shared
    return {std::string(name), 0,    num_features,           max_active, bucket_size,
            num_virtual,       span, FeaturePart::kDeclared, tables};
}

// ---- sets that are appended -----------------------------------------------------------------------------------------

struct Appendable {
    SetDescription is;
    std::shared_ptr<const AppendFeatures> append;
};

struct Known {
    std::mutex mutex;
    std::map<std::string, std::unique_ptr<const FeatureSet>, std::less<>> sets;  // those that have been used
    std::map<std::string, Appendable, std::less<>> appendable;
    std::vector<std::unique_ptr<const FeatureSet>> replaced;  // callers may still use them
};

Known& known() {
    static Known& all = *new Known;  // never destroyed: threads may still use it while the program ends
    return all;
}

// Wraps the append function of a compiled set: a row that breaks the rules becomes BadFeatures.
AppendFeatures checked(SetDescription is, BadRow (*append)(const std::uint8_t*, std::size_t, AppendRows)) {
    return [is, append](const std::uint8_t* records, std::size_t n, const AppendRows& rows) {
        const BadRow bad = append(records, n, rows);
        if (bad.position < 0) return;
        const std::string who = std::string(bad.perspective ? "black" : "white") + " ";
        switch (bad.fault) {
            case SetFault::kTooMany:
                throw BadFeatures(bad.position, who + "has " + std::to_string(bad.value) +
                                                    " features or more, expected at most " +
                                                    std::to_string(is.max_active));
            case SetFault::kBuckets:
                throw BadFeatures(bad.position, who + "has feature " + std::to_string(bad.value) +
                                                    ", which lies in another king bucket than those before it");
            default:
                throw BadFeatures(bad.position, who + "has feature " + std::to_string(bad.value) + ", expected 0 to " +
                                                    std::to_string(is.num_features - 1));
        }
    };
}

void check_sizes(const std::string& name, const SetDescription& is) {
    constexpr int kMost = 1 << 24;
    const auto check = [&](const char* what, int value, int least, int most) {
        if (value >= least && value <= most) return;
        refuse(name, std::string(what) + " is " + std::to_string(value) + ", expected " + std::to_string(least) +
                         " to " + std::to_string(most));
    };
    check("the number of features", is.num_features, 1, kMost);
    check("the largest number of active features", is.max_active, 1, 4096);
    check("the bucket size", is.bucket_size, 0, is.num_features);
    check("the number of virtual rows", is.num_virtual, 0, is.num_features);
    for (const auto& [what, size] : {std::pair{"bucket size", is.bucket_size}, {"virtual rows", is.num_virtual}}) {
        if (size > 0 && is.num_features % size) {
            refuse(name, std::to_string(is.num_features) + " features with a number of " + std::to_string(size) + " (" +
                             what + "), expected a divisor of it");
        }
    }
}

std::optional<AppendedPart> appended_part(std::string_view name) {
    std::optional<AppendedPart> found;
    GeneralSets::for_each([&]<class Set>() {
        if (name != Set::kName) return;
        const SetDescription is = GeneralSetCheck<Set>::kIs;
        found = AppendedPart{Set::kName, 0, is, std::make_shared<AppendFeatures>(checked(is, append_general<Set>))};
    });
    if (const auto outside = known().appendable.find(name); !found && outside != known().appendable.end()) {
        found = AppendedPart{std::string(name), 0, outside->second.is, outside->second.append};
    }
    return found;
}

FeatureSet parse(std::string_view name) {
    FeatureSet set;
    set.name = name;
    const auto add = [&](auto part, int num_features, int max_active, auto& parts) {
        const auto has = [&](const auto& others) {
            return std::any_of(others.begin(), others.end(),
                               [&](const auto& other) { return other.name == part.name; });
        };
        if (has(set.parts) || has(set.appended)) refuse(name, "has " + quoted(part.name) + " twice");
        part.first_feature = set.num_features;
        set.num_features += num_features;
        set.max_active += max_active;
        parts.push_back(std::move(part));
    };
    const std::vector<std::string_view> names = split(name, '+');
    if (names.size() > kMaxParts) {
        refuse(name,
               "has " + std::to_string(names.size()) + " parts, expected no more than " + std::to_string(kMaxParts));
    }
    for (const std::string_view part_name : names) {
        if (std::optional<AppendedPart> appended = appended_part(part_name)) {
            add(*appended, appended->is.num_features, appended->is.max_active, set.appended);
            continue;
        }
        std::optional<FeaturePart> part = basic_part(part_name);
        if (!part && part_name.starts_with(kDeclaredName) && part_name.substr(kDeclaredName.size()).starts_with("(")) {
            part = declared_part(part_name);
        }
        if (!part && part_name.find(':') != part_name.npos) {
            throw FormatError("feature set " + quoted(part_name) +
                              " is in a file that has not been loaded: pass the file with --plugin, or call "
                              "nnue_trainer.registry.load_plugin");
        }
        if (!part) {
            std::string names_of_sets;
            for (const std::string& basic : basic_feature_sets()) names_of_sets += basic + ", ";
            throw FormatError("unknown feature set " + quoted(part_name) +
                              (names.size() > 1 ? " in " + quoted(name) : std::string()) + ", expected one of " +
                              names_of_sets + "PieceSquare(...), or a sum of them, A+B");
        }
        add(*part, part->num_features, part->max_active, set.parts);
    }
    return set;
}

template <class Version>
std::vector<std::int32_t> features_of_threats() {
    const ThreatTables<Version> tables;
    std::vector<std::int32_t> features(std::size_t{12} * 64 * 12 * 64, -1);
    for (int attacker = 0; attacker < 12; ++attacker) {
        for (int victim = 0; victim < 12; ++victim) {
            if (Version::slot(attacker, victim) < 0) continue;
            // A merged set lists such pairs from the higher square, and has others in the cells from below to above.
            const bool from_above = Version::kMerged && attacker / 2 == victim / 2 && attacker / 2 != kPawn;
            for (int from = 0; from < 64; ++from) {
                for (Bitboard left = tables.reach[attacker][from]; left; left &= left - 1) {
                    const int to = lowest(left);
                    if (from_above && from < to) continue;
                    features[((attacker * 64 + from) * 12 + victim) * 64 + to] =
                        from_above ? threat_index(tables, 0, 0, attacker, from, victim, to)
                                   : tables.block[attacker][victim] + tables.offset[attacker][from] +
                                         popcount(tables.reach[attacker][from] & below(to));
                }
            }
        }
    }
    return features;
}

}  // namespace

const FeatureSet& feature_set(std::string_view name) {
    Known& all = known();
    const std::lock_guard lock(all.mutex);
    auto found = all.sets.find(name);
    if (found == all.sets.end()) {
        found = all.sets.emplace(std::string(name), std::make_unique<const FeatureSet>(parse(name))).first;
    }
    return *found->second;
}

void add_feature_set(const std::string& name, const SetDescription& is, AppendFeatures append) {
    check_sizes(name, is);
    Known& all = known();
    const std::lock_guard lock(all.mutex);
    all.appendable[name] = {is, std::make_shared<const AppendFeatures>(std::move(append))};
    for (auto set = all.sets.begin(); set != all.sets.end();) {
        const std::vector<AppendedPart>& parts = set->second->appended;
        const bool has_it =
            std::any_of(parts.begin(), parts.end(), [&](const auto& part) { return part.name == name; });
        if (has_it) all.replaced.push_back(std::move(set->second));
        set = has_it ? all.sets.erase(set) : std::next(set);
    }
}

void add_compiled_feature_set(const std::string& name, const std::string& library) {
    const auto* set = static_cast<const CompiledSet*>(symbol_of_library(library, "nnue_feature_set", name));
    if (set->version != kCompiledSetVersion) {
        refuse(name, library + " is of version " + std::to_string(set->version) + ", expected " +
                         std::to_string(kCompiledSetVersion));
    }
    add_feature_set(name, set->is, checked(set->is, set->append));
}

void* symbol_of_library(const std::string& library, const char* symbol, const std::string& what) {
    std::string why;
    void* found = system::symbol_of_library(library, symbol, why);
    if (!found) refuse(what, why);
    return found;
}

std::vector<std::int32_t> threat_features(std::string_view name) {
    std::vector<std::int32_t> features;
    BasicSets::for_each([&]<class Set>(int) {
        if constexpr (Set::kKind == SetKind::kThreats) {
            if (name == Set::kName) features = features_of_threats<typename Set::Version>();
        }
    });
    return features;
}

std::vector<std::string> basic_feature_sets() {
    std::vector<std::string> names;
    BasicSets::for_each([&]<class Set>(int) { names.emplace_back(Set::kName); });
    GeneralSets::for_each([&]<class Set>() { names.emplace_back(Set::kName); });
    return names;
}

}  // namespace nnue::data
