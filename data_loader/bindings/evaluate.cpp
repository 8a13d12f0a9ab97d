// The part of nnue_trainer._data that evaluates positions with the integers of a net.
#include <pybind11/stl.h>

#include <algorithm>
#include <map>

#include "bindings/bindings.h"
#include "chess/record.h"
#include "evaluate/evaluator.h"

namespace {

// An evaluator and the arrays that it computes with.
class EvaluatorHandle {
  public:
    // `d` is the description as nnue_trainer/export/evaluate.py makes it, with arrays in the places of names.
    explicit EvaluatorHandle(const py::dict& d) : evaluator_(forward_of(d)) {}

    py::tuple evaluate_records(const Array<std::uint8_t>& records, bool every_stack, int threads,
                               const std::string& isa) const {
        const std::span<const Record> all = record_span(records, "evaluate");
        return run(all.size(), every_stack, threads, isa, [&](const Evaluations& out, const EvaluateOptions& options) {
            evaluator_.evaluate(all, out, options);
        });
    }

    py::tuple evaluate_rows(const Array<std::int32_t>& white, const Array<std::int32_t>& black,
                            const Array<std::uint8_t>& black_to_move, const Array<std::uint8_t>& piece_count,
                            const Array<std::uint8_t>& material, bool every_stack, int threads,
                            const std::string& isa) const {
        const py::ssize_t n = piece_count.size();
        if (white.ndim() != 2 || black.ndim() != 2 || white.shape(0) != n || black.shape(0) != n ||
            white.shape(1) != black.shape(1) || black_to_move.size() != n || material.size() != n) {
            throw FormatError("evaluate: the rows of a batch have different sizes");
        }
        const IndexRows rows{white.data(),
                             black.data(),
                             black_to_move.data(),
                             piece_count.data(),
                             material.data(),
                             static_cast<std::size_t>(n),
                             static_cast<std::size_t>(white.shape(1))};
        return run(rows.n, every_stack, threads, isa, [&](const Evaluations& out, const EvaluateOptions& options) {
            evaluator_.evaluate(rows, out, options);
        });
    }

    Array<std::uint8_t> first_active(const Array<std::uint8_t>& records, int threads, const std::string& isa) const {
        const std::span<const Record> all = record_span(records, "evaluate");
        const EvaluateOptions options = options_of(threads, isa);
        Array<std::uint8_t> out({all.size(), evaluator_.columns()});
        std::uint8_t* const to = out.mutable_data();
        {
            py::gil_scoped_release release;
            evaluator_.first_active(all, to, options);
        }
        return out;
    }

  private:
    static EvaluateOptions options_of(int threads, const std::string& isa) {
        EvaluateOptions options;
        options.threads = threads;
        options.poll = [] {
            py::gil_scoped_acquire acquire;
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        };
        if (!isa.empty()) {
            for (const Kernels* kernels : all_kernels()) {
                if (isa == kernels->isa) options.kernels = kernels;
            }
            if (!options.kernels) throw FormatError("this CPU cannot run instruction set '" + isa + "'");
        }
        return options;
    }

    template <class Body>
    py::tuple run(std::size_t n, bool every_stack, int threads, const std::string& isa, Body&& body) const {
        const EvaluateOptions options = options_of(threads, isa);
        const std::size_t columns = every_stack ? static_cast<std::size_t>(evaluator_.num_stacks()) : 1;
        Array<std::int64_t> stack(n), score(n), psqt({n, columns}), positional({n, columns});
        const Evaluations out{stack.mutable_data(), psqt.mutable_data(), positional.mutable_data(),
                              score.mutable_data(), every_stack};
        {
            py::gil_scoped_release release;
            body(out, options);
        }
        return py::make_tuple(stack, psqt, positional, score);
    }

    // Integers as they lie in the caller's array; the array is kept.
    IntegerTensor tensor(const py::handle& item) {
        const auto [name, object] = item.cast<std::pair<std::string, py::array>>();
        const py::buffer_info info = object.request();
        const bool is_float = object.dtype().kind() == 'f' && info.itemsize == 4;
        if ((object.dtype().kind() != 'i' && !is_float) || info.itemsize > 4 ||
            !(object.flags() & py::array::c_style) || object.dtype().byteorder() == '>' || info.ndim < 1) {
            throw FormatError(name + ": expected a contiguous array of integers of 8, 16 or 32 bits, or fp32");
        }
        arrays_.push_back(object);
        const auto columns = static_cast<std::size_t>(info.shape.back());
        const std::size_t rows = columns == 0 ? 0 : static_cast<std::size_t>(info.size) / columns;
        return {name, info.ptr, static_cast<int>(info.itemsize), rows, columns, is_float};
    }

    std::vector<IntegerTensor> tensors(const py::handle& list) {
        std::vector<IntegerTensor> all;
        for (const py::handle& item : list) all.push_back(tensor(item));
        return all;
    }

    template <class Choice>
    static Choice choose(const py::handle& word, const std::map<std::string, Choice>& choices) {
        const auto found = choices.find(word.cast<std::string>());
        if (found == choices.end()) throw FormatError("unknown word '" + word.cast<std::string>() + "'");
        return found->second;
    }

    Forward forward_of(const py::dict& d) {
        Forward forward;
        forward.feature_set = d["feature_set"].cast<std::string>();
        const py::dict first = d["first"];
        forward.first.bias = tensor(first["bias"]);
        forward.first.weights = tensors(first["weights"]);
        forward.first.psqt = tensors(first["psqt"]);
        forward.first.activation =
            choose<FirstActivation>(first["activation"], {{"crelu", FirstActivation::kCrelu},
                                                          {"screlu", FirstActivation::kScrelu},
                                                          {"pairwise", FirstActivation::kPairwise}});
        forward.first.clip = first["clip"].cast<int>();
        forward.first.product_shift = first["product_shift"].cast<int>();
        forward.first.accumulator_shift = first["accumulator_shift"].cast<int>();
        forward.first.sides =
            choose<Sides>(first["sides"], {{"both", Sides::kBoth}, {"mover", Sides::kMover}, {"white", Sides::kWhite}});
        for (const py::handle& item : d["layers"]) {
            const auto l = item.cast<py::dict>();
            ForwardLayer layer;
            layer.weight = tensor(l["weight"]);
            layer.bias = tensor(l["bias"]);
            layer.outputs = l["outputs"].cast<int>();
            layer.inputs = l["inputs"].cast<std::vector<int>>();
            layer.divide = l["divide"].cast<std::int64_t>();
            layer.activated = l["activated"].cast<int>();
            layer.activation = choose<LayerActivation>(l["activation"], {{"crelu", LayerActivation::kCrelu},
                                                                         {"screlu", LayerActivation::kScrelu},
                                                                         {"dual", LayerActivation::kDual},
                                                                         {"none", LayerActivation::kNone}});
            layer.shift = l["shift"].cast<int>();
            layer.square_shift = l["square_shift"].cast<int>();
            layer.clip = l["clip"].cast<int>();
            layer.is_float = !l["factor"].is_none();
            if (layer.is_float) layer.factor = l["factor"].cast<double>();
            forward.layers.push_back(std::move(layer));
        }
        for (const py::handle& item : d["skips"]) {
            const auto s = item.cast<py::dict>();
            forward.skips.push_back(
                {s["layer"].cast<int>(), s["plus"].cast<int>(), s["minus"].is_none() ? -1 : s["minus"].cast<int>(),
                 s["multiply"].cast<std::int64_t>(), s["divide"].cast<std::int64_t>(), s["wraps"].cast<bool>()});
        }
        forward.num_stacks = d["num_stacks"].cast<int>();
        forward.stacks = d["stacks"].cast<std::vector<int>>();
        forward.feature_weights = d["feature_weights"].cast<std::vector<std::int32_t>>();
        forward.multiply = d["multiply"].cast<std::int64_t>();
        forward.divide = d["divide"].cast<std::int64_t>();
        forward.score_multiply = d["score_multiply"].cast<std::int64_t>();
        forward.score_divide = d["score_divide"].cast<std::int64_t>();
        forward.score_apart = d["score_apart"].cast<bool>();
        forward.wdl = choose<bool>(d["head"], {{"value", false}, {"wdl", true}});
        return forward;
    }

    std::vector<py::array> arrays_;
    Evaluator evaluator_;
};

}  // namespace

void bind_evaluate(py::module_& m) {
    m.def("isas", [] {
        py::list names;
        for (const Kernels* kernels : all_kernels()) names.append(kernels->isa);
        return names;
    });
    py::class_<EvaluatorHandle>(m, "Evaluator")
        .def(py::init<const py::dict&>(), py::arg("description"))
        .def("evaluate_records", &EvaluatorHandle::evaluate_records, py::arg("records"), py::arg("every_stack"),
             py::arg("threads"), py::arg("isa") = "")
        .def("evaluate_rows", &EvaluatorHandle::evaluate_rows, py::arg("white"), py::arg("black"),
             py::arg("black_to_move"), py::arg("piece_count"), py::arg("material"), py::arg("every_stack"),
             py::arg("threads"), py::arg("isa") = "")
        .def("first_active", &EvaluatorHandle::first_active, py::arg("records"), py::arg("threads"),
             py::arg("isa") = "");

    // In place, so an array of another type or layout is no input.
    m.def(
        "set_scores",
        [](Array<std::uint8_t>& records, const Array<std::int64_t>& scores) {
            const std::span<const Record> all = record_span(records, "set_scores");
            if (!records.writeable()) throw FormatError("set_scores: the records are read-only");
            if (static_cast<std::size_t>(scores.size()) != all.size()) throw FormatError("set_scores: sizes differ");
            auto* out = reinterpret_cast<Record*>(records.mutable_data());
            // Beyond lies the number that stands for "no score".
            constexpr std::int64_t kMost = kScoreNone - 1;
            std::uint64_t cut = 0;
            for (std::size_t i = 0; i < all.size(); ++i) {
                const std::int64_t kept = std::clamp(scores.data()[i], -kMost, kMost);
                cut += kept != scores.data()[i];
                set_record_score(out[i], static_cast<int>(kept));
            }
            return cut;
        },
        py::arg("records").noconvert(), py::arg("scores"));
}
