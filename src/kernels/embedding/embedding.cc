#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "kernels/cpu/share_rows.h"
#include "kernels/cpu/table.h"
#include "kernels/embedding/op.h"

namespace espalier::kernels {
namespace {

// Elements [at, at + count) of an array, as float32.
void copy_elements(const CpuTable& table, DType type, const void* from, int64_t at, int64_t count,
                   float* out) {
  switch (type) {
    case DType::kFloat32:
      std::memcpy(out, static_cast<const float*>(from) + at,
                  static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kBFloat16:
      table.from_bf16(static_cast<const uint16_t*>(from) + at, out, count);
      return;
    case DType::kFloat16:
      for (int64_t i = 0; i < count; ++i) {
        out[i] = to_float(static_cast<const Float16*>(from)[at + i]);
      }
      return;
  }
}

void mix_row(const CpuTable& table, const MixArgs& args, const MixedRow& row, float* out) {
  constexpr int64_t kPart = 256;  // columns at a time
  float corners[std::size(MixedRow{}.corners)][kPart];
  for (int64_t begin = 0; begin < args.dim; begin += kPart) {
    const int64_t count = std::min(kPart, args.dim - begin);
    for (size_t i = 0; i < std::size(corners); ++i) {
      copy_elements(table, args.type, args.table, row.corners[i] * args.dim + begin, count,
                    corners[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
      const float upper = (1 - row.across) * corners[0][i] + row.across * corners[1][i];
      const float lower = (1 - row.across) * corners[2][i] + row.across * corners[3][i];
      out[begin + i] = (1 - row.down) * upper + row.down * lower;
    }
  }
}

}  // namespace

void gather_rows(CpuBackend& backend, const GatherArgs& args) {
  share_rows(backend, static_cast<int64_t>(args.ids.size()), args.dim,
             [&](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) {
                 const int32_t id = args.ids[static_cast<size_t>(i)];
                 ESP_CHECK(id >= 0, "row {} of an embedding", id);
                 copy_elements(backend.table(), args.type, args.table, id * args.dim, args.dim,
                               args.out + i * args.out_stride);
               }
             });
}

void mix_rows(CpuBackend& backend, const MixArgs& args) {
  share_rows(backend, std::ssize(args.rows), args.dim, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const MixedRow& row = args.rows[static_cast<size_t>(i)];
      ESP_CHECK(std::ranges::min(row.corners) >= 0, "a row between rows that there are not");
      mix_row(backend.table(), args, row, args.out + i * args.out_stride);
    }
  });
}

}  // namespace espalier::kernels
