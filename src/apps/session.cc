#include "apps/session.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "apps/progress.h"
#include "base/bounded_queue.h"
#include "base/check.h"
#include "base/log.h"

namespace espalier::apps {
namespace {

std::atomic<bool> interrupt_flag{false};

void on_interrupt(int) {
  if (interrupt_flag.exchange(true)) _exit(128 + SIGINT);
}

constexpr Duration kInterruptPoll = std::chrono::milliseconds(50);

// As the engine takes them; told here, a wrong one is told before a model is loaded.
struct Range {
  double min, max;
  bool above_min = false;  // the least value itself is none
};

void optional_number(SettingTable& table, std::string name, std::optional<float>& target,
                     Range range, std::string help) {
  table.custom(std::move(name), "X", std::move(help), "the model's",
               [&target, range](std::string_view text) -> Status {
                 double value = 0;
                 SettingTable scratch;
                 ESP_RETURN_IF_ERROR(scratch.number("", value, range.min, range.max, "").set(text));
                 if (range.above_min && value == range.min)
                   return invalid_argument("{} is out of range; it must be above {} and at most {}",
                                           text, range.min, range.max);
                 target = static_cast<float>(value);
                 return {};
               });
}

template <typename Int>
void optional_integer(SettingTable& table, std::string name, std::optional<Int>& target,
                      int64_t min, int64_t max, std::string default_text, std::string help) {
  table.custom(std::move(name), "N", std::move(help), std::move(default_text),
               [&target, min, max](std::string_view text) -> Status {
                 int64_t value = 0;
                 SettingTable scratch;
                 ESP_RETURN_IF_ERROR(scratch.integer("", value, min, max, "").set(text));
                 target = static_cast<Int>(value);
                 return {};
               });
}

// A bar of its own line, which ends with the loading. One that is over at once shows nothing.
TellLoaded bar_of_loading() {
  static constexpr Duration kShowAfter = std::chrono::milliseconds(300);
  // Shared: functions are copied.
  return [started = SteadyClock().now(), bar = std::make_shared<std::optional<ProgressBar>>()](
             int64_t done, int64_t total) {
    if (!*bar && SteadyClock().now() - started < kShowAfter) return;
    if (!*bar && done < total) bar->emplace("loading weights", total, "B");
    if (*bar) (*bar)->set(done);
    if (done >= total) bar->reset();
  };
}

}  // namespace

std::optional<int> parse_engine_command(CommandLine& command, SettingTable& table,
                                        AppConfig& config, const std::vector<std::string>& args) {
  add_engine_settings(table, config);
  AppConfig unused;
  SettingTable server;
  add_server_settings(server, unused);
  if (const auto exit_code = parse_command_line(command, table, server, args)) return exit_code;
  if (Status status = check_contradictions(table, config); !status.ok())
    return report(status, kExitUsage);
  if (const Result<LogLevel> level = parse_log_level(config.log_level)) set_log_level(*level);
  return std::nullopt;
}

Result<std::unique_ptr<Engine>> start_engine(AppConfig& config) {
  // Clients name the model as the launch line does, folders included.
  if (config.server.served_model_name.empty())
    config.server.served_model_name = config.engine.model_path.string();
  ESP_ASSIGN_OR_RETURN(config.engine.model_path, resolve_model_path(config.engine.model_path));
  EngineConfig engine = config.engine;
  // Elsewhere than on a terminal the log tells.
  if (isatty(STDERR_FILENO) == 1 && log_enabled(LogLevel::kError))
    engine.load_progress = bar_of_loading();
  return Engine::create(engine);
}

void add_sampling_settings(SettingTable& table, SamplingParams& sampling) {
  table.group("Sampling");
  optional_integer(table, "max-new-tokens", sampling.max_new_tokens, 0, 1 << 30, "128",
                   "tokens of the answer at most");
  optional_integer(table, "min-new-tokens", sampling.min_new_tokens, 0, 1 << 30, "0",
                   "tokens before the answer may end");
  optional_number(table, "temperature", sampling.temperature, {0, 1e9},
                  "0 takes the likeliest token");
  optional_number(table, "top-p", sampling.top_p, {0, 1, true},
                  "likeliest tokens that sum to this probability");
  optional_integer(table, "top-k", sampling.top_k, -1, 1 << 30, "the model's",
                   "this many likeliest tokens");
  optional_number(table, "min-p", sampling.min_p, {0, 1},
                  "tokens of this part of the likeliest's probability");
  optional_number(table, "frequency-penalty", sampling.frequency_penalty, {-2, 2},
                  "for each time that a token came");
  optional_number(table, "presence-penalty", sampling.presence_penalty, {-2, 2},
                  "when a token has come");
  optional_number(table, "repetition-penalty", sampling.repetition_penalty, {0, 2, true},
                  "divides the logits of tokens seen");
  optional_integer(table, "sampling-seed", sampling.sampling_seed, 0, int64_t{1} << 62, "drawn",
                   "the same seed gives the same answer");
  table.list("stop", sampling.stop, "TEXT", "ends the answer; may be given several times");
  table.list("stop-regex", sampling.stop_regex, "REGEX", "ends the answer");
  table.toggle("ignore-eos", sampling.ignore_eos, "go on after the end of the answer");
}

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a read of the terminal is broken off
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return interrupt_flag.load(); }
void clear_interrupt() { interrupt_flag.store(false); }

Result<StreamedAnswer> stream(Engine& engine, GenerateRequest request,
                              const std::function<void(std::string_view)>& on_text) {
  // Room for an event a token, so that the engine's thread never finds it full. Shared: that thread
  // may still be in the push of the last event when it has been taken.
  const auto events =
      std::make_shared<BoundedQueue<TokenEvent>>(static_cast<size_t>(engine.context_length()) + 16);
  ESP_ASSIGN_OR_RETURN(const std::string rid,
                       engine.submit(std::move(request), [events](TokenEvent&& e) {
                         ESP_CHECK(events->try_push(std::move(e)), "more events than tokens");
                       }));
  StreamedAnswer answer;
  while (true) {
    std::optional<TokenEvent> event = events->pop_for(kInterruptPoll);
    if (interrupted() && !answer.interrupted) {
      answer.interrupted = true;
      engine.abort(rid, Engine::AbortScope::kExact);
    }
    if (!event) continue;
    if (!event->text.empty()) on_text(event->text);
    answer.text += event->text;
    if (!event->finish) continue;
    answer.finish = *event->finish;
    answer.stats = event->stats;
    if (answer.finish.type == FinishReason::Type::kError) return fail(answer.finish.status);
    if (answer.finish.type == FinishReason::Type::kAbort && !answer.interrupted)
      return fail(answer.finish.status);
    return answer;
  }
}

std::string speed_line(const StreamedAnswer& answer) {
  const RequestStats& stats = answer.stats;
  const double first = to_seconds(stats.first_token - stats.arrived);
  const double rest = to_seconds(stats.finished - stats.first_token);
  const double speed =
      stats.completion_tokens > 1 && rest > 0 ? (stats.completion_tokens - 1) / rest : 0;
  return fmt::format(
      "{} tokens, {:.1f} tok/s, first after {:.0f} ms; prompt {} tokens, {} from the cache",
      stats.completion_tokens, speed, std::max(first, 0.0) * 1e3, stats.prompt_tokens,
      stats.cached_tokens);
}

}  // namespace espalier::apps
