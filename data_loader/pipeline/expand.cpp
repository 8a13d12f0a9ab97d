#include "pipeline/expand.h"

#include <vector>

#include "chess/record.h"
#include "chess/texts.h"
#include "pipeline/parallel.h"

namespace nnue::data {
namespace {

std::string fen_of(const Record& record) {
    Entry entry;
    return unpack(record, entry) ? "a record that is not a position" : format_fen(entry.position);
}

}  // namespace

void expand_positions(const Record* records, const std::uint32_t* order, std::size_t n, const FeatureSet& set,
                      const BatchRows& rows, const Kernels& with) {
    with.expand(records, order, n, set, rows);
    if (set.appended.empty()) return;
    std::vector<Record> in_order(order ? n : 0);
    if (order) with.gather(records, order, n, in_order.data());
    const Record* read = order ? in_order.data() : records;
    try {
        set.append(read->bytes.data(), n, {rows.white, rows.black, rows.counts, set.max_active, 0});
    } catch (const BadFeatures& bad) {
        throw FormatError("feature set '" + set.name + "': " + bad.text + " in " +
                          fen_of(read[static_cast<std::size_t>(bad.position)]));
    }
}

void expand_records(std::span<const Record> records, const FeatureSet& set, const BatchRows& rows, int threads) {
    parallel_for(records.size(), threads, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) entry_from_record(records[i], i);
        expand_positions(&records[begin], nullptr, end - begin, set, rows.from(begin, set.max_active));
    });
}

}  // namespace nnue::data
