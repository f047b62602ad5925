// --request-log: a line of JSON for each request that reached a route of the engine, from which
// `espalier replay` sends the same load again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "server/request_log.h"

namespace espalier::server {

struct RequestRecorderOptions {
  std::string path;
  bool keeps_prompts = false;              // otherwise bodies are redacted (redact.h)
  int64_t max_bytes = int64_t{256} << 20;  // of the file; a larger one becomes PATH.1
};

struct RecordCounts {
  int64_t written = 0, dropped = 0;  // requests
};
// As /metrics has them.
void append_metrics(std::string& out, const RecordCounts& counts);

// One request, as its line has it. The writer's thread owns `body`; the rest is of the threads that
// handle the request, until it is queued as ended.
struct RecordedRequest {
  std::string route, rid, tenant;
  std::string body;  // as it came, then JSON on one line
  bool stream = false;
  int status = 0;  // 0: it was not answered, for its connection was gone before
  int32_t num_samples = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::vector<const char*> finish_reasons;  // of its samples
  Duration arrived_unix{};
  TimePoint arrived{}, first_token{}, ended{};
  size_t body_bytes = 0;  // of `body`, that count towards the recorder's bound

  // The samples of one prompt share its tokens.
  void add(const LoggedRequest& sample, bool is_first_of_prompt);
};

class RequestRecorder;

// Of a request while it is handled: it is written when its ticket goes. Movable; empty where no log
// is kept, and where the log had no room.
class RecordTicket {
 public:
  RecordTicket() = default;
  RecordTicket(RequestRecorder& recorder, std::shared_ptr<RecordedRequest> request)
      : recorder_(&recorder), request_(std::move(request)) {}
  RecordTicket(RecordTicket&& other) noexcept = default;
  RecordTicket& operator=(RecordTicket&& other) noexcept {
    std::swap(recorder_, other.recorder_);
    std::swap(request_, other.request_);
    return *this;
  }
  ~RecordTicket();

  RecordedRequest* operator->() const { return request_.get(); }
  explicit operator bool() const { return request_ != nullptr; }
  // The first call counts: how the client was answered, and when.
  void end(int status);

 private:
  RequestRecorder* recorder_ = nullptr;
  std::shared_ptr<RecordedRequest> request_;  // shared with the recorder's queue
};

// Thread-safe. A thread of its own reads bodies and writes lines; no request waits for it. Beyond
// kWaiting entries or kBodyBytesMax of bodies a request is left out and counted; so is one whose
// line the disk does not take, which the log of the server says once.
class RequestRecorder {
 public:
  static constexpr size_t kWaiting = 16'384;
  static constexpr size_t kBodyBytesMax = size_t{64} << 20;

  // Creates the file with mode 0600, or appends to it. kInvalidArgument where it is no regular file
  // or cannot be written.
  static Status check(const std::string& path);
  static Result<std::unique_ptr<RequestRecorder>> start(RequestRecorderOptions options);
  ~RequestRecorder();  // writes what has come

  RecordTicket begin(std::string route, std::string body, TimePoint arrived);
  RecordCounts counts() const { return {written_, dropped_}; }

 private:
  friend class RecordTicket;
  struct Entry {
    std::shared_ptr<RecordedRequest> request;
    bool has_ended = false;
  };

  RequestRecorder(RequestRecorderOptions options, int descriptor, int64_t size);
  void end(std::shared_ptr<RecordedRequest> request);
  void run();
  void read_body(RecordedRequest& request);
  std::string line_of(const RecordedRequest& request) const;
  void write(const std::string& line);
  void rotate();
  bool write_all(const std::string& line);

  const RequestRecorderOptions options_;
  const TimePoint opened_;
  int descriptor_;
  int64_t size_;              // of the file; the writer's
  std::string last_failure_;  // that stands in the log; the writer's
  BoundedQueue<Entry> waiting_{kWaiting};
  std::atomic<size_t> body_bytes_{0};
  std::atomic<int64_t> written_{0}, dropped_{0};
  std::thread thread_;
};

}  // namespace espalier::server
