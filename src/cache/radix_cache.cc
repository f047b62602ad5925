#include "cache/radix_cache.h"

#include <algorithm>

#include "base/check.h"
#include "cache/cache_events.h"
#include "cache/page_name.h"
#include "cache/page_observer.h"
#include "cache/radix_node.h"

namespace espalier {

namespace {
constexpr int32_t kNodesExpectedMax = 1 << 16;  // 2 MiB of table; beyond, it grows
constexpr std::string_view kNoAdapter = "";     // requests have none
}  // namespace

RadixCache::RadixCache(const PrefixCacheConfig& config)
    : PrefixCache(config),
      tree_({.page_size = config.page_size,
             .policy = config.eviction_policy,
             .num_nodes_expected =
                 static_cast<size_t>(std::min(config.num_pages, kNodesExpectedMax))}),
      events_(config.events),
      observer_(config.observer),
      name_scope_(config.name_scope),
      names_(events_ == nullptr && observer_ == nullptr ? 0
                                                        : static_cast<size_t>(config.num_pages)) {}

CacheNodes RadixCache::read_nodes(const CacheNodesQuery& query) const {
  CacheNodes read = tree_.read_nodes(query);
  if (!names_pages()) return read;
  for (CacheNode& node : read.nodes) {
    if (node.last_page < 0) continue;
    node.first_name = names_[static_cast<size_t>(node.first_page)];
    node.last_name = names_[static_cast<size_t>(node.last_page)];
  }
  return read;
}

int32_t RadixCache::match_bound(std::string_view cache_namespace,
                                std::span<const TokenId> tokens) const {
  return tree_.match(cache_namespace, tokens);
}

int32_t RadixCache::match(std::string_view cache_namespace, std::span<const TokenId> tokens) const {
  if (window_ == nullptr) return tree_.match(cache_namespace, tokens);
  // A match ends where the window's tail before it still has its window pages.
  match_pages_.clear();
  tree_.match_pages(cache_namespace, tokens, match_pages_);
  return window_->usable(match_pages_) * page_size_;
}

SequencePages RadixCache::begin(std::string_view cache_namespace, std::span<const TokenId> tokens,
                                int32_t priority) {
  SequencePages pages;
  pages.cache_ = this;
  pages.priority_ = priority;
  if (window_ != nullptr)
    tokens = tokens.first(static_cast<size_t>(RadixCache::match(cache_namespace, tokens)));
  pages.lock_ = tree_.lock(cache_namespace, tokens, &pages.table_, priority);
  pages.num_shared_ = pages.num_pages();
  if (names_pages()) pages.namespace_ = cache_namespace;
  if (observer_ != nullptr && pages.num_shared_ > 0 && !is_process_local(cache_namespace))
    observer_->on_reused(pages.table());
  begin_window(pages);
  return pages;
}

void RadixCache::move_to_tree(SequencePages& pages, std::span<const TokenId> tokens,
                              std::vector<PageId>& duplicates) {
  const auto begin = static_cast<size_t>(pages.num_shared_);
  const size_t end = tokens.size() / static_cast<size_t>(page_size_);
  ESP_CHECK(end <= pages.table_.size(), "tokens beyond the sequence's pages");
  if (end <= begin) return;
  const auto page_size = static_cast<size_t>(page_size_);
  const std::span<PageId> moved = std::span(pages.table_).subspan(begin, end - begin);
  present_.clear();
  const RadixTree::Extension added =
      tree_.extend(pages.lock_, tokens.subspan(begin * page_size, (end - begin) * page_size), moved,
                   &present_, pages.priority_);
  if (window_ != nullptr) replace_in_window(pages, begin);
  duplicates.insert(duplicates.end(), moved.begin(),
                    moved.begin() + static_cast<std::ptrdiff_t>(present_.size()));
  std::copy(present_.begin(), present_.end(), moved.begin());
  if (names_pages() && present_.size() < moved.size())
    report_stored(pages, tokens.first(end * page_size), begin + present_.size());
  pages.lock_ = added.node;
  pages.num_shared_ = static_cast<int32_t>(end);
}

// Called when the tree has taken the pages from `begin` to the end of `tokens`; the only place that
// computes their names.
void RadixCache::name_pages(const SequencePages& pages, std::span<const TokenId> tokens,
                            size_t begin) {
  const auto page_size = static_cast<size_t>(page_size_);
  new_names_.clear();
  PageName name = begin > 0 ? names_[static_cast<size_t>(pages.table_[begin - 1])]
                            : root_page_name(name_scope_, kNoAdapter, pages.namespace_);
  for (size_t i = begin; i < tokens.size() / page_size; ++i) {
    name = page_name(name, tokens.subspan(i * page_size, page_size));
    names_[static_cast<size_t>(pages.table_[i])] = name;
    new_names_.push_back(name);
  }
}

void RadixCache::report_stored(const SequencePages& pages, std::span<const TokenId> tokens,
                               size_t begin) {
  name_pages(pages, tokens, begin);
  // First, for the observer's copies may have events of their own, which name the same pages.
  if (events_ != nullptr) log_stored(pages, tokens, begin);
  if (observer_ != nullptr && !is_process_local(pages.namespace_))
    observer_->on_stored(new_names_, pages.table().subspan(begin, new_names_.size()));
}

void RadixCache::log_stored(const SequencePages& pages, std::span<const TokenId> tokens,
                            size_t begin) {
  CacheEvent event{
      .type = CacheEvent::Type::kStored, .pages = new_names_, .cache_namespace = pages.namespace_};
  if (begin > 0) event.parent = names_[static_cast<size_t>(pages.table_[begin - 1])];
  const size_t first_token = begin * static_cast<size_t>(page_size_);
  event.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(first_token), tokens.end());
  events_->push(std::move(event));
}

// An empty tree is said by one word, unless an observer may have copies of its pages.
void RadixCache::log_removed(std::span<const PageId> pages) {
  if (pages.empty()) return;
  CacheEvent event;  // cleared
  if (tree_.num_nodes() > 0 || observer_ != nullptr) {
    event.type = CacheEvent::Type::kRemoved;
    for (const PageId page : pages) event.pages.push_back(names_[static_cast<size_t>(page)]);
  }
  events_->push(std::move(event));
}

// The pages in present_ replace the sequence's own from page `begin` on. Where the tree has lost a
// window page, it takes over the duplicate's; else the duplicate keeps its window page, for a step
// in flight may read it.
void RadixCache::replace_in_window(SequencePages& pages, size_t begin) {
  for (size_t i = 0; i < present_.size(); ++i) {
    const size_t at = begin + i;
    if (at < static_cast<size_t>(pages.window_begin_)) continue;
    const PageId own = pages.table_[at], cached = present_[i];
    if (window_->has(cached)) {
      window_->add_user(cached);
    } else {
      window_->move(own, cached);
    }
    pages.window_table_[at] = window_->of(cached);
  }
}

void RadixCache::share(SequencePages& pages, std::span<const TokenId> tokens,
                       DetachedPages& replaced) {
  replaced.cache_ = this;
  move_to_tree(pages, tokens, replaced.pages_);
}

void RadixCache::finish(SequencePages&& pages, std::span<const TokenId> tokens) {
  SequencePages ended = std::move(pages);
  scratch_.clear();
  move_to_tree(ended, tokens, scratch_);
  free_pages(scratch_);
}

void RadixCache::release(SequencePages& pages) {
  if (!pages.holds()) return;
  end_window(pages);
  free_pages(pages.own());
  tree_.unlock(pages.lock_);
  pages.cache_ = nullptr;
  pages.lock_ = nullptr;
  pages.num_shared_ = 0;
  pages.table_.clear();
}

void RadixCache::shared_nodes(const SequencePages& pages, std::vector<SharedNode>& out) const {
  for (const RadixNode* node = pages.lock_; node != nullptr && !node->is_root();
       node = node->parent)
    if (node->num_locks > 1) out.push_back({node->number, node->end});
}

int32_t RadixCache::num_exclusive_pages(const SequencePages& pages) const {
  const int32_t num_own = pages.num_pages() - pages.num_shared_pages();
  return num_own + (pages.holds() ? tree_.num_pages_locked_once(pages.lock_) : 0);
}

int32_t RadixCache::evict(int32_t count, bool demote) {
  evicted_.clear();
  const int32_t num_evicted = tree_.evict(count, &evicted_);
  scratch_.clear();
  for (const PageRecord& record : evicted_) {
    ESP_CHECK(record.resident(), "page {} is not on the device", record.page);
    scratch_.push_back(record.page);
  }
  if (observer_ != nullptr && !scratch_.empty()) observer_->on_evicted(scratch_, demote);
  if (events_ != nullptr) log_removed(scratch_);
  free_pages(scratch_);
  return num_evicted;
}

PrefixCacheSizes RadixCache::sizes() const {
  return {.total = num_pages(),
          .free = pool_.num_free(),
          .evictable = tree_.num_evictable_pages(),
          .protected_ = tree_.num_protected_pages(),
          .window_available = window_available()};
}

void RadixCache::check_invariants(std::span<const SequencePages* const> sequences,
                                  std::span<const PageId> detached) const {
  std::vector<const RadixNode*> locked;
  for (const SequencePages* sequence : sequences) {
    if (!sequence->holds()) continue;
    locked.push_back(sequence->lock_);
    ESP_CHECK(RadixTree::num_tokens_to(sequence->lock_) ==
              sequence->num_shared_pages() * page_size_);
  }
  tree_.check_invariants(locked);
  std::vector<PageId> cached;
  tree_.for_each_page([&](const PageRecord& record) {
    ESP_CHECK(record.resident(), "page {} is not on the device", record.page);
    cached.push_back(record.page);
  });
  check_ownership(sequences, detached, cached);
}

}  // namespace espalier
