// The tiers below the device's cache, as scheduler and cache see them: pages that the cache takes
// or gives up are copied to stores, and a waiting sequence whose prefix is in a store is loaded
// from there. Stores are asked by the pages' names, so the radix tree knows nothing of them.
//
//   cache --on_stored, on_reused--> KvTiers --> SaveQueue --put--> host store, storage
//         --on_evicted------------> KvTiers ----------------put--> host store, storage
//   scheduler --num_available, start, poll--> KvTiers --get--> LoadJob --> the device's pages
//             --prefetch, forget----------> Prefetcher --get--> host store
//
// Rules:
//  - A page that the cache keeps is copied on another thread, and the scheduler waits for none.
//    What the cache gives up before it is saved, or under kWriteBack, is copied inside the cache's
//    call, so that the page is free when the call returns.
//  - A store that has no buffer for a page refuses it; a later call for the same page tries again.
//  - A load that is late or fails in part gives the tokens up to there; the rest is computed.
//  - A request may be admitted before a remote store has reported which pages it has. Then it waits
//    for that report as it waits for a load; the store bounds the time, and what the store does not
//    have is computed.
//  - Loaded pages hold the bytes that were computed once, so answers do not depend on tiers.
//
// For the scheduler's thread, unless a method states another. The stores' threads run inside.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cache/cache_events.h"
#include "cache/page_copier.h"
#include "cache/page_name.h"
#include "cache/page_observer.h"
#include "engine/scheduler/kv_loader.h"
#include "engine/tiers/host_pinner.h"
#include "engine/tiers/load_job.h"
#include "engine/tiers/prefetcher.h"
#include "engine/tiers/save_queue.h"
#include "seams/cache_nodes.h"
#include "tiers/attached_page_store.h"
#include "tiers/page_store.h"

namespace espalier {

// When a page is copied to the stores.
enum class TierWritePolicy : uint8_t {
  kWriteThrough,           // when the cache takes it
  kWriteThroughSelective,  // when it is used for the second time
  kWriteBack,              // when the cache gives it up
};
// "write_through", "write_through_selective", "write_back"; else kInvalidArgument with the list.
Result<TierWritePolicy> parse_tier_write_policy(std::string_view name);

// How long an admitted request waits for pages in storage.
enum class PrefetchPolicy : uint8_t {
  kBestEffort,    // not at all: what the host's memory has by then is loaded
  kWaitComplete,  // until all are loaded
  kTimeout,       // the same, at most load_timeout
};
// "best_effort", "wait_complete", "timeout"; else kInvalidArgument with the list.
Result<PrefetchPolicy> parse_prefetch_policy(std::string_view name);

struct KvTiersConfig {
  TierWritePolicy policy = TierWritePolicy::kWriteThrough;
  PrefetchPolicy prefetch = PrefetchPolicy::kTimeout;
  int32_t page_size = 1;  // tokens
  int32_t num_device_pages = 0;
  PageNameScope name_scope;
  std::string storage_scope;  // of stores and files beyond the process; "": there are none
  // With kTimeout a load may take so long, and so much more for each 1,024 tokens; then it is given
  // up.
  Duration load_timeout = std::chrono::seconds(1);
  Duration load_timeout_per_1024 = std::chrono::milliseconds(250);
};

struct TierStats {
  std::string kind;
  int64_t page_bytes = 0;
  PageStoreStats store;
};

// Totals since the start.
struct KvTiersStats {
  std::vector<TierStats> stores;  // from the nearest on
  int64_t loads = 0, loads_late = 0, loads_in_part = 0;
  int64_t host_tokens = 0, storage_tokens = 0;  // loaded
  double load_seconds = 0;                      // of all loads, from start to end
  int64_t pinned_bytes = 0;                     // of the host store's memory, now
  PrefetchStats prefetch;
};

// Opens the storage that settings name, "file", "redis" or "s3".
struct TierSettings;
using OpenStorage = std::function<Result<std::unique_ptr<PageStore>>(const TierSettings& settings,
                                                                     std::string_view backend)>;

class KvTiers final : public KvLoader, public PageObserver {
 public:
  struct Parts {
    PageCopier* copier = nullptr;        // borrowed
    const Clock* clock = nullptr;        // borrowed
    std::unique_ptr<PageStore> host;     // null: none
    std::unique_ptr<PageStore> storage;  // on this host; null: none
    std::unique_ptr<PageStore> remote;   // null: none
    std::unique_ptr<HostPinner> pinner;  // of the host store's memory; null: it is not pinned
    OpenStorage open_storage;            // null: storage cannot be attached
  };
  // REQUIRES that stores have pages of the copier's size.
  KvTiers(const KvTiersConfig& config, Parts parts);
  ~KvTiers() override;  // waits for what is to be saved and for the stores' transfers

  // Called on a store's thread when a load has ended, so that a parked scheduler polls. Null: not.
  void notify(std::function<void()> load_ended);

  void prefetch(const LoadRequest& request) override;
  void forget(SequenceId id) override;
  int32_t num_available(const LoadRequest& request) override;
  void start(const LoadRequest& request) override;
  void cancel(SequenceId id) override;
  void poll(std::vector<LoadResult>& ended) override;

  void on_stored(std::span<const PageName> names, std::span<const PageId> pages) override;
  void on_reused(std::span<const PageId> pages) override;
  void on_evicted(std::span<const PageId> pages, bool demote) override;

  // Sets which tiers probably have the nodes' last pages and the named pages; none of them is read.
  void locate(std::span<const PageName> names, CacheNodes& nodes) const;

  void flush_saves();  // waits until no page waits to be saved; thread-safe
  void clear_host();   // thread-safe

  // Storage that is chosen while the engine runs (storage_control.h); thread-safe.
  AttachedPageStore& storage() { return storage_; }
  AttachedPageStore& remote() { return remote_; }
  const OpenStorage& open_storage() const { return parts_.open_storage; }
  std::mutex& storage_mutex() { return storage_mutex_; }  // of choices of storage
  // For files of pages (page_export.h); thread-safe, as the stores are.
  struct FileParts {
    const KvTiersConfig& config;
    const std::vector<PageStore*>& stores;
  };
  FileParts file_parts() const { return {config_, stores_}; }
  KvTiersStats stats() const;  // thread-safe

 private:
  // What is known of a page of the device that the cache has.
  struct DevicePage {
    PageName name;         // empty: not reported
    uint8_t num_uses = 0;  // up to 2
  };
  struct Load {
    SequenceId id = 0;
    uint64_t number = 0;           // of all loads so far; a sequence may load more than once
    std::shared_ptr<LoadJob> job;  // shared with the stores' sinks; null: the look-up is awaited
    std::shared_ptr<const Prefetcher::Entry> awaited;  // shared with the prefetcher
    std::vector<PageId> pages;                         // of a load that awaits the look-up
    int32_t num_cached = 0;                            // tokens
    TimePoint started{}, deadline{};
  };
  // What stores' threads reach: it outlives every job.
  struct Signal {
    std::mutex mutex;
    std::vector<uint64_t> ended;  // loads
    std::function<void()> notify;
  };

  struct PagesToSave {
    std::vector<PageId> pages;
    std::vector<PageName> names;
  };

  DevicePage& device_page(PageId page) { return pages_[static_cast<size_t>(page)]; }
  void queue(std::span<const PageId> pages);
  bool has_storage() const { return storage_.is_attached() || remote_.is_attached(); }
  bool is_loadable(const PageName& name) const;
  size_t nearest(const PageName& name) const;
  void name_pages(const LoadRequest& request);
  void begin(Load& load, std::span<const PageId> pages, std::span<const PageName> names);
  bool begin_awaited(Load& load);
  void end(size_t load, bool late, std::vector<LoadResult>& ended);

  const KvTiersConfig config_;
  Parts parts_;  // but for storage and remote, which are attached:
  AttachedPageStore storage_, remote_;
  const std::vector<PageStore*> stores_;  // from the nearest on
  const std::shared_ptr<Signal> signal_;  // shared with jobs, which may outlive this object
  std::vector<DevicePage> pages_;
  uint64_t num_started_ = 0;
  std::vector<Load> loads_;
  std::vector<SequenceId> cancelled_;
  // Of the last num_available(): the names of pages behind the cached ones, as far as they are in a
  // store.
  SequenceId named_id_ = 0;
  std::vector<PageName> names_;
  std::shared_ptr<const Prefetcher::Entry> awaited_;  // shared with the prefetcher
  PagesToSave to_save_;                               // scratch
  std::vector<uint64_t> ended_;                       // scratch
  std::mutex storage_mutex_;
  mutable std::mutex stats_mutex_;
  KvTiersStats stats_;
  SaveQueue saves_;        // its thread uses the stores
  Prefetcher prefetcher_;  // last: so does its thread
};

// Pushes an event for pages that the host store comes to hold or gives up. Once, before the first
// page is saved; the log outlives the tiers.
void report_host_pages(const KvTiers& tiers, CacheEventLog& log);

}  // namespace espalier
