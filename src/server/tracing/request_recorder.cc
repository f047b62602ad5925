#include "server/tracing/request_recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

#include "base/log.h"
#include "base/thread.h"
#include "server/json_fields.h"
#include "server/json_memory.h"
#include "server/json_writer.h"
#include "server/tracing/redact.h"

namespace espalier::server {

namespace {

// Of JSON that is parsed to be redacted; larger bodies are logged by their length alone.
constexpr int64_t kParsedBytesMax = int64_t{256} << 20;

Duration unix_now() {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch());
}

// "2026-08-01T12:00:00.123456789Z"
std::string iso_time(Duration unix) {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  const std::time_t seconds = unix.count() / kNanoseconds;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     unix.count() % kNanoseconds);
}

struct OpenLog {
  int descriptor;
  int64_t size;
};

Result<OpenLog> open_log(const std::string& path) {
  const auto failed = [&](std::string_view why) {
    return fail(
        invalid_argument("--request-log {}: {}; name a file that may be written", path, why));
  };
  struct stat file {};
  if (::stat(path.c_str(), &file) == 0 && !S_ISREG(file.st_mode))
    return failed("it is no regular file");  // to open a pipe would wait for its reader
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) return failed(std::strerror(errno));
  if (::fstat(descriptor, &file) != 0 || ::fchmod(descriptor, 0600) != 0) {
    const std::string why = std::strerror(errno);
    ::close(descriptor);
    return failed(why);
  }
  return OpenLog{descriptor, file.st_size};
}

void write_seconds(JsonWriter& w, std::string_view name, TimePoint from, TimePoint to) {
  w.key(name);
  to == TimePoint{} ? w.null() : w.raw(fmt::format("{:.9f}", to_seconds(to - from)));
}

}  // namespace

void append_metrics(std::string& out, const RecordCounts& counts) {
  const auto counter = [&](std::string_view name, std::string_view help, int64_t value) {
    out += fmt::format("# HELP espalier:{0} {1}\n# TYPE espalier:{0} counter\nespalier:{0} {2}\n",
                       name, help, value);
  };
  counter("request_log_written_total", "Requests in --request-log.", counts.written);
  counter("request_log_dropped_total", "Requests that it had no room for.", counts.dropped);
}

void RecordedRequest::add(const LoggedRequest& sample, bool is_first_of_prompt) {
  if (rid.empty()) rid = sample.rid;
  ++num_samples;
  if (is_first_of_prompt) {
    prompt_tokens += sample.prompt_tokens;
    cached_tokens += sample.cached_tokens;
  }
  completion_tokens += sample.completion_tokens;
  finish_reasons.push_back(sample.end);
  const TimePoint first = sample.first_token;
  if (first != TimePoint{} && (first_token == TimePoint{} || first < first_token))
    first_token = first;
}

RecordTicket::~RecordTicket() {
  if (request_ == nullptr) return;
  if (request_->ended == TimePoint{}) request_->ended = std::chrono::steady_clock::now();
  recorder_->end(std::move(request_));
}

void RecordTicket::end(int status) {
  if (request_ == nullptr || request_->ended != TimePoint{}) return;
  request_->status = status;
  request_->ended = std::chrono::steady_clock::now();
}

Status RequestRecorder::check(const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const OpenLog log, open_log(path));
  ::close(log.descriptor);
  return {};
}

Result<std::unique_ptr<RequestRecorder>> RequestRecorder::start(RequestRecorderOptions options) {
  ESP_ASSIGN_OR_RETURN(const OpenLog log, open_log(options.path));
  return std::unique_ptr<RequestRecorder>(
      new RequestRecorder(std::move(options), log.descriptor, log.size));
}

RequestRecorder::RequestRecorder(RequestRecorderOptions options, int descriptor, int64_t size)
    : options_(std::move(options)),
      opened_(std::chrono::steady_clock::now()),
      descriptor_(descriptor),
      size_(size),
      thread_([this] {
        set_thread_name("request-log");
        give_way();
        run();
      }) {}

RequestRecorder::~RequestRecorder() {
  waiting_.close();
  thread_.join();
  ::close(descriptor_);
}

RecordTicket RequestRecorder::begin(std::string route, std::string body, TimePoint arrived) {
  const size_t num_bytes = body.size();
  if (body_bytes_.fetch_add(num_bytes) + num_bytes > kBodyBytesMax) {
    body_bytes_ -= num_bytes;
    ++dropped_;
    return {};
  }
  // The last reference to the request gives its bytes back.
  const std::shared_ptr<RecordedRequest> request(new RecordedRequest, [this](RecordedRequest* r) {
    body_bytes_ -= r->body_bytes;
    delete r;
  });
  request->route = std::move(route);
  request->body = std::move(body);
  request->body_bytes = num_bytes;
  request->arrived = arrived;
  request->arrived_unix = unix_now() - (std::chrono::steady_clock::now() - arrived);
  if (waiting_.try_push({request, /*has_ended=*/false})) return {*this, request};
  ++dropped_;
  return {};
}

// Entries keep their order, so the body has been read when the line is written.
void RequestRecorder::end(std::shared_ptr<RecordedRequest> request) {
  if (!waiting_.try_push({std::move(request), /*has_ended=*/true})) ++dropped_;
}

void RequestRecorder::run() {
  while (auto entry = waiting_.pop()) {
    if (entry->has_ended)
      write(line_of(*entry->request));
    else
      read_body(*entry->request);
  }
}

// A body becomes JSON on one line; what cannot be read is its length alone.
void RequestRecorder::read_body(RecordedRequest& request) {
  const size_t num_bytes = request.body.size();
  std::string out;
  if (json_bytes_max(request.body) <= kParsedBytesMax) {
    if (auto value = parse_json(request.body)) {
      if (!options_.keeps_prompts) redact(*value);
      out = boost::json::serialize(*value);
    }
  }
  if (out.empty()) out = fmt::format(R"({{"{}":{}}})", kRedactedText, num_bytes);
  request.body = std::move(out);
  body_bytes_ += request.body.size();
  body_bytes_ -= request.body_bytes;
  request.body_bytes = request.body.size();
}

std::string RequestRecorder::line_of(const RecordedRequest& r) const {
  std::string line;
  JsonWriter w(line);
  w.begin_object().member("time", iso_time(r.arrived_unix)).key("offset_s");
  w.raw(fmt::format("{:.9f}", to_seconds(r.arrived - opened_)));
  w.member("route", r.route).member("rid", r.rid);
  if (!r.tenant.empty()) w.member("tenant", r.tenant);
  w.member("status", r.status).member("stream", r.stream).member("samples", r.num_samples);
  w.member("prompt_tokens", r.prompt_tokens).member("cached_tokens", r.cached_tokens);
  w.member("completion_tokens", r.completion_tokens).key("finish_reasons").begin_array();
  for (const char* reason : r.finish_reasons) w.value(reason);
  w.end_array();
  write_seconds(w, "ttft_s", r.arrived, r.first_token);
  write_seconds(w, "e2e_s", r.arrived, r.ended);
  w.member("redacted", !options_.keeps_prompts).key("body").raw(r.body).end_object();
  line += '\n';
  return line;
}

void RequestRecorder::write(const std::string& line) {
  const auto num_bytes = static_cast<int64_t>(line.size());
  // Others may have cut the file, as logrotate's copytruncate does.
  if (struct stat file{}; ::fstat(descriptor_, &file) == 0) size_ = file.st_size;
  if (options_.max_bytes > 0 && size_ > 0 && size_ + num_bytes > options_.max_bytes) rotate();
  if (write_all(line)) {
    size_ += num_bytes;
    ++written_;
    if (!std::exchange(last_failure_, "").empty()) log_info("--request-log is written again");
    return;
  }
  const std::string why = std::strerror(errno);
  // A line that is there in part would make the next one unreadable.
  if (::ftruncate(descriptor_, size_) != 0) log_debug("--request-log has a line that is cut");
  ++dropped_;
  if (why != last_failure_)
    log_warning("--request-log {} cannot be written: {}; requests are left out", options_.path,
                why);
  last_failure_ = why;
}

// The file becomes PATH.1, which replaces an older one. Where that fails the file grows on.
void RequestRecorder::rotate() {
  const std::string older = options_.path + ".1";
  if (::rename(options_.path.c_str(), older.c_str()) != 0) return;
  const auto opened = open_log(options_.path);
  if (!opened) {
    (void)::rename(older.c_str(), options_.path.c_str());
    return;
  }
  ::close(descriptor_);
  descriptor_ = opened->descriptor;
  size_ = opened->size;
}

bool RequestRecorder::write_all(const std::string& line) {
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t n = ::write(descriptor_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    rest.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace espalier::server
