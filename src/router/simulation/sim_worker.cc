#include "router/simulation/sim_worker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace espalier::router {

namespace {

// Later by rounding than what was computed, never earlier.
TimePoint after(TimePoint from, double seconds) {
  return from + Duration(static_cast<int64_t>(std::ceil(seconds * 1e9)));
}

constexpr double kSlack = 1e-6;  // of what is left, by rounding

std::unique_ptr<RadixTree> new_tree() {
  return std::make_unique<RadixTree>(RadixTree::Options{.page_size = 1, .has_pages = false});
}

}  // namespace

SimWorker::SimWorker(const WorkerSpeed& speed) : speed_(speed), tree_(new_tree()) {}

double SimWorker::decode_rate() const {
  const double share = waiting_.empty() ? 1 : 0.5;
  return share / speed_.step_seconds(decoding_.size());
}

double SimWorker::prefill_rate() const { return decoding_.empty() ? 1 : 0.5; }

void SimWorker::catch_up(TimePoint now) {
  const double seconds = to_seconds(now - at_);
  at_ = now;
  if (num_requests() == 0) return;
  busy_seconds_ += seconds;
  request_seconds_ += seconds * static_cast<double>(num_requests());
  if (!decoding_.empty()) decoded_ += seconds * decode_rate();
  if (!waiting_.empty()) prefill_left_ -= seconds * prefill_rate();
}

void SimWorker::receive(std::unique_ptr<SimRequest> request, TimePoint now) {
  catch_up(now);
  waiting_.push_back(std::move(request));
  if (waiting_.size() == 1) begin_prefill();
}

// What is cached counts when the prefill begins: requests before it may have brought it.
void SimWorker::begin_prefill() {
  SimRequest& request = *waiting_.front();
  // The last unit is always computed: its last token's logits are wanted.
  const std::span<const int32_t> prompt(request.prompt);
  request.node = tree_->lock("", prompt.first(prompt.size() - 1));
  request.num_cached = RadixTree::num_tokens_to(request.node);
  const auto computed = static_cast<int64_t>(request.prompt.size()) - request.num_cached;
  prefill_left_ = static_cast<double>(computed * kTokensPerUnit) / speed_.prefill_tokens_per_second;
}

void SimWorker::cache(SimRequest& request, std::span<const int32_t> units) {
  request.node = tree_->extend(request.node, units, {}).node;
  make_room();
}

void SimWorker::make_room() {
  const int64_t used = int64_t{tree_->num_evictable_pages()} + tree_->num_protected_pages();
  if (used > speed_.cache_units)
    tree_->evict(static_cast<int32_t>(used - speed_.cache_units), nullptr);
}

std::optional<TimePoint> SimWorker::next_event() const {
  std::optional<double> seconds;
  if (!waiting_.empty()) seconds = std::max(0.0, prefill_left_ / prefill_rate());
  if (!decoding_.empty()) {
    const double left = std::max(0.0, (decoding_.front()->ends_at - decoded_) / decode_rate());
    seconds = seconds ? std::min(*seconds, left) : left;
  }
  if (!seconds) return std::nullopt;
  return after(at_, *seconds);
}

SimWorker::Progress SimWorker::advance(TimePoint now) {
  catch_up(now);
  Progress progress;
  if (!waiting_.empty() && prefill_left_ <= kSlack) {
    std::unique_ptr<SimRequest> request = std::move(waiting_.front());
    waiting_.pop_front();
    cache(*request, std::span<const int32_t>(request->prompt)
                        .subspan(static_cast<size_t>(request->num_cached)));
    request->has_begun = true;
    request->ends_at = decoded_ + static_cast<double>(static_cast<int64_t>(request->answer.size()) *
                                                      kTokensPerUnit);
    progress.begun = request.get();
    decoding_.push_back(std::move(request));
    std::ranges::push_heap(decoding_, EndsLater());
    if (!waiting_.empty()) begin_prefill();
  }
  if (!decoding_.empty() && decoding_.front()->ends_at <= decoded_ + kSlack) {
    std::ranges::pop_heap(decoding_, EndsLater());
    progress.ended = std::move(decoding_.back());
    decoding_.pop_back();
    cache(*progress.ended, progress.ended->answer);
    tree_->unlock(std::exchange(progress.ended->node, nullptr));
    make_room();
  }
  return progress;
}

std::vector<std::unique_ptr<SimRequest>> SimWorker::die(TimePoint now) {
  catch_up(now);
  std::vector<std::unique_ptr<SimRequest>> lost(std::make_move_iterator(waiting_.begin()),
                                                std::make_move_iterator(waiting_.end()));
  lost.insert(lost.end(), std::make_move_iterator(decoding_.begin()),
              std::make_move_iterator(decoding_.end()));
  waiting_.clear();
  decoding_.clear();
  std::ranges::sort(lost, {}, &SimRequest::id);
  for (const auto& request : lost) request->node = nullptr;
  tree_ = new_tree();
  return lost;
}

void SimWorker::check_invariants() const {
  std::vector<const RadixNode*> locked;
  if (!waiting_.empty()) locked.push_back(waiting_.front()->node);
  for (const auto& request : decoding_) locked.push_back(request->node);
  tree_->check_invariants(locked);
  ESP_CHECK(std::ranges::is_heap(decoding_, EndsLater()), "decodes are out of order");
}

}  // namespace espalier::router
