// What the commands that run a model in this process share: their settings, the engine, one request
// streamed to standard output. Used by the main thread; interrupted() may be called from any.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/command_line.h"
#include "apps/config.h"
#include "engine/engine.h"

namespace espalier::apps {

// parse_command_line with the rows of the engine added, the log level set and contradictions
// reported. The server's settings may stand in the file. Returns as
// parse_command_line does.
std::optional<int> parse_engine_command(CommandLine& command, SettingTable& table,
                                        AppConfig& config, const std::vector<std::string>& args);

// Finds the model and starts its engine.
Result<std::unique_ptr<Engine>> start_engine(AppConfig& config,
                                             MakePrefixCache make_cache = make_prefix_cache);

void add_sampling_settings(SettingTable& table, SamplingParams& sampling);

// Ctrl-C sets a flag instead of ending the process; a second one before the flag is cleared ends
// it.
void catch_interrupts();
bool interrupted();
void clear_interrupt();

struct StreamedAnswer {
  std::string text;
  FinishReason finish;
  RequestStats stats;
  bool interrupted = false;
};

// Runs a request of one sample, handing over its text as it comes. An interrupt aborts it.
Result<StreamedAnswer> stream(Engine& engine, GenerateRequest request,
                              const std::function<void(std::string_view)>& on_text);

// "23 tokens, 145.2 tok/s, first after 12 ms; prompt 10 tokens, 4 from the cache".
std::string speed_line(const StreamedAnswer& answer);

}  // namespace espalier::apps
