// base/system.h: files at offsets, files that go when they are closed, and what failing calls report.
#include "base/system.h"

#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
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

TEST_F(System, FindsTheQuotaOfAContainer) {
    namespace fs = std::filesystem;
    const double none = std::numeric_limits<double>::infinity();
    int number = 0;
    const auto quota = [&](const char* groups, std::vector<std::pair<std::string, const char*>> files) {
        const fs::path root = path(std::to_string(number++));
        files.insert(files.begin(), {"proc/self/cgroup", groups});
        for (const auto& [name, text] : files) {
            const fs::path file = root / (name[0] == 'p' ? name : "sys/fs/cgroup/" + name);
            fs::create_directories(file.parent_path());
            std::ofstream(file) << text << "\n";
        }
        return system::cpu_quota(root.string());
    };
    EXPECT_EQ(quota("0::/a/b", {{"a/b/cpu.max", "100000 100000"}, {"a/cpu.max", "max 100000"}}), 1.0);
    EXPECT_EQ(quota("0::/a/b", {{"a/b/cpu.max", "max 100000"}, {"a/cpu.max", "250000 100000"}}), 2.5);
    EXPECT_EQ(quota("0::/a", {{"a/cpu.max", "300000 100000"}, {"cpu.max", "50000 100000"}}), 0.5);
    EXPECT_EQ(quota("0::/docker/of/the/host", {{"cpu.max", "400000 100000"}}), 4.0);
    EXPECT_EQ(quota("3:memory:/m\n4:cpu,cpuacct:/c",
                    {{"cpu,cpuacct/c/cpu.cfs_quota_us", "300000"}, {"cpu,cpuacct/c/cpu.cfs_period_us", "100000"}}),
              3.0);
    EXPECT_EQ(quota("4:cpu:/c", {{"cpu/cpu.cfs_quota_us", "-1"}, {"cpu/cpu.cfs_period_us", "100000"}}), none);
    EXPECT_EQ(quota("0::/../x", {{"x/cpu.max", "200000 100000"}}), 2.0);
    EXPECT_EQ(quota("0::/", {{"cpu.max", "broken"}}), none);
    EXPECT_EQ(quota("0::/", {}), none);
    EXPECT_EQ(system::cpu_quota(path("without")), none);
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
