// espalier bench serving: a workload sent to a running server.
#include <fmt/format.h>

#include <fstream>

#include "apps/bench/http_sender.h"
#include "apps/bench/report.h"
#include "apps/bench/runner.h"
#include "apps/command_line.h"
#include "apps/commands.h"

namespace espalier::apps {
namespace {

struct ServingOptions {
  TargetOptions target;
  std::string host = "127.0.0.1";
  int32_t port = 30000;
  WorkloadOptions workload;
  RunnerOptions runner;
  int32_t vocab_size = 0;
  int32_t warmup_requests = 1;
  bool flush_cache = false;
  bool respect_eos = false;
  std::filesystem::path output_file;
  FigureOutput output;
};

void add_settings(SettingTable& table, ServingOptions& options) {
  table.group("Target");
  table.text("base-url", options.target.base_url, "URL", "of the server, instead of host and port");
  table.text("host", options.host, "ADDRESS", "of the server");
  table.integer("port", options.port, 1, 65535, "of the server");
  table.choice("backend", options.target.backend,
               {"sglang", "sglang-oai", "sglang-oai-chat", "sglang-oai-ids"},
               "/generate with token ids, /v1/completions, /v1/chat/completions, or "
               "/v1/completions with token ids");
  table.text("api-key", options.target.api_key, "KEY", "sent as a bearer token");
  table.number("temperature", options.target.temperature, 0, 100, "of every request");
  table.toggle("disable-ignore-eos", options.respect_eos,
               "let answers end before their length is reached");
  table.integer("vocab-size", options.vocab_size, 0, 1 << 24,
                "token ids are drawn below it; 0: what the server says");
  add_workload_settings(table, options.workload);
  table.group("Load");
  table.number("request-rate", options.runner.request_rate, 0, 1e9,
               "requests started a second, at random times; 0: all at once");
  table.integer("max-concurrency", options.runner.max_concurrency, 0, 100000,
                "requests in flight at most; 0: no limit");
  table.integer("warmup-requests", options.warmup_requests, 0, 1000, "sent before, not counted");
  table.toggle("flush-cache", options.flush_cache, "empty the server's cache after the warm-up");
  table.group("Output");
  table.result_file("output-file", options.output_file,
                    "append the result to it, one JSON object a line");
  options.output.add_setting(table);
}

Status prepare(ServingOptions& options, const SettingTable& table, ServerFacts& facts) {
  if (table.find("base-url")->given()) {
    for (std::string_view name : {"host", "port"})
      if (table.find(name)->given())
        return invalid_argument("{} contradicts {}; leave one out", table.find(name)->set_by,
                                table.find("base-url")->set_by);
  } else {
    options.target.base_url = fmt::format("http://{}:{}", options.host, options.port);
  }
  options.target.ignore_eos = !options.respect_eos;
  options.runner.seed = options.workload.seed;
  ESP_RETURN_IF_ERROR(resolve_workload(options.workload, table));
  ESP_ASSIGN_OR_RETURN(facts, read_server_facts(options.target));
  options.target.model = facts.model;
  if (options.vocab_size == 0) options.vocab_size = facts.vocab_size;
  if (options.vocab_size == 0) {
    if (options.target.backend == "sglang" || options.target.backend == "sglang-oai-ids")
      return invalid_argument(
          "the server does not report its vocabulary's size; give --vocab-size");
    options.vocab_size = 32000;  // only picks words
  }
  return {};
}

Status check_lengths(const std::vector<Conversation>& workload, const ServerFacts& facts) {
  const int32_t longest = longest_request(workload);
  if (facts.context_length == 0 || longest <= facts.context_length) return {};
  return invalid_argument(
      "the longest request takes {} tokens and the server's context is {}; shorten it, for example "
      "with --scale {:.3g}",
      longest, facts.context_length, 0.99 * facts.context_length / longest);
}

void warm_up(const ServingOptions& options, const std::vector<Conversation>& workload) {
  std::vector<Conversation> few(
      workload.begin(),
      workload.begin() + std::min<ptrdiff_t>(options.warmup_requests, std::ssize(workload)));
  for (Conversation& conversation : few) conversation.turns.resize(1);
  const std::unique_ptr<Sender> sender = make_http_sender(options.target);
  for (const Conversation& conversation : few) {
    ConversationState state;
    sender->send(conversation.turns[0], state);
  }
}

std::vector<std::pair<std::string, std::string>> described(const ServingOptions& options) {
  const WorkloadOptions& w = options.workload;
  std::vector<std::pair<std::string, std::string>> out = {
      {"backend", options.target.backend},
      {"model", options.target.model},
      {"workload", w.preset.empty() ? w.kind : w.kind + " (" + w.preset + ")"},
      {"input_len", fmt::format("{}", w.input_len)},
      {"output_len", fmt::format("{}", w.output_len)}};
  if (options.runner.request_rate > 0)
    out.emplace_back("request_rate", fmt::format("{}", options.runner.request_rate));
  if (options.runner.max_concurrency > 0)
    out.emplace_back("max_concurrency", fmt::format("{}", options.runner.max_concurrency));
  return out;
}

}  // namespace

int run_bench_serving(const std::vector<std::string>& args) {
  ServingOptions options;
  SettingTable table;
  add_settings(table, options);
  CommandLine command{"espalier bench serving",
                      "Sends a workload to a running server.",
                      "Examples:\n"
                      "  espalier bench serving --num-prompts 200 --max-concurrency 16\n"
                      "  espalier bench serving --dataset-name shared-prefix --num-groups 8\n"
                      "  espalier bench serving --preset document_qa --scale 0.1 --request-rate 4",
                      "",
                      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  ServerFacts facts;
  if (Status status = prepare(options, table, facts); !status.ok())
    return report(status,
                  status.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure);
  const std::vector<Conversation> workload = make_workload(options.workload, options.vocab_size);
  if (Status status = check_lengths(workload, facts); !status.ok())
    return report(status, kExitUsage);

  warm_up(options, workload);
  if (options.flush_cache)
    if (Status status = flush_server_cache(options.target); !status.ok())
      return report(status, kExitFailure);
  const RunResult result =
      run_workload(workload, options.runner, [&] { return make_http_sender(options.target); });
  BenchReport sum = summarize(result.records, result.seconds);
  sum.settings = described(options);
  return publish(sum, options.output, options.output_file);
}

}  // namespace espalier::apps
