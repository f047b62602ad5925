#include "tiers/remote_page_store.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thread.h"

namespace espalier {
namespace {

// A page that was seen so long ago is asked for again.
constexpr Duration kFreshFor = std::chrono::seconds(10);
constexpr size_t kLookUpsMax = 1024;
// With more look-ups waiting, pages that are put are not asked for again.
constexpr size_t kLookUpsBusy = 8;
// Writes rest so long when the server has refused some.
constexpr Duration kWritePause = std::chrono::seconds(1);
// A store that was connected for so long starts with short pauses again.
constexpr Duration kSteadyFor = std::chrono::minutes(1);
// Erasing all pages of a scope asks for every key of the database.
constexpr Duration kClearTimeout = std::chrono::seconds(30);

TimePoint now() { return SteadyClock().now(); }

}  // namespace

// One get(). Threads take windows of it in turn.
struct RemotePageStore::Read {
  std::vector<PageName> names;
  std::shared_ptr<PageSink> sink;
  size_t next = 0;  // the first that no thread has taken; guarded by the store's mutex

  std::mutex mutex;  // of what follows, and of the sink's calls
  size_t num_left = 0;

  void answer_absent(size_t first, size_t last) {
    bool is_done = false;
    {
      const std::lock_guard lock(mutex);
      for (size_t i = first; i < last; ++i) sink->on_page(i, {});
      num_left -= last - first;
      is_done = last > first && num_left == 0;
    }
    if (is_done) sink->on_done();
  }
};

// Pages of a Read that one thread reads in one exchange. It shows the sink several at a time: a
// device copies one while the next one comes. The sink learns of absent pages in finish(), when the
// store has counted them: a reader that is done may look at the counts.
class RemotePageStore::Window final : public RemoteSession::Receiver {
 public:
  static constexpr size_t kShown = 4;

  // `buffers` has kShown slots.
  Window(Read& read, size_t first, size_t count, const ScopeDigest& scope,
         std::span<std::byte> buffers)
      : read_(read),
        first_(first),
        count_(count),
        scope_(scope),
        buffers_(buffers),
        slot_bytes_(buffers.size() / kShown) {}

  std::span<const PageName> names() const { return std::span(read_.names).subspan(first_, count_); }
  std::span<const PageName> found() const { return found_; }
  int64_t num_corrupt() const { return num_corrupt_; }

  size_t page_bytes() const override { return slot_bytes_; }
  std::span<std::byte> buffer() override {
    if (num_shown_ - num_released_ == kShown) release_oldest();
    return buffers_.subspan(num_shown_ % kShown * slot_bytes_, slot_bytes_);
  }
  void received(size_t index, Outcome outcome) override {
    ESP_CHECK(index == num_received_++);
    const PageName& name = names()[index];
    if (outcome == Outcome::kAbsent) return absent_.push_back(first_ + index);
    const std::span<std::byte> slot = buffer();
    const auto page_bytes = static_cast<int64_t>(slot_bytes_) - kSlotHeaderBytes;
    if (outcome != Outcome::kFound || !slot_holds(slot, page_bytes, name, scope_)) {
      ++num_corrupt_;
      return absent_.push_back(first_ + index);
    }
    found_.push_back(name);
    shown_[num_shown_++ % kShown] = first_ + index;
    const std::lock_guard lock(read_.mutex);
    read_.sink->on_page(first_ + index, slot.subspan(kSlotHeaderBytes));
  }
  // Releases what is shown, and answers as absent what is absent or was not received.
  void finish() {
    while (num_released_ < num_shown_) release_oldest();
    for (const size_t index : absent_) read_.answer_absent(index, index + 1);
    read_.answer_absent(first_ + num_received_, first_ + count_);
  }

 private:
  void release_oldest() {
    bool is_done = false;
    {
      const std::lock_guard lock(read_.mutex);
      read_.sink->on_release(shown_[num_released_++ % kShown]);
      is_done = --read_.num_left == 0;
    }
    if (is_done) read_.sink->on_done();
  }

  Read& read_;
  const size_t first_, count_;
  const ScopeDigest& scope_;
  const std::span<std::byte> buffers_;
  const size_t slot_bytes_;
  std::array<size_t, kShown> shown_{};
  size_t num_shown_ = 0, num_released_ = 0, num_received_ = 0;
  std::vector<PageName> found_;
  std::vector<size_t> absent_;  // of the read's pages
  int64_t num_corrupt_ = 0;
};

void RemotePageStore::Dropped::answer() const {
  for (const auto& [read, first] : reads) read->answer_absent(first, read->names.size());
  for (const LookUp& look_up : look_ups) look_up.done();
}

Result<std::unique_ptr<RemotePageStore>> RemotePageStore::open(const RemotePageStoreConfig& config,
                                                               const MakeSession& make_session) {
  ESP_CHECK(config.page_bytes > 0 && config.num_connections > 0 && config.pages_in_exchange > 0);
  std::vector<std::unique_ptr<RemoteSession>> sessions;
  for (int32_t i = 0; i <= config.num_connections; ++i) {
    ESP_ASSIGN_OR_RETURN(sessions.emplace_back(), make_session());
  }
  std::unique_ptr<RemotePageStore> store(new RemotePageStore(config, std::move(sessions)));
  store->start();
  return store;
}

RemotePageStore::RemotePageStore(const RemotePageStoreConfig& config,
                                 std::vector<std::unique_ptr<RemoteSession>> sessions)
    : config_(config),
      scope_(digest_of_scope(config.scope)),
      slot_bytes_(static_cast<size_t>(kSlotHeaderBytes + config.page_bytes)),
      sessions_(std::move(sessions)),
      exchange_pages_(std::clamp(static_cast<size_t>(config.bytes_in_exchange) / slot_bytes_,
                                 size_t{1}, config.pages_in_exchange)),
      known_(config.known_pages_max) {
  const size_t num_buffers =
      std::max<size_t>(static_cast<size_t>(config.write_buffer_bytes) / slot_bytes_, 2);
  arena_ = std::make_unique_for_overwrite<std::byte[]>(num_buffers * slot_bytes_);
  write_buffers_.resize(num_buffers);
  for (size_t i = 0; i < num_buffers; ++i) {
    write_buffers_[i].slot = {arena_.get() + i * slot_bytes_, slot_bytes_};
    free_buffers_.push_back(&write_buffers_[i]);
  }
}

void RemotePageStore::start() {
  threads_.emplace_back([this] { run_control(*sessions_[0]); });
  for (size_t i = 1; i < sessions_.size(); ++i)
    threads_.emplace_back([this, i] { run_transfers(*sessions_[i]); });
  std::unique_lock lock(mutex_);
  settled_.wait_for(lock, config_.connect_timeout,
                    [&] { return !breaker_.is_cut_off || breaker_.pause > Duration::zero(); });
}

RemotePageStore::~RemotePageStore() {
  Dropped dropped;
  {
    std::unique_lock lock(mutex_);
    settled_.wait_for(lock, config_.transfer_timeout, [&] {
      return (on_their_way_.empty() && waiting_.erases.empty()) || breaker_.is_cut_off;
    });
    stopped_ = true;
    dropped = drop_all();
    changed_.notify_all();
  }
  dropped.answer();
  for (const auto& session : sessions_) session->interrupt();
  for (std::thread& thread : threads_) thread.join();
}

void RemotePageStore::get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) {
  if (names.empty()) return sink->on_done();
  const auto read = std::make_shared<Read>();
  read->names.assign(names.begin(), names.end());
  read->sink = std::move(sink);
  read->num_left = names.size();
  {
    const std::lock_guard lock(mutex_);
    size_t num_waiting = 0;
    for (const auto& other : waiting_.reads) num_waiting += other->names.size() - other->next;
    const bool is_full = num_waiting + names.size() > static_cast<size_t>(config_.num_reads_max);
    if (!is_full && !breaker_.is_cut_off && !stopped_) {
      waiting_.reads.push_back(read);
      changed_.notify_all();
      return;
    }
    (is_full ? stats_.refused : stats_.absent) += static_cast<int64_t>(names.size());
  }
  read->answer_absent(0, names.size());
}

// A page that was seen lately is there; one that was seen before is looked up, so that a later call
// stores it again where the server has given it up.
size_t RemotePageStore::put(std::span<const PageName> names, const FillPage& fill) {
  std::vector<PageName> seen_before;
  size_t i = 0;
  for (; i < names.size(); ++i) {
    ESP_CHECK(!names[i].empty(), "a page without a name");
    WriteBuffer* buffer = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (on_their_way_.contains(names[i])) continue;
      if (const auto seen = known_.find(names[i])) {
        if (now() - *seen >= kFreshFor) seen_before.push_back(names[i]);
        continue;
      }
      if (breaker_.is_cut_off || free_buffers_.empty() || now() < writes_again_at_) break;
      buffer = free_buffers_.back();
      free_buffers_.pop_back();
      buffer->name = names[i];
      on_their_way_.insert(names[i]);
    }
    const bool filled = fill(i, buffer->slot.subspan(kSlotHeaderBytes));
    const std::lock_guard lock(mutex_);
    if (!filled || breaker_.is_cut_off) {
      release_buffer(*buffer);
      break;
    }
    waiting_.writes.push_back(buffer);
    changed_.notify_all();
  }
  bool is_busy = false;
  {
    const std::lock_guard lock(mutex_);
    stats_.refused += static_cast<int64_t>(names.size() - i);
    is_busy = waiting_.look_ups.size() >= kLookUpsBusy;
  }
  if (!seen_before.empty() && !is_busy) look_up(seen_before, [] {});
  return i;
}

void RemotePageStore::release_buffer(WriteBuffer& buffer) {
  on_their_way_.erase(buffer.name);
  free_buffers_.push_back(&buffer);
  if (on_their_way_.empty()) settled_.notify_all();
}

size_t RemotePageStore::num_leading(std::span<const PageName> names) const {
  const std::lock_guard lock(mutex_);
  if (breaker_.is_cut_off) return 0;
  size_t count = 0;
  while (count < names.size() && known_.find(names[count])) ++count;
  return count;
}

// How many leading pages were seen so lately that they need not be asked for.
size_t RemotePageStore::num_fresh(std::span<const PageName> names) const {
  const TimePoint since = now() - kFreshFor;
  size_t count = 0;
  for (; count < names.size(); ++count) {
    const auto seen = known_.find(names[count]);
    if (!seen || *seen <= since) break;
  }
  return count;
}

void RemotePageStore::look_up(std::span<const PageName> names, std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    const size_t fresh = num_fresh(names);
    // Erasing all pages takes long, and no look-up waits for it.
    if (!breaker_.is_cut_off && !stopped_ && fresh < names.size() && waiting_.erases.empty() &&
        waiting_.look_ups.size() < kLookUpsMax) {
      const auto asked = names.subspan(fresh);
      waiting_.look_ups.push_back({{asked.begin(), asked.end()}, std::move(done), now()});
      changed_.notify_all();
      return;
    }
  }
  done();
}

bool RemotePageStore::needs_look_up() const {
  const std::lock_guard lock(mutex_);
  return !breaker_.is_cut_off;
}

void RemotePageStore::erase(std::span<const PageName> names) {
  if (names.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const PageName& name : names) known_.remove(name);
  if (breaker_.is_cut_off) return;
  waiting_.erases.emplace_back(names.begin(), names.end());
  changed_.notify_all();
}

void RemotePageStore::clear() {
  const std::lock_guard lock(mutex_);
  known_.clear();
  if (breaker_.is_cut_off) return;
  waiting_.erases.emplace_back();
  changed_.notify_all();
}

void RemotePageStore::flush() {
  std::unique_lock lock(mutex_);
  settled_.wait(lock, [&] { return on_their_way_.empty() && waiting_.erases.empty(); });
}

PageStoreStats RemotePageStore::stats() const {
  const std::lock_guard lock(mutex_);
  PageStoreStats stats = stats_;
  stats.is_cut_off = breaker_.is_cut_off;
  return stats;
}

std::string RemotePageStore::problem() const {
  const std::lock_guard lock(mutex_);
  return breaker_.is_cut_off ? breaker_.problem : "";
}

RemotePageStore::Dropped RemotePageStore::drop_questions() {
  Dropped dropped;
  for (const auto& read : waiting_.reads) {
    const size_t first = std::exchange(read->next, read->names.size());
    stats_.absent += static_cast<int64_t>(read->names.size() - first);
    dropped.reads.emplace_back(read, first);
  }
  waiting_.reads.clear();
  dropped.look_ups.swap(waiting_.look_ups);
  return dropped;
}

RemotePageStore::Dropped RemotePageStore::drop_all() {
  Dropped dropped = drop_questions();
  stats_.errors += static_cast<int64_t>(waiting_.writes.size());
  for (WriteBuffer* buffer : waiting_.writes) release_buffer(*buffer);
  waiting_.writes.clear();
  waiting_.erases.clear();
  settled_.notify_all();
  return dropped;
}

void RemotePageStore::cut_off(const Status& why, std::unique_lock<std::mutex>& lock) {
  ++stats_.errors;
  if (stopped_ || breaker_.is_cut_off) return;  // another thread was first
  const TimePoint at = now();
  const bool was_steady = at - breaker_.connected_at >= kSteadyFor;
  breaker_.is_cut_off = true;
  breaker_.pause = was_steady || breaker_.pause == Duration::zero()
                       ? config_.retry_after
                       : std::min(breaker_.pause * 2, config_.retry_after_max);
  breaker_.retry_at = at + breaker_.pause;
  breaker_.problem = why.message();
  ++stats_.cut_offs;
  log_warning("remote tier is cut off kind={} retry_s={:.1f}: {}", config_.kind,
              to_seconds(breaker_.pause), why.message());
  const Dropped dropped = drop_all();
  changed_.notify_all();
  lock.unlock();
  dropped.answer();
  lock.lock();
}

// The connection on which pages are looked up decides whether the store is there.
void RemotePageStore::connect(RemoteSession& session, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const Status status = session.open();
  lock.lock();
  const TimePoint at = now();
  if (status.ok()) {
    if (breaker_.pause > Duration::zero())
      log_info("remote tier is connected again kind={}", config_.kind);
    breaker_.is_cut_off = false;
    breaker_.connected_at = at;
  } else {
    if (breaker_.problem != status.message() && !stopped_)
      log_warning("remote tier is not reached kind={}: {}", config_.kind, status.message());
    breaker_.problem = status.message();
    breaker_.pause = breaker_.pause == Duration::zero()
                         ? config_.retry_after
                         : std::min(breaker_.pause * 2, config_.retry_after_max);
    breaker_.retry_at = at + breaker_.pause;
    ++stats_.errors;
    const Dropped nothing = drop_all();  // questions are not taken while it is cut off
  }
  changed_.notify_all();
  settled_.notify_all();
}

// The server was restarted, or has closed an idle connection: it is tried again at once. Nothing
// waits for it; pages to be written or erased stay.
void RemotePageStore::forget_connection(std::unique_lock<std::mutex>& lock) {
  breaker_.is_cut_off = true;
  breaker_.problem = "the server has closed the connection";
  // One that closes a connection at once would be connected to without a pause.
  const TimePoint at = now();
  breaker_.retry_at =
      at - breaker_.connected_at < config_.retry_after ? at + config_.retry_after : at;
  const Dropped dropped = drop_questions();
  lock.unlock();
  dropped.answer();
  lock.lock();
}

void RemotePageStore::run_control(RemoteSession& session) {
  set_thread_name("remote-lookup");
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (breaker_.is_cut_off) {
      if (now() >= breaker_.retry_at) {
        connect(session, lock);
      } else {
        changed_.wait_until(lock, breaker_.retry_at);
      }
    } else if (!session.is_usable()) {
      forget_connection(lock);
    } else if (!waiting_.look_ups.empty()) {
      run_look_up(session, lock);
    } else if (!waiting_.erases.empty()) {
      run_erase(session, lock);
    } else {
      changed_.wait(lock);
    }
  }
}

// A look-up that has waited too long is not sent: its request goes on without it.
void RemotePageStore::run_look_up(RemoteSession& session, std::unique_lock<std::mutex>& lock) {
  const LookUp look_up = std::move(waiting_.look_ups.front());
  waiting_.look_ups.pop_front();
  const TimePoint at = now();
  const bool is_late = at - look_up.asked > config_.lookup_timeout;
  lock.unlock();
  Result<size_t> count = is_late ? 0 : session.look_up(look_up.names, at + config_.lookup_timeout);
  lock.lock();
  if (count && !is_late) {
    for (size_t i = 0; i < *count; ++i) known_.add(look_up.names[i], at);
    if (*count < look_up.names.size()) known_.remove(look_up.names[*count]);
  }
  if (!count) cut_off(count.error(), lock);
  lock.unlock();
  look_up.done();
  lock.lock();
}

// Transfers that begin later do not find the pages; those in progress may.
void RemotePageStore::run_erase(RemoteSession& session, std::unique_lock<std::mutex>& lock) {
  const std::vector<PageName> names = waiting_.erases.front();
  lock.unlock();
  const Status status = names.empty() ? session.clear(now() + kClearTimeout)
                                      : session.erase(names, now() + config_.transfer_timeout);
  lock.lock();
  for (const PageName& name : names) known_.remove(name);
  if (names.empty()) known_.clear();
  if (!status.ok()) return cut_off(status, lock);
  if (!waiting_.erases.empty()) waiting_.erases.pop_front();
  changed_.notify_all();
  settled_.notify_all();
}

void RemotePageStore::run_transfers(RemoteSession& session) {
  set_thread_name("remote-pages");
  const auto buffers = std::make_unique_for_overwrite<std::byte[]>(Window::kShown * slot_bytes_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return stopped_ || (!breaker_.is_cut_off && waiting_.erases.empty() &&
                          (!waiting_.reads.empty() || !waiting_.writes.empty()));
    });
    if (stopped_) return;
    if (!session.is_usable()) {
      lock.unlock();
      const Status status = session.open();
      lock.lock();
      if (!status.ok()) cut_off(status, lock);
    } else if (!waiting_.reads.empty()) {
      run_read(session, {buffers.get(), Window::kShown * slot_bytes_}, lock);
    } else {
      run_write(session, lock);
    }
  }
}

// Pages behind one that is missing are useless, so they are not asked for.
void RemotePageStore::run_read(RemoteSession& session, std::span<std::byte> buffers,
                               std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Read> read = waiting_.reads.front();
  const size_t first = read->next;
  const size_t count = std::min(exchange_pages_, read->names.size() - first);
  read->next += count;
  if (read->next == read->names.size()) waiting_.reads.pop_front();
  lock.unlock();
  Window window(*read, first, count, scope_, buffers);
  const Status status = session.read(window.names(), now() + config_.transfer_timeout, window);
  lock.lock();
  const auto num_found = static_cast<int64_t>(window.found().size());
  stats_.found += num_found;
  stats_.absent += static_cast<int64_t>(count) - num_found;
  stats_.corrupt += window.num_corrupt();
  stats_.bytes_read += num_found * config_.page_bytes;
  for (const PageName& name : window.names()) known_.remove(name);
  for (const PageName& name : window.found()) known_.add(name, now());
  size_t rest = read->names.size();
  if (num_found < static_cast<int64_t>(count)) {
    rest = std::exchange(read->next, read->names.size());
    std::erase(waiting_.reads, read);
    stats_.absent += static_cast<int64_t>(read->names.size() - rest);
  }
  if (!status.ok()) cut_off(status, lock);
  lock.unlock();
  window.finish();
  read->answer_absent(rest, read->names.size());
  lock.lock();
}

void RemotePageStore::run_write(RemoteSession& session, std::unique_lock<std::mutex>& lock) {
  std::vector<WriteBuffer*> buffers;
  while (!waiting_.writes.empty() && buffers.size() < exchange_pages_) {
    buffers.push_back(waiting_.writes.front());
    waiting_.writes.pop_front();
  }
  lock.unlock();
  std::vector<SealedPage> pages;
  for (const WriteBuffer* buffer : buffers) {
    seal_slot(buffer->slot, config_.page_bytes, buffer->name, scope_);
    pages.push_back({buffer->name, buffer->slot});
  }
  std::vector<bool> taken(pages.size(), false);
  std::string refusal;
  const TimePoint at = now();
  const Status status = session.write(pages, at + config_.transfer_timeout, taken, refusal);
  lock.lock();
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (taken[i]) {
      ++stats_.stored;
      stats_.bytes_written += config_.page_bytes;
      if (waiting_.erases.empty()) known_.add(buffers[i]->name, at);
    } else {
      ++stats_.errors;
    }
    release_buffer(*buffers[i]);
  }
  if (!refusal.empty()) {
    if (at - writes_again_at_ > std::chrono::minutes(1))
      log_warning("remote tier takes no pages kind={}: {}", config_.kind, refusal);
    writes_again_at_ = at + kWritePause;
  }
  if (!status.ok()) cut_off(status, lock);
}

}  // namespace espalier
