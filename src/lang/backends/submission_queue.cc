#include "lang/backends/submission_queue.h"

#include <utility>

namespace espalier::lang {
namespace {

bool is_part(const std::string& rid, const std::string& call) {
  return call.empty() ||
         (rid.starts_with(call) && (rid.size() == call.size() || rid[call.size()] == '/'));
}

}  // namespace

bool SubmissionQueue::fits(const Submission& s) const {
  return num_samples_ == 0 || num_samples_ + s.num_samples() <= max_samples_;
}

bool SubmissionQueue::admit(Submission& s) {
  std::lock_guard lock(mutex_);
  rids_.insert(s.request.rid);
  if (!waiting_.empty() || !fits(s)) {
    waiting_.push_back(std::move(s));
    return false;
  }
  num_samples_ += s.num_samples();
  return true;
}

std::vector<Submission> SubmissionQueue::remove(const std::string& rid, int64_t num_samples) {
  std::lock_guard lock(mutex_);
  num_samples_ -= num_samples;
  std::vector<Submission> next;
  while (!waiting_.empty() && fits(waiting_.front())) {
    num_samples_ += waiting_.front().num_samples();
    next.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  rids_.erase(rid);
  if (rids_.empty()) empty_.notify_all();
  return next;
}

std::vector<Submission> SubmissionQueue::take_waiting(const std::string& call) {
  std::lock_guard lock(mutex_);
  std::vector<Submission> taken;
  std::deque<Submission> others;
  for (Submission& s : waiting_) {
    if (is_part(s.request.rid, call)) {
      rids_.erase(s.request.rid);
      taken.push_back(std::move(s));
    } else {
      others.push_back(std::move(s));
    }
  }
  waiting_ = std::move(others);
  if (rids_.empty()) empty_.notify_all();
  return taken;
}

std::vector<std::string> SubmissionQueue::rids(const std::string& call) const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> found;
  for (const std::string& rid : rids_)
    if (is_part(rid, call)) found.push_back(rid);
  return found;
}

void SubmissionQueue::wait_empty() {
  std::unique_lock lock(mutex_);
  empty_.wait(lock, [&] { return rids_.empty(); });
}

}  // namespace espalier::lang
