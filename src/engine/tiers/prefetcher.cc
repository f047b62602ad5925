#include "engine/tiers/prefetcher.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/thread.h"

namespace espalier {

// Requests beyond it wait without being prefetched.
constexpr size_t kEntriesMax = 1024;

struct Prefetcher::State {
  Config config;
  Stores stores;
  int64_t host_pages_max = 0;

  mutable std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::function<void()> known;  // null: the prefetcher is gone
  std::deque<std::shared_ptr<Entry>> added, to_fetch;
  bool is_fetching = false;
  bool stopped = false;
  int64_t num_waiting_pages = 0;  // pages that were fetched for requests that wait
  PrefetchStats stats;
};

// Keeps the pages of one window in the host's memory.
class Prefetcher::Sink final : public PageSink {
 public:
  Sink(std::shared_ptr<State> state, std::shared_ptr<Entry> entry, std::vector<PageName> names)
      : state_(std::move(state)), entry_(std::move(entry)), names_(std::move(names)) {}

  void on_page(size_t index, std::span<const std::byte> bytes) override {
    if (bytes.empty()) {
      is_whole_ = false;
      return;
    }
    const auto fill = [&](size_t, std::span<std::byte> to) {
      std::copy(bytes.begin(), bytes.end(), to.begin());
      return true;
    };
    if (state_->stores.host->put(std::span(names_).subspan(index, 1), fill) == 1) ++num_kept_;
  }
  void on_done() override {
    const std::lock_guard lock(state_->mutex);
    state_->is_fetching = false;
    state_->stats.pages_fetched += num_kept_;
    if (!entry_->is_ended_) {
      entry_->num_fetched_ += num_kept_;
      state_->num_waiting_pages += num_kept_;
      if (is_whole_) state_->to_fetch.push_front(entry_);
    }
    state_->changed.notify_all();
  }

 private:
  const std::shared_ptr<State> state_;
  const std::shared_ptr<Entry> entry_;
  const std::vector<PageName> names_;
  int64_t num_kept_ = 0;
  bool is_whole_ = true;
};

Prefetcher::Prefetcher(const Config& config, const Stores& stores, std::function<void()> known)
    : state_(std::make_shared<State>()) {
  state_->config = config;
  state_->stores = stores;
  state_->known = std::move(known);
  if (stores.host != nullptr)
    state_->host_pages_max = static_cast<int64_t>(
        config.host_share_max * static_cast<double>(stores.host->stats().num_pages_max));
  thread_ = std::thread([state = state_] { run(state); });
}

// The stores' callbacks that are left find nothing to do.
Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    state_->known = nullptr;
  }
  state_->changed.notify_all();
  thread_.join();
}

void Prefetcher::begin(SequenceId id, std::string_view cache_namespace,
                       std::span<const TokenId> tokens, int32_t num_cached) {
  const auto page_size = static_cast<size_t>(state_->config.page_size);
  const size_t num_tokens = tokens.size() / page_size * page_size;
  const size_t first = static_cast<size_t>(num_cached) / page_size;
  if (num_tokens / page_size <= first || entries_.size() >= kEntriesMax) return;
  const auto entry = std::make_shared<Entry>();
  entry->cache_namespace_ = cache_namespace;
  entry->tokens_.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(num_tokens));
  entry->first_ = entry->next_ = first;
  entry->needs_look_up_ =
      state_->stores.remote != nullptr && state_->stores.remote->needs_look_up();
  entries_[id] = entry;
  const std::lock_guard lock(state_->mutex);
  state_->added.push_back(entry);
  state_->changed.notify_all();
}

std::shared_ptr<const Prefetcher::Entry> Prefetcher::end(SequenceId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  const std::shared_ptr<Entry> entry = std::move(found->second);
  entries_.erase(found);
  const std::lock_guard lock(state_->mutex);
  entry->is_ended_ = true;
  state_->num_waiting_pages -= entry->num_fetched_;
  return entry;
}

PrefetchStats Prefetcher::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

// Names and look-ups go first: admissions may wait for them.
void Prefetcher::run(const std::shared_ptr<State>& state) {
  set_thread_name("prefetch-pages");
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] {
      return state->stopped || !state->added.empty() ||
             (!state->is_fetching && !state->to_fetch.empty());
    });
    if (state->stopped) return;
    const bool is_new = !state->added.empty();
    auto& queue = is_new ? state->added : state->to_fetch;
    const std::shared_ptr<Entry> entry = std::move(queue.front());
    queue.pop_front();
    // Requests that were admitted at once are the most frequent case where nothing waits.
    if (entry->is_ended_ && !(is_new && entry->needs_look_up_)) continue;
    if (!is_new) {
      if (state->num_waiting_pages >= state->host_pages_max) continue;
      state->is_fetching = true;
    }
    lock.unlock();
    if (is_new) find_out(state, entry);
    const bool is_fetching = !is_new && fetch(state, entry);
    lock.lock();
    if (!is_new && !is_fetching) state->is_fetching = false;
  }
}

void Prefetcher::find_out(const std::shared_ptr<State>& state,
                          const std::shared_ptr<Entry>& entry) {
  const Stores& stores = state->stores;
  const auto page_size = static_cast<size_t>(state->config.page_size);
  PageName name = root_page_name(state->config.name_scope, "", entry->cache_namespace_);
  for (auto left = std::span<const TokenId>(entry->tokens_); !left.empty();
       left = left.subspan(page_size)) {
    name = page_name(name, left.first(page_size));
    entry->names_.push_back(name);
  }
  std::span<const PageName> left = std::span(entry->names_).subspan(entry->first_);
  const auto is_near = [&](const PageName& page) {
    for (const PageStore* store : {stores.host, stores.disk})
      if (store != nullptr && store->num_leading({&page, 1}) == 1) return true;
    return false;
  };
  while (!left.empty() && is_near(left.front())) left = left.subspan(1);
  if (left.empty() || !entry->needs_look_up_) return know(*state, entry);
  stores.remote->look_up(left, [state, entry] { know(*state, entry); });
}

void Prefetcher::know(State& state, const std::shared_ptr<Entry>& entry) {
  const std::lock_guard lock(state.mutex);
  entry->is_known_ = true;
  if (entry->needs_look_up_ && state.known) state.known();
  if (entry->is_ended_ || state.stopped) return;
  ++state.stats.requests;
  if (state.stores.host == nullptr) return;
  state.to_fetch.push_back(entry);
  state.changed.notify_all();
}

// Starts the next window. False: the host has all that the stores have.
bool Prefetcher::fetch(const std::shared_ptr<State>& state, const std::shared_ptr<Entry>& entry) {
  const Stores& stores = state->stores;
  const std::vector<PageName>& names = entry->names_;
  const auto has = [&](const PageStore* store, size_t at) {
    return store != nullptr && at < names.size() && store->num_leading({&names[at], 1}) == 1;
  };
  size_t& next = entry->next_;  // used by one thread at a time
  while (has(stores.host, next)) ++next;
  PageStore* const from = has(stores.disk, next)     ? stores.disk
                          : has(stores.remote, next) ? stores.remote
                                                     : nullptr;
  if (from == nullptr) return false;
  std::vector<PageName> window;
  while (window.size() < state->config.window && has(from, next) && !has(stores.host, next))
    window.push_back(names[next++]);
  {
    const std::lock_guard lock(state->mutex);
    state->stats.pages_started += static_cast<int64_t>(window.size());
  }
  from->get(window, std::make_shared<Sink>(state, entry, window));
  return true;
}

}  // namespace espalier
