// A separate folder for each test, and whole files as bytes.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/system.h"
#include "formats/binpack.h"

namespace nnue::data::testing {

class TemporaryDirectory : public ::testing::Test {
  protected:
    std::string path(const std::string& name) const { return (directory_ / name).string(); }

    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        directory_ = std::filesystem::temp_directory_path() /
                     ("nnue_" + std::string(info->name()) + "_" + std::to_string(system::process_id()));
        std::filesystem::create_directories(directory_);
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    std::filesystem::path directory_;
};

inline std::vector<char> bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::string& path, const std::vector<char>& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A new empty file, open for writing as long as this lives; writers take a separate descriptor of it.
class NewFile {
  public:
    explicit NewFile(const std::string& path) : file_(system::create(path)) { EXPECT_TRUE(file_) << path; }
    operator int() const { return file_.descriptor(); }

  private:
    system::File file_;
};

inline void write_binpack(const std::string& path, const std::vector<Record>& records, bool join = true) {
    BinpackWriter writer(path, NewFile(path));
    writer.join_chains = join;
    for (const Record& record : records) writer.add(record);
    writer.finish();
}

}  // namespace nnue::data::testing
