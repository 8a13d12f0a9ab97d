// Speed of each hot loop on one thread: decoding a binpack, expanding records, gathering them in random
// order.
//
//   data_bench FILE [feature set] [seconds per loop]
//
// Under callgrind, `--once` runs each loop over the file a single time, for instruction counts per position, and
// `--stream rows|filtered|records|undigested EPOCHS` takes epochs from a whole pipeline of one thread, whose work is
// all in Pipeline::work (benchmarks/loader_instructions.py). "undigested" are records whose content is not compared.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "filters/filters.h"
#include "formats/binpack.h"
#include "formats/movetext.h"
#include "pipeline/kernels.h"
#include "pipeline/pipeline.h"

using namespace nnue::data;

namespace {

void measure(const char* isa, const char* what, std::size_t positions, double seconds,
             const std::function<void()>& body) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    std::size_t runs = 0;
    double elapsed = 0;
    do {
        body();
        ++runs;
        elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    } while (elapsed < seconds);
    std::printf("%-10s %-22s %8.2f M positions/s\n", isa, what, static_cast<double>(runs * positions) / elapsed / 1e6);
}

FilterOptions production_filters() {
    FilterOptions options;
    for (const char* flag : {"no_score", "placeholder_zero", "quiet", "wdl", "piece_counts"}) options.set(flag, 1);
    options.set("soft_ply", 20);
    return options;
}

// Epochs of index rows without and with the filters of production runs, or of packed records. What is read ahead is the
// same for every number of epochs: a small window, and the end waits until there is nothing left to do.
void take_stream(const char* path, const FeatureSet& set, const std::string& stream, int epochs) {
    PipelineOptions options;
    options.files = {open_position_file(InputFile(path))};
    if (stream != "undigested") options.contents = {std::make_shared<Contents>(options.files[0]->num_chunks())};
    options.threads = 1;
    options.drop_last = false;
    options.window = 2 * options.batch_size;
    if (stream == "rows" || stream == "filtered") options.features = &set;
    if (stream == "filtered") options.filters = production_filters();
    const std::size_t n = options.batch_size;
    std::vector<std::int32_t> white(n * static_cast<std::size_t>(set.max_active)), black(white.size());
    std::vector<std::int16_t> entries(n), score(n);
    std::vector<std::int8_t> result(n);
    std::vector<std::uint8_t> side(n), count(n), material(n);
    std::vector<Record> records(n);
    Slot slot;
    slot.rows = {white.data(), black.data(),  entries.data(), side.data(),
                 score.data(), result.data(), count.data(),   material.data()};
    slot.records = records.data();
    Pipeline pipeline(options, {slot}, std::vector<StreamPosition>(1));
    std::size_t taken = 0;
    while (epochs > 0) {
        const std::optional<Output> output = pipeline.next(std::chrono::milliseconds(1000));
        if (!output) continue;
        epochs -= output->end_of_epoch;
        taken += output->size;
        if (!output->end_of_epoch) pipeline.release(output->slot);
    }
    for (std::uint64_t read = 0; read != pipeline.filter_counts().read;) {
        read = pipeline.filter_counts().read;
        std::this_thread::sleep_for(std::chrono::seconds(3));
    }
    std::printf("%s %zu positions taken\n", kernels().isa, taken);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s FILE [feature set] [seconds | --once | --stream STREAM EPOCHS]\n", argv[0]);
        return 2;
    }
    try {
        const FeatureSet& set = feature_set(argc > 2 ? argv[2] : "HalfKAv2_hm");
        if (argc > 5 && std::string(argv[3]) == "--stream") {
            take_stream(argv[1], set, argv[4], std::atoi(argv[5]));
            return 0;
        }
        const double seconds = argc > 3 && std::string(argv[3]) != "--once" ? std::atof(argv[3]) : argc > 3 ? 0 : 1;
        const InputFile file(argv[1]);
        std::vector<std::uint8_t> bytes(file.size() + kPayloadPadding);
        file.read(0, {bytes.data(), file.size()});
        const std::size_t size = BinpackFile(argv[1]).chunks().at(0).size;
        const std::uint8_t* payload = bytes.data() + 8;

        std::vector<Record> records(size);
        const DecodeResult all = kernels().decode_chains(payload, size, 0, records.data(), nullptr, records.size());
        const std::size_t n = all.positions;
        records.resize(n);
        std::vector<Record> copy(n);
        std::vector<std::uint8_t> flags(size);
        std::vector<std::int32_t> white(n * static_cast<std::size_t>(set.max_active)), black(white.size());
        std::vector<std::int16_t> entries(n), score(n);
        std::vector<std::int8_t> result(n);
        std::vector<std::uint8_t> side(n), count(n), material(n);
        const BatchRows rows{white.data(), black.data(),  entries.data(), side.data(),
                             score.data(), result.data(), count.data(),   material.data()};
        std::vector<std::uint32_t> order(n);
        std::printf("%s, first chunk: %zu positions, %zu chains, %s\n", argv[1], n, all.chains, set.name.c_str());
        {
            const FilterOptions production = production_filters();
            compute_flags(records, flags.data());
            FilterCounts counts;
            std::uint64_t key = 0;
            measure("", "copy and filter", n, seconds, [&] {
                std::copy(records.begin(), records.end(), copy.begin());
                filter_records(production, ++key, copy, flags.data(), counts);
            });
        }
        for (const Kernels* k : all_kernels()) {
            measure(k->isa, "decode", n, seconds,
                    [&] { k->decode_chains(payload, size, 0, copy.data(), nullptr, copy.size()); });
            measure(k->isa, "decode with flags", n, seconds,
                    [&] { k->decode_chains(payload, size, 0, copy.data(), flags.data(), copy.size()); });
            measure(k->isa, "digest of the file", n, seconds, [&] {
                DigestLanes lanes{};
                k->digest(lanes, payload, size / sizeof lanes);
                volatile std::uint64_t sink = lanes[0];
                static_cast<void>(sink);
            });
            measure(k->isa, "expand", n, seconds, [&] {
                constexpr std::size_t kBatch = 16384;  // as the pipeline does; the rows stay in the cache
                for (std::size_t i = 0; i < n; i += kBatch) {
                    k->expand(records.data() + i, nullptr, std::min(kBatch, n - i), set, rows);
                }
            });
            measure(k->isa, "permute", n, seconds,
                    [&] { k->permute(static_cast<std::uint32_t>(n), 1, 0, n, order.data()); });
            measure(k->isa, "gather", n, seconds, [&] { k->gather(records.data(), order.data(), n, copy.data()); });
        }
    } catch (const FormatError& error) {
        std::fprintf(stderr, "data_bench: %s\n", error.what());
        return 1;
    }
    return 0;
}
