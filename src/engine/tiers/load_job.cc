#include "engine/tiers/load_job.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace espalier {

// Passes the pages of one part to the job.
class LoadJob::Sink final : public PageSink {
 public:
  Sink(std::shared_ptr<LoadJob> job, const Part& part) : job_(std::move(job)), part_(part) {}
  void on_page(size_t index, std::span<const std::byte> bytes) override {
    if (!bytes.empty()) job_->begin_page(part_, index, bytes);
  }
  void on_release(size_t index) override { job_->end_page(part_, index); }
  void on_done() override { job_->end_part(); }

 private:
  const std::shared_ptr<LoadJob> job_;  // shared: whichever of caller and stores is last frees it
  const Part& part_;
};

LoadJob::LoadJob(SequenceId id, PageCopier& copier, std::span<const PageId> pages, Ended ended)
    : id_(id),
      copier_(copier),
      ended_(std::move(ended)),
      pages_(pages.begin(), pages.end()),
      copies_(pages.size()),
      written_(pages.size(), Source::kNone) {}

void LoadJob::add(PageStore& store, Source source, size_t first, std::span<const PageName> names,
                  PageStore* keep) {
  ESP_CHECK(first + names.size() <= pages_.size() && num_parts_left_ == parts_.size());
  parts_.push_back({&store, keep, source, first, {names.begin(), names.end()}});
  ++num_parts_left_;
}

void LoadJob::begin() {
  for (const Part& part : parts_)
    part.store->get(part.names, std::make_shared<Sink>(shared_from_this(), part));
}

void LoadJob::cancel() {
  std::unique_lock lock(mutex_);
  is_cancelled_ = true;
  copied_.wait(lock, [&] { return num_copying_ == 0; });
}

// Copies begin under the lock, so that none does once cancel() has taken it.
void LoadJob::begin_page(const Part& part, size_t index, std::span<const std::byte> bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_) return;
    const size_t at = part.first + index;
    copies_[at] = {copier_.begin_write(pages_[at], bytes), true};
    ++num_copying_;
  }
  if (part.keep != nullptr)
    part.keep->put(std::span(part.names).subspan(index, 1), [&](size_t, std::span<std::byte> to) {
      std::copy(bytes.begin(), bytes.end(), to.begin());
      return true;
    });
}

void LoadJob::end_page(const Part& part, size_t index) {
  const size_t at = part.first + index;
  if (!copies_[at].has_begun) return;
  const Status status = copier_.finish(copies_[at].transfer);
  const std::lock_guard lock(mutex_);
  if (status.ok()) written_[at] = part.source;
  if (--num_copying_ == 0) copied_.notify_all();
}

void LoadJob::end_part() {
  {
    const std::lock_guard lock(mutex_);
    if (--num_parts_left_ > 0 || is_cancelled_) return;
  }
  ended_();
}

LoadJob::Written LoadJob::written() const {
  const std::lock_guard lock(mutex_);
  Written count;
  for (const Source source : written_) {
    if (source == Source::kNone) break;
    ++(source == Source::kHost ? count.host : count.storage);
  }
  return count;
}

}  // namespace espalier
