// Records of NVFP4 (int4_weights.h), whose functions call these where the format is such. Internal
// to kernels/linear. Thread-safe; requirements of pointers and streams as there.
#pragma once

#include "kernels/linear/int4_weights.h"

namespace espalier::kernels::cuda {

// args.order is kRows, without args.columns.
Status repack_nvfp4(const RepackInt4Args& args, const LaunchOptions& launch);
Status quantize_nvfp4(const QuantizeInt4Args& args, const LaunchOptions& launch);
Status widen_nvfp4(const WidenInt4Args& args, const LaunchOptions& launch);

// Where the rows' scales lie behind the records of a matrix, in bytes: float32, kNvfp4Whole times a
// row's.
constexpr int64_t nvfp4_row_scales_at(int64_t out, int64_t in) {
  return int4_records(out, in) * Int4Format{.group = kNvfp4Group}.record_bytes();
}

}  // namespace espalier::kernels::cuda
