// A place for a store that can be changed while others use it: without one, pages are absent and
// dropped. Calls are passed on; the store that is taken out is used by nothing any more.
//
// Thread-safe.
#pragma once

#include <memory>
#include <shared_mutex>
#include <string>

#include "tiers/page_store.h"

namespace espalier {

class AttachedPageStore final : public PageStore {
 public:
  explicit AttachedPageStore(int64_t page_bytes) : page_bytes_(page_bytes) {}

  // REQUIRES pages of the same size; null: none from now on. Waits for calls in progress, and
  // returns what was there; its transfers may still run.
  std::unique_ptr<PageStore> attach(std::unique_ptr<PageStore> store);
  bool is_attached() const;
  std::string name() const;  // of the store's kind; "" without one

  std::string_view kind() const override { return "attached"; }
  int64_t page_bytes() const override { return page_bytes_; }
  void get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) override;
  size_t put(std::span<const PageName> names, const FillPage& fill) override;
  size_t num_leading(std::span<const PageName> names) const override;
  void look_up(std::span<const PageName> names, std::function<void()> done) override;
  bool needs_look_up() const override;
  void erase(std::span<const PageName> names) override;
  void clear() override;
  void flush() override;
  PageStoreStats stats() const override;
  std::string problem() const override;

 private:
  const int64_t page_bytes_;
  mutable std::shared_mutex mutex_;  // held by calls, and alone to change the store
  std::unique_ptr<PageStore> store_;
};

}  // namespace espalier
