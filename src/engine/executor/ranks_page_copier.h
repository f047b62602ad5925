// Copies pages whose parts lie on several devices: as bytes one rank's part lies behind the
// other's. The ranks' transfers run at the same time. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/page_copier.h"

namespace espalier {

class RanksPageCopier final : public PageCopier {
 public:
  // By rank; borrowed. REQUIRES one or more.
  explicit RanksPageCopier(std::vector<PageCopier*> ranks);

  int64_t page_bytes() const override { return page_bytes_; }
  std::string device_name() const override { return ranks_.front()->device_name(); }
  Transfer begin_read(PageId page, std::span<std::byte> to) override;
  Transfer begin_write(PageId page, std::span<const std::byte> from) override;
  Status finish(Transfer transfer) override;

  // Memory is pinned for all devices at once.
  bool uses_pinned_memory() const override { return ranks_.front()->uses_pinned_memory(); }
  Status pin(std::span<std::byte> range) override { return ranks_.front()->pin(range); }
  void unpin(std::span<std::byte> range) override { ranks_.front()->unpin(range); }

 private:
  Transfer remember(std::vector<Transfer> parts);

  const std::vector<PageCopier*> ranks_;
  int64_t page_bytes_ = 0;
  std::mutex mutex_;
  uint64_t num_begun_ = 0;
  std::unordered_map<Transfer, std::vector<Transfer>> in_progress_;  // the ranks' transfers
};

}  // namespace espalier
