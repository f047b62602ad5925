// For tests: a device whose pages are some bytes, each page filled with one value.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "cache/page_copier.h"

namespace espalier {

class ByteDevice final : public PageCopier {
 public:
  ByteDevice(int32_t num_pages, int64_t page_bytes)
      : page_bytes_(page_bytes), bytes_(static_cast<size_t>(num_pages * page_bytes)) {}

  int64_t page_bytes() const override { return page_bytes_; }
  Transfer begin_read(PageId page, std::span<std::byte> to) override {
    std::memcpy(to.data(), at(page), to.size());
    return 0;
  }
  Transfer begin_write(PageId page, std::span<const std::byte> from) override {
    std::memcpy(at(page), from.data(), from.size());
    return 0;
  }
  Status finish(Transfer) override { return {}; }

  void set(PageId page, int value) {
    std::memset(at(page), value, static_cast<size_t>(page_bytes_));
  }
  int get(PageId page) { return static_cast<int>(at(page)[page_bytes_ - 1]); }

 private:
  std::byte* at(PageId page) { return bytes_.data() + page * page_bytes_; }
  const int64_t page_bytes_;
  std::vector<std::byte> bytes_;
};

}  // namespace espalier
