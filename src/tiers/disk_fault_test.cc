// Damaged and foreign files: whatever the folder holds, a page that is found is right.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tiers/disk_page_store.h"
#include "tiers/test_pages.h"

namespace espalier {
namespace {

constexpr int64_t kFaultPageBytes = 300;
constexpr int64_t kFaultSlotBytes = 4096;
constexpr uint64_t kNumPages = 64;

DiskPageStoreConfig fault_config(const TestFolder& folder, std::string scope) {
  return {.folder = folder.path(),
          .scope = std::move(scope),
          .page_bytes = kFaultPageBytes,
          .size_bytes = 4096 + 256 * (kFaultSlotBytes + 24),
          .write_buffer_bytes = kNumPages * kFaultSlotBytes,
          .depth = 4};
}

std::vector<PageName> fault_names(uint64_t tenant) {
  std::vector<PageName> names;
  for (uint64_t i = 0; i < kNumPages; ++i) names.push_back(test_page_name(i, tenant));
  return names;
}

// A slot as it lies in the file, and its checked reading.
struct SlotBytes {
  explicit SlotBytes(const PageName& name, const ScopeDigest& scope) : bytes(kFaultSlotBytes) {
    const auto page = test_page(name, kFaultPageBytes);
    std::copy(page.begin(), page.end(), bytes.begin() + kSlotHeaderBytes);
    seal_slot(bytes, kFaultPageBytes, name, scope);
  }
  std::vector<std::byte> bytes;
};

// Every case is a slot that is not the page asked for: flipped bits, a torn write, a mixture of two
// pages, another model, layout or tenant. ESPALIER_FUZZ_SCALE multiplies the cases.
TEST(DiskFaults, NoWrongSlotIsEverTaken) {
  const ScopeDigest scope = digest_of_scope("model, layout");
  const char* const scale = std::getenv("ESPALIER_FUZZ_SCALE");
  const int64_t num_cases = 100'000 * (scale == nullptr ? 1 : std::atoll(scale));
  Rng rng(1);
  for (int64_t i = 0; i < num_cases; ++i) {
    const PageName name = test_page_name(rng.below(1000));
    SlotBytes slot(name, scope);
    ASSERT_TRUE(slot_holds(slot.bytes, kFaultPageBytes, name, scope));
    const int64_t end = kSlotHeaderBytes + kFaultPageBytes;
    switch (i % 5) {
      case 0:  // one to three bits
        for (uint64_t flips = 1 + rng.below(3), at = 0; flips > 0; --flips, at += 100)
          slot.bytes[at + rng.below(100)] ^= static_cast<std::byte>(1u << rng.below(8));
        break;
      case 1: {  // the rest is of the page that lay there before, or zeros
        const SlotBytes before(test_page_name(2000), scope);
        const auto cut = static_cast<std::ptrdiff_t>(rng.below(static_cast<uint64_t>(end)));
        if (rng.below(2) == 0) {
          std::copy(before.bytes.begin() + cut, before.bytes.end(), slot.bytes.begin() + cut);
        } else {
          std::fill(slot.bytes.begin() + cut, slot.bytes.end(), std::byte{0});
        }
        break;
      }
      case 2:  // the page of another name, or of the same number of another tenant
        slot = SlotBytes(rng.below(2) == 0 ? test_page_name(3000) : test_page_name(1, 9), scope);
        break;
      case 3:  // of another model or layout
        slot =
            SlotBytes(name, digest_of_scope(rng.below(2) == 0 ? "model 2, layout" : "model, f8"));
        break;
      default: {  // of another version, sealed as this one would
        SlotHeader header;
        std::memcpy(&header, slot.bytes.data(), sizeof(header));
        header.version = SlotHeader::kVersion + 1 + static_cast<uint32_t>(rng.below(5));
        std::memcpy(slot.bytes.data(), &header, sizeof(header));
      }
    }
    ASSERT_FALSE(slot_holds(slot.bytes, kFaultPageBytes, name, scope)) << "case " << i;
  }
}

void flip_bits(const std::filesystem::path& path, Rng& rng, int64_t begin, int count) {
  const int fd = open(path.c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  const auto size = static_cast<uint64_t>(std::filesystem::file_size(path) - begin);
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<off_t>(begin + static_cast<int64_t>(rng.below(size)));
    uint8_t byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= static_cast<uint8_t>(1u << rng.below(8));
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
  }
  close(fd);
}

TEST(DiskFaults, DamagedFilesLosePagesAndNothingElse) {
  const TestFolder folder;
  const DiskPageStoreConfig config = fault_config(folder, "model");
  const std::string base = folder.path() / scope_file_name(digest_of_scope("model"));
  Rng rng(5);
  size_t num_found = 0;
  for (int round = 0; round < 60; ++round) {
    auto store = DiskPageStore::open(config);
    ASSERT_TRUE(store.has_value()) << store.error().message();
    put_pages(**store, fault_names(0));
    (*store)->flush();
    flip_bits(base + ".pages", rng, 0, 300);
    flip_bits(base + ".index", rng, 4096, 20);
    num_found += count_right_pages(**store, fault_names(0));
    EXPECT_EQ(count_right_pages(**store, fault_names(1)), 0u) << "of another tenant";
    store->reset();
    switch (round % 4) {  // the header, the end or all of a file
      case 0:
        flip_bits(base + ".index", rng, 0, 2000);
        break;
      case 1:
        std::filesystem::resize_file(base + ".pages", rng.below(200) * 1000);
        break;
      case 2:
        std::filesystem::remove(base + (rng.below(2) == 0 ? ".pages" : ".index"));
        break;
      default:
        break;
    }
  }
  EXPECT_GT(num_found, 60u * kNumPages / 4);
}

TEST(DiskFaults, ForeignFilesUnderTheNameOfThisScopeAreNotUsed) {
  const TestFolder folder;
  {
    const auto store = DiskPageStore::open(fault_config(folder, "model A")).value();
    put_pages(*store, fault_names(0));
  }
  const std::string from = folder.path() / scope_file_name(digest_of_scope("model A"));
  const std::string to = folder.path() / scope_file_name(digest_of_scope("model B"));
  for (const char* end : {".pages", ".index"}) std::filesystem::copy_file(from + end, to + end);
  {
    const auto store = DiskPageStore::open(fault_config(folder, "model B")).value();
    EXPECT_EQ(count_right_pages(*store, fault_names(0)), 0u);
  }
  // The same with an index that claims to be B's: the slots decide.
  std::filesystem::copy_file(from + ".pages", to + ".pages",
                             std::filesystem::copy_options::overwrite_existing);
  const auto a = DiskPageStore::open(fault_config(folder, "model A")).value();
  const auto b = DiskPageStore::open(fault_config(folder, "model B")).value();
  EXPECT_EQ(count_right_pages(*a, fault_names(0)), kNumPages);
  for (const PageName& name : fault_names(0)) {
    EXPECT_TRUE(get_pages(*b, {name})[0].empty());
  }
}

}  // namespace
}  // namespace espalier
