#include "server/batches/batch_runner.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <future>
#include <unordered_set>

#include "base/log.h"
#include "server/json_fields.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

constexpr size_t kMaxOpen = 8;      // of an owner: batches whose inputs are read; others wait
constexpr size_t kMaxErrors = 100;  // of an input, that are listed
constexpr Duration kPoll = std::chrono::milliseconds(10);  // while clients' requests wait
constexpr Duration kTick = std::chrono::seconds(1);

std::string_view text_member(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_string()) return {};
  return {value->get_string().data(), value->get_string().size()};
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

struct LineError {
  std::string_view code, param;
  std::string message;
};

// {"custom_id", "method": "POST", "url": endpoint, "body"}
std::optional<LineError> problem_of(std::string_view line, std::string_view endpoint,
                                    std::unordered_set<std::string>& custom_ids) {
  const Result<json::value> parsed = parse_json(line);
  if (!parsed) return LineError{"invalid_json_line", "", parsed.error().message()};
  const json::object* o = parsed->if_object();
  if (o == nullptr) return LineError{"invalid_json_line", "", "a line is a JSON object"};
  const std::string_view id = text_member(*o, "custom_id");
  if (id.empty())
    return LineError{"missing_required_parameter", "custom_id",
                     "custom_id must be a string, not empty"};
  if (!custom_ids.emplace(id).second)
    return LineError{"duplicate_custom_id", "custom_id",
                     fmt::format("custom_id \"{}\" stands in an earlier line", id)};
  if (text_member(*o, "method") != "POST")
    return LineError{"invalid_method", "method", "method must be \"POST\""};
  if (text_member(*o, "url") != endpoint)
    return LineError{"invalid_url", "url",
                     fmt::format("url must be the endpoint of the batch, \"{}\"", endpoint)};
  const json::value* body = o->if_contains("body");
  if (body == nullptr || !body->is_object())
    return LineError{"missing_required_parameter", "body", "body must be an object"};
  for (const char* field : {"stream", "background"})
    if (const json::value* set = body->get_object().if_contains(field);
        set != nullptr && set->is_bool() && set->get_bool())
      return LineError{"invalid_request", std::string_view(field),
                       fmt::format("body.{} must not be true in a batch", field)};
  return std::nullopt;
}

std::string record_of(std::string_view custom_id, const net::HttpResponse& answer) {
  std::string out, body = answer.body;
  std::replace(body.begin(), body.end(), '\n', ' ');  // a record is one line
  JsonWriter w(out);
  const std::string id = random_id("batch_req_");
  w.begin_object().member("id", id).member("custom_id", custom_id).key("response");
  w.begin_object().member("status_code", answer.status).member("request_id", id).key("body");
  parse_json(body) ? w.raw(body) : w.value(body);
  w.end_object().key("error").null().end_object();
  return out;
}

// What Retry-After says.
Duration wait_of(const net::HttpResponse& answer) {
  int64_t seconds = 0;
  if (const std::string* header = net::find_header(answer.headers, "Retry-After"))
    std::from_chars(header->data(), header->data() + header->size(), seconds);
  return std::chrono::seconds(seconds);
}

std::string expired_record(std::string_view custom_id) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("id", random_id("batch_req_")).member("custom_id", custom_id);
  w.key("response").null().key("error").begin_object().member("code", "batch_expired");
  w.member("message", "the completion window ended before this line ran").end_object().end_object();
  return out;
}

}  // namespace

struct BatchRunner::Run {
  Batch batch;
  std::optional<MappedFile> input;
  std::vector<std::string_view> lines;                   // of input
  std::deque<int64_t> pending;                           // line numbers
  std::map<int64_t, std::weak_ptr<DetachedCall>> calls;  // owned by their generations
  TimePoint not_before{};                                // of the next line

  // Returns how many there were.
  int cancel_calls() {
    const auto count = static_cast<int>(calls.size());
    for (const auto& [line, weak] : calls)
      if (const auto call = weak.lock()) call->cancel();
    calls.clear();
    return count;
  }
  std::string custom_id(int64_t line) const {
    const Result<json::value> parsed = parse_json(lines[static_cast<size_t>(line)]);
    return std::string(text_member(parsed->get_object(), "custom_id"));
  }
};

struct BatchRunner::Line final : DetachedReader {
  Line(BatchRunner& r, std::weak_ptr<Run> owner, int64_t n)
      : runner(r), run(std::move(owner)), number(n) {}
  void on_end(net::HttpResponse answer) override {
    if (const auto open = run.lock()) runner.end_line(*open, number, std::move(answer));
  }
  BatchRunner& runner;
  const std::weak_ptr<Run> run;
  const int64_t number;
};

BatchRunner::BatchRunner(FileStore& files, BatchStore& store, BatchTarget target,
                         BatchSettings settings)
    : files_(files),
      store_(store),
      target_(std::move(target)),
      settings_(settings),
      thread_(std::make_shared<TaskThread>("esp-batches")) {}

void BatchRunner::start() {
  thread_->post([this] {
    load();
    tick();
  });
}

void BatchRunner::add(std::string id, std::string owner) {
  thread_->post([this, added = Waiting{std::move(id), std::move(owner)}]() mutable {
    waiting_.push_back(std::move(added));
    pump();
  });
}

// The calls are cancelled while the thread still runs, since their ends run on it.
void BatchRunner::stop() {
  if (std::exchange(stopped_, true)) return;
  std::promise<void> cancelled;
  thread_->post([this, &cancelled] {
    stopping_ = true;
    for (const auto& run : runs_) run->cancel_calls();
    thread_->post([&cancelled] { cancelled.set_value(); });  // behind what the calls have posted
  });
  cancelled.get_future().wait();
  thread_->stop();
  runs_.clear();
}

void BatchRunner::load() {
  const auto unfinished = store_.unfinished();
  if (!unfinished) return log_error("batches cannot be read: {}", unfinished.error().message());
  for (const Batch& batch : *unfinished) waiting_.push_back({batch.id, batch.owner});
  if (!waiting_.empty()) log_info("{} batches go on", waiting_.size());
}

// Every second: what has expired, and what waited for a full queue or disk.
void BatchRunner::tick() {
  if (const Status deleted = files_.delete_expired(); !deleted.ok())
    log_error("expired files cannot be deleted: {}", deleted.message());
  if (settings_.delete_expired != nullptr) {
    if (const Status deleted = settings_.delete_expired(); !deleted.ok())
      log_error("expired uploads cannot be deleted: {}", deleted.message());
  }
  const std::vector<std::shared_ptr<Run>> all(runs_.begin(), runs_.end());
  for (const auto& run : all) {
    const auto end = run->batch.times.find("expires_at");
    if (end != run->batch.times.end() && end->second <= unix_now()) expire(*run);
    finish_if_done(*run);
  }
  pump();
  thread_->post_after(kTick, [this] { tick(); });
}

BatchRunner::Run* BatchRunner::find(std::string_view id) {
  for (const auto& run : runs_)
    if (run->batch.id == id) return run.get();
  return nullptr;
}

// Reads the input of a batch and gives it a turn.
void BatchRunner::open(const std::string& id) {
  if (find(id) != nullptr) return;  // added while the store was read at the start
  auto batch = store_.get(id, OwnerFilter::everyone());
  if (!batch) return log_error("batch {} cannot be read: {}", id, batch.error().message());
  if (batch->ended()) return;
  auto run = std::make_shared<Run>();
  run->batch = std::move(*batch);
  if (const Status read = read_input(*run); !read.ok()) return refuse_input(run->batch, read);
  if (run->batch.status == "validating") {
    run->batch.status = "in_progress";
    run->batch.times["in_progress_at"] = unix_now();
    if (const Status kept = store_.put(run->batch); !kept.ok())
      log_error("batch {}: {}", id, kept.message());
  }
  runs_.push_back(run);
  finish_if_done(*run);
}

Status BatchRunner::read_input(Run& run) {
  Batch& batch = run.batch;
  ESP_ASSIGN_OR_RETURN(run.input, files_.content(batch.input_file_id, OwnerFilter::everyone()));
  run.lines = lines_of(run.input->text());
  if (run.lines.empty()) return invalid_argument("the input file has no lines");
  if (run.lines.size() > kMaxLines)
    return invalid_argument("the input file has {} lines; {} are the most", run.lines.size(),
                            kMaxLines);
  batch.num_total = std::ssize(run.lines);
  std::string errors;
  JsonWriter w(errors);
  w.begin_object().member("object", "list").key("data").begin_array();
  std::unordered_set<std::string> custom_ids;
  size_t num_errors = 0;
  for (size_t i = 0; i < run.lines.size() && num_errors < kMaxErrors; ++i) {
    const auto problem = problem_of(run.lines[i], batch.endpoint, custom_ids);
    if (!problem) continue;
    ++num_errors;
    w.begin_object().member("code", problem->code).member("message", problem->message);
    w.key("param");
    problem->param.empty() ? w.null() : w.value(problem->param);
    w.member("line", i + 1).end_object();
  }
  w.end_array().end_object();
  if (num_errors != 0) {
    batch.errors = errors;
    return invalid_argument("the input file is refused");
  }
  ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> done, store_.lines_done(batch.id));
  for (int64_t line = 0; line < batch.num_total; ++line)
    if (!std::binary_search(done.begin(), done.end(), line)) run.pending.push_back(line);
  return {};
}

void BatchRunner::refuse_input(Batch& batch, const Status& why) {
  batch.status = "failed";
  batch.times["failed_at"] = unix_now();
  if (batch.errors == "null") {
    batch.errors.clear();
    JsonWriter w(batch.errors);
    w.begin_object().member("object", "list").key("data").begin_array().begin_object();
    w.member("code", "invalid_input_file").member("message", why.message());
    w.key("param").value("input_file_id").key("line").null().end_object().end_array().end_object();
  }
  if (const Status kept = store_.put(batch); !kept.ok())
    log_error("batch {}: {}", batch.id, kept.message());
}

void BatchRunner::pump_later(Duration delay) {
  const TimePoint at = std::chrono::steady_clock::now() + delay;
  if (at >= pump_at_) return;
  pump_at_ = at;
  thread_->post_after(delay, [this, at] {
    if (pump_at_ == at) pump_at_ = TimePoint::max();
    pump();
  });
}

size_t BatchRunner::num_open_of(std::string_view owner) const {
  return static_cast<size_t>(
      std::ranges::count_if(runs_, [&](const auto& run) { return run->batch.owner == owner; }));
}

void BatchRunner::open_waiting() {
  for (size_t i = 0; i < waiting_.size();) {
    if (num_open_of(waiting_[i].owner) >= kMaxOpen) {
      ++i;
      continue;
    }
    const std::string id = std::move(waiting_[i].id);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    open(id);
  }
}

void BatchRunner::pump() {
  open_waiting();
  while (num_calls_ < settings_.max_calls && !stopping_) {
    bool waits_for_clients = false;
    Run* const run = next_run(waits_for_clients);
    if (run == nullptr && waits_for_clients) pump_later(kPoll);
    if (run == nullptr) return;
    begin_line(*run);
  }
}

std::map<std::string_view, size_t> BatchRunner::num_calls_by_owner() const {
  std::map<std::string_view, size_t> counts;
  for (const auto& run : runs_) counts[run->batch.owner] += run->calls.size();
  return counts;
}

// Of those that may begin a line, the first of the owner with the fewest in progress; it stands
// last afterwards.
BatchRunner::Run* BatchRunner::next_run(bool& waits_for_clients) {
  const TimePoint now = std::chrono::steady_clock::now();
  const auto counts = num_calls_by_owner();
  auto next = runs_.end();
  for (auto it = runs_.begin(); it != runs_.end(); ++it) {
    const Run& run = **it;
    if (run.pending.empty() || run.not_before > now) continue;
    if (next != runs_.end() && counts.at(run.batch.owner) >= counts.at((*next)->batch.owner))
      continue;
    if (!target_.is_busy(run.batch.owner)) {
      next = it;
    } else {
      waits_for_clients = true;
    }
  }
  if (next == runs_.end()) return nullptr;
  runs_.splice(runs_.end(), runs_, next);
  return runs_.back().get();
}

void BatchRunner::begin_line(Run& run) {
  const int64_t line = run.pending.front();
  run.pending.pop_front();
  json::value parsed = std::move(*parse_json(run.lines[static_cast<size_t>(line)]));
  json::object& body = parsed.get_object().at("body").get_object();
  if (settings_.priority && !body.contains("priority")) body["priority"] = *settings_.priority;
  const std::shared_ptr<Run> owner = runs_.back();
  const auto call =
      std::make_shared<DetachedCall>(thread_, std::make_shared<Line>(*this, owner, line));
  run.calls[line] = call;
  ++num_calls_;
  target_.call({run.batch.endpoint, run.batch.owner, json::serialize(body)}, call);
}

void BatchRunner::end_line(Run& run, int64_t line, net::HttpResponse answer) {
  if (run.calls.erase(line) == 0) return;
  --num_calls_;
  // 529: what Anthropic's dialect says where the queue is full.
  const bool full = answer.status == 429 || answer.status == 503 || answer.status == 529;
  if (!full && !keep(run, line, answer.status >= 400, record_of(run.custom_id(line), answer)))
    log_error("batch {}: line {} runs again later", run.batch.id, line + 1);
  if (full) {
    const Duration delay = answer.status == 429 ? wait_of(answer) : settings_.retry;
    retry_later(run, line, std::max(delay, settings_.retry));
  }
  finish_if_done(run);
  pump();
}

void BatchRunner::retry_later(Run& run, int64_t line, Duration delay) {
  run.pending.push_front(line);
  run.not_before = std::chrono::steady_clock::now() + delay;
  pump_later(delay);
}

// False: the disk did not take the result, and the line is pending again.
bool BatchRunner::keep(Run& run, int64_t line, bool failed, const std::string& record) {
  const Status kept = store_.add_result(run.batch.id, line, failed, record);
  if (kept.ok()) return true;
  log_error("batch {}: {}", run.batch.id, kept.message());
  retry_later(run, line, settings_.retry);
  return false;
}

void BatchRunner::cancel(std::string id, std::function<void(Result<Batch>)> done) {
  thread_->post([this, id = std::move(id), done = std::move(done)] {
    auto batch = store_.get(id, OwnerFilter::everyone());
    if (!batch) return done(std::move(batch));
    if (batch->ended() || batch->status == "finalizing")
      return done(fail(error(StatusCode::kFailedPrecondition,
                             "batch '{}' is {}: only one that is validating or in_progress can be "
                             "cancelled",
                             id, batch->status)));
    Run* const run = find(id);
    Batch& known = run != nullptr ? run->batch : *batch;
    known.status = "cancelling";
    known.times["cancelling_at"] = unix_now();
    if (const Status kept = store_.put(known); !kept.ok()) return done(fail(kept));
    done(store_.get(id, OwnerFilter::everyone()));
    if (run != nullptr) finish_if_done(*run);
  });
}

// What has no result by now gets none; lines in progress are given up.
void BatchRunner::expire(Run& run) {
  for (const auto& [line, call] : run.calls) run.pending.push_back(line);
  num_calls_ -= run.cancel_calls();
  if (run.pending.empty()) return;
  run.batch.times.try_emplace("expired_at", unix_now());
  while (!run.pending.empty()) {
    const int64_t line = run.pending.front();
    run.pending.pop_front();
    if (!keep(run, line, true, expired_record(run.custom_id(line)))) return;
  }
}

void BatchRunner::finish_if_done(Run& run) {
  if (run.batch.status == "cancelling") {
    num_calls_ -= run.cancel_calls();
    run.pending.clear();
  }
  if (run.pending.empty() && run.calls.empty()) finish(run);
}

// A failure leaves the batch as it is: the next tick tries again.
void BatchRunner::finish(Run& run) {
  auto counted = store_.get(run.batch.id, OwnerFilter::everyone());
  if (!counted) return log_error("batch {}: {}", run.batch.id, counted.error().message());
  Batch ended = run.batch;
  ended.num_completed = counted->num_completed;
  ended.num_failed = counted->num_failed;
  // The names of the files are kept before the files are written, so that a server that is killed
  // meanwhile writes them again under the same names.
  const bool named = ended.times.contains("finalizing_at");
  if (!named) {
    ended.times["finalizing_at"] = unix_now();
    if (ended.num_completed != 0) ended.output_file_id = random_id("file-");
    if (ended.num_failed != 0) ended.error_file_id = random_id("file-");
    if (ended.status == "in_progress") ended.status = "finalizing";
    if (const Status kept = store_.put(ended); !kept.ok())
      return log_error("batch {}: {}", ended.id, kept.message());
    run.batch = ended;
  }
  ended.status = ended.status == "cancelling"         ? "cancelled"
                 : ended.times.contains("expired_at") ? "expired"
                                                      : "completed";
  ended.times.try_emplace(ended.status + "_at", unix_now());
  if (const Status finished = store_.finish(ended); !finished.ok())
    return log_error("batch {} cannot be finished yet: {}", ended.id, finished.message());
  log_info("batch {} {}: {} lines completed, {} failed", ended.id, ended.status,
           ended.num_completed, ended.num_failed);
  runs_.remove_if([&](const auto& open) { return open.get() == &run; });
}

}  // namespace espalier::server
