#include "kernels/linear/tuned_kernels.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/linear/cublaslt.h"

namespace espalier::kernels::cuda {
namespace {

// "type out_type in out bias residual rows"
std::string key_of(const LinearShape& s, int32_t rows) {
  return fmt::format("{} {} {} {} {} {} {}", s.type, s.out_type, s.in, s.out, s.bias, s.residual,
                     rows);
}

// "own" for gemv, or "batch" and the three numbers of a configuration of gemm_small_batch, or
// each word of the algorithm as 16 hexadecimal digits.
std::string text_of(const TunedKernel& kernel) {
  if (kernel.batch)
    return fmt::format("batch {} {} {}", kernel.batch->groups, kernel.batch->splits,
                       kernel.batch->half_shared ? 1 : 0);
  if (!kernel.algorithm) return "own";
  std::string text;
  for (const uint64_t word : kernel.algorithm->data) text += fmt::format("{:016x}", word);
  return text;
}

}  // namespace

LinearShape shape_of(const LinearArgs& args) {
  const int type = args.block_scales               ? kBlockE4m3Shape
                   : args.weight_scales != nullptr ? kE4m3Shape
                                                   : static_cast<int>(args.type);
  return {.type = type,
          .out_type = static_cast<int>(args.silu_mul ? args.type : args.out_type),
          .in = args.in_features,
          .out = gemm_outputs(args),
          .bias = args.bias != nullptr,
          .residual = args.residual != nullptr};
}

TunedKernels::TunedKernels(std::filesystem::path cache) : cache_(std::move(cache)) {
  take(tuning_file().read());
}

void TunedKernels::set_row_invariant() {
  row_invariant_ = true;
  tuned_.clear();
  take(tuning_file().read());
}

bool TunedKernels::known(const LinearArgs& args) const {
  const std::lock_guard lock(mutex_);
  const auto found = tuned_.find(shape_of(args));
  return found != tuned_.end() && found->second.contains(args.rows);
}

TunedKernel TunedKernels::nearest(const LinearArgs& args) const {
  const std::lock_guard lock(mutex_);
  const auto found = tuned_.find(shape_of(args));
  if (found == tuned_.end() || found->second.empty()) return {};
  const auto& by_rows = found->second;
  const bool alone = args.block_scales || (!row_invariant_ && args.rows <= kSmallRows);
  if (alone && !by_rows.contains(args.rows)) return {};
  auto at = by_rows.lower_bound(args.rows);
  if (at == by_rows.end()) --at;
  return at->second;
}

void TunedKernels::set(const LinearArgs& args, const TunedKernel& kernel) {
  const std::lock_guard lock(mutex_);
  tuned_[shape_of(args)][args.rows] = kernel;
}

// The tuning file of this device, driver and library version, on which the fastest kernel depends.
TuningFile TunedKernels::tuning_file() const {
  int device = 0, driver = 0;
  cudaDeviceProp properties{};
  if (cache_.empty() || cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess ||
      cudaDriverGetVersion(&driver) != cudaSuccess)
    return {{}, {}, {}};
  std::string name = properties.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '-');
  const std::string ways = row_invariant_ ? "linear-invariant" : "linear-and-batch";
  return {cache_, fmt::format("{}-{}-cublaslt-{}.txt", ways, name, cublasLtGetVersion()),
          fmt::format("{} of {}, {}.{}, {} multiprocessors, driver {}, cuBLASLt {}", ways,
                      properties.name, properties.major, properties.minor,
                      properties.multiProcessorCount, driver, cublasLtGetVersion())};
}

void TunedKernels::take(const TuningFile::Entries& entries) {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, text] : entries) {
    std::istringstream in(key);
    LinearShape s;
    int32_t rows = 0;
    if (!(in >> s.type >> s.out_type >> s.in >> s.out >> s.bias >> s.residual >> rows)) continue;
    if (text == "own") {
      if (rows <= kSmallRows) tuned_[s][rows] = {};
    } else if (text.size() == 16 * std::size(cublasLtMatmulAlgo_t{}.data)) {
      cublasLtMatmulAlgo_t algo{};
      for (size_t i = 0; i < std::size(algo.data); ++i)
        algo.data[i] = std::strtoull(text.substr(16 * i, 16).c_str(), nullptr, 16);
      tuned_[s][rows] = {.algorithm = algo};
    } else if (std::istringstream config_in(text); text.starts_with("batch ")) {
      SmallBatchConfig config;
      std::string word;
      int half = 0;
      if (config_in >> word >> config.groups >> config.splits >> half) {
        config.half_shared = half != 0;
        tuned_[s][rows] = {.batch = config};
      }
    }
  }
}

void TunedKernels::share() {
  TuningFile::Entries measured;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [s, by_rows] : tuned_)
      for (const auto& [rows, kernel] : by_rows) measured[key_of(s, rows)] = text_of(kernel);
  }
  take(tuning_file().add(measured));
}

}  // namespace espalier::kernels::cuda
