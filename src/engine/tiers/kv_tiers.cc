#include "engine/tiers/kv_tiers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace espalier {
namespace {

std::vector<PageStore*> stores_of(const KvTiers::Parts& parts) {
  std::vector<PageStore*> stores;
  for (PageStore* store : {parts.host.get(), parts.storage.get()})
    if (store != nullptr) stores.push_back(store);
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

KvTiers::KvTiers(const KvTiersConfig& config, Parts parts)
    : config_(config),
      parts_(std::move(parts)),
      signal_(std::make_shared<Signal>()),
      pages_(static_cast<size_t>(config.num_device_pages)),
      saves_(*parts_.copier, stores_of(parts_), config.num_device_pages) {
  ESP_CHECK(parts_.clock != nullptr);
  ESP_CHECK(parts_.host != nullptr || parts_.storage != nullptr, "tiers without a store");
  for (const PageStore* store : {parts_.host.get(), parts_.storage.get()})
    ESP_CHECK(store == nullptr || store->page_bytes() == parts_.copier->page_bytes(),
              "a store with pages of another size");
}

// Destroyed in turn: the queue, which saves what waits; the pinned memory, which nothing copies
// any more; the stores, which answer what waits.
KvTiers::~KvTiers() {
  notify(nullptr);
  for (const Load& load : loads_) load.job->cancel();
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
  to_save_.clear();
  for (const PageId id : pages) {
    DevicePage& page = device_page(id);
    if (page.name.empty()) continue;
    page.num_uses = 2;
    to_save_.push_back(id);
  }
  queue(to_save_);
}

void KvTiers::queue(std::span<const PageId> pages) {
  saves_.add(pages, [this](PageId page) -> const PageName& { return device_page(page).name; });
}

// Pages that are saved are put again, too: their stores count it as a use, and may have lost them.
void KvTiers::on_evicted(std::span<const PageId> pages, bool demote) {
  saves_.take_back(pages);
  to_save_.clear();
  save_names_.clear();
  const int least_uses = config_.policy == TierWritePolicy::kWriteThroughSelective ? 2 : 1;
  for (size_t i = pages.size(); i-- > 0;) {  // in the order of tokens
    const DevicePage& page = device_page(pages[i]);
    if (!demote || page.name.empty() || page.num_uses < least_uses) continue;
    to_save_.push_back(pages[i]);
    save_names_.push_back(page.name);
  }
  if (!to_save_.empty()) saves_.save_now(to_save_, save_names_);
  for (const PageId id : pages) device_page(id) = {};
}

void KvTiers::flush_saves() { saves_.flush(); }

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
  const auto is_stored = [&] {
    for (const PageStore* store : {parts_.host.get(), parts_.storage.get()})
      if (store != nullptr && store->num_leading({&name, 1}) == 1) return true;
    return false;
  };
  for (size_t at = num_cached; (at + 1) * page_size <= request.tokens.size(); ++at) {
    name = page_name(name, request.tokens.subspan(at * page_size, page_size));
    if (!is_stored()) return;
    names_.push_back(name);
  }
}

int32_t KvTiers::num_available(const LoadRequest& request) {
  if (is_process_local(request.cache_namespace)) return request.num_cached;
  name_pages(request);
  return request.num_cached + static_cast<int32_t>(names_.size()) * config_.page_size;
}

// Runs of pages that are in the host's memory come from there, the others from the storage.
void KvTiers::start(const LoadRequest& request) {
  ESP_CHECK(named_id_ == request.id, "start() without num_available()");
  const auto begin = static_cast<size_t>(request.num_cached / config_.page_size);
  const auto count = request.tokens.size() / static_cast<size_t>(config_.page_size) - begin;
  ESP_CHECK(count > 0 && count <= names_.size());
  const auto job =
      std::make_shared<LoadJob>(request.id, *parts_.copier, request.pages.subspan(begin, count),
                                [signal = signal_, number = ++num_started_] {
                                  const std::lock_guard lock(signal->mutex);
                                  signal->ended.push_back(number);
                                  if (signal->notify) signal->notify();
                                });
  std::span<const PageName> left = std::span(names_).first(count);
  while (!left.empty()) {
    const size_t first = count - left.size();
    if (parts_.host != nullptr)
      if (const size_t run = parts_.host->num_leading(left); run > 0) {
        job->add(*parts_.host, LoadJob::Source::kHost, first, left.first(run), nullptr);
        left = left.subspan(run);
        continue;
      }
    if (parts_.storage == nullptr) break;
    size_t run = 1;  // also where it has gone meanwhile: then it is answered as absent
    while (run < left.size() &&
           (parts_.host == nullptr || parts_.host->num_leading(left.subspan(run, 1)) == 0))
      ++run;
    job->add(*parts_.storage, LoadJob::Source::kStorage, first, left.first(run), parts_.host.get());
    left = left.subspan(run);
  }
  const TimePoint now = parts_.clock->now();
  const Duration allowed = config_.load_timeout + config_.load_timeout_per_1024 *
                                                      static_cast<int64_t>(count) *
                                                      config_.page_size / 1024;
  loads_.push_back({num_started_, job, request.num_cached, now, now + allowed});
  job->begin();
}

void KvTiers::cancel(SequenceId id) { cancelled_.push_back(id); }

void KvTiers::end(size_t load, bool late, std::vector<LoadResult>& ended) {
  const Load done = std::move(loads_[load]);
  loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(load));
  done.job->cancel();
  const LoadJob::Written written = done.job->written();
  const int32_t host = written.host * config_.page_size;
  const int32_t storage = written.storage * config_.page_size;
  ended.push_back({.id = done.job->id(),
                   .num_tokens = done.num_cached + host + storage,
                   .num_from_host = host,
                   .num_from_storage = storage});
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
    const bool has_ended = std::ranges::find(ended_, loads_[i].number) != ended_.end();
    const bool is_late = !has_ended && now >= loads_[i].deadline;
    const bool is_cancelled =
        std::ranges::find(cancelled_, loads_[i].job->id()) != cancelled_.end();
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
                                (has(parts_.storage.get(), name) ? kStorageTier : 0));
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
  for (const PageStore* store : {parts_.host.get(), parts_.storage.get()})
    if (store != nullptr)
      stats.stores.push_back({std::string(store->kind()), store->page_bytes(), store->stats()});
  return stats;
}

void KvTiers::clear_host() {
  if (parts_.host != nullptr) parts_.host->clear();
}

}  // namespace espalier
