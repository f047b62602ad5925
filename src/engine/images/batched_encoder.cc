#include "engine/images/batched_encoder.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace espalier {

Result<double> BatchedEncoder::encode(const EncoderTask& task) {
  Waiting own{.task = task};
  std::unique_lock lock(mutex_);
  waiting_.push_back(&own);
  while (!own.done) {
    const bool in_batch = std::ranges::find(waiting_, &own) == waiting_.end();
    if (!in_batch && in_flight_ < encoder_.batches_in_flight_max()) {
      encode_first(lock);
    } else {
      changed_.wait(lock);
    }
  }
  if (!own.status.ok()) return fail(std::move(own.status));
  return own.seconds;
}

// Those that wait longest, as many as a batch has. Unlocked while they are encoded.
void BatchedEncoder::encode_first(std::unique_lock<std::mutex>& lock) {
  const size_t count =
      std::min(waiting_.size(), static_cast<size_t>(std::max(1, encoder_.batch_max())));
  std::vector<Waiting*> batch;
  std::vector<EncoderTask> tasks;
  try {
    batch.assign(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
    for (const Waiting* waiting : batch) tasks.push_back(waiting->task);
  } catch (const std::bad_alloc&) {  // the oldest then fails, which needs no memory
    Waiting& oldest = *waiting_.front();
    waiting_.pop_front();
    oldest.status = error(StatusCode::kResourceExhausted,
                          "there is no memory for a batch of pictures: try again later");
    oldest.done = true;
    changed_.notify_all();
    return;
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
  ++in_flight_;
  lock.unlock();
  encode_each(batch, tasks);
  lock.lock();
  --in_flight_;
  for (Waiting* waiting : batch) waiting->done = true;
  changed_.notify_all();
}

// A picture that the encoder refuses fails alone: where a batch fails, each of its pictures is
// encoded by itself, whatever the encoder had made of the batch.
void BatchedEncoder::encode_each(std::span<Waiting* const> batch,
                                 std::span<const EncoderTask> tasks) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  Status status = encode_together(tasks);
  if (status.ok() || batch.size() == 1) {
    const double seconds = to_seconds(clock.now() - start) / static_cast<double>(batch.size());
    for (Waiting* waiting : batch) waiting->seconds = seconds;
    batch[0]->status = std::move(status);
    return;
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    const TimePoint begin = clock.now();
    batch[i]->status = encode_together(tasks.subspan(i, 1));
    batch[i]->seconds = to_seconds(clock.now() - begin);
  }
}

Status BatchedEncoder::encode_together(std::span<const EncoderTask> tasks) {
  try {
    return encoder_.encode_batch(tasks);
  } catch (const std::exception& failure) {
    return error(StatusCode::kResourceExhausted, "it could not be encoded: {}: try again later",
                 failure.what());
  }
}

}  // namespace espalier
