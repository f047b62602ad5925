// The table of tuned kernels: which kernel multiplies a shape at a number of rows, kept in a tuning
// file that processes share. Internal to kernels/linear.
#pragma once

#include <cublasLt.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "kernels/linear/cuda.h"
#include "kernels/linear/gemm_small_batch.h"
#include "kernels/linear/tuning_file.h"

namespace espalier::kernels::cuda {

// LinearShape::type of e4m3 by the kind of its scales; no DType has them.
inline constexpr int kE4m3Shape = 8, kBlockE4m3Shape = 9;

// What a kernel is chosen by, besides the number of rows.
struct LinearShape {
  int type = 0, out_type = 0, in = 0, out = 0, bias = 0, residual = 0;
  auto tied() const { return std::tie(type, out_type, in, out, bias, residual); }
  friend bool operator<(const LinearShape& a, const LinearShape& b) { return a.tied() < b.tied(); }
  friend bool operator==(const LinearShape& a, const LinearShape& b) {
    return a.tied() == b.tied();
  }
};
LinearShape shape_of(const LinearArgs& args);

// A chosen kernel: an algorithm of cuBLASLt, or gemm_small_batch in a configuration, or, without
// either, gemv.
struct TunedKernel {
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  std::optional<SmallBatchConfig> batch;
};

// Thread-safe but for set_row_invariant().
class TunedKernels {
 public:
  // cache: the folder of the tuning file; empty: entries are not kept. Reads the file.
  explicit TunedKernels(std::filesystem::path cache);

  // Forgets all entries and reads those of row-invariant GEMMs, which have a file of their own.
  void set_row_invariant();

  bool known(const LinearArgs& args) const;
  // The kernel of the nearest tuned number of rows, from above if there is one; none for few rows
  // that were not tuned themselves, nor with scales of blocks.
  TunedKernel nearest(const LinearArgs& args) const;
  void set(const LinearArgs& args, const TunedKernel& kernel);

  // Writes the entries to the tuning file; what another process has measured meanwhile replaces
  // ours.
  void share();

 private:
  TuningFile tuning_file() const;
  void take(const TuningFile::Entries& entries);

  const std::filesystem::path cache_;
  bool row_invariant_ = false;
  mutable std::mutex mutex_;
  std::map<LinearShape, std::map<int32_t, TunedKernel>> tuned_;  // by shape, then rows
};

}  // namespace espalier::kernels::cuda
