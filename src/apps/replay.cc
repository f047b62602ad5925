// espalier replay: sends the requests of a server's log (--request-log) to a server again.
#include <fmt/format.h>

#include <atomic>
#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "apps/bench/http_sender.h"
#include "apps/bench/report.h"
#include "apps/bench/runner.h"
#include "apps/bench/timed_answer.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/progress.h"
#include "apps/replay_log.h"
#include "base/thread.h"
#include "net/client.h"

namespace espalier::apps {
namespace {

struct ReplayOptions {
  TargetOptions target;
  double speed = 1;
  int32_t concurrency = 256;
  FigureOutput output;
};

// One request that was sent, and what the log says of it.
struct ReplayedCall {
  RequestRecord record;
  const LoggedCall* logged = nullptr;
  double late = 0;  // seconds behind its time
};

// Tokens of an answer that was not streamed, of all its samples.
void read_usage(const boost::json::value& answer, RequestRecord& record) {
  const auto add = [&](const boost::json::value& one) {
    record.prompt_tokens =
        std::max(record.prompt_tokens, int_at(one, "/meta_info/prompt_tokens", 0));
    record.cached_tokens =
        std::max(record.cached_tokens, int_at(one, "/meta_info/cached_tokens", 0));
    record.output_tokens += int_at(one, "/meta_info/completion_tokens", 0);
  };
  if (const auto* const list = answer.if_array()) {
    for (const boost::json::value& one : *list) add(one);
    return;
  }
  add(answer);
  record.prompt_tokens = int_at(answer, "/usage/prompt_tokens", record.prompt_tokens);
  record.cached_tokens =
      int_at(answer, "/usage/prompt_tokens_details/cached_tokens", record.cached_tokens);
  record.output_tokens = int_at(answer, "/usage/completion_tokens", record.output_tokens);
}

std::string http_problem(const net::HttpResponse& response) {
  return fmt::format("HTTP {}: {}", response.status, response.body.substr(0, 300));
}

RequestRecord send_timed(net::HttpClient& client, const ReplayRequest& request) {
  TimedAnswer answer(request.is_native);
  const auto response = client.post_stream(
      request.path, request.body, [&](std::string_view data) { return answer.on_event(data); });
  if (!response)
    answer.fail(response.error().message());
  else if (response->status != 200)
    answer.fail(http_problem(*response));
  return answer.finish(request.wanted_tokens, request.wanted_tokens > 0);
}

RequestRecord send_whole(net::HttpClient& client, const ReplayRequest& request) {
  RequestRecord record;
  const double started = now_seconds();
  const auto response =
      client.post_stream(request.path, request.body, [](std::string_view) { return true; });
  record.latency = record.time_to_first_token = now_seconds() - started;
  if (!response)
    record.error = response.error().message();
  else if (response->status != 200)
    record.error = http_problem(*response);
  record.ok = record.error.empty();
  boost::system::error_code problem;
  const boost::json::value answer =
      record.ok ? boost::json::parse(response->body, problem) : boost::json::value();
  if (record.ok && !problem) read_usage(answer, record);
  return record;
}

RequestRecord send(net::HttpClient& client, const LoggedCall& call, uint64_t number,
                   const ReplayTarget& target) {
  const auto request = make_replay_request(call, number, target);
  if (request)
    return request->is_timed ? send_timed(client, *request) : send_whole(client, *request);
  RequestRecord record;
  record.error = request.error().message();
  return record;
}

net::HttpClientConfig connection_config(const TargetOptions& target) {
  net::HttpClientConfig config;
  if (!target.api_key.empty())
    config.headers.emplace_back("Authorization", "Bearer " + target.api_key);
  return config;
}

// Each worker takes the next request and waits for its time.
Result<std::vector<ReplayedCall>> replay(const std::vector<LoggedCall>& calls,
                                         const ReplayOptions& options, const ReplayTarget& target,
                                         double& seconds) {
  std::vector<ReplayedCall> out(calls.size());
  std::vector<net::HttpClient> clients;
  const size_t workers = std::min(calls.size(), static_cast<size_t>(options.concurrency));
  for (size_t i = 0; i < workers; ++i) {
    ESP_ASSIGN_OR_RETURN(auto client, net::HttpClient::create(options.target.base_url,
                                                              connection_config(options.target)));
    clients.push_back(std::move(client));
  }
  ProgressBar progress("requests", std::ssize(calls));
  std::atomic<size_t> next{0};
  const TimePoint start = SteadyClock().now();
  const auto work = [&](net::HttpClient& client) {
    set_thread_name("replay");
    for (size_t i = next++; i < calls.size(); i = next++) {
      const double due = options.speed > 0 ? calls[i].offset / options.speed : 0;
      std::this_thread::sleep_until(
          start + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(due)));
      const double begun = to_seconds(SteadyClock().now() - start);
      out[i] = {
          .record = send(client, calls[i], i, target), .logged = &calls[i], .late = begun - due};
      out[i].record.started = begun;
      progress.advance();
    }
  };
  std::vector<std::thread> threads;
  for (net::HttpClient& client : clients) threads.emplace_back([&] { work(client); });
  for (std::thread& thread : threads) thread.join();
  seconds = to_seconds(SteadyClock().now() - start);
  return out;
}

// What the log has for the figures of the report.
void compare(const std::vector<ReplayedCall>& sent, const LoggedCalls& log,
             const ReplayOptions& options, BenchReport& report) {
  const auto put = [&](const char* name, std::string value) {
    report.settings.emplace_back(name, std::move(value));
  };
  int64_t prompt = 0, cached = 0, output = 0, prompts_differ = 0, outputs_differ = 0;
  double late = 0;
  std::vector<double> first, latency;
  for (const ReplayedCall& each : sent) {
    const LoggedCall& logged = *each.logged;
    late = std::max(late, each.late);
    if (!each.record.ok) continue;
    prompt += logged.prompt_tokens;
    cached += logged.cached_tokens;
    output += logged.completion_tokens;
    prompts_differ += each.record.prompt_tokens != logged.prompt_tokens;
    outputs_differ += each.record.output_tokens != logged.completion_tokens;
    if (logged.time_to_first_token > 0) first.push_back(logged.time_to_first_token);
    latency.push_back(logged.latency);
  }
  const auto milliseconds = [](double s) { return fmt::format("{:.2f}", s * 1e3); };
  const Distribution logged_first = distribution(std::move(first));
  const Distribution logged_latency = distribution(std::move(latency));
  put("log_requests", std::to_string(log.calls.size()));
  put("log_skipped", std::to_string(log.num_skipped));
  put("log_input_tokens", std::to_string(prompt));
  put("log_cached_tokens", std::to_string(cached));
  put("log_output_tokens", std::to_string(output));
  put("log_median_ttft_ms", milliseconds(logged_first.median));
  put("log_p99_ttft_ms", milliseconds(logged_first.p99));
  put("log_median_e2e_latency_ms", milliseconds(logged_latency.median));
  put("prompt_tokens_differ", std::to_string(prompts_differ));
  put("output_tokens_differ", std::to_string(outputs_differ));
  put("speed", fmt::format("{}", options.speed));
  put("latest_start_ms", options.speed > 0 ? milliseconds(late) : "-");
}

Result<std::string> read_whole_file(const std::string& path) {
  std::ifstream file(path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad())
    return fail(error(StatusCode::kNotFound,
                      "{} cannot be read: name a file that --request-log wrote", path));
  return text;
}

int run(const ReplayOptions& options, const std::string& path) {
  const auto text = read_whole_file(path);
  if (!text) return report(text.error(), kExitFailure);
  const auto log = read_replay_log(*text);
  if (!log) return report(log.error().with_context(path), kExitFailure);
  if (log->calls.empty())
    return report(error(StatusCode::kFailedPrecondition,
                        "{} has no request that could be sent again; {} were refused, failed or "
                        "have no body",
                        path, log->num_skipped),
                  kExitFailure);
  const auto facts = read_server_facts(options.target);
  if (!facts) return report(facts.error(), kExitFailure);
  double seconds = 0;
  const auto sent = replay(log->calls, options,
                           {.model = facts->model, .vocab_size = facts->vocab_size}, seconds);
  if (!sent) return report(sent.error(), kExitFailure);
  std::vector<RequestRecord> records;
  for (const ReplayedCall& each : *sent) records.push_back(each.record);
  BenchReport sum = summarize(records, seconds);
  compare(*sent, *log, options, sum);
  return publish(sum, options.output, {});
}

}  // namespace

int run_replay(const std::vector<std::string>& args) {
  ReplayOptions options;
  options.target.base_url = "http://127.0.0.1:30000";
  SettingTable table;
  table.group("Target");
  table.text("url", options.target.base_url, "URL", "the server that gets the requests");
  table.text("api-key", options.target.api_key, "KEY", "sent as a bearer token");
  table.group("Load");
  table.number("speed", options.speed, 0, 1e6,
               "how many times faster than in the log requests come; 0: as soon as possible");
  table.integer("concurrency", options.concurrency, 1, 100'000, "requests in flight at most");
  table.group("Output");
  options.output.add_setting(table);
  CommandLine command{"espalier replay",
                      "Sends the requests of a log again, and compares what comes back.",
                      "Examples:\n"
                      "  espalier replay requests.jsonl --url http://127.0.0.1:30000\n"
                      "  espalier replay requests.jsonl --speed 4 --json replay.json",
                      "LOG",
                      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  if (command.words.size() != 1)
    return report(invalid_argument("name one log: {} LOG", command.name), kExitUsage);
  return run(options, command.words[0]);
}

}  // namespace espalier::apps
