#include "tiers/attached_page_store.h"

#include <mutex>
#include <utility>

#include "base/check.h"

namespace espalier {

std::unique_ptr<PageStore> AttachedPageStore::attach(std::unique_ptr<PageStore> store) {
  ESP_CHECK(store == nullptr || store->page_bytes() == page_bytes_,
            "a store with pages of another size");
  const std::lock_guard lock(mutex_);
  return std::exchange(store_, std::move(store));
}

bool AttachedPageStore::is_attached() const {
  const std::shared_lock lock(mutex_);
  return store_ != nullptr;
}

std::string AttachedPageStore::name() const {
  const std::shared_lock lock(mutex_);
  return store_ == nullptr ? "" : std::string(store_->kind());
}

void AttachedPageStore::get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) {
  {
    const std::shared_lock lock(mutex_);
    if (store_ != nullptr) return store_->get(names, std::move(sink));
  }
  for (size_t i = 0; i < names.size(); ++i) sink->on_page(i, {});
  sink->on_done();
}

// Without a store nothing is refused, so that nothing is tried again.
size_t AttachedPageStore::put(std::span<const PageName> names, const FillPage& fill) {
  const std::shared_lock lock(mutex_);
  return store_ == nullptr ? names.size() : store_->put(names, fill);
}

size_t AttachedPageStore::num_leading(std::span<const PageName> names) const {
  const std::shared_lock lock(mutex_);
  return store_ == nullptr ? 0 : store_->num_leading(names);
}

void AttachedPageStore::look_up(std::span<const PageName> names, std::function<void()> done) {
  {
    const std::shared_lock lock(mutex_);
    if (store_ != nullptr) return store_->look_up(names, std::move(done));
  }
  done();
}

bool AttachedPageStore::needs_look_up() const {
  const std::shared_lock lock(mutex_);
  return store_ != nullptr && store_->needs_look_up();
}

void AttachedPageStore::erase(std::span<const PageName> names) {
  const std::shared_lock lock(mutex_);
  if (store_ != nullptr) store_->erase(names);
}

void AttachedPageStore::clear() {
  const std::shared_lock lock(mutex_);
  if (store_ != nullptr) store_->clear();
}

void AttachedPageStore::flush() {
  const std::shared_lock lock(mutex_);
  if (store_ != nullptr) store_->flush();
}

std::string AttachedPageStore::problem() const {
  const std::shared_lock lock(mutex_);
  return store_ == nullptr ? "" : store_->problem();
}

PageStoreStats AttachedPageStore::stats() const {
  const std::shared_lock lock(mutex_);
  return store_ == nullptr ? PageStoreStats() : store_->stats();
}

}  // namespace espalier
