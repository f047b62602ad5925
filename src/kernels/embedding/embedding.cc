#include <cstring>

#include "base/check.h"
#include "kernels/cpu/share_rows.h"
#include "kernels/cpu/table.h"
#include "kernels/embedding/op.h"

namespace espalier::kernels {
namespace {

void copy_row(const CpuTable& table, const GatherArgs& args, int64_t id, float* out) {
  const int64_t at = id * args.dim;
  switch (args.type) {
    case DType::kFloat32:
      std::memcpy(out, static_cast<const float*>(args.table) + at,
                  static_cast<size_t>(args.dim) * sizeof(float));
      return;
    case DType::kBFloat16:
      table.from_bf16(static_cast<const uint16_t*>(args.table) + at, out, args.dim);
      return;
    case DType::kFloat16:
      for (int64_t i = 0; i < args.dim; ++i) {
        out[i] = to_float(static_cast<const Float16*>(args.table)[at + i]);
      }
      return;
  }
}

}  // namespace

void gather_rows(CpuBackend& backend, const GatherArgs& args) {
  share_rows(backend, static_cast<int64_t>(args.ids.size()), args.dim,
             [&](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) {
                 const int32_t id = args.ids[static_cast<size_t>(i)];
                 ESP_CHECK(id >= 0, "row {} of an embedding", id);
                 copy_row(backend.table(), args, id, args.out + i * args.out_stride);
               }
             });
}

}  // namespace espalier::kernels
