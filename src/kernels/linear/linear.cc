#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "kernels/cpu/table.h"
#include "kernels/linear/op.h"

namespace espalier::kernels {
namespace {

static_assert(PackedMatrix::kUnit == kUnitOutputs);
static_assert(padded_group_rows(1) == kRowGroup);

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Bytes of a prepared row: numbers, or 8-bit blocks (block_layout.h).
int64_t prepared_row_bytes(const CpuBackend& backend, int64_t in_features, bool quantized) {
  return quantized ? round_up(in_features, 256) / 2 * 3
                   : round_up(in_features, 32) * backend.table().prepared_bytes;
}

int64_t prepared_row_bytes(const CpuBackend& backend, const PackedMatrix& w) {
  return prepared_row_bytes(backend, w.in_features(), w.quantized());
}

// The scratch of a GEMM: the rounded activations, then each thread's own.
struct Scratch {
  size_t prepared_bytes;
  size_t total_bytes;
};

Scratch scratch_for(CpuBackend& backend, int64_t prepared_bytes) {
  Scratch scratch;
  scratch.prepared_bytes = static_cast<size_t>(round_up(prepared_bytes, 64));
  scratch.total_bytes = scratch.prepared_bytes +
                        static_cast<size_t>(backend.pool().num_threads()) * kLinearScratchBytes;
  return scratch;
}

// Iterates over the groups of a call in their order: where the current group's rows, units and
// prepared rows begin among those of all.
class GroupCursor {
 public:
  GroupCursor(const CpuBackend& backend, std::span<const LinearGroup> groups)
      : backend_(backend), groups_(groups) {}

  bool at_end() const { return index_ == groups_.size(); }
  const LinearGroup& group() const { return groups_[index_]; }
  int64_t row_begin() const { return row_begin_; }
  int64_t unit_begin() const { return unit_begin_; }
  int64_t prepared_begin() const { return prepared_begin_; }  // in bytes
  int64_t row_end() const { return row_begin_ + group().rows; }
  int64_t unit_end() const {
    return unit_begin_ + (group().rows > 0 ? group().w->unit_count() : 0);
  }

  void next() {
    const int64_t row_end = this->row_end(), unit_end = this->unit_end();
    // Prepared rows go by tiles of kRowGroup, so each group begins one.
    prepared_begin_ += round_up(group().rows, kRowGroup) * prepared_row_bytes(backend_, *group().w);
    row_begin_ = row_end;
    unit_begin_ = unit_end;
    ++index_;
  }
  void to_end() {
    while (!at_end()) next();
  }

 private:
  const CpuBackend& backend_;
  std::span<const LinearGroup> groups_;
  size_t index_ = 0;
  int64_t row_begin_ = 0, unit_begin_ = 0, prepared_begin_ = 0;
};

// Rounds rows [begin, end) of one group.
void prepare_rows(CpuBackend& backend, const LinearGroup& group, const float* x, int64_t x_stride,
                  int64_t begin, int64_t end, void* prepared) {
  const CpuTable& table = backend.table();
  const PackedMatrix& w = *group.w;
  if (!w.quantized() && w.type() != DType::kBFloat16) return;
  const bool tiles = table.prepare_block_tiles != nullptr && group.rows >= kBlockTileRows;
  const PrepareFn prepare = !w.quantized() ? table.prepare_bf16
                            : tiles        ? table.prepare_block_tiles
                                           : table.prepare_blocks;
  prepare(x, x_stride, begin, end, w.in_features(),
          round_up(w.in_features(), w.quantized() ? 256 : 32), prepared);
}

// Rounds the activations once for all units.
void prepare(CpuBackend& backend, std::span<const LinearGroup> groups, const LinearArgs& args,
             int64_t in_features, std::byte* prepared) {
  const auto part = [&](int64_t begin, int64_t end) {
    for (GroupCursor at(backend, groups); !at.at_end() && at.row_begin() < end; at.next()) {
      const int64_t first = std::max(begin, at.row_begin()), last = std::min(end, at.row_end());
      if (first >= last) continue;
      prepare_rows(backend, at.group(), args.x + at.row_begin() * args.x_stride, args.x_stride,
                   first - at.row_begin(), last - at.row_begin(), prepared + at.prepared_begin());
    }
  };
  // Under a microsecond or so of work, waking the threads costs more than it gives.
  constexpr int64_t kAloneElements = 16384;
  if (args.rows * in_features <= kAloneElements) {
    part(0, args.rows);
  } else {
    backend.pool().parallel_for(args.rows, std::max<int64_t>(1, 65536 / in_features), part);
  }
}

// Distributes units among threads: first long ranges, since each is one stream from memory; towards
// the end shorter ones, so that all threads finish together though their speeds differ.
class Units {
 public:
  Units(int64_t count, int threads) : count_(count), threads_(threads) {}

  struct Range {
    int64_t begin, end;  // equal: none is left
  };
  Range take() {
    int64_t begin = next_.load(std::memory_order_relaxed);
    while (true) {
      const int64_t range = std::clamp<int64_t>((count_ - begin) / (2 * threads_), 1, 8);
      const int64_t end = std::min(begin + range, count_);
      if (begin >= end) return {count_, count_};
      if (next_.compare_exchange_weak(begin, end, std::memory_order_relaxed)) return {begin, end};
    }
  }

 private:
  const int64_t count_;
  const int64_t threads_;
  std::atomic<int64_t> next_{0};
};

// The GEMM of the cursor's group by one part of its matrix.
LinearTask task_of(const CpuBackend& backend, const GroupCursor& at, const PackedMatrix::Part& part,
                   const LinearArgs& args, const std::byte* prepared) {
  const LinearGroup& group = at.group();
  const PackedMatrix& w = *group.w;
  return {
      .weights = w.weights(part),
      .unit_bytes = part.unit_bytes,
      .in_features = w.in_features(),
      .padded_in = part.padded_in,
      .out_features = part.out_features,
      .gate_up = w.gate_up(),
      .x = args.x + at.row_begin() * args.x_stride,
      .x_stride = args.x_stride,
      .prepared = prepared + at.prepared_begin(),
      .prepared_stride = prepared_row_bytes(backend, w),
      .rows = group.rows,
      .y = args.y + at.row_begin() * args.y_stride + part.first_output,
      .y_stride = args.y_stride,
      .bias = group.bias == nullptr ? nullptr : group.bias + part.first_output,
      .accumulate = args.accumulate,
  };
}

LinearFn leaf_for(const CpuTable& table, const PackedMatrix& w, const PackedMatrix::Part& part) {
  if (part.format) return table.linear_blocks[static_cast<size_t>(*part.format)];
  return w.type() == DType::kBFloat16 ? table.linear_bf16 : table.linear_f32;
}

// Units [begin, end) of the cursor's group.
void multiply_units(const CpuBackend& backend, const GroupCursor& at, int64_t begin, int64_t end,
                    const LinearArgs& args, const std::byte* prepared, std::byte* own) {
  const PackedMatrix& w = *at.group().w;
  for (const PackedMatrix::Part& part : w.parts()) {
    const int64_t first = std::max<int64_t>(begin - part.first_unit, 0);
    const int64_t last = std::min(end - part.first_unit, part.unit_count);
    if (first >= last) continue;
    leaf_for(backend.table(), w, part)(task_of(backend, at, part, args, prepared), first, last,
                                       own);
  }
}

void run(CpuBackend& backend, std::span<const LinearGroup> groups, const LinearArgs& args) {
  if (args.rows <= 0) return;
  const PackedMatrix& any = *groups[0].w;
  ESP_CHECK(args.x_stride >= any.in_features() && args.y_stride >= any.out_features(),
            "strides {} and {} are below the {} inputs and {} outputs of the matrix", args.x_stride,
            args.y_stride, any.in_features(), any.out_features());
  GroupCursor all(backend, groups);
  all.to_end();
  ESP_CHECK(all.row_begin() == args.rows, "{} rows in groups of {}", args.rows, all.row_begin());
  if (all.unit_begin() == 0) return;
  const Scratch sizes = scratch_for(backend, all.prepared_begin());
  std::byte* scratch = backend.scratch(sizes.total_bytes);
  prepare(backend, groups, args, any.in_features(), scratch);

  Units units(all.unit_begin(), backend.pool().num_threads());
  const auto work = [&](int thread) {
    std::byte* own =
        scratch + sizes.prepared_bytes + static_cast<size_t>(thread) * kLinearScratchBytes;
    GroupCursor at(backend, groups);  // only forward: so are the ranges that a thread takes
    while (true) {
      const auto [begin, end] = units.take();
      if (begin == end) return;
      while (at.unit_end() <= begin) at.next();
      while (true) {
        const int64_t first = std::max(begin, at.unit_begin()), last = std::min(end, at.unit_end());
        if (first < last) {
          multiply_units(backend, at, first - at.unit_begin(), last - at.unit_begin(), args,
                         scratch, own);
        }
        if (end <= at.unit_end()) break;
        at.next();
      }
    }
  };
  // A GEMM of fewer multiplications (a few microseconds) ends before other threads would have
  // woken.
  constexpr int64_t kAloneMultiplications = 65536;
  if (args.rows * any.in_features() * any.unit_count() * kUnitOutputs <= kAloneMultiplications) {
    work(0);
  } else {
    backend.pool().run(work);
  }
}

void check_groups(std::span<const LinearGroup> groups, const LinearArgs& args, bool gate_up) {
  ESP_CHECK(args.bias == nullptr, "a group has its own bias");
  for (const LinearGroup& group : groups) {
    const PackedMatrix& w = *group.w;
    ESP_CHECK(!gate_up || group.bias == nullptr, "linear_silu_mul has no bias");
    ESP_CHECK(w.gate_up() == gate_up && w.in_features() == groups[0].w->in_features() &&
                  w.out_features() == groups[0].w->out_features(),
              "a group's matrix is {} x {}, the first is {} x {}", w.in_features(),
              w.out_features(), groups[0].w->in_features(), groups[0].w->out_features());
  }
}

void run_one(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args) {
  const LinearGroup group = {.w = &w, .rows = args.rows, .bias = args.bias};
  run(backend, {&group, 1}, args);
}

}  // namespace

Status CpuBackend::reserve_linear(int64_t rows, int64_t in_features) {
  const int64_t row_bytes = std::max(prepared_row_bytes(*this, in_features, false),
                                     prepared_row_bytes(*this, in_features, true));
  return grow(scratch_for(*this, round_up(rows, kRowGroup) * row_bytes).total_bytes);
}

void linear(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args) {
  ESP_CHECK(!w.gate_up(), "a matrix packed with gate_up is for linear_silu_mul");
  run_one(backend, w, args);
}

void linear_silu_mul(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args) {
  ESP_CHECK(w.gate_up(), "linear_silu_mul wants a matrix packed with gate_up");
  ESP_CHECK(args.bias == nullptr && !args.accumulate,
            "linear_silu_mul has neither bias nor accumulate");
  run_one(backend, w, args);
}

void linear_grouped(CpuBackend& backend, std::span<const LinearGroup> groups,
                    const LinearArgs& args) {
  check_groups(groups, args, false);
  run(backend, groups, args);
}

void linear_silu_mul_grouped(CpuBackend& backend, std::span<const LinearGroup> groups,
                             const LinearArgs& args) {
  check_groups(groups, args, true);
  ESP_CHECK(!args.accumulate, "linear_silu_mul has no accumulate");
  run(backend, groups, args);
}

}  // namespace espalier::kernels
