// espalier_bench route_latency: what the router adds to the time of an event. A worker that
// computes nothing streams events, each with the time at which it was written; a client reads N
// such streams at once, first from the worker, then through the router. What worker and client take
// is in both, so the difference is the router's. Worker and router are processes of their own, for
// 10,000 streams take more descriptors than one process may have; a host's processes share their
// clock.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "apps/bench/report.h"
#include "apps/command_line.h"
#include "base/log.h"
#include "base/rng.h"
#include "bench/commands/child_process.h"
#include "bench/commands/commands.h"
#include "bench/commands/measure.h"
#include "net/http_server.h"
#include "net/upstream.h"
#include "router/router_server.h"

namespace espalier::bench {
using namespace apps;
namespace {

using std::chrono::milliseconds;

constexpr int kMaxConnections = 60000;
constexpr Duration kPatience =
    std::chrono::seconds(60);  // for streams to begin, and for the router
constexpr std::string_view kTimeMember = "{\"ns\":";
// What stands behind the time: with it an event has some 200 bytes, as a chunk of OpenAI's has.
constexpr std::string_view kChunk =
    R"(,"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,)"
    R"("model":"m","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]})";

struct Options {
  std::vector<std::string> streams = {"100", "1000"};
  double events = 5000;  // a second, of all streams together
  double seconds = 3;    // of each measurement
  int32_t rounds = 3;
  std::vector<std::string> router_cpus;  // that the router alone has; empty: all share all
  int32_t router_threads = 1;
};

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void write_event(const net::ResponsePtr& response) {
  response->write(fmt::format("data: {}{}{}\n\n", kTimeMember, now_ns(), kChunk));
}

// One stream of the worker: an event each interval until its client leaves.
void tick(const net::ResponsePtr& response, Duration interval, Duration delay) {
  response->post_after(delay, [response, interval] {
    if (response->closed()) return;
    write_event(response);
    tick(response, interval, interval);
  });
}

// In the worker's process. The body states the interval in nanoseconds.
Result<std::unique_ptr<net::HttpServer>> start_worker() {
  net::Router routes;
  ESP_RETURN_IF_ERROR(routes.add("GET", "/health", [](net::HttpRequest&&, net::ResponsePtr to) {
    to->send(net::HttpResponse::text(200, ""));
  }));
  ESP_RETURN_IF_ERROR(
      routes.add("POST", "/v1/completions", [](net::HttpRequest&& request, net::ResponsePtr to) {
        thread_local Rng rng(1);
        boost::system::error_code failed;
        const auto body = boost::json::parse(request.body, failed);
        const auto* const stated =
            !failed && body.is_object() ? body.get_object().if_contains("interval_ns") : nullptr;
        if (stated == nullptr || !stated->is_int64() || stated->get_int64() < 1000)
          return to->send(net::HttpResponse::text(400, "interval_ns must be at least 1000"));
        const Duration interval = std::chrono::nanoseconds(stated->get_int64());
        to->start_stream(200, net::event_stream_headers());
        write_event(to);  // The router passes no head on before the first byte of a body.
        tick(to, interval, interval * rng.below(1000) / 1000);
      }));
  net::HttpServerConfig config;
  config.max_connections = kMaxConnections;
  return net::HttpServer::start(std::move(config), std::move(routes));
}

Result<std::unique_ptr<router::RouterServer>> start_router(int worker_port, int num_threads,
                                                           const std::vector<int>& cpus) {
  if (!cpus.empty()) ESP_RETURN_IF_ERROR(run_on(cpus));
  router::RouterConfig config;
  config.port = 0;
  config.io_threads = num_threads;
  config.max_connections = kMaxConnections;
  config.sources.urls = {fmt::format("http://127.0.0.1:{}", worker_port)};
  config.health.interval = milliseconds(20);
  // A busy computer must not have the worker taken for broken.
  config.health.timeout = kPatience;
  return router::RouterServer::start(std::move(config));
}

// What a round's streams share. Used by the client's I/O thread, but for what the lock guards.
struct Recorder {
  bool recording = false;
  std::vector<double> delays_us;
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  size_t num_begun = 0;
  Status failure;

  void fail_with(const Status& why) {
    std::lock_guard lock(mutex);
    if (failure.ok()) failure = why;
    changed.notify_all();
  }
};

// One stream at the client. Events come whole from the router, and in any parts from the worker.
class Stream final : public net::UpstreamHandler {
 public:
  explicit Stream(Recorder& recorder) : recorder_(recorder) {}

  void on_head(int status, net::Headers, std::optional<size_t>) override {
    if (status != 200)
      return recorder_.fail_with(error(StatusCode::kInternal, "a stream was answered {}", status));
    std::lock_guard lock(recorder_.mutex);
    ++recorder_.num_begun;
    recorder_.changed.notify_all();
  }
  void on_body(std::string bytes) override {
    const int64_t now = now_ns();
    rest_ += bytes;
    size_t end = 0;
    for (size_t at = rest_.find("\n\n"); at != std::string::npos; at = rest_.find("\n\n", end)) {
      take(std::string_view(rest_).substr(end, at - end), now);
      end = at + 2;
    }
    rest_.erase(0, end);
  }
  void on_end() override {
    recorder_.fail_with(error(StatusCode::kInternal, "a stream ended by itself"));
  }
  void on_failure(Status why) override { recorder_.fail_with(why); }

 private:
  void take(std::string_view event, int64_t now) {
    constexpr size_t kAt = std::string_view("data: ").size() + kTimeMember.size();
    int64_t written = 0;
    const bool is_long = event.size() > kAt;
    if (is_long) std::from_chars(event.data() + kAt, event.data() + event.size(), written);
    if (!is_long || written == 0 || !event.ends_with(kChunk))
      return recorder_.fail_with(error(StatusCode::kInternal, "an event is damaged: {}", event));
    if (recorder_.recording)
      recorder_.delays_us.push_back(static_cast<double>(now - written) / 1e3);
  }

  Recorder& recorder_;
  std::string rest_;
};

struct Round {
  double p50_us = 0, p99_us = 0, events_per_second = 0;
  double router_us = 0;  // of the router's processor time, for each event
};

// N streams from `port`, and the delays of what comes in the time.
class Client {
 public:
  explicit Client(const Options& options) : options_(options), io_("esp-client"), upstream_({}) {}

  Result<Round> measure(int port, size_t num_streams, pid_t router) {
    recorder_ = std::make_unique<Recorder>();
    const auto interval_ns = static_cast<int64_t>(1e9 * static_cast<double>(num_streams) /
                                                  std::max(options_.events, 1e-3));
    const Status begun = begin(port, num_streams, std::max<int64_t>(interval_ns, 1000));
    Round out;
    if (begun.ok()) {
      // Half an interval more: every stream is in its rhythm then.
      wait(std::chrono::nanoseconds(std::min<int64_t>(interval_ns / 2, 1000000000)));
      on_io([this] { recorder_->recording = true; });
      const double cpu_us = process_cpu_us(router), began = clock_us(CLOCK_MONOTONIC);
      wait(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options_.seconds)));
      on_io([this] { recorder_->recording = false; });
      const double seconds = (clock_us(CLOCK_MONOTONIC) - began) / 1e6;
      const auto count = static_cast<double>(recorder_->delays_us.size());
      const Distribution delays = distribution(recorder_->delays_us);
      out = {delays.median, delays.p99, count / seconds,
             count == 0 ? 0 : (process_cpu_us(router) - cpu_us) / count};
    }
    on_io([this] {
      for (const auto& call : calls_) call->cancel();
      calls_.clear();
    });
    std::lock_guard lock(recorder_->mutex);
    if (!begun.ok()) return fail(begun);
    if (!recorder_->failure.ok()) return fail(recorder_->failure);
    if (recorder_->delays_us.empty())
      return fail(error(StatusCode::kInternal, "no event came: take more --seconds"));
    return out;
  }

 private:
  Status begin(int port, size_t num_streams, int64_t interval_ns) {
    // Some at a time, so that no connection waits behind a full queue of the listener.
    constexpr size_t kAtOnce = 100;
    for (size_t first = 0; first < num_streams; first += kAtOnce) {
      const size_t last = std::min(num_streams, first + kAtOnce);
      on_io([&] {
        for (size_t i = first; i < last; ++i) open(port, i, interval_ns);
      });
      std::unique_lock lock(recorder_->mutex);
      const bool all = recorder_->changed.wait_for(lock, kPatience, [&] {
        return recorder_->num_begun >= last || !recorder_->failure.ok();
      });
      if (!recorder_->failure.ok()) return recorder_->failure;
      if (!all)
        return error(StatusCode::kDeadlineExceeded, "{} of {} streams began", recorder_->num_begun,
                     last);
    }
    return {};
  }

  void open(int port, size_t index, int64_t interval_ns) {
    net::UpstreamRequest request;
    request.method = "POST";
    request.target = "/v1/completions";
    request.headers = {{"Host", "127.0.0.1"}, {"Content-Type", "application/json"}};
    request.body = std::make_shared<const std::string>(
        fmt::format(R"({{"prompt":"stream {} {:0>1000}","interval_ns":{},"stream":true}})", index,
                    mix64(index), interval_ns));
    calls_.push_back(upstream_.call(io_.io(), {"127.0.0.1", port, ""}, std::move(request),
                                    std::make_shared<Stream>(*recorder_)));
  }

  // Runs a task on the client's I/O thread and waits for its end.
  void on_io(const std::function<void()>& task) {
    std::mutex mutex;
    std::condition_variable done;
    bool is_done = false;
    io_.post([&] {
      task();
      std::lock_guard lock(mutex);
      is_done = true;
      done.notify_all();
    });
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return is_done; });
  }

  void wait(Duration duration) {  // ends early where a stream fails
    std::unique_lock lock(recorder_->mutex);
    recorder_->changed.wait_for(lock, duration, [&] { return !recorder_->failure.ok(); });
  }

  const Options& options_;
  std::unique_ptr<Recorder>
      recorder_;  // outlives the streams, whose calls end before it is replaced
  std::vector<std::shared_ptr<net::UpstreamCall>> calls_;
  net::BackgroundIo io_;
  net::Upstream upstream_;
};

// Until the router answers a request, so that its worker is healthy.
Status wait_for_router(Client& client, int port, pid_t router) {
  const double deadline = clock_us(CLOCK_MONOTONIC) + to_seconds(kPatience) * 1e6;
  Result<Round> tried = client.measure(port, 1, router);
  while (!tried && clock_us(CLOCK_MONOTONIC) < deadline) tried = client.measure(port, 1, router);
  return tried ? Status() : tried.error();
}

Result<std::vector<size_t>> stream_counts(const Options& options, size_t most) {
  std::vector<size_t> out;
  for (const std::string& text : options.streams) {
    size_t count = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (failed != std::errc() || end != text.data() + text.size() || count < 1)
      return fail(invalid_argument("--streams: '{}' is no whole number above 0", text));
    out.push_back(std::min(count, most));
  }
  return out;
}

// Processors of the router, and those of worker and client; both empty: all run on all.
struct Places {
  std::vector<int> router, others;
};

Result<Places> divide_cpus(const std::vector<std::string>& router_cpus) {
  Places out;
  if (router_cpus.empty()) return out;
  std::vector<int> all = own_cpus();
  for (const std::string& text : router_cpus) {
    int cpu = -1;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), cpu);
    if (failed != std::errc() || end != text.data() + text.size() || std::erase(all, cpu) == 0)
      return fail(invalid_argument(
          "--router-cpus: '{}' is no number of a processor of this process (taskset -cp $$)",
          text));
    out.router.push_back(cpu);
  }
  if (all.empty())
    return fail(invalid_argument("--router-cpus: leave a processor for worker and client"));
  out.others = std::move(all);
  return out;
}

struct Row {
  size_t num_streams = 0;
  std::vector<Round> direct, routed;
};

double middle(const std::vector<Round>& rounds, double Round::*member) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(round.*member);
  return median(std::move(values));
}

std::string spread(const std::vector<Round>& rounds, double Round::*member) {
  const auto [least, most] =
      std::ranges::minmax(rounds, {}, [member](const Round& round) { return round.*member; });
  return fmt::format("{:.0f} ({:.0f}-{:.0f})", middle(rounds, member), least.*member, most.*member);
}

boost::json::object to_json(const Row& row) {
  boost::json::object out{{"streams", row.num_streams}};
  for (const auto& [name, rounds] : {std::pair("direct", &row.direct), {"routed", &row.routed}}) {
    boost::json::array p50, p99, rate;
    for (const Round& round : *rounds) {
      p50.emplace_back(round.p50_us);
      p99.emplace_back(round.p99_us);
      rate.emplace_back(round.events_per_second);
    }
    out[name] = boost::json::object{{"p50_us", std::move(p50)},
                                    {"p99_us", std::move(p99)},
                                    {"events_per_second", std::move(rate)}};
  }
  out["router_cpu_us_per_event"] = middle(row.routed, &Round::router_us);
  return out;
}

void print(const FigureOutput& output, const Row& row) {
  const double added_p50 = middle(row.routed, &Round::p50_us) - middle(row.direct, &Round::p50_us),
               added_p99 = middle(row.routed, &Round::p99_us) - middle(row.direct, &Round::p99_us);
  output.print(
      "{:>8} {:>20} {:>20} {:>9.0f} {:>22} {:>22} {:>9.0f} {:>9.0f} {:>10.1f}\n", row.num_streams,
      spread(row.direct, &Round::p50_us), spread(row.routed, &Round::p50_us), added_p50,
      spread(row.direct, &Round::p99_us), spread(row.routed, &Round::p99_us), added_p99,
      middle(row.routed, &Round::events_per_second), middle(row.routed, &Round::router_us));
}

Status measure(const Options& options, const FigureOutput& output, boost::json::array& rows) {
  // A descriptor for each stream at the worker, two at the router.
  const size_t most = (raise_descriptor_limit() - 100) / 2;
  ESP_ASSIGN_OR_RETURN(const std::vector<size_t> counts, stream_counts(options, most));
  ESP_ASSIGN_OR_RETURN(const Places places, divide_cpus(options.router_cpus));
  if (!places.others.empty()) ESP_RETURN_IF_ERROR(run_on(places.others));
  ESP_ASSIGN_OR_RETURN(ChildProcess worker, ChildProcess::start([] { return start_worker(); }));
  ESP_ASSIGN_OR_RETURN(ChildProcess router, ChildProcess::start([&] {
                         return start_router(worker.port(), options.router_threads, places.router);
                       }));
  Client client(options);
  ESP_RETURN_IF_ERROR(wait_for_router(client, router.port(), router.pid()));
  output.print("{:>8} {:>20} {:>20} {:>9} {:>22} {:>22} {:>9} {:>9} {:>10}\n", "streams",
               "direct p50 us", "routed p50 us", "added", "direct p99 us", "routed p99 us", "added",
               "events/s", "router us");
  for (const size_t count : counts) {
    Row row{.num_streams = count};
    for (int32_t round = 0; round < options.rounds; ++round) {
      ESP_ASSIGN_OR_RETURN(const Round direct, client.measure(worker.port(), count, router.pid()));
      ESP_ASSIGN_OR_RETURN(const Round routed, client.measure(router.port(), count, router.pid()));
      row.direct.push_back(direct);
      row.routed.push_back(routed);
    }
    print(output, row);
    rows.push_back(to_json(row));
  }
  if (std::ranges::any_of(options.streams, [&](const std::string& text) {
        return std::strtoull(text.c_str(), nullptr, 10) > most;
      }))
    output.print("{} streams are the most that the limit of open files allows (ulimit -Hn)\n",
                 most);
  return {};
}

}  // namespace

int run_route_latency(const std::vector<std::string>& args) {
  Options options;
  FigureOutput output;
  SettingTable table;
  table.group("Load");
  Setting& streams = table.list("streams", options.streams, "N", "open at once; one row for each");
  streams.takes_several = true;
  table.number("events", options.events, 0.001, 1e7, "a second, of all streams together");
  table.number("seconds", options.seconds, 0.01, 3600, "of each measurement");
  table.integer("rounds", options.rounds, 1, 1000, "direct and routed in turn; medians are shown");
  Setting& cpus = table.list("router-cpus", options.router_cpus, "CPU",
                             "that the router alone runs on; worker and client get the others");
  cpus.takes_several = true;
  table.integer("router-threads", options.router_threads, 1, 256, "that serve its sockets");
  output.add_setting(table);
  CommandLine command{"espalier_bench route_latency",
                      "Times events of streams from a worker, directly and through the router.",
                      "Example:\n  espalier_bench route_latency --streams 100 1000",
                      "",
                      {}};
  const SettingTable none;
  if (const auto exit_code = parse_command_line(command, table, none, args)) return *exit_code;
  set_log_level(LogLevel::kError);
  boost::json::array rows;
  if (const Status measured = measure(options, output, rows); !measured.ok())
    return report(measured,
                  measured.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure);
  return output.finish(boost::json::serialize(boost::json::object{
      {"events", options.events}, {"seconds", options.seconds}, {"rows", std::move(rows)}}));
}

}  // namespace espalier::bench
