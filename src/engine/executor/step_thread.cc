#include "engine/executor/step_thread.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/thread.h"

namespace espalier {

StepThread::StepThread(std::string_view name, Run run) : run_(std::move(run)) {
  thread_ = std::thread([this, name = std::string(name)] { work(name); });
}

StepThread::~StepThread() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  launched_changed_.notify_one();
  masks_changed_.notify_one();
  thread_.join();
}

void StepThread::launch(const ForwardBatch& batch) {
  {
    std::lock_guard lock(mutex_);
    if (launched_ == 0) launched_ = done_ = waited_ = batch.step - 1;
    ESP_CHECK(batch.step == launched_ + 1, "step {} launched after {}", batch.step, launched_);
    ESP_CHECK(launched_ - waited_ < Executor::kMaxInFlight, "step {} is one too many in flight",
              batch.step);
    slot_of(batch.step).batch = &batch;
    launched_ = batch.step;
  }
  launched_changed_.notify_one();
}

void StepThread::provide_masks(uint64_t step, const MaskView& masks) {
  {
    std::lock_guard lock(mutex_);
    ESP_CHECK(step <= launched_ && step > waited_, "masks for step {}, which is not in flight",
              step);
    InFlightSlot& p = slot_of(step);
    p.mask_words.assign(masks.words.begin(), masks.words.end());
    p.words_per_mask = masks.words_per_mask;
    p.masked_step = step;
  }
  masks_changed_.notify_one();
}

const StepResult& StepThread::wait(uint64_t step) {
  std::unique_lock lock(mutex_);
  ESP_CHECK(step == waited_ + 1 && step <= launched_,
            "wait for step {}, but {} is the oldest of {}", step, waited_ + 1, launched_);
  done_changed_.wait(lock, [&] { return done_ >= step; });
  waited_ = step;
  return slot_of(step).result;
}

MaskView StepThread::await_masks(const ForwardBatch& batch) {
  const bool wanted = std::any_of(batch.entries.begin(), batch.entries.end(),
                                  [](const BatchEntry& entry) { return entry.has_mask; });
  if (!wanted) return {};
  InFlightSlot& p = slot_of(batch.step);
  std::unique_lock lock(mutex_);
  masks_changed_.wait(lock, [&] { return p.masked_step == batch.step || stopping_; });
  if (p.masked_step != batch.step) return {};
  return {.words = p.mask_words, .words_per_mask = p.words_per_mask};
}

void StepThread::work(std::string_view name) {
  set_thread_name(name);
  std::unique_lock lock(mutex_);
  for (;;) {
    launched_changed_.wait(lock, [&] { return stopping_ || launched_ > done_; });
    if (launched_ == done_) return;
    InFlightSlot& p = slot_of(done_ + 1);
    p.result.step = done_ + 1;
    lock.unlock();
    run_(*p.batch, p.result);
    lock.lock();
    ++done_;
    done_changed_.notify_one();
  }
}

}  // namespace espalier
