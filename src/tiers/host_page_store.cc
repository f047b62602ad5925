#include "tiers/host_page_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/thread.h"

namespace espalier {

void PageChanges::watch(PageWatch watch) {
  watch_ = std::move(watch);
  names_.reserve(kNamesMax);
}

void PageChanges::add(const PageName& name, bool stored) {
  if (watch_ == nullptr) return;
  if (stored != are_stored_ || names_.size() == kNamesMax) report();
  are_stored_ = stored;
  names_.push_back(name);
}

void PageChanges::report() {
  if (names_.empty()) return;
  watch_(names_, are_stored_);
  names_.clear();
}

Result<std::unique_ptr<HostPageStore>> HostPageStore::create(const HostPageStoreConfig& config) {
  ESP_CHECK(config.page_bytes > 0 && config.num_gets_max > 0);
  const int64_t num_slots = std::min<int64_t>(config.size_bytes / config.page_bytes,
                                              std::numeric_limits<int32_t>::max() / 2);
  if (num_slots < 1)
    return fail(
        invalid_argument("the host tier has {} bytes, but one page of keys and values takes {}: "
                         "raise --hicache-size",
                         config.size_bytes, config.page_bytes));
  const auto size = static_cast<size_t>(num_slots * config.page_bytes);
  void* const arena = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED)
    return fail(error(StatusCode::kResourceExhausted,
                      "cannot reserve {} bytes for the host tier ({}): lower --hicache-size", size,
                      std::strerror(errno)));
  return std::unique_ptr<HostPageStore>(
      new HostPageStore(config, static_cast<std::byte*>(arena), num_slots));
}

HostPageStore::HostPageStore(const HostPageStoreConfig& config, std::byte* arena, int64_t num_slots)
    : config_(config),
      arena_(arena),
      slots_(static_cast<size_t>(num_slots)),
      buckets_(std::bit_ceil(static_cast<size_t>(num_slots)), kNone),
      gets_(static_cast<size_t>(config.num_gets_max)) {
  for (int64_t slot = num_slots; slot-- > 0;) {
    slots_[static_cast<size_t>(slot)].next = free_;
    free_ = static_cast<int32_t>(slot);
  }
  stats_.num_pages_max = num_slots;
  thread_ = std::thread([this] { run(); });
}

HostPageStore::~HostPageStore() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
  munmap(arena_, arena().size());
}

std::span<std::byte> HostPageStore::arena() const {
  return {arena_, slots_.size() * static_cast<size_t>(config_.page_bytes)};
}

int64_t HostPageStore::part_bytes() const {
  return std::lcm(config_.page_bytes, static_cast<int64_t>(sysconf(_SC_PAGESIZE)));
}

std::byte* HostPageStore::bytes_of(int32_t slot) const {
  return arena_ + int64_t{slot} * config_.page_bytes;
}

// Names are digests, so any of their bits are a hash.
int32_t& HostPageStore::bucket_of(const PageName& name) {
  return buckets_[name.prefix64() & (buckets_.size() - 1)];
}

int32_t HostPageStore::find(const PageName& name) const {
  int32_t at = buckets_[name.prefix64() & (buckets_.size() - 1)];
  while (at != kNone && slots_[static_cast<size_t>(at)].name != name)
    at = slots_[static_cast<size_t>(at)].next;
  return at;
}

void HostPageStore::push_newest(int32_t slot) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  s.newer = kNone;
  s.older = newest_;
  (newest_ == kNone ? oldest_ : slots_[static_cast<size_t>(newest_)].newer) = slot;
  newest_ = slot;
}

void HostPageStore::unlink(int32_t slot) {
  const Slot& s = slots_[static_cast<size_t>(slot)];
  (s.newer == kNone ? newest_ : slots_[static_cast<size_t>(s.newer)].older) = s.older;
  (s.older == kNone ? oldest_ : slots_[static_cast<size_t>(s.older)].newer) = s.newer;
}

void HostPageStore::insert(int32_t slot) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  int32_t& bucket = bucket_of(s.name);
  s.next = std::exchange(bucket, slot);
  s.state = SlotState::kStored;
  push_newest(slot);
  ++stats_.num_pages;
  changes_.add(s.name, true);
}

void HostPageStore::remove(int32_t slot) {
  int32_t* at = &bucket_of(slots_[static_cast<size_t>(slot)].name);
  while (*at != slot) at = &slots_[static_cast<size_t>(*at)].next;
  *at = slots_[static_cast<size_t>(slot)].next;
  unlink(slot);
  --stats_.num_pages;
  changes_.add(slots_[static_cast<size_t>(slot)].name, false);
}

void HostPageStore::watch(PageWatch watch) {
  const std::lock_guard lock(mutex_);
  changes_.watch(std::move(watch));
}

void HostPageStore::release(int32_t slot) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  s.state = SlotState::kFree;
  s.next = std::exchange(free_, slot);
}

// A free slot, or that of the oldest page that is not being read.
int32_t HostPageStore::take_slot() {
  int32_t slot = free_;
  if (slot != kNone) {
    free_ = slots_[static_cast<size_t>(slot)].next;
  } else {
    slot = oldest_;
    while (slot != kNone && slots_[static_cast<size_t>(slot)].pins > 0)
      slot = slots_[static_cast<size_t>(slot)].newer;
    if (slot == kNone) return kNone;
    remove(slot);
    ++stats_.evicted;
  }
  slots_[static_cast<size_t>(slot)].state = SlotState::kFilling;
  return slot;
}

size_t HostPageStore::put(std::span<const PageName> names, const FillPage& fill) {
  std::unique_lock lock(mutex_);
  size_t count = 0;
  while (count < names.size() && put_one(names, count, fill, lock)) ++count;
  stats_.refused += static_cast<int64_t>(names.size() - count);
  changes_.report();
  return count;
}

// False where the page is refused. The bytes are written without the lock, in a slot that nothing
// else knows.
bool HostPageStore::put_one(std::span<const PageName> names, size_t index, const FillPage& fill,
                            std::unique_lock<std::mutex>& lock) {
  const PageName& name = names[index];
  ESP_CHECK(!name.empty(), "a page without a name");
  if (const int32_t present = find(name); present != kNone) {
    unlink(present);
    push_newest(present);
    return true;
  }
  const int32_t slot = take_slot();
  if (slot == kNone) return false;
  slots_[static_cast<size_t>(slot)].name = name;
  lock.unlock();
  const bool filled = fill(index, {bytes_of(slot), static_cast<size_t>(config_.page_bytes)});
  lock.lock();
  if (!filled || find(name) != kNone) {  // another thread may have been first
    release(slot);
    return filled;
  }
  insert(slot);
  ++stats_.stored;
  stats_.bytes_written += config_.page_bytes;
  return true;
}

size_t HostPageStore::num_leading(std::span<const PageName> names) const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  while (count < names.size() && find(names[count]) != kNone) ++count;
  return count;
}

void HostPageStore::erase(std::span<const PageName> names) {
  const std::lock_guard lock(mutex_);
  for (const PageName& name : names)
    if (const int32_t slot = find(name); slot != kNone) erase_slot(slot);
  changes_.report();
}

void HostPageStore::clear() {
  const std::lock_guard lock(mutex_);
  while (oldest_ != kNone) erase_slot(oldest_);
  changes_.report();
}

void HostPageStore::erase_slot(int32_t slot) {
  remove(slot);
  if (slots_[static_cast<size_t>(slot)].pins == 0) {
    release(slot);
  } else {
    slots_[static_cast<size_t>(slot)].state = SlotState::kErasedWhileRead;
  }
}

void HostPageStore::get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) {
  {
    std::unique_lock lock(mutex_);
    if (num_gets_ < gets_.size()) {
      Get& get = gets_[(first_get_ + num_gets_++) % gets_.size()];
      get.names.assign(names.begin(), names.end());
      get.sink = std::move(sink);
      lock.unlock();
      changed_.notify_one();
      return;
    }
    stats_.refused += static_cast<int64_t>(names.size());
  }
  for (size_t i = 0; i < names.size(); ++i) sink->on_page(i, {});
  sink->on_done();
}

void HostPageStore::run() {
  set_thread_name("host-tier");
  Get get;  // swapped with the ring's entry, so that both keep their capacity
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || num_gets_ > 0; });
      if (num_gets_ == 0) return;
      std::swap(get, gets_[first_get_]);
      first_get_ = (first_get_ + 1) % gets_.size();
      --num_gets_;
    }
    answer(get);
    get.sink = nullptr;
  }
}

// A slot keeps its bytes from on_page() to on_release(); the oldest shown page is released when as
// many are shown as may be.
void HostPageStore::answer(const Get& get) {
  std::array<Shown, kPagesShown> shown;
  size_t num_shown = 0, num_released = 0;
  const auto release_oldest = [&] {
    const Shown& oldest = shown[num_released++ % kPagesShown];
    get.sink->on_release(oldest.index);
    unpin(oldest.slot);
  };
  for (size_t i = 0; i < get.names.size(); ++i) {
    if (num_shown - num_released == kPagesShown) release_oldest();
    std::unique_lock lock(mutex_);
    const int32_t slot = stopped_ ? kNone : find(get.names[i]);
    if (slot == kNone) {
      ++stats_.absent;
      lock.unlock();
      get.sink->on_page(i, {});
      continue;
    }
    ++slots_[static_cast<size_t>(slot)].pins;
    unlink(slot);
    push_newest(slot);
    ++stats_.found;
    stats_.bytes_read += config_.page_bytes;
    lock.unlock();
    shown[num_shown++ % kPagesShown] = {i, slot};
    get.sink->on_page(i, {bytes_of(slot), static_cast<size_t>(config_.page_bytes)});
  }
  while (num_released < num_shown) release_oldest();
  get.sink->on_done();
}

void HostPageStore::unpin(int32_t slot) {
  const std::lock_guard lock(mutex_);
  Slot& s = slots_[static_cast<size_t>(slot)];
  if (--s.pins == 0 && s.state == SlotState::kErasedWhileRead) release(slot);
}

PageStoreStats HostPageStore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void HostPageStore::check_invariants() const {
  const std::lock_guard lock(mutex_);
  int64_t num_free = 0, num_stored = 0, num_listed = 0, num_chained = 0;
  for (int32_t at = free_; at != kNone; at = slots_[static_cast<size_t>(at)].next) {
    ESP_CHECK(slots_[static_cast<size_t>(at)].state == SlotState::kFree);
    ++num_free;
  }
  for (const Slot& slot : slots_) {
    if (slot.state == SlotState::kFree) --num_free;
    if (slot.state != SlotState::kStored) continue;
    ++num_stored;
    ESP_CHECK(&slots_[static_cast<size_t>(find(slot.name))] == &slot, "a page is not found");
  }
  for (int32_t at = oldest_; at != kNone; at = slots_[static_cast<size_t>(at)].newer) ++num_listed;
  for (int32_t at : buckets_)
    for (; at != kNone; at = slots_[static_cast<size_t>(at)].next) ++num_chained;
  ESP_CHECK(num_free == 0, "free slots are lost");
  ESP_CHECK(num_stored == stats_.num_pages && num_listed == num_stored && num_chained == num_stored,
            "{} pages stored, {} counted, {} listed, {} in the look-up", num_stored,
            stats_.num_pages, num_listed, num_chained);
}

}  // namespace espalier
