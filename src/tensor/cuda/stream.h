// Streams, events and graphs of the device. Handles are move-only and free what they own; creating
// them fails with a Status. Not thread-safe: one thread uses a stream at a time.
#pragma once

#include <memory>

#include "base/status.h"

// Declared as in CUDA's headers, so that this one needs none of those.
struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace espalier::cuda {

using StreamHandle = CUstream_st*;

namespace internal {
struct Destroy {
  void operator()(CUstream_st* stream) const;
  void operator()(CUevent_st* event) const;
  void operator()(CUgraphExec_st* graph) const;
};
}  // namespace internal

class Event;

// A stream that neither waits for the default stream nor is waited for by it.
class Stream {
 public:
  // urgent: its blocks start before those of other streams where a multiprocessor becomes free.
  static Result<Stream> create(bool urgent = false);
  StreamHandle get() const { return stream_.get(); }
  Status synchronize() const;
  Status wait(const Event& event) const;  // what is enqueued from here on runs after the event
  // Calls fn(data) on a thread of the driver's, in the stream's order. fn throws nothing and makes
  // no call to the device; it is not called where the device has failed. Never in a graph.
  Status run_on_host(void (*fn)(void*), void* data) const;

 private:
  std::unique_ptr<CUstream_st, internal::Destroy> stream_;
};

class Event {
 public:
  // timed: seconds_since() works.
  static Result<Event> create(bool timed = false);
  Status record(const Stream& stream) const;
  Status synchronize() const;  // blocks the caller, spinning
  Result<bool> is_done() const;
  // REQUIRES: both timed, both done.
  Result<double> seconds_since(const Event& earlier) const;
  CUevent_st* get() const { return event_.get(); }

 private:
  std::unique_ptr<CUevent_st, internal::Destroy> event_;
};

// Launches recorded once and replayed as one. The memory that they use must stay where it is.
class Graph {
 public:
  // Records what `enqueue` puts on `stream` (nothing of it runs). enqueue: Status().
  template <typename Enqueue>
  static Result<Graph> capture(const Stream& stream, const Enqueue& enqueue) {
    ESP_RETURN_IF_ERROR(begin(stream));
    const Status status = enqueue();
    return end(stream, status);
  }
  Status launch(const Stream& stream) const;
  explicit operator bool() const { return graph_ != nullptr; }

 private:
  static Status begin(const Stream& stream);
  static Result<Graph> end(const Stream& stream, const Status& status);
  std::unique_ptr<CUgraphExec_st, internal::Destroy> graph_;
};

}  // namespace espalier::cuda
