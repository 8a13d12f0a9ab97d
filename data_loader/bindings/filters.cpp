// The part of nnue_trainer._data for the filters of positions.
#include "filters/filters.h"

#include <variant>

#include "bindings/structs.h"
#include "chess/texts.h"
#include "filters/piece_counts.h"

namespace {

// A value of a filter in its type.
py::object value_of(const FilterRow& row, double number) {
    switch (row.type) {
        case FilterType::kBool:
            return py::bool_(number != 0);
        case FilterType::kInt:
            return py::int_(static_cast<std::int64_t>(number));
        default:
            return py::float_(number);
    }
}

// (name, type, value that switches it off, default of recipes, least, most, documentation) of each filter.
py::list filter_rows() {
    py::list rows;
    for (const FilterRow& row : filters()) {
        const auto value = [&](double number) { return value_of(row, number); };
        rows.append(py::make_tuple(row.name, py::type::of(value(row.off)), value(row.off), value(row.preset),
                                   value(row.least), value(row.most), row.doc));
    }
    return rows;
}

py::tuple filter_and_count(const Array<std::uint8_t>& records, const FilterOptions& options, std::uint64_t seed) {
    const Record* in = records_of(records, "filter");
    const auto n = static_cast<std::size_t>(records.shape(0));
    std::vector<Record> copy(in, in + n);
    FilterCounts counts;
    py::array_t<bool> mask(static_cast<py::ssize_t>(n));
    auto* kept = reinterpret_cast<std::uint8_t*>(mask.mutable_data());
    {
        py::gil_scoped_release release;
        for (std::size_t i = 0; i < n; ++i) entry_from_record(copy[i], i);
        std::vector<std::uint8_t> flags(options.needs_flags() ? n : 0);
        if (options.needs_flags()) compute_flags(copy, flags.data());
        copy.resize(filter_records(options, seed, copy, flags.data(), counts, kept));
    }
    return py::make_tuple(copy_records(copy), counts, mask);
}

// Applies piece_counts to one chunk. The state is that after the chunk before; an empty one begins.
py::tuple filter_chunk_by_piece_counts(const Array<std::uint8_t>& records, const FilterOptions& options,
                                       std::uint64_t seed, const std::vector<double>& numbers) {
    const std::span<const Record> in = record_span(records, "filter");
    std::vector<Record> copy(in.begin(), in.end());
    PieceCountState state = numbers.empty() ? PieceCountState() : PieceCountState(numbers);
    py::array_t<bool> mask(static_cast<py::ssize_t>(in.size()));
    auto* kept = reinterpret_cast<std::uint8_t*>(mask.mutable_data());
    {
        py::gil_scoped_release release;
        copy.resize(filter_piece_counts(options.curve(kPieceCountsCurve), seed, copy, state, kept));
    }
    return py::make_tuple(copy_records(copy), state.numbers(), mask);
}

// (name, numbers in a group, default of recipes, documentation) of each list of numbers.
py::list curve_rows() {
    py::list rows;
    for (const FilterCurveRow& row : filter_curves()) {
        rows.append(py::make_tuple(row.name, row.group,
                                   py::list(py::cast(std::vector<double>(row.preset.begin(), row.preset.end()))),
                                   row.doc));
    }
    return rows;
}

// The probability of each position to be kept, and α after it.
py::tuple piece_count_chances(const std::vector<double>& curve, const std::vector<std::size_t>& pieces) {
    const PieceCountWeights weights(curve);
    PieceCountState state;
    std::vector<double> chances, alphas;
    for (const std::size_t n : pieces) {
        if (n >= kNumPieceCounts) throw FormatError("a position with more than 32 pieces");
        chances.push_back(state.accept(n, weights));
        alphas.push_back(state.alpha());
    }
    return py::make_tuple(chances, alphas);
}

// A field for each row of the tables of filters.
void bind_options(py::module_& m) {
    auto options = bind_struct<FilterOptions>(m, "FilterOptions");
    for (std::size_t i = 0; i < filters().size(); ++i) {
        const FilterRow& row = filters()[i];
        options.def_property(
            row.name, [&row, i](const FilterOptions& o) { return value_of(row, o.value(i)); },
            [&row](FilterOptions& o, double value) { o.set(row.name, value); });
    }
    using Numbers = std::vector<double>;
    using Pairs = std::vector<std::pair<double, double>>;
    for (std::size_t i = 0; i < filter_curves().size(); ++i) {
        const FilterCurveRow& row = filter_curves()[i];
        options.def_property(
            row.name,
            [i](const FilterOptions& o) {
                const auto numbers = o.curve(static_cast<FilterCurve>(i));
                return Numbers(numbers.begin(), numbers.end());
            },
            [&row](FilterOptions& o, const std::variant<Numbers, Pairs>& value) {
                if (const auto* numbers = std::get_if<Numbers>(&value)) return o.set_curve(row.name, *numbers);
                Numbers flat;
                for (const auto& [x, y] : std::get<Pairs>(value)) flat.insert(flat.end(), {x, y});
                o.set_curve(row.name, std::move(flat));
            });
    }
}

// By the name of a filter; only those that dropped something.
py::dict dropped(const FilterCounts& counts) {
    py::dict found;
    for (std::size_t i = 0; i < counts.dropped.size(); ++i) {
        if (counts.dropped[i]) found[filters()[i].name] = counts.dropped[i];
    }
    if (counts.dropped_by_user) found["user_filter"] = counts.dropped_by_user;
    return found;
}

void bind_counts(py::module_& m) {
    bind_struct<FilterCounts>(m, "FilterCounts")
        .def_readwrite("read", &FilterCounts::read)
        .def_readwrite("kept", &FilterCounts::kept)
        .def_property_readonly("dropped", &dropped)
        .def("drop_by_piece_counts", &FilterCounts::drop_by_piece_counts, py::arg("positions"))
        .def("drop_by_user", &FilterCounts::drop_by_user, py::arg("positions"));
}

}  // namespace

void bind_filters(py::module_& m) {
    bind_options(m);
    bind_counts(m);
    m.def("filters", &filter_rows);
    m.def("filter_records", &filter_and_count);
    m.def("filter_piece_counts", &filter_chunk_by_piece_counts);
    m.def("check_piece_counts",
          [](const std::vector<double>& numbers) { static_cast<void>(PieceCountState(numbers)); });
    m.def("filter_curves", &curve_rows);
    m.def("soft_ply_chance",
          [](const std::vector<double>& knots, int ply, double full) { return soft_ply_chance(knots, ply, full); });
    m.def("piece_count_weights", [](const std::vector<double>& curve) {
        const PieceCountWeights made(curve);
        return std::vector<double>(made.weights.begin(), made.weights.end());
    });
    m.def("piece_count_chances", &piece_count_chances);
    m.def("wdl_model", [](int score, int ply) {
        const auto [loss, draw, win] = wdl_model(score, ply);
        return py::make_tuple(loss, draw, win);
    });
}
