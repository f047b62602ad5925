#include "cache/prefix_cache.h"

#include <utility>

#include "base/check.h"
#include "cache/chunk_cache.h"
#include "cache/radix_cache.h"

namespace espalier {

SequencePages& SequencePages::operator=(SequencePages&& other) noexcept {
  if (this == &other) return *this;
  reset();
  cache_ = std::exchange(other.cache_, nullptr);
  lock_ = std::exchange(other.lock_, nullptr);
  num_shared_ = std::exchange(other.num_shared_, 0);
  priority_ = other.priority_;
  namespace_ = std::exchange(other.namespace_, {});
  table_ = std::exchange(other.table_, {});
  window_table_ = std::exchange(other.window_table_, {});
  window_begin_ = std::exchange(other.window_begin_, 0);
  return *this;
}

void SequencePages::reserve(int32_t num_pages) {
  table_.reserve(static_cast<size_t>(num_pages));
  if (cache_ != nullptr && cache_->has_window())
    window_table_.reserve(static_cast<size_t>(num_pages));
}

void SequencePages::reset() {
  if (cache_ != nullptr) cache_->release(*this);
}

DetachedPages& DetachedPages::operator=(DetachedPages&& other) noexcept {
  if (this == &other) return *this;
  reset();
  cache_ = std::exchange(other.cache_, nullptr);
  pages_ = std::exchange(other.pages_, {});
  return *this;
}

void DetachedPages::reset() {
  if (cache_ != nullptr) cache_->free_pages(pages_);
  cache_ = nullptr;
  pages_.clear();
}

PrefixCache::PrefixCache(const PrefixCacheConfig& config)
    : page_size_(config.page_size), pool_(config.num_pages) {
  if (config.sliding_window > 0)
    window_ = std::make_unique<WindowPages>(config.num_pages, config.num_window_pages,
                                            config.sliding_window, config.page_size);
}

void PrefixCache::free_pages(std::span<const PageId> pages) {
  if (window_ != nullptr)
    for (const PageId page : pages) window_->clear(page);
  pool_.free(pages);
}

void PrefixCache::begin_window(SequencePages& pages) {
  if (window_ == nullptr) return;
  const int32_t first = window_->first_needed(pages.num_pages() * page_size_);
  pages.window_begin_ = first;
  for (int32_t i = 0; i < pages.num_pages(); ++i) {
    const PageId page = pages.table_[static_cast<size_t>(i)];
    if (i >= first) window_->add_user(page);
    pages.window_table_.push_back(std::max(0, window_->of(page)));
  }
}

void PrefixCache::end_window(SequencePages& pages) {
  if (window_ == nullptr) return;
  for (int32_t i = pages.window_begin_; i < pages.num_pages(); ++i)
    window_->drop_user(pages.table_[static_cast<size_t>(i)], i < pages.num_shared_);
  pages.window_table_.clear();
  pages.window_begin_ = 0;
}

int32_t PrefixCache::num_window_pages_passed(const SequencePages& pages, int32_t num_tokens) const {
  if (window_ == nullptr) return 0;
  return std::max(
      0, std::min(window_->first_needed(num_tokens), pages.num_pages()) - pages.window_begin_);
}

void PrefixCache::advance(SequencePages& pages, int32_t num_tokens) {
  for (int32_t left = num_window_pages_passed(pages, num_tokens); left > 0; --left) {
    const int32_t i = pages.window_begin_++;
    window_->drop_user(pages.table_[static_cast<size_t>(i)], i < pages.num_shared_);
  }
}

bool PrefixCache::grow(SequencePages& pages, int32_t num_tokens) {
  const int32_t missing = num_pages_for(num_tokens) - pages.num_pages();
  if (missing <= 0) return true;
  const PrefixCacheSizes now = sizes();
  if (missing > now.available_now()) return false;
  if (missing > now.free) evict(missing - now.free);
  ESP_CHECK(pool_.allocate(missing, pages.table_),
            "eviction freed fewer pages than sizes() counts");
  if (window_ == nullptr) return true;
  for (const PageId page : pages.table().last(static_cast<size_t>(missing))) {
    window_->take(page);
    pages.window_table_.push_back(window_->of(page));
  }
  return true;
}

void PrefixCache::check_ownership(std::span<const SequencePages* const> sequences,
                                  std::span<const PageId> detached,
                                  std::span<const PageId> cached) const {
  pool_.check_invariants();
  enum Owner : uint8_t { kNone, kSequence, kDetached, kNode };
  std::vector<Owner> owners(static_cast<size_t>(num_pages()), kNone);
  const auto claim = [&](PageId page, Owner owner) {
    ESP_CHECK(page >= 0 && page < num_pages() && !pool_.is_free(page), "page {} is free", page);
    Owner& now = owners[static_cast<size_t>(page)];
    ESP_CHECK(now == kNone, "page {} has two owners: {} and {}", page, int{now}, int{owner});
    now = owner;
  };
  for (const PageId page : cached) claim(page, kNode);
  for (const PageId page : detached) claim(page, kDetached);
  size_t num_owned = cached.size() + detached.size();
  for (const SequencePages* sequence : sequences) {
    for (const PageId page : sequence->own()) claim(page, kSequence);
    num_owned += sequence->own().size();
    for (const PageId page : sequence->table().first(static_cast<size_t>(sequence->num_shared_)))
      ESP_CHECK(owners[static_cast<size_t>(page)] == kNode, "shared page {} is not cached", page);
  }
  if (window_ != nullptr) {
    std::vector<PageId> uses;
    for (const PageId page : detached)
      if (window_->has(page)) uses.push_back(page);
    for (const SequencePages* s : sequences) {
      ESP_CHECK(s->window_table_.size() == s->table_.size());
      for (int32_t i = s->window_begin_; i < s->num_pages(); ++i) {
        uses.push_back(s->table_[static_cast<size_t>(i)]);
        ESP_CHECK(window_->of(uses.back()) == s->window_table_[static_cast<size_t>(i)]);
      }
    }
    window_->check_invariants(uses);
  }
  ESP_CHECK(num_owned + static_cast<size_t>(pool_.num_free()) == owners.size(),
            "{} pages have lost their owner",
            owners.size() - num_owned - static_cast<size_t>(pool_.num_free()));
}

Status check_prefix_cache(const PrefixCacheConfig& config) {
  if (config.page_size < 1)
    return invalid_argument("page_size is {}; it must be at least 1 token", config.page_size);
  if (config.num_pages < 1)
    return invalid_argument("the KV pool has {} pages; it needs at least 1", config.num_pages);
  if (config.sliding_window > 0) {
    const WindowPages one_page(1, 0, config.sliding_window, config.page_size);
    const int32_t least = one_page.max_resident(config.num_pages);
    if (config.num_window_pages < least)
      return invalid_argument(
          "the KV pool has {} pages of {} tokens for layers with a sliding window; it needs at "
          "least {} for one request with a window of {} tokens",
          config.num_window_pages, config.page_size, least, config.sliding_window);
  }
  return Status();
}

Result<std::unique_ptr<PrefixCache>> make_prefix_cache(const PrefixCacheConfig& config) {
  ESP_RETURN_IF_ERROR(check_prefix_cache(config));
  if (config.disable_radix_cache) return std::make_unique<ChunkCache>(config);
  return std::make_unique<RadixCache>(config);
}

}  // namespace espalier
