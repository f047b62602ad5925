// espalier_bench batches: an engine in this process that answers batches of prompts from standard
// input and times each. bench/peers/measure.py drives it, as it drives other engines' Python
// interfaces, so that all engines get the same work.
//
// One JSON object a line, in and out:
//   out, once ready: {"ready": true, "vocab_size": 128256}
//   in:  {"input_ids": [[1, 2], [3]], "max_new_tokens": 8}
//   out: {"seconds": 0.1, "output_tokens": 16, "cached_tokens": 0}
//   in:  {"flush_cache": true}
//   out: {"flushed": true}     false: a step is in flight, so ask again
// A line that cannot be carried out is answered by {"error": "why"}. The end of the input ends the
// command.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstdio>
#include <iostream>
#include <limits>
#include <memory>
#include <string>

#include "apps/session.h"
#include "base/clock.h"
#include "bench/commands/commands.h"
#include "bench/pending_requests.h"

namespace espalier::bench {
using namespace apps;
namespace {

namespace json = boost::json;

struct Batch {
  std::vector<std::vector<TokenId>> prompts;
  int32_t max_new_tokens = 0;
};

Result<Batch> parse_batch(const json::object& line) {
  const json::value* ids = line.if_contains("input_ids");
  const json::value* count = line.if_contains("max_new_tokens");
  if (ids == nullptr || !ids->is_array() || ids->get_array().empty() || count == nullptr ||
      !count->is_int64() || count->get_int64() < 0 ||
      count->get_int64() > std::numeric_limits<int32_t>::max()) {
    return fail(invalid_argument(
        "a batch has \"input_ids\", a list of lists of tokens, and \"max_new_tokens\""));
  }
  Batch batch{.max_new_tokens = static_cast<int32_t>(count->get_int64())};
  for (const json::value& prompt : ids->get_array()) {
    if (!prompt.is_array()) return fail(invalid_argument("a prompt is a list of token ids"));
    std::vector<TokenId>& tokens = batch.prompts.emplace_back();
    for (const json::value& id : prompt.get_array()) {
      if (!id.is_int64()) return fail(invalid_argument("a token id is an integer"));
      tokens.push_back(static_cast<TokenId>(id.get_int64()));
    }
  }
  return batch;
}

// All prompts at once. The time is from the first submission to the last token.
Result<json::object> run_batch(Engine& engine, Batch batch) {
  // Shared with the sinks, because a failed submission returns before the others have ended.
  const auto pending = std::make_shared<PendingRequests>(std::ssize(batch.prompts));
  const SteadyClock clock;
  const TimePoint start = clock.now();
  for (std::vector<TokenId>& prompt : batch.prompts) {
    GenerateRequest request;
    request.input_ids = std::move(prompt);
    request.sampling = {
        .max_new_tokens = batch.max_new_tokens, .temperature = 0.0f, .ignore_eos = true};
    const auto rid =
        engine.submit(std::move(request), [pending](TokenEvent&& event) { pending->add(event); });
    if (!rid) {
      engine.abort("", Engine::AbortScope::kAll);
      return fail(rid.error());
    }
  }
  ESP_RETURN_IF_ERROR(pending->wait());
  return json::object{{"seconds", to_seconds(clock.now() - start)},
                      {"output_tokens", pending->output_tokens()},
                      {"cached_tokens", pending->cached_tokens()}};
}

Result<json::object> answer(Engine& engine, const std::string& line) {
  json::error_code failed;
  const json::value value = json::parse(line, failed);
  if (failed || !value.is_object()) return fail(invalid_argument("the line is no JSON object"));
  if (value.get_object().contains("flush_cache")) {
    const Status status = engine.flush_cache();
    if (!status.ok() && status.code() != StatusCode::kFailedPrecondition) return fail(status);
    return json::object{{"flushed", status.ok()}};
  }
  ESP_ASSIGN_OR_RETURN(Batch batch, parse_batch(value.get_object()));
  return run_batch(engine, std::move(batch));
}

void print_line(const json::object& object) {
  fmt::print("{}\n", json::serialize(object));
  std::fflush(stdout);
}

}  // namespace

int run_batches(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  config.engine.model.skip_tokenizer_init = true;
  SettingTable table;
  CommandLine command{
      "espalier_bench batches",
      "Answers batches of prompts from standard input, and times each.",
      "Example:\n  espalier_bench batches --model-path bench/configs/llama_8b --load-format dummy",
      "",
      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  const Result<std::unique_ptr<Engine>> engine = start_engine(config);
  if (!engine) return report(engine.error(), kExitFailure);
  print_line({{"ready", true}, {"vocab_size", (*engine)->model_info().vocab_size}});
  for (std::string line; std::getline(std::cin, line);) {
    const Result<json::object> result = answer(**engine, line);
    print_line(result ? *result : json::object{{"error", result.error().to_string()}});
  }
  return kExitOk;
}

}  // namespace espalier::bench
