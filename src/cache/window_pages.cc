#include "cache/window_pages.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace espalier {

WindowPages::WindowPages(int32_t num_full_pages, int32_t num_pages, int32_t window_tokens,
                         int32_t page_size)
    : window_tokens_(window_tokens),
      page_size_(page_size),
      pool_(num_pages),
      slots_(static_cast<size_t>(num_full_pages)) {}

int32_t WindowPages::first_needed(int32_t position) const {
  return std::max(0, position - window_tokens_ + 1) / page_size_;
}

int32_t WindowPages::max_resident(int32_t num_pages) const {
  return std::min(num_pages, (window_tokens_ + page_size_ - 1) / page_size_ + 3);
}

// From the end: a page that is gone rules out every end whose window holds it, down to its own
// beginning.
int32_t WindowPages::usable(std::span<const PageId> full) const {
  auto end = static_cast<int32_t>(full.size());
  for (int32_t i = end - 1; i >= first_needed(end * page_size_); --i)
    if (!has(full[static_cast<size_t>(i)])) end = i;
  return end;
}

void WindowPages::take(PageId full) {
  Slot& slot = at(full);
  ESP_CHECK(slot.page == kNone, "page {} has a window page already", full);
  if (pool_.num_free() == 0) {
    ESP_CHECK(first_idle_ != kNone, "no window page is left");
    const PageId evicted = first_idle_;
    unlink(evicted);
    give_back(at(evicted));
    ++version_;
  }
  taken_.clear();
  ESP_CHECK(pool_.allocate(1, taken_));
  slot.page = taken_[0];
  slot.num_users = 1;
}

void WindowPages::add_user(PageId full) {
  ESP_CHECK(has(full), "page {} has no window page", full);
  if (at(full).num_users++ == 0) unlink(full);
}

void WindowPages::drop_user(PageId full, bool cached) {
  Slot& slot = at(full);
  ESP_CHECK(slot.num_users > 0, "page {} is used by nobody", full);
  if (--slot.num_users > 0) return;
  if (cached) {
    link_last(full);
  } else {
    give_back(slot);
  }
}

void WindowPages::clear(PageId full) {
  Slot& slot = at(full);
  if (slot.page == kNone) return;
  if (slot.num_users == 0) unlink(full);
  slot.num_users = 0;
  give_back(slot);
}

void WindowPages::move(PageId from, PageId to) {
  ESP_CHECK(has(from) && !has(to) && at(from).num_users > 0);
  at(to).page = std::exchange(at(from).page, kNone);
  at(to).num_users = std::exchange(at(from).num_users, 0);
  ++version_;
}

void WindowPages::give_back(Slot& slot) {
  pool_.free({&slot.page, 1});
  slot.page = kNone;
}

void WindowPages::link_last(PageId full) {
  at(full).prev = last_idle_;
  at(full).next = kNone;
  (last_idle_ == kNone ? first_idle_ : at(last_idle_).next) = full;
  last_idle_ = full;
  ++num_idle_;
}

void WindowPages::unlink(PageId full) {
  const Slot& slot = at(full);
  (slot.prev == kNone ? first_idle_ : at(slot.prev).next) = slot.next;
  (slot.next == kNone ? last_idle_ : at(slot.next).prev) = slot.prev;
  --num_idle_;
}

void WindowPages::check_invariants(std::span<const PageId> uses) const {
  pool_.check_invariants();
  std::vector<int32_t> users(slots_.size(), 0);
  for (const PageId full : uses) ++users[static_cast<size_t>(full)];
  std::vector<uint8_t> seen(static_cast<size_t>(num_pages()), 0);
  int32_t num_allocated = 0, num_idle = 0;
  for (size_t full = 0; full < slots_.size(); ++full) {
    const Slot& slot = slots_[full];
    ESP_CHECK(slot.num_users == users[full], "window page of {}: {} users, {} known", full,
              slot.num_users, users[full]);
    if (slot.page == kNone) {
      ESP_CHECK(slot.num_users == 0);
      continue;
    }
    ESP_CHECK(!pool_.is_free(slot.page) && seen[static_cast<size_t>(slot.page)]++ == 0,
              "window page {} has two owners, or is free", slot.page);
    ++num_allocated;
    num_idle += slot.num_users == 0 ? 1 : 0;
  }
  ESP_CHECK(num_allocated + pool_.num_free() == num_pages(), "window pages are lost");
  ESP_CHECK(num_idle == num_idle_);
  PageId before = kNone;
  for (PageId full = first_idle_; full != kNone; full = at(full).next) {
    ESP_CHECK(at(full).prev == before && at(full).num_users == 0 && has(full));
    before = full;
    --num_idle;
  }
  ESP_CHECK(num_idle == 0 && before == last_idle_);
}

}  // namespace espalier
