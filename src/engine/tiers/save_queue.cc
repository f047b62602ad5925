#include "engine/tiers/save_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/thread.h"

namespace espalier {

SaveQueue::SaveQueue(PageCopier& copier, std::vector<PageStore*> stores, int32_t num_device_pages)
    : copier_(copier),
      stores_(std::move(stores)),
      pages_(static_cast<size_t>(num_device_pages)),
      thread_([this] { run(); }) {}

SaveQueue::~SaveQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  added_.notify_all();
  thread_.join();
}

void SaveQueue::append(PageId page) {
  Page& p = at(page);
  p.state = State::kQueued;
  p.next = kNone;
  p.previous = std::exchange(last_, page);
  (p.previous == kNone ? first_ : at(p.previous).next) = page;
}

void SaveQueue::unlink(PageId page) {
  const Page& p = at(page);
  (p.previous == kNone ? first_ : at(p.previous).next) = p.next;
  (p.next == kNone ? last_ : at(p.next).previous) = p.previous;
}

void SaveQueue::add(std::span<const PageId> pages, const NameOf& name_of) {
  bool was_added = false;
  {
    const std::lock_guard lock(mutex_);
    for (const PageId page : pages) {
      if (at(page).state != State::kIdle) continue;
      at(page).name = name_of(page);
      append(page);
      was_added = true;
    }
  }
  if (was_added) added_.notify_one();
}

void SaveQueue::take_back(std::span<const PageId> pages) {
  std::unique_lock lock(mutex_);
  const auto is_being_read = [&](PageId page) { return at(page).state == State::kReading; };
  for (const PageId page : pages) {
    if (at(page).state == State::kQueued) unlink(page);
    if (!is_being_read(page)) at(page).state = State::kIdle;
  }
  ended_.wait(lock, [&] { return std::ranges::none_of(pages, is_being_read); });
  for (const PageId page : pages) at(page).state = State::kIdle;
}

size_t SaveQueue::save_now(std::span<const PageId> pages, std::span<const PageName> names) const {
  const auto fill = [&](size_t index, std::span<std::byte> to) {
    return copier_.read_page(pages[index], to).ok();
  };
  size_t num_saved = pages.size();
  for (PageStore* store : stores_) num_saved = std::min(num_saved, store->put(names, fill));
  return num_saved;
}

void SaveQueue::flush() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return first_ == kNone && !is_reading_; });
}

bool SaveQueue::is_saved(PageId page) const {
  const std::lock_guard lock(mutex_);
  return pages_[static_cast<size_t>(page)].state == State::kSaved;
}

// A page whose store has refused it is idle again, and tried when it is added once more.
void SaveQueue::run() {
  set_thread_name("save-pages");
  std::vector<PageId> pages;
  std::vector<PageName> names;
  pages.reserve(kBatch);
  names.reserve(kBatch);
  std::unique_lock lock(mutex_);
  while (true) {
    added_.wait(lock, [&] { return stopped_ || first_ != kNone; });
    if (first_ == kNone) return;
    pages.clear();
    names.clear();
    while (first_ != kNone && pages.size() < kBatch) {
      const PageId page = first_;
      unlink(page);
      at(page).state = State::kReading;
      pages.push_back(page);
      names.push_back(at(page).name);
    }
    is_reading_ = true;
    lock.unlock();
    const size_t num_saved = save_now(pages, names);
    lock.lock();
    for (size_t i = 0; i < pages.size(); ++i)
      at(pages[i]).state = i < num_saved ? State::kSaved : State::kIdle;
    is_reading_ = false;
    ended_.notify_all();
  }
}

void SaveQueue::check_invariants() const {
  const std::lock_guard lock(mutex_);
  size_t num_linked = 0;
  PageId previous = kNone;
  for (PageId page = first_; page != kNone; page = pages_[static_cast<size_t>(page)].next) {
    const Page& p = pages_[static_cast<size_t>(page)];
    ESP_CHECK(p.state == State::kQueued && p.previous == previous && !p.name.empty());
    previous = page;
    ESP_CHECK(++num_linked <= pages_.size(), "the queue is a circle");
  }
  ESP_CHECK(previous == last_);
  const auto num_queued =
      static_cast<size_t>(std::ranges::count(pages_, State::kQueued, &Page::state));
  ESP_CHECK(num_linked == num_queued, "{} pages queued, {} linked", num_queued, num_linked);
}

}  // namespace espalier
