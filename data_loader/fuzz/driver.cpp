// Runs a fuzz target without libFuzzer: reads the corpus, then tries mutations of it.
//
//   fuzz_X CORPUS_FOLDER [runs] [seed]
//
// Blind to coverage, so it leans on a good corpus; the input under test is written to ./crash-input before each run
// only when NNUE_FUZZ_KEEP is set, as the seed and the number of the run already name it.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes mutate(const std::vector<Bytes>& corpus, std::mt19937_64& random) {
    Bytes input = corpus[random() % corpus.size()];
    for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
        const std::size_t at = input.empty() ? 0 : random() % input.size();
        switch (random() % 7) {
            case 0:  // a bit
                if (!input.empty()) input[at] ^= static_cast<std::uint8_t>(1 << random() % 8);
                break;
            case 1:  // a byte
                if (!input.empty()) input[at] = static_cast<std::uint8_t>(random());
                break;
            case 2:  // an extreme byte
                if (!input.empty()) input[at] = random() % 2 ? 0xff : 0;
                break;
            case 3:  // the end off
                input.resize(at);
                break;
            case 4:  // a piece out
                if (!input.empty()) {
                    const std::size_t n = std::min<std::size_t>(input.size() - at, 1 + random() % 40);
                    input.erase(input.begin() + static_cast<std::ptrdiff_t>(at),
                                input.begin() + static_cast<std::ptrdiff_t>(at + n));
                }
                break;
            case 5: {  // a piece doubled
                if (input.empty() || input.size() > 4096) break;
                const Bytes piece(
                    input.begin() + static_cast<std::ptrdiff_t>(at),
                    input.begin() + static_cast<std::ptrdiff_t>(std::min(input.size(), at + 1 + random() % 40)));
                input.insert(input.begin() + static_cast<std::ptrdiff_t>(random() % input.size()), piece.begin(),
                             piece.end());
                break;
            }
            default: {  // the end of another
                const Bytes& other = corpus[random() % corpus.size()];
                input.resize(at);
                if (!other.empty())
                    input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(random() % other.size()),
                                 other.end());
            }
        }
    }
    return input;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s CORPUS_FOLDER [runs] [seed]\n", argv[0]);
        return 2;
    }
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    std::vector<Bytes> corpus;
    for (const auto& path : paths) {
        std::ifstream in(path, std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
        LLVMFuzzerTestOneInput(corpus.back().data(), corpus.back().size());
    }
    if (corpus.empty()) {
        std::fprintf(stderr, "%s: no corpus\n", argv[1]);
        return 2;
    }
    const std::uint64_t runs = argc > 2 ? std::stoull(argv[2]) : 100000, seed = argc > 3 ? std::stoull(argv[3]) : 0;
    const bool keep = std::getenv("NNUE_FUZZ_KEEP") != nullptr;
    const auto start = std::chrono::steady_clock::now();
    for (std::uint64_t run = 0; run < runs; ++run) {
        std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ULL + run);
        const Bytes input = mutate(corpus, random);
        if (keep)
            std::ofstream("crash-input", std::ios::binary)
                .write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
        LLVMFuzzerTestOneInput(input.data(), input.size());
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%s: %zu files, %llu mutations of seed %llu in %.0f s: nothing found\n", argv[0], corpus.size(),
                static_cast<unsigned long long>(runs), static_cast<unsigned long long>(seed), seconds);
    return 0;
}
