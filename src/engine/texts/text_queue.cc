#include "engine/texts/text_queue.h"

#include <utility>

namespace espalier {
namespace {

int64_t tokens_of(const TextJob& job) {
  return job.aborted || !job.text ? 0 : std::ssize(job.text->ids);
}

}  // namespace

void TextQueue::push(TextJobPtr job) {
  {
    std::lock_guard lock(mutex_);
    raw_.push_back(std::move(job));
  }
  raw_ready_.notify_one();
}

TextJobPtr TextQueue::next_raw() {
  std::unique_lock lock(mutex_);
  raw_ready_.wait(lock, [&] { return closed_ || !raw_.empty(); });
  if (raw_.empty()) return nullptr;
  TextJobPtr job = std::move(raw_.front());
  raw_.pop_front();
  job->aborted = closed_ || aborted_.contains(job->id);
  ++num_being_tokenised_;
  return job;
}

void TextQueue::push_tokenised(TextJobPtr job) {
  {
    std::lock_guard lock(mutex_);
    --num_being_tokenised_;
    const std::pair<int64_t, RequestId> key(-int64_t{job->request.priority}, job->id);
    ready_.emplace(key, std::move(job));
  }
  step_ready_.notify_one();
}

std::vector<TextJobPtr> TextQueue::next_step(int64_t tokens_max) {
  std::unique_lock lock(mutex_);
  const auto ended = [&] { return closed_ && raw_.empty() && num_being_tokenised_ == 0; };
  step_ready_.wait(lock, [&] { return !ready_.empty() || ended(); });
  std::vector<TextJobPtr> out;
  int64_t tokens = 0;
  while (!ready_.empty()) {
    TextJob& first = *ready_.begin()->second;
    first.aborted = first.aborted || closed_ || aborted_.contains(first.id);
    tokens += tokens_of(first);
    if (!out.empty() && tokens > tokens_max) break;
    out.push_back(std::move(ready_.begin()->second));
    ready_.erase(ready_.begin());
  }
  return out;
}

void TextQueue::abort(const std::vector<RequestId>& ids) {
  std::lock_guard lock(mutex_);
  aborted_.insert(ids.begin(), ids.end());
}

void TextQueue::forget(RequestId id) {
  std::lock_guard lock(mutex_);
  aborted_.erase(id);
}

void TextQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  raw_ready_.notify_all();
  step_ready_.notify_all();
}

int32_t TextQueue::num_waiting() const {
  std::lock_guard lock(mutex_);
  return static_cast<int32_t>(raw_.size() + ready_.size()) + num_being_tokenised_;
}

}  // namespace espalier
