#include "lora_bench.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "base/rng.h"
#include "fmt/format.h"
#include "tensor/dtype.h"

namespace espalier::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A folder that goes when the object does.
class BenchFolder {
 public:
  BenchFolder() : path_(fs::temp_directory_path() / fmt::format("espalier_lora_{}", ::getpid())) {
    fs::create_directories(path_);
  }
  ~BenchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  const fs::path path_;
};

// Factors of bfloat16 as PEFT writes them; their values repeat, for they change no time.
Status write_factors(const StepBench& bench, int32_t rank, const fs::path& folder) {
  std::ofstream(folder / "adapter_config.json")
      << fmt::format(R"({{"peft_type":"LORA","r":{},"lora_alpha":{},"bias":"none"}})", rank, rank);
  std::string header;
  int64_t bytes = 0;
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
    const int64_t end = bytes + rows * columns * 2;
    header += fmt::format(
        R"({}"base_model.model.{}.weight":{{"dtype":"BF16","shape":[{},{}],"data_offsets":[{},{}]}})",
        header.empty() ? "{" : ",", name, rows, columns, bytes, end);
    bytes = end;
  };
  for (const auto& [name, module] : bench.modules()) {
    add(name + ".lora_A", rank, module.in_features);
    add(name + ".lora_B", module.out_features, rank);
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::ofstream file(folder / "adapter_model.safetensors", std::ios::binary);
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(header.size() >> (8 * i)));
  file << header;
  Rng rng(1);
  std::vector<BFloat16> block(1 << 20);
  for (BFloat16& value : block) value = to_bfloat16(static_cast<float>(0.01 * rng.normal()));
  for (int64_t at = 0; at < bytes;) {
    const int64_t count = std::min<int64_t>(bytes - at, std::ssize(block) * 2);
    file.write(reinterpret_cast<const char*>(block.data()), count);
    at += count;
  }
  return file ? Status() : error(StatusCode::kUnavailable, "cannot write {}", folder.string());
}

class LoraBench {
 public:
  LoraBench(const LoraBenchOptions& options, const std::function<void(const LoraRow&)>& on_row,
            StepBench& bench)
      : options_(options), on_row_(on_row), bench_(bench) {}

  Status load_all() {
    ESP_RETURN_IF_ERROR(write_factors(bench_, options_.rank, folder_.path()));
    std::vector<double> times;
    for (AdapterId id = 1; id <= options_.entries; ++id) {
      const Clock::time_point start = Clock::now();
      ESP_ASSIGN_OR_RETURN(const AdapterInfo info, bench_.load_adapter(id, folder_.path()));
      times.push_back(seconds_since(start));
      bytes_ = info.size_bytes;
    }
    on_row_({fmt::format("first load of an adapter of {} MB", bytes_ / 1'000'000), times[0], 0});
    std::ranges::sort(times);
    on_row_({"median of further loads", times[times.size() / 2], 0});
    return Status();
  }

  Status decode(int32_t entries) {
    const std::vector<int32_t> contexts(static_cast<size_t>(entries), options_.context);
    ESP_ASSIGN_OR_RETURN(const StepTimes base, bench_.decode(contexts, options_.steps));
    on_row_({fmt::format("decode, {} entries, no adapter", entries), base.step_seconds, 1});
    for (int32_t adapters = 1; adapters <= entries; adapters *= adapters < 16 ? 16 : 4) {
      std::vector<AdapterId> ids;
      for (int32_t i = 0; i < entries; ++i) ids.push_back(1 + i % adapters);
      ESP_ASSIGN_OR_RETURN(const StepTimes times, bench_.decode(contexts, options_.steps, ids));
      on_row_({fmt::format("decode, {} entries over {} adapters", entries, adapters),
               times.step_seconds, base.step_seconds / times.step_seconds});
    }
    return Status();
  }

  Status prefill(int32_t tokens) {
    ESP_ASSIGN_OR_RETURN(const double base, bench_.prefill(tokens, 2));
    on_row_({fmt::format("prefill, {} tokens, no adapter", tokens), base, 1});
    ESP_ASSIGN_OR_RETURN(const double times, bench_.prefill(tokens, 2, 1));
    on_row_({fmt::format("prefill, {} tokens with an adapter", tokens), times, base / times});
    return Status();
  }

 private:
  const LoraBenchOptions& options_;
  const std::function<void(const LoraRow&)>& on_row_;
  StepBench& bench_;
  BenchFolder folder_;
  int64_t bytes_ = 0;
};

}  // namespace

Status run_lora_bench(const LoraBenchOptions& options,
                      const std::function<void(const LoraRow&)>& on_row) {
  ModelLoadOptions model = options.model;
  model.enable_lora = true;
  model.max_lora_rank = options.rank;
  StepBench::Limits limits = options.limits;
  // Rank 16 of an 8 B model is 84 MB: a hundredth of a byte for each parameter.
  ESP_ASSIGN_OR_RETURN(const ModelInfo info, read_model_info(model));
  limits.adapter_bytes = info.num_parameters * options.rank / 16 / 80 * options.entries;
  ESP_ASSIGN_OR_RETURN(auto bench, StepBench::create(model, limits));
  LoraBench lora(options, on_row, *bench);
  ESP_RETURN_IF_ERROR(lora.load_all());
  for (const int32_t entries : {1, 16, options.entries}) ESP_RETURN_IF_ERROR(lora.decode(entries));
  for (const int32_t tokens : {512, 8192}) ESP_RETURN_IF_ERROR(lora.prefill(tokens));
  return Status();
}

}  // namespace espalier::bench
