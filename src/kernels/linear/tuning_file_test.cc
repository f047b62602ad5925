#include "kernels/linear/tuning_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace espalier::kernels {
namespace {

namespace fs = std::filesystem;
using Entries = TuningFile::Entries;

class TuningFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              fmt::format("espalier_tuning_{}_{}", ::getpid(),
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  TuningFile file(const std::string& system = "H200, driver 13.0") const {
    return {folder_ / "deep", "linear.txt", system};
  }
  std::string text() const {
    std::ifstream in(file().path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void set_text(const std::string& text) const {
    std::ofstream(file().path(), std::ios::binary) << text;
  }

  fs::path folder_;
};

TEST_F(TuningFileTest, WhatWasAddedIsRead) {
  EXPECT_TRUE(file().read().empty());
  const Entries first{{"1 2 3", "own"}, {"1 2 4", "00ff"}};
  EXPECT_EQ(file().add(first), first);
  EXPECT_EQ(file().read(), first);
  const Entries more{{"1 2 4", "1111"}, {"5", ""}};  // what is there stays
  const Entries all{{"1 2 3", "own"}, {"1 2 4", "00ff"}, {"5", ""}};
  EXPECT_EQ(file().add(more), all);
  EXPECT_EQ(file().read(), all);
}

TEST_F(TuningFileTest, WithoutAFolderNothingIsKept) {
  const TuningFile none({}, "linear.txt", "H200");
  const Entries some{{"a", "b"}};
  EXPECT_EQ(none.add(some), some);
  EXPECT_TRUE(none.read().empty());
}

TEST_F(TuningFileTest, AnotherSystemsFileIsWrittenAnew) {
  const Entries theirs{{"a", "theirs"}}, ours{{"a", "ours"}};
  file("A100").add(theirs);
  EXPECT_TRUE(file().read().empty());
  EXPECT_EQ(file().add(ours), ours);
  EXPECT_EQ(file().read(), ours);
}

// A file cut off anywhere, with any byte changed, or of something else is none.
TEST_F(TuningFileTest, ATornFileIsIgnoredAndReplaced) {
  const Entries entries{{"a b", "0123"}, {"c", "4567"}};
  file().add(entries);
  const std::string whole = text();
  for (size_t size = 0; size < whole.size(); ++size) {
    set_text(whole.substr(0, size));
    ASSERT_TRUE(file().read().empty()) << size;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    set_text(damaged);
    ASSERT_TRUE(file().read().empty()) << at;
  }
  set_text("1 0 4096 4096 0 0 8 own\n");
  EXPECT_TRUE(file().read().empty());
  EXPECT_EQ(file().add(entries), entries);
  EXPECT_EQ(text(), whole);
}

TEST_F(TuningFileTest, AFolderThatCannotBeWrittenCostsNothingElse) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "deep") << "a file where the folder would be";
  const Entries some{{"a", "b"}};
  EXPECT_EQ(file().add(some), some);
  EXPECT_TRUE(file().read().empty());
}

// Processes that tune at once: nothing is lost, the file is whole whenever it is read, and all of
// them end with the same entries.
TEST_F(TuningFileTest, ProcessesAtOnceComeToTheSameEntries) {
  constexpr int kProcesses = 6, kRounds = 20;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = ::fork();
    if (child == 0) {
      Entries mine;
      for (int round = 0; round < kRounds; ++round) {
        const Entries got = file().add({{fmt::format("shared {}", round), fmt::format("by {}", p)},
                                        {fmt::format("own {} {}", p, round), "x"}});
        for (const auto& [key, value] : mine)
          if (!got.contains(key) || got.at(key) != value) ::_exit(1);  // changed or lost
        mine = got;
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "a kernel changed";
  }
  EXPECT_EQ(file().read().size(), static_cast<size_t>(kRounds + kProcesses * kRounds));
  size_t others = 0;  // nothing half-written is left
  for (const auto& entry : fs::directory_iterator(folder_ / "deep"))
    others += entry.path().extension() == ".part" ? 1 : 0;
  EXPECT_EQ(others, 0u);
}

}  // namespace
}  // namespace espalier::kernels
