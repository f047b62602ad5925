#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "kernels/cpu/table.h"
#include "kernels/linear/op.h"

namespace espalier::kernels {
namespace {

static_assert(PackedMatrix::kUnit == kUnitOutputs);

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// What a product needs of the backend's scratch: the rounded activations, then each thread's own.
struct Scratch {
  size_t prepared_bytes;
  size_t total_bytes;
};

// Bytes of a prepared row: numbers, or 8-bit blocks (block_layout.h).
int64_t prepared_row_bytes(const CpuBackend& backend, int64_t in_features, bool quantized) {
  return quantized ? round_up(in_features, 256) / 2 * 3
                   : round_up(in_features, 32) * backend.table().prepared_bytes;
}

Scratch scratch_for(CpuBackend& backend, int64_t rows, int64_t row_bytes) {
  Scratch scratch;
  scratch.prepared_bytes =
      static_cast<size_t>((round_up(rows, kRowGroup) * row_bytes + 63) / 64 * 64);
  scratch.total_bytes = scratch.prepared_bytes +
                        static_cast<size_t>(backend.pool().num_threads()) * kLinearScratchBytes;
  return scratch;
}

// Rounds the activations once for all units.
void prepare(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args, void* prepared) {
  const CpuTable& table = backend.table();
  const bool tiles = table.prepare_block_tiles != nullptr && args.rows >= kBlockTileRows;
  const PrepareFn prepare_rows = !w.quantized() ? table.prepare_bf16
                                 : tiles        ? table.prepare_block_tiles
                                                : table.prepare_blocks;
  const auto part = [&](int64_t begin, int64_t end) {
    prepare_rows(args.x, args.x_stride, begin, end, w.in_features(),
                 round_up(w.in_features(), w.quantized() ? 256 : 32), prepared);
  };
  // Under a microsecond or so of work, waking the threads costs more than it gives.
  constexpr int64_t kAloneElements = 16384;
  if (args.rows * w.in_features() <= kAloneElements) {
    part(0, args.rows);
  } else {
    backend.pool().parallel_for(args.rows, std::max<int64_t>(1, 65536 / w.in_features()), part);
  }
}

// Units handed to threads: at first long pieces, since each is one stream from memory; towards the
// end shorter ones, so that all threads finish together though their speeds differ.
class Units {
 public:
  Units(int64_t count, int threads) : count_(count), threads_(threads) {}

  struct Range {
    int64_t begin, end;  // equal: none is left
  };
  Range take() {
    int64_t begin = next_.load(std::memory_order_relaxed);
    while (true) {
      const int64_t piece = std::clamp<int64_t>((count_ - begin) / (2 * threads_), 1, 8);
      const int64_t end = std::min(begin + piece, count_);
      if (begin >= end) return {count_, count_};
      if (next_.compare_exchange_weak(begin, end, std::memory_order_relaxed)) return {begin, end};
    }
  }

 private:
  const int64_t count_;
  const int64_t threads_;
  std::atomic<int64_t> next_{0};
};

// A product by one part of the matrix.
LinearTask task_of(const PackedMatrix& w, const PackedMatrix::Part& part, const LinearArgs& args,
                   const void* prepared, int64_t prepared_stride) {
  return {
      .weights = w.weights(part),
      .unit_bytes = part.unit_bytes,
      .in_features = w.in_features(),
      .padded_in = part.padded_in,
      .out_features = part.out_features,
      .gate_up = w.gate_up(),
      .x = args.x,
      .x_stride = args.x_stride,
      .prepared = prepared,
      .prepared_stride = prepared_stride,
      .rows = args.rows,
      .y = args.y + part.first_output,
      .y_stride = args.y_stride,
      .bias = args.bias == nullptr ? nullptr : args.bias + part.first_output,
      .accumulate = args.accumulate,
  };
}

LinearFn leaf_for(const CpuTable& table, const PackedMatrix& w, const PackedMatrix::Part& part) {
  if (part.format) return table.linear_blocks[static_cast<size_t>(*part.format)];
  return w.type() == DType::kBFloat16 ? table.linear_bf16 : table.linear_f32;
}

void run(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args) {
  const int64_t num_units = w.num_units();
  if (args.rows <= 0 || num_units == 0) return;
  ESP_CHECK(args.x_stride >= w.in_features() && args.y_stride >= w.out_features(),
            "strides {} and {} are below the {} inputs and {} outputs of the matrix", args.x_stride,
            args.y_stride, w.in_features(), w.out_features());
  const int64_t row_bytes = prepared_row_bytes(backend, w.in_features(), w.quantized());
  const Scratch sizes = scratch_for(backend, args.rows, row_bytes);
  std::byte* scratch = backend.scratch(sizes.total_bytes);
  if (w.quantized() || w.type() == DType::kBFloat16) prepare(backend, w, args, scratch);

  Units units(num_units, backend.pool().num_threads());
  const auto work = [&](int thread) {
    std::byte* own =
        scratch + sizes.prepared_bytes + static_cast<size_t>(thread) * kLinearScratchBytes;
    while (true) {
      const auto [begin, end] = units.take();
      if (begin == end) return;
      for (const PackedMatrix::Part& part : w.parts()) {
        const int64_t first = std::max<int64_t>(begin - part.first_unit, 0);
        const int64_t last = std::min(end - part.first_unit, part.num_units);
        if (first >= last) continue;
        const LinearTask task = task_of(w, part, args, scratch, row_bytes);
        leaf_for(backend.table(), w, part)(task, first, last, own);
      }
    }
  };
  // A product of less than this (a few microseconds) is done before other threads would have woken.
  constexpr int64_t kAloneProducts = 65536;
  if (args.rows * w.in_features() * num_units * kUnitOutputs <= kAloneProducts) {
    work(0);
  } else {
    backend.pool().run(work);
  }
}

}  // namespace

Status CpuBackend::reserve_linear(int64_t rows, int64_t in_features) {
  const int64_t row_bytes = std::max(prepared_row_bytes(*this, in_features, false),
                                     prepared_row_bytes(*this, in_features, true));
  return grow(scratch_for(*this, rows, row_bytes).total_bytes);
}

void linear(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args) {
  ESP_CHECK(!w.gate_up(), "a matrix packed with gate_up is for linear_silu_mul");
  run(backend, w, args);
}

void linear_silu_mul(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args) {
  ESP_CHECK(w.gate_up(), "linear_silu_mul wants a matrix packed with gate_up");
  ESP_CHECK(args.bias == nullptr && !args.accumulate,
            "linear_silu_mul has neither bias nor accumulate");
  run(backend, w, args);
}

}  // namespace espalier::kernels
