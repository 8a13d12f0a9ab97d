// base/system.h: files at offsets, files that go when they are closed, and what failing calls report.
#include "base/system.h"

#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "temporary_directory.h"

namespace nnue::data {
namespace {

using System = testing::TemporaryDirectory;

std::vector<std::uint8_t> bytes(std::string_view text) {
    return {text.begin(), text.end()};
}

TEST_F(System, ReadsAtAnOffsetUpToTheEnd) {
    testing::write_bytes(path("a"), {'a', 'b', 'c', 'd'});
    const system::File file = system::open_to_read(path("a"));
    ASSERT_TRUE(file);
    EXPECT_EQ(system::status_of_regular(file)->size, 4u);
    std::vector<std::uint8_t> out(3);
    const auto [read, error] = system::read_at(file, 2, out);
    EXPECT_EQ(read, 2u);
    EXPECT_EQ(error, 0);
    EXPECT_EQ(out, bytes(std::string_view("cd\0", 3)));
}

TEST_F(System, ReportsWhyACallFailed) {
    EXPECT_FALSE(system::open_to_read(path("missing")));
    EXPECT_EQ(errno, ENOENT);
    const system::File reader = system::open_to_read(path("."));
    EXPECT_FALSE(system::status_of_regular(reader));
    EXPECT_EQ(system::write_at(reader, 0, bytes("a")).error, EBADF);
    EXPECT_FALSE(system::create_nameless(path("missing")));
    std::string why;
    EXPECT_EQ(system::symbol_of_library(path("missing.so"), "symbol", why), nullptr);
    EXPECT_NE(why.find("missing.so"), std::string::npos) << why;
}

TEST_F(System, NamelessFilesLeaveNothing) {
    system::File file = system::create_nameless(path("."));
    ASSERT_TRUE(file);
    EXPECT_EQ(system::write_at(file, 3, bytes("xyz")).bytes, 3u);
    EXPECT_TRUE(system::resize(file, 5));
    EXPECT_EQ(system::status_of_regular(file)->size, 5u);
    EXPECT_TRUE(std::filesystem::is_empty(path(".")));
    const system::File moved = std::move(file);
    EXPECT_EQ(system::status_of_regular(moved)->size, 5u);
}

TEST_F(System, NewFilesBesideHaveThePermissionsOfNewFiles) {
    std::string made;
    const system::File beside = system::create_beside(path("a"), made);
    ASSERT_TRUE(beside);
    EXPECT_TRUE(made.starts_with(path("a"))) << made;
    const system::File usual = system::create(path("b"));
    EXPECT_EQ(std::filesystem::status(made).permissions(), std::filesystem::status(path("b")).permissions());
    std::string other;
    ASSERT_TRUE(system::create_beside(path("a"), other));
    EXPECT_NE(made, other);
    EXPECT_FALSE(system::create_beside(path("no/folder/a"), other));
    EXPECT_EQ(errno, ENOENT);
}

TEST_F(System, FilesOfOtherThreadsKeepTheirPermissionsMeanwhile) {
    const mode_t before = ::umask(077);
    std::atomic<bool> done = false;
    std::thread other([&] {
        std::string made;
        while (!done) {
            if (system::create_beside(path("a"), made)) std::filesystem::remove(made);
        }
    });
    int open_to_others = 0;
    for (int i = 0; i < 5000; ++i) {
        (void)system::create(path("b"));
        const auto permissions = std::filesystem::status(path("b")).permissions();
        open_to_others += (permissions & std::filesystem::perms(077)) != std::filesystem::perms::none;
        std::filesystem::remove(path("b"));
    }
    done = true;
    other.join();
    ::umask(before);
    EXPECT_EQ(open_to_others, 0);
}

}  // namespace
}  // namespace nnue::data
