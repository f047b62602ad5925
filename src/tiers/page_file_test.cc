#include "tiers/page_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tiers/test_pages.h"

namespace espalier {
namespace {

constexpr int64_t kFilePageBytes = 64;
constexpr std::string_view kFileScope = "model m\nlayout l\ncomputed by c\n";

class PageFileTest : public testing::Test {
 protected:
  // A folder of the process, for tests run beside each other.
  PageFileTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                ("page_file_test." + std::to_string(::getpid()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~PageFileTest() override { std::filesystem::remove_all(folder_); }

  void write(const std::vector<PageName>& names, std::string_view scope = kFileScope) const {
    auto writer = PageFileWriter::create(path(), scope, kFilePageBytes).value();
    for (const PageName& name : names)
      ASSERT_TRUE(writer->add(name, test_page(name, kFilePageBytes)).ok());
    ASSERT_TRUE(writer->finish().ok());
  }
  // The names of a whole file, whose bytes are checked.
  Result<std::vector<PageName>> read(std::string_view scope = kFileScope,
                                     int64_t page_bytes = kFilePageBytes) const {
    ESP_ASSIGN_OR_RETURN(auto reader, PageFileReader::open(path(), scope, page_bytes));
    std::vector<PageName> names;
    while (true) {
      ESP_ASSIGN_OR_RETURN(const auto page, reader->next());
      if (!page) return names;
      const std::vector<std::byte> bytes(page->bytes.begin(), page->bytes.end());
      EXPECT_EQ(bytes, test_page(page->name, page_bytes));
      names.push_back(page->name);
    }
  }
  std::string bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void set_bytes(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }
  std::filesystem::path path() const { return folder_ / "pages"; }

  const std::filesystem::path folder_;
};

TEST_F(PageFileTest, ReadsWhatWasWritten) {
  for (const uint64_t count : {0, 1, 50}) {
    write(test_page_names(0, count));
    EXPECT_EQ(read().value(), test_page_names(0, count));
  }
  struct stat info {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  auto reader = PageFileReader::open(path(), kFileScope, kFilePageBytes).value();
  const PageName first = reader->next().value()->name;
  ASSERT_TRUE(reader->next().value());
  ASSERT_TRUE(reader->rewind().ok());
  EXPECT_EQ(reader->next().value()->name, first);
}

TEST_F(PageFileTest, IsThereWhenItIsWhole) {
  write(test_page_names(0, 3));
  {
    const auto writer = PageFileWriter::create(path(), kFileScope, kFilePageBytes).value();
    ASSERT_TRUE(writer->add(test_page_name(9), test_page(test_page_name(9), kFilePageBytes)).ok());
    EXPECT_EQ(read().value().size(), 3u) << "what was there stays until the end";
  }
  EXPECT_EQ(read().value().size(), 3u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(PageFileTest, RefusesAnotherModelLayoutOrProcessor) {
  write(test_page_names(0, 3));
  for (const std::string_view scope :
       {"model other\nlayout l\ncomputed by c\n", "model m\nlayout other\ncomputed by c\n",
        "model m\nlayout l\ncomputed by other\n", "model m\nlayout l\n", ""}) {
    const Status status = read(scope).error();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    if (scope.find("other") != std::string::npos) {
      EXPECT_NE(status.message().find("other\""), std::string::npos) << status.message();
    }
  }
  EXPECT_EQ(read(kFileScope, kFilePageBytes / 2).error().code(), StatusCode::kDataLoss);
  std::filesystem::remove(path());
  EXPECT_EQ(read().error().code(), StatusCode::kNotFound);
  std::filesystem::create_directory(path());
  EXPECT_EQ(read().error().code(), StatusCode::kDataLoss);
}

// Every bit of a small file, cuts at every byte, and pages that are moved, doubled or of another
// file: none is read to its end.
TEST_F(PageFileTest, RefusesWhatIsDamaged) {
  write(test_page_names(0, 3));
  const std::string whole = bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] ^= static_cast<char>(1 << at % 8);
    set_bytes(changed);
    ASSERT_FALSE(read()) << "byte " << at;
    set_bytes(whole.substr(0, at));
    ASSERT_FALSE(read()) << "cut at " << at;
  }
  set_bytes(whole + "x");
  EXPECT_FALSE(read());
  const size_t slot = kSlotHeaderBytes + kFilePageBytes;
  const size_t first = whole.size() - 32 - 3 * slot;
  std::string moved = whole;
  std::swap_ranges(moved.begin() + static_cast<std::ptrdiff_t>(first),
                   moved.begin() + static_cast<std::ptrdiff_t>(first + slot),
                   moved.begin() + static_cast<std::ptrdiff_t>(first + slot));
  set_bytes(moved);
  EXPECT_FALSE(read());
  set_bytes(whole.substr(0, first + slot) + whole.substr(first));
  EXPECT_FALSE(read()) << "one page twice";
  set_bytes(whole.substr(0, first) + whole.substr(first + slot));
  EXPECT_FALSE(read()) << "one page less";
  write(test_page_names(0, 3), "model other\n");
  const std::string other = bytes();
  set_bytes(whole.substr(0, first) + other.substr(other.size() - 32 - 3 * slot));
  EXPECT_FALSE(read()) << "pages of another model";
  set_bytes(whole);
  EXPECT_TRUE(read());
}

TEST_F(PageFileTest, RandomDamageIsFound) {
  write(test_page_names(0, 20));
  const std::string whole = bytes();
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Rng rng(seed);
    std::string changed = whole;
    for (uint64_t flips = rng.between(1, 4); flips > 0; --flips)
      changed[rng.below(changed.size())] ^= static_cast<char>(rng.between(1, 255));
    if (rng.below(4) == 0) changed.resize(rng.below(changed.size()));
    if (changed == whole) continue;
    set_bytes(changed);
    ASSERT_FALSE(read()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace espalier
