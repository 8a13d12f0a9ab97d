// A folder of its own for each test, and whole files as bytes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "formats/binpack.h"

namespace nnue::data::testing {

class TemporaryDirectory : public ::testing::Test {
  protected:
    std::string path(const std::string& name) const { return (directory_ / name).string(); }

    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        directory_ = std::filesystem::temp_directory_path() /
                     ("nnue_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
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

// A new empty file, open for writing as long as this lives; writers take a descriptor of their own of it.
class NewFile {
  public:
    explicit NewFile(const std::string& path)
        : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
        EXPECT_GE(fd_, 0) << path;
    }
    ~NewFile() { ::close(fd_); }
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;
    operator int() const { return fd_; }

  private:
    int fd_;
};

inline void write_binpack(const std::string& path, const std::vector<Record>& records, bool join = true) {
    BinpackWriter writer(path, NewFile(path));
    writer.join_chains = join;
    for (const Record& record : records) writer.add(record);
    writer.finish();
}

}  // namespace nnue::data::testing
