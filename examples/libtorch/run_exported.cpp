// Runs a net that export.py has compiled with AOTInductor: prints the score of each FEN of the command line, in engine
// units from the side to move's view.
//
//     run_exported net.pt2 'rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1'
#include <nnue/data.h>
#include <nnue/operators.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <cstring>
#include <iostream>

int main(int argc, char** argv) {
    if (argc < 3) {
        std::cerr << "usage: run_exported NET.pt2 FEN...\n";
        return 2;
    }
    try {
        nnue::load_operators();  // the compiled net calls them
        torch::inductor::AOTIModelPackageLoader net(argv[1]);
        const std::string feature_set = net.get_metadata().at("feature_set");
        const at::Tensor records = at::empty({argc - 2, 32}, at::kByte);
        for (int i = 2; i < argc; ++i) {
            const nnue::data::Record record = nnue::data::record_from_fen(argv[i]);
            std::memcpy(records[i - 2].mutable_data_ptr(), record.bytes.data(), record.bytes.size());
        }
        const nnue::Expanded batch = nnue::expand_features(records, nnue::feature_set_handle(feature_set));
        const at::Tensor scores =
            net.run({batch.white, batch.black, batch.black_to_move, batch.piece_count, batch.material}).at(0);
        for (int i = 0; i < argc - 2; ++i) std::printf("%8.2f  %s\n", scores[i].item<double>(), argv[i + 2]);
    } catch (const c10::Error& error) {
        std::cerr << error.what_without_backtrace() << "\n";
        return 1;
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
