// espalier inspect: what a model folder holds, and what serving it on this machine would take.
#include <fmt/format.h>

#include <boost/json.hpp>

#include "apps/commands.h"
#include "apps/session.h"
#include "checkpoint/checkpoint.h"
#include "engine/config.h"
#include "engine/device.h"
#include "models/model.h"

namespace espalier::apps {
namespace {

struct Inspection {
  ModelInfo info;
  std::string device;  // "cpu", or the GPU's name
  MachineInfo machine;
  EngineConfig plan;  // effective
  KvType kv_type{};
};

Result<Inspection> inspect(EngineConfig config) {
  ESP_ASSIGN_OR_RETURN(config.model_path, resolve_model_path(config.model_path));
  Inspection out;
  ESP_ASSIGN_OR_RETURN(out.info, read_model_info(config.model_path));
  if (config.load_format == LoadFormat::kAuto) {
    out.info.weight_bytes = 0;
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(config.model_path));
    for (const CheckpointTensor& tensor : checkpoint.tensors())
      out.info.weight_bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  ESP_ASSIGN_OR_RETURN(const EngineDevice device, choose_device(config.device));
  out.device = device.name;
  out.machine = device.machine;
  config.device = device.cuda ? "cuda" : "cpu";
  ESP_ASSIGN_OR_RETURN(out.plan, resolve(config, out.info, out.machine));
  ESP_ASSIGN_OR_RETURN(out.kv_type, resolve_kv_type(out.plan, out.info));
  return out;
}

std::string bytes(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value < 1024.0 * 1024.0) return fmt::format("{:.1f} KiB", value / 1024.0);
  if (value < 1024.0 * 1024.0 * 1024.0) return fmt::format("{:.1f} MiB", value / 1048576.0);
  return fmt::format("{:.2f} GiB", value / 1073741824.0);
}

void print_table(const Inspection& it) {
  const auto row = [](std::string_view name, const std::string& value) {
    fmt::print("{:<28}{}\n", name, value);
  };
  const int64_t kv_token = it.info.kv_bytes_per_token(it.kv_type);
  row("model", it.plan.model_path.string());
  row("architecture", fmt::format("{} ({})", it.info.architecture, it.info.model_type));
  row("parameters", fmt::format("{:.2f} M", static_cast<double>(it.info.num_parameters) / 1e6));
  row("weights in the folder", bytes(it.info.weight_bytes));
  row("layers", fmt::format("{}", it.info.num_layers));
  row("KV heads", fmt::format("{} of {}", it.info.num_kv_heads, it.info.head_dim));
  row("vocabulary", fmt::format("{}", it.info.vocab_size));
  row("context", fmt::format("{} tokens", it.info.context_length));
  row("KV bytes per token",
      fmt::format("{} ({})", kv_token, it.kv_type == KvType::kFloat32 ? "float32" : "bfloat16"));
  fmt::print("\nThe plan on this machine ({} processors, {} free on {}):\n", it.machine.num_cpus,
             bytes(it.machine.available_bytes), it.device);
  // A GPU's scratch is measured when the engine starts, and told then.
  row(it.plan.device == "cuda" ? "KV cache, scratch included" : "KV cache",
      fmt::format("{} tokens, {}", it.plan.max_total_tokens,
                  bytes(kv_token * it.plan.max_total_tokens)));
  row("requests at once", fmt::format("{}", it.plan.max_running_requests));
  row("requests waiting", fmt::format("{}", it.plan.max_queued_requests));
  row("context of a request", fmt::format("{} tokens", it.plan.context_length));
  row("prefill in one step", fmt::format("{} tokens", it.plan.chunked_prefill_size));
  row("page", fmt::format("{} tokens", it.plan.page_size));
  row("threads", fmt::format("{}", it.plan.num_threads));
}

void print_json(const Inspection& it) {
  const int64_t kv_token = it.info.kv_bytes_per_token(it.kv_type);
  const boost::json::object out = {{"model_path", it.plan.model_path.string()},
                                   {"architecture", it.info.architecture},
                                   {"model_type", it.info.model_type},
                                   {"num_parameters", it.info.num_parameters},
                                   {"weight_bytes", it.info.weight_bytes},
                                   {"num_layers", it.info.num_layers},
                                   {"num_kv_heads", it.info.num_kv_heads},
                                   {"head_dim", it.info.head_dim},
                                   {"vocab_size", it.info.vocab_size},
                                   {"model_context_length", it.info.context_length},
                                   {"kv_bytes_per_token", kv_token},
                                   {"device", it.plan.device},
                                   {"device_name", it.device},
                                   {"available_bytes", it.machine.available_bytes},
                                   {"num_cpus", it.machine.num_cpus},
                                   {"max_total_tokens", it.plan.max_total_tokens},
                                   {"kv_bytes", kv_token * it.plan.max_total_tokens},
                                   {"max_running_requests", it.plan.max_running_requests},
                                   {"max_queued_requests", it.plan.max_queued_requests},
                                   {"context_length", it.plan.context_length},
                                   {"chunked_prefill_size", it.plan.chunked_prefill_size},
                                   {"page_size", it.plan.page_size},
                                   {"num_threads", it.plan.num_threads}};
  fmt::print("{}\n", boost::json::serialize(out));
}

}  // namespace

int run_inspect(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  bool json = false;
  SettingTable table;
  table.group("Output");
  table.toggle("json", json, "print one JSON object");
  CommandLine command{"espalier inspect",
                      "Tells what a model folder holds and what serving it here would take.",
                      "Example:\n  espalier inspect --model-path my-model",
                      "",
                      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  const Result<Inspection> inspection = inspect(config.engine);
  if (!inspection) return report(inspection.error(), kExitFailure);
  if (json) {
    print_json(*inspection);
  } else {
    print_table(*inspection);
  }
  return kExitOk;
}

}  // namespace espalier::apps
