#include "lang/interpreter/variable.h"

#include "lang/waiting.h"

namespace espalier::lang {

PromptStream::Read Variable::read() {
  std::unique_lock lock(mutex_);
  if (!wait_until(lock, changed_, [&] { return done_; }))
    return {espalier::fail(interrupted()), {}};
  if (!status_.ok()) return {espalier::fail(status_), where_};
  return {content_, where_};
}

Result<MetaInfo> Variable::meta() {
  std::unique_lock lock(mutex_);
  if (!wait_until(lock, changed_, [&] { return done_; })) return espalier::fail(interrupted());
  if (!status_.ok()) return espalier::fail(status_);
  return meta_;
}

bool Variable::ready() const {
  std::lock_guard lock(mutex_);
  return done_;
}

void Variable::when_ready(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void Variable::append(std::string_view delta, std::optional<Progress> progress) {
  {
    std::lock_guard lock(mutex_);
    if (done_) return;
    partial_ += delta;
    if (progress) progress_.emplace_back(partial_.size(), std::move(*progress));
  }
  changed_.notify_all();
}

Progress merged(const Progress& earlier, const Progress& later) {
  Progress both = later;
  if (!earlier.logprobs.empty())
    both.logprobs = earlier.logprobs + (later.logprobs.empty() ? "" : ",") + later.logprobs;
  return both;
}

std::optional<Progress> Variable::progress(size_t begin, size_t end) const {
  std::lock_guard lock(mutex_);
  std::optional<Progress> all;
  for (const auto& [at, one] : progress_)
    if (at > begin && at <= end) all = all ? merged(*all, one) : one;
  return all;
}

void Variable::fill(Content content, MetaInfo meta) {
  std::unique_lock lock(mutex_);
  if (done_) return;
  content_ = std::move(content);
  meta_ = std::move(meta);
  if (!content_.is_list) {
    partial_ = content_.text;
  } else if (!content_.items.empty()) {
    partial_ = content_.items.front();
  }
  finish(std::move(lock));
}

void Variable::fail(Status why, Location where) {
  std::unique_lock lock(mutex_);
  if (done_) return;
  status_ = std::move(why);
  where_ = where;
  finish(std::move(lock));
}

void Variable::finish(std::unique_lock<std::mutex> lock) {
  done_ = true;
  const auto callbacks = std::move(callbacks_);
  callbacks_.clear();
  changed_.notify_all();
  lock.unlock();
  for (const auto& callback : callbacks) callback();
}

Result<bool> Variable::read_text(size_t offset, std::string& out) {
  std::unique_lock lock(mutex_);
  if (!wait_until(lock, changed_, [&] { return done_ || partial_.size() > offset; }))
    return espalier::fail(interrupted());
  if (partial_.size() > offset) {
    out.append(partial_, offset);
    return true;
  }
  if (!status_.ok()) return espalier::fail(status_);
  return false;
}

}  // namespace espalier::lang
