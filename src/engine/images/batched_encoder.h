// Pictures of several threads encoded together: a thread that comes while fewer batches than the
// encoder takes at a time are in flight encodes all that wait; the others wait for theirs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>

#include "base/status.h"
#include "models/image_encoder.h"

namespace espalier {

// Thread-safe. As many pictures wait as threads call, so what they bring needs no bound here.
class BatchedEncoder {
 public:
  explicit BatchedEncoder(ImageEncoder& encoder) : encoder_(encoder) {}

  // Returns when the rows are there, with the picture's part of its batch's seconds. Pictures are
  // encoded in the order in which they came. A failure is of this picture alone.
  Result<double> encode(const EncoderTask& task);

 private:
  struct Waiting {
    EncoderTask task;
    Status status;
    double seconds = 0;
    bool done = false;
  };
  void encode_first(std::unique_lock<std::mutex>& lock);
  void encode_each(std::span<Waiting* const> batch, std::span<const EncoderTask> tasks);
  Status encode_together(std::span<const EncoderTask> tasks);

  ImageEncoder& encoder_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting*> waiting_;  // not yet in a batch
  int32_t in_flight_ = 0;         // batches
};

}  // namespace espalier
