#include "apps/inspect_speech.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "engine/startup/system_info.h"
#include "speech/transcriber.h"

namespace espalier::apps {
namespace {

std::string mib(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576.0);
}

void print_speech_table(const TranscriberInfo& info, const std::string& path) {
  const auto row = [](std::string_view name, const std::string& value) {
    fmt::print("{:<28}{}\n", name, value);
  };
  row("model", path);
  row("architecture", fmt::format("{} ({})", info.architecture, info.model_type));
  row("makes", info.translates ? "text of speech, and English text of it" : "text of speech");
  row("languages", info.languages.empty() ? "English" : fmt::format("{}", info.languages.size()));
  row("parameters", fmt::format("{:.2f} M", static_cast<double>(info.num_parameters) / 1e6));
  row("weights in memory", fmt::format("{} ({})", mib(info.weight_bytes), info.dtype));
  row("encoder",
      fmt::format("{} layers of {}, {} mel bands, windows of {:.0f} s", info.num_encoder_layers,
                  info.hidden_size, info.num_mels, info.window_seconds));
  row("decoder", fmt::format("{} layers, {} tokens a window at most", info.num_decoder_layers,
                             info.context_length));
  row("vocabulary", fmt::format("{}", info.vocab_size));
  const SystemInfo system = read_system_info();
  fmt::print("\nThe plan on this computer ({} processors, {} free on cpu):\n", system.num_cpus,
             mib(system.available_bytes));
  row("memory of a request", mib(info.slot_bytes));
  row("requests at once", fmt::format("{}", info.running_max));
  row("requests waiting", fmt::format("{}", info.waiting_max));
}

void print_speech_json(const TranscriberInfo& info, const std::string& path) {
  boost::json::array languages;
  for (const std::string& code : info.languages) languages.emplace_back(code);
  const boost::json::object out = {{"model_path", path},
                                   {"architecture", info.architecture},
                                   {"model_type", info.model_type},
                                   {"is_generation", false},
                                   {"is_transcription", true},
                                   {"translates", info.translates},
                                   {"languages", languages},
                                   {"num_parameters", info.num_parameters},
                                   {"weight_bytes", info.weight_bytes},
                                   {"dtype", info.dtype},
                                   {"num_encoder_layers", info.num_encoder_layers},
                                   {"num_layers", info.num_decoder_layers},
                                   {"hidden_size", info.hidden_size},
                                   {"num_mels", info.num_mels},
                                   {"window_seconds", info.window_seconds},
                                   {"vocab_size", info.vocab_size},
                                   {"context_length", info.context_length},
                                   {"bytes_per_request", info.slot_bytes},
                                   {"max_running_requests", info.running_max},
                                   {"max_queued_requests", info.waiting_max}};
  fmt::print("{}\n", boost::json::serialize(out));
}

}  // namespace

Status inspect_speech(const EngineConfig& config, bool json) {
  ESP_ASSIGN_OR_RETURN(const TranscriberInfo info,
                       read_transcriber_info({.path = config.model.model_path,
                                              .dtype = config.model.dtype,
                                              .running_max = config.schedule.max_running_requests,
                                              .waiting_max = config.schedule.max_queued_requests}));
  const std::string path = config.model.model_path.string();
  json ? print_speech_json(info, path) : print_speech_table(info, path);
  return {};
}

}  // namespace espalier::apps
