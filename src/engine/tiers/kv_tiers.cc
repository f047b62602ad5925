#include "engine/tiers/kv_tiers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace espalier {
namespace {

std::vector<PageStore*> stores_of(PageStore* host, PageStore& storage, PageStore& remote) {
  std::vector<PageStore*> stores = {&storage, &remote};
  if (host != nullptr) stores.insert(stores.begin(), host);
  return stores;
}

}  // namespace

Result<TierWritePolicy> parse_tier_write_policy(std::string_view name) {
  if (name == "write_through") return TierWritePolicy::kWriteThrough;
  if (name == "write_through_selective") return TierWritePolicy::kWriteThroughSelective;
  if (name == "write_back") return TierWritePolicy::kWriteBack;
  return fail(invalid_argument(
      "hicache_write_policy is '{}', but must be write_through, write_through_selective or "
      "write_back",
      name));
}

Result<PrefetchPolicy> parse_prefetch_policy(std::string_view name) {
  if (name == "best_effort") return PrefetchPolicy::kBestEffort;
  if (name == "wait_complete") return PrefetchPolicy::kWaitComplete;
  if (name == "timeout") return PrefetchPolicy::kTimeout;
  return fail(invalid_argument(
      "hicache_storage_prefetch_policy is '{}', but must be best_effort, wait_complete or timeout",
      name));
}

KvTiers::KvTiers(const KvTiersConfig& config, Parts parts)
    : config_(config),
      parts_(std::move(parts)),
      storage_(parts_.copier->page_bytes()),
      remote_(parts_.copier->page_bytes()),
      stores_(stores_of(parts_.host.get(), storage_, remote_)),
      signal_(std::make_shared<Signal>()),
      pages_(static_cast<size_t>(config.num_device_pages)),
      saves_(*parts_.copier, stores_, config.num_device_pages),
      prefetcher_({.name_scope = config.name_scope, .page_size = config.page_size},
                  {.host = parts_.host.get(), .disk = &storage_, .remote = &remote_},
                  [signal = signal_] {
                    const std::lock_guard lock(signal->mutex);
                    if (signal->notify) signal->notify();
                  }) {
  ESP_CHECK(parts_.clock != nullptr);
  for (const PageStore* store : stores_)
    ESP_CHECK(store->page_bytes() == parts_.copier->page_bytes(),
              "a store with pages of another size");
  storage_.attach(std::move(parts_.storage));
  remote_.attach(std::move(parts_.remote));
}

// Destroyed in turn: the prefetcher; the queue, which saves what waits; storage, which answers what
// waits and may fill the host's memory; the pinned memory, which nothing copies any more; the host.
KvTiers::~KvTiers() {
  notify(nullptr);
  for (const Load& load : loads_)
    if (load.job != nullptr) load.job->cancel();
}

void KvTiers::notify(std::function<void()> load_ended) {
  const std::lock_guard lock(signal_->mutex);
  signal_->notify = std::move(load_ended);
}

void KvTiers::on_stored(std::span<const PageName> names, std::span<const PageId> pages) {
  for (size_t i = 0; i < pages.size(); ++i)
    device_page(pages[i]) = {.name = names[i], .num_uses = 1};
  if (config_.policy == TierWritePolicy::kWriteThrough) queue(pages);
}

// Pages that a store has refused are tried again.
void KvTiers::on_reused(std::span<const PageId> pages) {
  if (config_.policy == TierWritePolicy::kWriteBack) return;
  to_save_.pages.clear();
  for (const PageId id : pages) {
    DevicePage& page = device_page(id);
    if (page.name.empty()) continue;
    page.num_uses = 2;
    to_save_.pages.push_back(id);
  }
  queue(to_save_.pages);
}

void KvTiers::queue(std::span<const PageId> pages) {
  saves_.add(pages, [this](PageId page) -> const PageName& { return device_page(page).name; });
}

// Pages that are saved are put again, too: their stores count it as a use, and may have lost them.
void KvTiers::on_evicted(std::span<const PageId> pages, bool demote) {
  saves_.take_back(pages);
  to_save_.pages.clear();
  to_save_.names.clear();
  const int least_uses = config_.policy == TierWritePolicy::kWriteThroughSelective ? 2 : 1;
  for (size_t i = pages.size(); i-- > 0;) {  // in the order of tokens
    const DevicePage& page = device_page(pages[i]);
    if (!demote || page.name.empty() || page.num_uses < least_uses) continue;
    to_save_.pages.push_back(pages[i]);
    to_save_.names.push_back(page.name);
  }
  if (!to_save_.pages.empty()) saves_.save_now(to_save_.pages, to_save_.names);
  for (const PageId id : pages) device_page(id) = {};
}

void KvTiers::flush_saves() { saves_.flush(); }

void KvTiers::prefetch(const LoadRequest& request) {
  if (!has_storage() || is_process_local(request.cache_namespace)) return;
  prefetcher_.begin(request.id, request.cache_namespace, request.tokens, request.num_cached);
}

void KvTiers::forget(SequenceId id) { prefetcher_.end(id); }

// The index of the nearest store that has the page; that of the last one where none has it.
size_t KvTiers::nearest(const PageName& name) const {
  size_t at = 0;
  while (at + 1 < stores_.size() && stores_[at]->num_leading({&name, 1}) == 0) ++at;
  return at;
}

bool KvTiers::is_loadable(const PageName& name) const {
  if (config_.prefetch == PrefetchPolicy::kBestEffort)
    return parts_.host != nullptr && parts_.host->num_leading({&name, 1}) == 1;
  return stores_[nearest(name)]->num_leading({&name, 1}) == 1;
}

// Names are computed one by one and only as long as a store has them: a request that hits nothing
// costs one digest.
void KvTiers::name_pages(const LoadRequest& request) {
  named_id_ = request.id;
  names_.clear();
  const auto page_size = static_cast<size_t>(config_.page_size);
  const size_t num_cached = static_cast<size_t>(request.num_cached) / page_size;
  PageName name;
  if (num_cached == 0) {
    name = root_page_name(config_.name_scope, "", request.cache_namespace);
  } else {
    name = device_page(request.pages[num_cached - 1]).name;
    if (name.empty()) return;
  }
  for (size_t at = num_cached; (at + 1) * page_size <= request.tokens.size(); ++at) {
    name = page_name(name, request.tokens.subspan(at * page_size, page_size));
    if (!is_loadable(name)) return;
    names_.push_back(name);
  }
}

// While the remote store has not said what it has, all pages count as available.
int32_t KvTiers::num_available(const LoadRequest& request) {
  if (is_process_local(request.cache_namespace)) return request.num_cached;
  awaited_ = prefetcher_.end(request.id);
  const bool must_wait = awaited_ != nullptr && awaited_->must_wait() &&
                         config_.prefetch != PrefetchPolicy::kBestEffort;
  name_pages(request);
  auto count = static_cast<int32_t>(names_.size());
  const int32_t num_pages = static_cast<int32_t>(request.tokens.size()) / config_.page_size;
  const int32_t num_missing = num_pages - request.num_cached / config_.page_size;
  if (must_wait && count < num_missing) {
    count = num_missing;
  } else {
    awaited_ = nullptr;
  }
  return request.num_cached + count * config_.page_size;
}

void KvTiers::start(const LoadRequest& request) {
  ESP_CHECK(named_id_ == request.id, "start() without num_available()");
  const auto first = static_cast<size_t>(request.num_cached / config_.page_size);
  const auto count = request.tokens.size() / static_cast<size_t>(config_.page_size) - first;
  ESP_CHECK(count > 0 && (awaited_ != nullptr || count <= names_.size()));
  const TimePoint now = parts_.clock->now();
  const Duration allowed = config_.load_timeout + config_.load_timeout_per_1024 *
                                                      static_cast<int64_t>(count) *
                                                      config_.page_size / 1024;
  const bool is_bounded = config_.prefetch != PrefetchPolicy::kWaitComplete;
  Load& load = loads_.emplace_back(Load{.id = request.id,
                                        .number = ++num_started_,
                                        .awaited = std::move(awaited_),
                                        .num_cached = request.num_cached,
                                        .started = now,
                                        .deadline = is_bounded ? now + allowed : TimePoint::max()});
  const std::span<const PageId> pages = request.pages.subspan(first, count);
  if (load.awaited != nullptr) {
    load.pages.assign(pages.begin(), pages.end());
    // It may have become known since num_available(); then no call of the prefetcher is left.
    if (!load.awaited->must_wait()) {
      const std::lock_guard lock(signal_->mutex);
      if (signal_->notify) signal_->notify();
    }
    return;
  }
  begin(load, pages, std::span(names_).first(count));
}

// Runs of pages come from the nearest store that has them.
void KvTiers::begin(Load& load, std::span<const PageId> pages, std::span<const PageName> names) {
  load.job = std::make_shared<LoadJob>(load.id, *parts_.copier, pages,
                                       [signal = signal_, number = load.number] {
                                         const std::lock_guard lock(signal->mutex);
                                         signal->ended.push_back(number);
                                         if (signal->notify) signal->notify();
                                       });
  for (size_t first = 0; first < names.size();) {
    const size_t store = nearest(names[first]);
    size_t run = 1;
    while (first + run < names.size() && nearest(names[first + run]) == store) ++run;
    const bool is_host = stores_[store] == parts_.host.get();
    load.job->add(*stores_[store], is_host ? LoadJob::Source::kHost : LoadJob::Source::kStorage,
                  first, names.subspan(first, run), is_host ? nullptr : parts_.host.get());
    first += run;
  }
  load.job->begin();
}

// The remote store was asked: what is found is loaded. False: nothing is.
bool KvTiers::begin_awaited(Load& load) {
  const auto first = static_cast<size_t>(load.num_cached / config_.page_size);
  const std::span<const PageName> names = load.awaited->names().subspan(first, load.pages.size());
  size_t count = 0;
  while (count < names.size() && is_loadable(names[count])) ++count;
  if (count > 0) begin(load, std::span(load.pages).first(count), names.first(count));
  load.awaited = nullptr;
  return count > 0;
}

void KvTiers::cancel(SequenceId id) { cancelled_.push_back(id); }

void KvTiers::end(size_t load, bool late, std::vector<LoadResult>& ended) {
  const Load done = std::move(loads_[load]);
  loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(load));
  LoadJob::Written written;
  if (done.job != nullptr) {
    done.job->cancel();
    written = done.job->written();
  }
  const int32_t host = written.host * config_.page_size;
  const int32_t storage = written.storage * config_.page_size;
  ended.push_back({.id = done.id,
                   .num_tokens = done.num_cached + host + storage,
                   .num_from_host = host,
                   .num_from_storage = storage});
  if (done.job == nullptr) return;  // the remote store has none of its pages
  const std::lock_guard lock(stats_mutex_);
  ++stats_.loads;
  stats_.loads_late += late ? 1 : 0;
  stats_.loads_in_part += static_cast<size_t>(written.total()) < done.job->num_pages() ? 1 : 0;
  stats_.host_tokens += host;
  stats_.storage_tokens += storage;
  stats_.load_seconds += to_seconds(parts_.clock->now() - done.started);
}

void KvTiers::poll(std::vector<LoadResult>& ended) {
  if (loads_.empty()) return;
  ended_.clear();
  {
    const std::lock_guard lock(signal_->mutex);
    ended_.swap(signal_->ended);
  }
  const TimePoint now = parts_.clock->now();
  for (size_t i = 0; i < loads_.size();) {
    Load& load = loads_[i];
    const bool is_cancelled = std::ranges::find(cancelled_, load.id) != cancelled_.end();
    bool has_ended = std::ranges::find(ended_, load.number) != ended_.end();
    if (load.awaited != nullptr && !load.awaited->must_wait() && !is_cancelled)
      has_ended = !begin_awaited(load);
    const bool is_late = !has_ended && now >= load.deadline;
    if (has_ended || is_late || is_cancelled) {
      end(i, is_late, ended);
    } else {
      ++i;
    }
  }
  cancelled_.clear();
}

void KvTiers::locate(std::span<const PageName> names, CacheNodes& nodes) const {
  const auto has = [](const PageStore* store, const PageName& name) {
    return store != nullptr && !name.empty() && store->num_leading({&name, 1}) == 1;
  };
  const auto tiers_of = [&](const PageName& name) {
    return static_cast<uint8_t>((has(parts_.host.get(), name) ? kHostTier : 0) |
                                (has(&storage_, name) || has(&remote_, name) ? kStorageTier : 0));
  };
  nodes.has_tiers = true;
  for (CacheNode& node : nodes.nodes) node.tiers = tiers_of(node.last_name);
  for (const PageName& name : names) nodes.tiers_of_names.push_back(tiers_of(name));
}

KvTiersStats KvTiers::stats() const {
  KvTiersStats stats;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = stats_;
  }
  if (parts_.pinner != nullptr) stats.pinned_bytes = parts_.pinner->pinned_bytes();
  stats.prefetch = prefetcher_.stats();
  if (const PageStore* const host = parts_.host.get())
    stats.stores.push_back({std::string(host->kind()), host->page_bytes(), host->stats()});
  for (const AttachedPageStore* store : {&storage_, &remote_})
    if (const std::string name = store->name(); !name.empty())
      stats.stores.push_back({name, store->page_bytes(), store->stats()});
  return stats;
}

void KvTiers::clear_host() {
  if (parts_.host != nullptr) parts_.host->clear();
}

// The host's store alone calls a watch.
void report_host_pages(const KvTiers& tiers, CacheEventLog& log) {
  for (PageStore* const store : tiers.file_parts().stores)
    store->watch([&log](std::span<const PageName> names, bool stored) {
      log.push({.type = stored ? CacheEvent::Type::kStored : CacheEvent::Type::kRemoved,
                .medium = CacheEvent::Medium::kHost,
                .pages = {names.begin(), names.end()}});
    });
}

}  // namespace espalier
