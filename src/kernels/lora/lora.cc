#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/table.h"
#include "kernels/lora/op.h"

namespace espalier::kernels {
namespace {

// Outputs of a row that one thread adds at a time: a multiple of the widest step of the leaf, so
// that a division among threads changes no bit.
constexpr int64_t kOutputBlock = 1024;
// Ranks of a row that one thread computes at a time: what the leaf groups.
constexpr int64_t kRankBlock = 8;
// Below so many multiplications a call stays on its thread: waking another takes longer.
constexpr int64_t kAloneWork = 16384;

int64_t blocks_of(int64_t count, int64_t block) { return (count + block - 1) / block; }

// Calls fn(segment, row, shrunk, block) for the blocks of all rows of all segments, by several
// threads; shrunk: the row's index among the rows of all segments, one after the other.
// counts(segment): the blocks of one of its rows.
template <typename Counts, typename Fn>
void for_blocks(CpuBackend& backend, const LoraArgs& args, int64_t work, const Counts& counts,
                const Fn& fn) {
  int64_t total = 0;
  for (const LoraSegment& s : args.segments) total += s.num_rows * counts(s);
  const auto run = [&](int64_t begin, int64_t end) {
    int64_t first = 0, rows_before = 0;
    for (const LoraSegment& s : args.segments) {
      const int64_t each = counts(s), count = s.num_rows * each;
      const int64_t to = std::min(end, first + count);
      for (int64_t i = std::max(begin, first); i < to; ++i)
        fn(s, (i - first) / each, rows_before + (i - first) / each, (i - first) % each);
      first += count;
      rows_before += s.num_rows;
    }
  };
  if (total == 0) return;
  if (work <= kAloneWork) return run(0, total);
  backend.pool().parallel_for(total, std::max<int64_t>(1, total * kAloneWork / 2 / work), run);
}

template <typename T>
void copy_factor(std::span<const float> from, int64_t rows, int64_t columns, int64_t stride,
                 bool transposed, T* to) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column) {
      const float value =
          from[static_cast<size_t>(transposed ? column * rows + row : row * columns + column)];
      if constexpr (std::is_same_v<T, float>) {
        to[row * stride + column] = value;
      } else {
        to[row * stride + column] = to_bfloat16(value);
      }
    }
}

Result<Buffer> pack_factor(std::span<const float> from, int64_t rows, int64_t columns,
                           int64_t stride, bool transposed, DType type) {
  const auto size = static_cast<size_t>(rows * stride) * dtype_size(type);
  ESP_ASSIGN_OR_RETURN(Buffer out, Buffer::allocate(size));
  std::memset(out.as<std::byte>(), 0, size);
  if (type == DType::kBFloat16) {
    copy_factor(from, rows, columns, stride, transposed, out.as<BFloat16>());
  } else {
    copy_factor(from, rows, columns, stride, transposed, out.as<float>());
  }
  return out;
}

}  // namespace

Result<LoraFactors> LoraFactors::pack(std::span<const float> a, std::span<const float> b,
                                      int64_t rank, float scale, DType type) {
  ESP_CHECK(rank > 0 && std::ssize(a) % rank == 0 && std::ssize(b) % rank == 0 &&
            type != DType::kFloat16);
  LoraFactors out;
  out.rank_ = rank;
  out.in_ = std::ssize(a) / rank;
  out.out_ = std::ssize(b) / rank;
  out.scale_ = scale;
  out.type_ = type;
  ESP_ASSIGN_OR_RETURN(out.a_, pack_factor(a, rank, out.in_, out.padded_in(), false, type));
  ESP_ASSIGN_OR_RETURN(out.b_, pack_factor(b, rank, out.out_, out.padded_out(), true, type));
  return out;
}

size_t LoraFactors::size_bytes() const {
  return static_cast<size_t>(rank_ * (padded_in() + padded_out())) * dtype_size(type_);
}

void lora(CpuBackend& backend, const LoraArgs& args) {
  int64_t rows = 0, rank_max = 0, shrink_work = 0, expand_work = 0;
  for (const LoraSegment& s : args.segments) {
    rows = std::max(rows, s.row + s.num_rows);
    rank_max = std::max(rank_max, s.factors->rank());
    shrink_work += s.num_rows * s.factors->rank() * s.factors->in_features();
    expand_work += s.num_rows * s.factors->rank() * s.factors->out_features();
  }
  if (rows == 0) return;
  const CpuTable& table = backend.table();
  // Of each segment's rows one after the other: [row, rank_max].
  int64_t total = 0;
  for (const LoraSegment& s : args.segments) total += s.num_rows;
  auto* const shrunk = reinterpret_cast<float*>(
      backend.scratch(static_cast<size_t>(total * rank_max) * sizeof(float)));
  for_blocks(
      backend, args, shrink_work,
      [](const LoraSegment& s) { return blocks_of(s.factors->rank(), kRankBlock); },
      [&](const LoraSegment& s, int64_t row, int64_t at_shrunk, int64_t block) {
        const LoraFactors& f = *s.factors;
        const bool bf16 = f.type() == DType::kBFloat16;
        const int64_t first = block * kRankBlock, count = std::min(kRankBlock, f.rank() - first);
        const auto at = static_cast<size_t>(first * f.padded_in()) * dtype_size(f.type());
        (bf16 ? table.lora_shrink_bf16 : table.lora_shrink_f32)(
            args.x + (s.row + row) * args.x_stride, f.a() + at, f.padded_in(), f.in_features(),
            count, f.scale(), shrunk + at_shrunk * rank_max + first);
      });
  for_blocks(
      backend, args, expand_work,
      [](const LoraSegment& s) { return blocks_of(s.factors->out_features(), kOutputBlock); },
      [&](const LoraSegment& s, int64_t row, int64_t at_shrunk, int64_t block) {
        const LoraFactors& f = *s.factors;
        const bool bf16 = f.type() == DType::kBFloat16;
        const int64_t first = block * kOutputBlock;
        (bf16 ? table.lora_expand_bf16 : table.lora_expand_f32)(
            shrunk + at_shrunk * rank_max,
            f.b() + static_cast<size_t>(first) * dtype_size(f.type()), f.padded_out(), f.rank(),
            std::min(kOutputBlock, f.out_features() - first),
            args.y + (s.row + row) * args.y_stride + s.column + first);
      });
}

}  // namespace espalier::kernels
