// router_bench: what the router's tree of prefixes, its choices and its proxy cost.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <thread>

#include "apps/bench/report.h"
#include "apps/command_line.h"
#include "apps/dispatch.h"
#include "base/clock.h"
#include "base/rng.h"
#include "cache/shadow/prefix_tree.h"
#include "net/client.h"
#include "net/http_server.h"
#include "router/dispatcher.h"
#include "router/request_facts.h"
#include "router/route_table.h"
#include "router/router_server.h"

namespace espalier::bench {
using namespace apps;
namespace {

struct RouterBench {
  int32_t shared_bytes = 1024, own_bytes = 512;  // of a prompt: of its group's begin, and its own
  int32_t per_group = 16;
  int32_t workers = 64;
  int64_t max_entries = 1000000;
  int32_t rounds = 5;
  int32_t requests = 5000;
};

struct TreeRow {
  size_t num_entries = 0, num_nodes = 0;
  double insert_ns = 0, match_ns = 0, hash_ns = 0, bytes_per_node = 0;
};

double median_of(std::vector<double> values) { return distribution(std::move(values)).median; }

template <typename Fn>
double nanoseconds_each(size_t count, const Fn& fn) {
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < count; ++i) fn(i);
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
  return elapsed.count() / static_cast<double>(count);
}

std::string draw_text(uint64_t stream, int32_t num_bytes) {
  std::string out;
  for (uint64_t i = 0; out.size() < static_cast<size_t>(num_bytes); ++i)
    out += fmt::format("{:016x}", mix64(mix64(stream) ^ i));
  out.resize(static_cast<size_t>(num_bytes));
  return out;
}

std::string prompt_of(const RouterBench& bench, size_t entry) {
  const auto group = entry / static_cast<size_t>(bench.per_group);
  return draw_text(2 * group, bench.shared_bytes) + draw_text(2 * entry + 1, bench.own_bytes);
}

Result<TreeRow> measure_tree(const RouterBench& bench, size_t num_entries) {
  TreeRow row{.num_entries = num_entries};
  std::vector<PrefixKey> keys;
  std::vector<size_t> order(num_entries);
  for (size_t i = 0; i < num_entries; ++i) {
    keys.push_back(text_key(prompt_of(bench, i), 0));
    order[i] = i;
  }
  Rng rng(1);
  for (size_t i = num_entries - 1; i > 0; --i) std::swap(order[i], order[rng.below(i + 1)]);
  const std::string text = prompt_of(bench, 0);
  std::vector<double> insert, match, hash;
  size_t num_matched = 0, num_hashed = 0;
  const size_t num_probes = std::min<size_t>(num_entries, 200000);
  for (int32_t round = 0; round < bench.rounds; ++round) {
    PrefixTree tree({});
    insert.push_back(nanoseconds_each(num_entries, [&](size_t i) {
      tree.insert(keys[order[i]],
                  static_cast<WorkerSlot>(order[i] % static_cast<size_t>(bench.workers)));
    }));
    PrefixTree::Match found;
    match.push_back(nanoseconds_each(num_probes, [&](size_t i) {
      tree.match(keys[order[num_entries - 1 - i]], found);
      num_matched += found.num_blocks;
    }));
    row.num_nodes = tree.num_nodes();
    row.bytes_per_node =
        static_cast<double>(tree.memory_bytes()) / static_cast<double>(tree.num_nodes());
    hash.push_back(
        nanoseconds_each(10000, [&](size_t i) { num_hashed += text_key(text, i).size(); }));
    if (round == 0) tree.check_invariants();
  }
  const size_t blocks = keys[0].size();
  if (num_matched != static_cast<size_t>(bench.rounds) * num_probes * blocks)
    return fail(error(StatusCode::kInternal, "the tree matched {} blocks of {}", num_matched,
                      static_cast<size_t>(bench.rounds) * num_probes * blocks));
  row.insert_ns = median_of(std::move(insert));
  row.match_ns = median_of(std::move(match));
  row.hash_ns = median_of(std::move(hash));
  return row;
}

struct ChoiceRow {
  std::string policy;
  double facts_ns = 0, assign_ns = 0;
};

// A request as the proxy sees it: its body read, its prompt hashed; then its worker chosen.
Result<ChoiceRow> measure_choice(const RouterBench& bench, const std::string& policy) {
  SteadyClock clock;
  router::PolicyOptions options;
  options.name = policy;
  ESP_ASSIGN_OR_RETURN(
      const auto dispatcher,
      router::Dispatcher::create(options, {.slow_start = Duration::zero()}, clock));
  for (int32_t i = 0; i < bench.workers; ++i) {
    ESP_ASSIGN_OR_RETURN([[maybe_unused]] const auto slot,
                         dispatcher->add_worker(fmt::format("http://w{}:1", i), {"10.0.0.1", 1}));
  }
  for (const router::WorkerInfo& worker : dispatcher->workers())
    dispatcher->report_check(worker.slot, worker.generation, true);
  const auto routes = router::passed_routes();
  const auto chat = std::ranges::find_if(
      routes, [](const auto& route) { return route.pattern == "/v1/chat/completions"; });
  std::vector<std::string> bodies;
  for (size_t i = 0; i < 2000; ++i)
    bodies.push_back(fmt::format(
        R"({{"model":"m","messages":[{{"role":"user","content":"{}"}}],"stream":true}})",
        prompt_of(bench, i)));
  ChoiceRow row{.policy = policy};
  std::vector<double> facts, assign;
  for (int32_t round = 0; round < bench.rounds; ++round) {
    std::vector<router::RoutedRequest> requests(bodies.size());
    facts.push_back(nanoseconds_each(bodies.size(), [&](size_t i) {
      requests[i] = router::routed_request(router::read_facts(bodies[i], chat->prompt_fields), "");
    }));
    std::vector<router::Lease> leases(requests.size());
    assign.push_back(nanoseconds_each(requests.size(), [&](size_t i) {
      if (auto lease = dispatcher->assign(requests[i])) leases[i] = std::move(*lease);
    }));
    if (!std::ranges::all_of(leases, &router::Lease::active))
      return fail(error(StatusCode::kInternal, "a request got no worker"));
    for (router::Lease& lease : leases) lease.end(router::WorkerOutcome::kSuccess);
  }
  row.facts_ns = median_of(std::move(facts));
  row.assign_ns = median_of(std::move(assign));
  return row;
}

// A worker that computes nothing: what is measured is the way there and back.
Result<std::unique_ptr<net::HttpServer>> start_null_worker(int num_events) {
  net::Router routes;
  ESP_RETURN_IF_ERROR(routes.add("GET", "/health", [](net::HttpRequest&&, net::ResponsePtr to) {
    to->send(net::HttpResponse::text(200, ""));
  }));
  ESP_RETURN_IF_ERROR(routes.add("POST", "/generate", [](net::HttpRequest&&, net::ResponsePtr to) {
    to->send(net::HttpResponse::json(200, R"({"text":"an answer"})"));
  }));
  ESP_RETURN_IF_ERROR(
      routes.add("POST", "/v1/completions", [num_events](net::HttpRequest&&, net::ResponsePtr to) {
        to->start_stream(200, net::event_stream_headers());
        std::string events;
        for (int i = 0; i < num_events; ++i) net::append_sse(events, std::string(200, 'x'));
        to->write(std::move(events));
        to->finish();
      }));
  return net::HttpServer::start({}, std::move(routes));
}

struct ProxyRow {
  Distribution direct_us, routed_us;            // of a request, one after the other
  double direct_events = 0, routed_events = 0;  // a second, of one stream
};

Result<ProxyRow> measure_proxy(int32_t num_requests) {
  constexpr int kEvents = 20000;
  ESP_ASSIGN_OR_RETURN(const auto worker, start_null_worker(kEvents));
  router::RouterConfig config;
  config.port = 0;
  config.sources.urls = {fmt::format("http://127.0.0.1:{}", worker->port())};
  config.health.interval = std::chrono::milliseconds(20);
  ESP_ASSIGN_OR_RETURN(const auto routed, router::RouterServer::start(config));
  ESP_ASSIGN_OR_RETURN(net::HttpClient direct,
                       net::HttpClient::create(fmt::format("http://127.0.0.1:{}", worker->port())));
  ESP_ASSIGN_OR_RETURN(net::HttpClient through,
                       net::HttpClient::create(fmt::format("http://127.0.0.1:{}", routed->port())));
  const std::string body = fmt::format(R"({{"text":"{}"}})", draw_text(1, 4096));
  for (int i = 0; i < 1000 && through.post("/generate", body)->status != 200; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::vector<double> times[2];
  double events[2] = {};
  net::HttpClient* const clients[2] = {&direct, &through};
  for (int32_t i = 0; i < num_requests; ++i)
    for (size_t which = 0; which < 2; ++which) {
      const auto begin = std::chrono::steady_clock::now();
      ESP_ASSIGN_OR_RETURN(const net::HttpResponse answer, clients[which]->post("/generate", body));
      const std::chrono::duration<double, std::micro> elapsed =
          std::chrono::steady_clock::now() - begin;
      if (answer.status != 200)
        return fail(error(StatusCode::kInternal, "a request was answered {}", answer.status));
      times[which].push_back(elapsed.count());
    }
  for (size_t which = 0; which < 2; ++which) {
    int seen = 0;
    const auto begin = std::chrono::steady_clock::now();
    ESP_ASSIGN_OR_RETURN(const net::HttpResponse answer,
                         clients[which]->post_stream("/v1/completions", body,
                                                     [&](std::string_view) { return ++seen > 0; }));
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    if (answer.status != 200 || seen != kEvents)
      return fail(error(StatusCode::kInternal, "{} of {} events came", seen, kEvents));
    events[which] = seen / elapsed.count();
  }
  return ProxyRow{distribution(std::move(times[0])), distribution(std::move(times[1])), events[0],
                  events[1]};
}

int run_router(const std::vector<std::string>& args) {
  RouterBench bench;
  FigureOutput output;
  SettingTable table;
  table.group("Prompts");
  table.integer("shared-bytes", bench.shared_bytes, 64, 1 << 24,
                "that a group of prompts begin with");
  table.integer("own-bytes", bench.own_bytes, 64, 1 << 24, "of each prompt, behind that");
  table.integer("per-group", bench.per_group, 1, 1 << 20, "prompts of a group");
  table.integer("max-entries", bench.max_entries, 1000, 100000000, "prompts in the largest tree");
  table.integer("workers", bench.workers, 1, 8192, "that prompts are sent to");
  table.integer("rounds", bench.rounds, 1, 1000, "of which the median is taken");
  table.integer("requests", bench.requests, 10, 10000000, "through the proxy, one after the other");
  output.add_setting(table);
  CommandLine command{"router_bench",
                      "Times the router's tree of prefixes, its choices and its proxy.",
                      "Example:\n  router_bench --max-entries 100000",
                      "",
                      {}};
  const SettingTable none;
  if (const auto exit_code = parse_command_line(command, table, none, args)) return *exit_code;
  boost::json::array trees, choices;
  output.print("{:>9} {:>9} {:>11} {:>11} {:>11} {:>10}\n", "entries", "nodes", "inserts/s",
               "matches/s", "hash ns", "B a node");
  for (int64_t n = 1000; n <= bench.max_entries; n *= 10) {
    const Result<TreeRow> row = measure_tree(bench, static_cast<size_t>(n));
    if (!row) return report(row.error(), kExitFailure);
    output.print("{:>9} {:>9} {:>11.0f} {:>11.0f} {:>11.0f} {:>10.0f}\n", row->num_entries,
                 row->num_nodes, 1e9 / row->insert_ns, 1e9 / row->match_ns, row->hash_ns,
                 row->bytes_per_node);
    trees.push_back(boost::json::object{{"entries", row->num_entries},
                                        {"nodes", row->num_nodes},
                                        {"insert_ns", row->insert_ns},
                                        {"match_ns", row->match_ns},
                                        {"hash_ns", row->hash_ns},
                                        {"bytes_per_node", row->bytes_per_node}});
  }
  output.print("\n{:<13} {:>14} {:>14}   {} workers, a chat of {} bytes\n", "policy",
               "read, hash ns", "choose ns", bench.workers, bench.shared_bytes + bench.own_bytes);
  for (const std::string& policy : router::policy_names()) {
    const Result<ChoiceRow> row = measure_choice(bench, policy);
    if (!row) return report(row.error(), kExitFailure);
    output.print("{:<13} {:>14.0f} {:>14.0f}\n", row->policy, row->facts_ns, row->assign_ns);
    choices.push_back(boost::json::object{
        {"policy", policy}, {"facts_ns", row->facts_ns}, {"assign_ns", row->assign_ns}});
  }
  const Result<ProxyRow> proxy = measure_proxy(bench.requests);
  if (!proxy) return report(proxy.error(), kExitFailure);
  output.print("\n{:<8} {:>9} {:>9} {:>12}   one client, a worker that computes nothing\n", "",
               "p50 us", "p99 us", "events/s");
  output.print("{:<8} {:>9.1f} {:>9.1f} {:>12.0f}\n", "direct", proxy->direct_us.median,
               proxy->direct_us.p99, proxy->direct_events);
  output.print("{:<8} {:>9.1f} {:>9.1f} {:>12.0f}\n", "routed", proxy->routed_us.median,
               proxy->routed_us.p99, proxy->routed_events);
  return output.finish(boost::json::serialize(boost::json::object{
      {"trees", std::move(trees)},
      {"choices", std::move(choices)},
      {"proxy", boost::json::object{{"direct_p50_us", proxy->direct_us.median},
                                    {"direct_p99_us", proxy->direct_us.p99},
                                    {"routed_p50_us", proxy->routed_us.median},
                                    {"routed_p99_us", proxy->routed_us.p99},
                                    {"direct_events_per_second", proxy->direct_events},
                                    {"routed_events_per_second", proxy->routed_events}}}}));
}

}  // namespace
}  // namespace espalier::bench

int main(int argc, char** argv) {
  return espalier::apps::run_main(argc, argv, espalier::bench::run_router);
}
