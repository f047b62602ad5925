// espalier bench offline: a workload run by an engine in this process.
#include <fmt/format.h>

#include <condition_variable>
#include <mutex>

#include "apps/bench/report.h"
#include "apps/bench/runner.h"
#include "apps/commands.h"
#include "apps/session.h"

namespace espalier::apps {
namespace {

class EngineSender final : public Sender {
 public:
  EngineSender(Engine& engine, float temperature) : engine_(engine), temperature_(temperature) {}

  RequestRecord send(const Turn& turn, ConversationState& state) override {
    state.ids.insert(state.ids.end(), turn.ids.begin(), turn.ids.end());
    GenerateRequest request;
    request.input_ids.assign(state.ids.begin(), state.ids.end());
    request.sampling.max_new_tokens = turn.output_len;
    request.sampling.temperature = temperature_;
    request.sampling.ignore_eos = true;

    Waiting waiting;
    const Result<std::string> rid = engine_.submit(
        std::move(request), [&](TokenEvent&& event) { waiting.on_event(std::move(event)); });
    RequestRecord record;
    if (!rid) {
      record.error = rid.error().message();
      return record;
    }
    record = waiting.wait();
    state.ids.insert(state.ids.end(), waiting.output_ids.begin(), waiting.output_ids.end());
    return record;
  }

 private:
  // One request in flight: filled by the engine's thread, read after its end.
  struct Waiting {
    TokenTimer timer{now_seconds()};
    std::vector<TokenId> output_ids;
    std::optional<TokenEvent> last;
    std::mutex mutex;
    std::condition_variable ended;

    void on_event(TokenEvent&& event) {
      output_ids.insert(output_ids.end(), event.ids.begin(), event.ids.end());
      timer.tokens(now_seconds(), static_cast<int32_t>(output_ids.size()));
      if (!event.finish) return;
      std::lock_guard lock(mutex);
      last = std::move(event);
      ended.notify_one();
    }
    RequestRecord wait() {
      std::unique_lock lock(mutex);
      ended.wait(lock, [&] { return last.has_value(); });
      RequestRecord record;
      timer.finish(now_seconds(), record);
      record.prompt_tokens = last->stats.prompt_tokens;
      record.cached_tokens = last->stats.cached_tokens;
      record.ok = last->finish->status.ok();
      record.error = last->finish->status.message();
      return record;
    }
  };

  Engine& engine_;
  const float temperature_;
};

}  // namespace

int run_bench_offline(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  WorkloadOptions workload_options;
  RunnerOptions runner;
  double temperature = 0;
  FigureOutput output;
  std::filesystem::path output_file;
  SettingTable table;
  add_workload_settings(table, workload_options);
  table.group("Load");
  table
      .integer("max-concurrency", runner.max_concurrency, 0, 100000,
               "requests handed to the engine at once; 0: as many as it runs")
      .default_text = "as many as the engine runs";
  table.number("temperature", temperature, 0, 100, "of every request");
  table.group("Output");
  table.result_file("output-file", output_file, "append the result to it, one JSON object a line");
  output.add_setting(table);
  CommandLine command{
      "espalier bench offline",
      "Runs a workload in an engine in this process.",
      "Example:\n  espalier bench offline --num-prompts 64 --preset code_generation --scale 0.1",
      "",
      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  if (Status status = resolve_workload(workload_options, table); !status.ok())
    return report(status, kExitUsage);

  Result<std::unique_ptr<Engine>> engine = start_engine(config);
  if (!engine) return report(engine.error(), kExitFailure);
  const std::vector<Conversation> workload =
      make_workload(workload_options, (*engine)->model_info().vocab_size);
  if (const int32_t longest = longest_request(workload), context = (*engine)->context_length();
      longest > context)
    return report(
        invalid_argument("the longest request takes {} tokens and the context is {}; shorten "
                         "it, for example with --scale {:.3g}",
                         longest, context, 0.99 * context / longest),
        kExitUsage);
  if (runner.max_concurrency == 0)
    runner.max_concurrency = std::max(1, (*engine)->config().schedule.max_running_requests);

  const RunResult result = run_workload(workload, runner, [&]() -> std::unique_ptr<Sender> {
    return std::make_unique<EngineSender>(**engine, static_cast<float>(temperature));
  });
  BenchReport sum = summarize(result.records, result.seconds);
  const EngineStats stats = (*engine)->stats();
  sum.settings = {{"model", config.engine.model.model_path.filename().string()},
                  {"workload", workload_options.kind},
                  {"input_len", fmt::format("{}", workload_options.input_len)},
                  {"output_len", fmt::format("{}", workload_options.output_len)},
                  {"threads", fmt::format("{}", (*engine)->config().compute.num_threads)},
                  {"average_batch",
                   fmt::format("{:.2f}", stats.steps.num_steps == 0
                                             ? 0.0
                                             : static_cast<double>(stats.steps.num_entries) /
                                                   static_cast<double>(stats.steps.num_steps))}};
  return publish(sum, output, output_file);
}

}  // namespace espalier::apps
