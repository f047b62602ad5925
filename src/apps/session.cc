#include "apps/session.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>

#include "apps/progress.h"
#include "base/bounded_queue.h"
#include "base/check.h"
#include "base/log.h"
#include "engine/nodes/start_leader.h"
#include "seams/request_fields.h"

namespace espalier::apps {
namespace {

std::atomic<bool> interrupt_flag{false};

void on_interrupt(int) {
  if (interrupt_flag.exchange(true)) _exit(128 + SIGINT);
}

constexpr Duration kInterruptPoll = std::chrono::milliseconds(50);

constexpr double kNumberMax = 1e9;
constexpr int64_t kCountMax = int64_t{1} << 30;
constexpr int64_t kSeedMax = int64_t{1} << 62;

// How a request field becomes a flag, by the type of its parameter. Values are checked against the
// field's range before a model is loaded.
void add_flag(SettingTable& table, std::string name, const FieldRow& row,
              std::optional<float>& target) {
  table.custom(std::move(name), "X", std::string(row.doc), "the model's",
               [&target, range = row.range](std::string_view text) -> Status {
                 const double high = std::min(range.high, kNumberMax);
                 double value = 0;
                 SettingTable scratch;
                 ESP_RETURN_IF_ERROR(scratch.number("", value, range.low, high, "").set(text));
                 if (!range.holds(value))
                   return invalid_argument("{} is out of range; it must be above {} and at most {}",
                                           text, range.low, high);
                 target = static_cast<float>(value);
                 return {};
               });
}

template <std::integral Int>
void add_flag(SettingTable& table, std::string name, const FieldRow& row,
              std::optional<Int>& target) {
  const bool no_limit = row.range.takes_minus_one;
  const int64_t low = no_limit ? -1 : 0;
  const int64_t high = std::is_same_v<Int, uint64_t> ? kSeedMax : kCountMax;
  // The first default that a row names is the engine's own; the rest are those of HTTP dialects.
  std::string absent(no_limit ? "the model's" : row.absent.substr(0, row.absent.find(';')));
  if (absent.empty()) absent = "0";
  table.custom(std::move(name), "N", std::string(row.doc), std::move(absent),
               [&target, low, high](std::string_view text) -> Status {
                 int64_t value = 0;
                 SettingTable scratch;
                 ESP_RETURN_IF_ERROR(scratch.integer("", value, low, high, "").set(text));
                 target = static_cast<Int>(value);
                 return {};
               });
}

void add_flag(SettingTable& table, std::string name, const FieldRow& row,
              std::vector<std::string>& target) {
  const char* const value_name = name.ends_with("regex") ? "REGEX" : "TEXT";
  table.list(std::move(name), target, value_name,
             fmt::format("{}; may be given several times", row.doc));
}

void add_flag(SettingTable& table, std::string name, const FieldRow& row, bool& target) {
  table.toggle(std::move(name), target, std::string(row.doc));
}

std::string flag_name(std::string_view field) {
  std::string name(field);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// A bar of its own line, which ends with the loading. One that is over at once shows nothing.
ReportLoaded bar_of_loading() {
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

Result<std::unique_ptr<Engine>> start_engine(AppConfig& config, MakePrefixCache make_cache) {
  // Clients name the model as the launch line does, folders included.
  if (config.server.answers.served_model_name.empty())
    config.server.answers.served_model_name = config.engine.model.model_path.string();
  ESP_ASSIGN_OR_RETURN(config.engine.model.model_path,
                       resolve_model_path(config.engine.model.model_path, config.hub));
  EngineConfig engine = config.engine;
  // Without a terminal the log reports the progress.
  if (isatty(STDERR_FILENO) == 1 && log_enabled(LogLevel::kError))
    engine.model.load_progress = bar_of_loading();
  if (!config.nodes.single()) return create_leader(engine, config.nodes, std::move(make_cache));
  return Engine::create(engine, std::move(make_cache));
}

void add_sampling_settings(SettingTable& table, SamplingParams& sampling) {
  table.group("Sampling");
  for_each_request_field([&](const auto& field) {
    auto& target = field.param(sampling);
    if constexpr (requires { add_flag(table, std::string(), field, target); })
      if (field.in(kInCommand)) add_flag(table, flag_name(field.name), field, target);
  });
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
