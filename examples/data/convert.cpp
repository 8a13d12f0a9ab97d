// Converts positions between data formats and drops those that training usually drops. It needs only nnue::data.
//
//     convert games.binpack games.bin            keeps quiet positions with a score
#include <nnue/data.h>

#include <iostream>
#include <vector>

int main(int argc, char** argv) {
    namespace data = nnue::data;
    if (argc != 3) {
        std::cerr << "usage: convert INPUT OUTPUT   (the suffix of OUTPUT names its format)\n";
        return 2;
    }
    try {
        data::FilterOptions filters;
        filters.set("no_score", 1);
        filters.set("quiet", 1);
        data::FilterCounts counts;
        const auto reader = data::open_reader(argv[1]);
        data::FileWriter writer(argv[2]);
        std::vector<data::Record> records(1 << 16);
        std::vector<std::uint8_t> flags(records.size());
        for (std::uint64_t block = 0; const std::size_t n = reader->read(records); ++block) {
            const std::span read(records.data(), n);
            data::compute_flags(read, flags.data());
            const std::size_t kept = data::filter_records(filters, block, read, flags.data(), counts);
            writer.write(read.first(kept));
        }
        writer.finish();
        std::cout << writer.positions() << " of " << counts.read << " positions written to " << argv[2] << " ("
                  << writer.format().name << ")\n";
        for (const data::LossRow& row : data::loss_rows()) {
            if (writer.losses().*row.count)
                std::cout << writer.losses().*row.count << " positions: " << row.words << "\n";
        }
    } catch (const data::FormatError& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
