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

Scratch scratch_for(CpuBackend& backend, int64_t rows, int64_t padded_in) {
  const auto elements = static_cast<size_t>(round_up(rows, kRowGroup) * padded_in);
  Scratch scratch;
  scratch.prepared_bytes =
      (elements * static_cast<size_t>(backend.table().prepared_bytes) + 63) / 64 * 64;
  scratch.total_bytes = scratch.prepared_bytes +
                        static_cast<size_t>(backend.pool().num_threads()) * kLinearScratchBytes;
  return scratch;
}

// Rounds the activations once for all units.
void prepare(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args, void* prepared) {
  const auto part = [&](int64_t begin, int64_t end) {
    backend.table().prepare_bf16(args.x, args.x_stride, begin, end, w.in_features(), w.padded_in(),
                                 prepared);
  };
  // Under a microsecond or so of work, waking the threads costs more than it gives.
  constexpr int64_t kAloneElements = 16384;
  if (args.rows * w.in_features() <= kAloneElements) {
    part(0, args.rows);
  } else {
    backend.pool().parallel_for(args.rows, std::max<int64_t>(1, 65536 / w.in_features()), part);
  }
}

// Units that a thread takes at a time: enough threads' worth of pieces to even out their speeds,
// but pieces as long as that allows, since each is one stream from memory.
int64_t units_at_once(int64_t units, int threads) {
  return std::clamp<int64_t>(units / (4 * threads), 1, 8);
}

void run(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args) {
  if (args.rows <= 0 || w.num_units() == 0) return;
  ESP_CHECK(args.x_stride >= w.in_features() && args.y_stride >= w.out_features(),
            "strides {} and {} are below the {} inputs and {} outputs of the matrix", args.x_stride,
            args.y_stride, w.in_features(), w.out_features());
  const Scratch sizes = scratch_for(backend, args.rows, w.padded_in());
  std::byte* scratch = backend.scratch(sizes.total_bytes);
  const bool bf16 = w.type() == DType::kBFloat16;
  if (bf16) prepare(backend, w, args, scratch);

  const LinearTask task = {
      .weights = w.unit(0),
      .unit_bytes = w.unit_bytes(),
      .in_features = w.in_features(),
      .padded_in = w.padded_in(),
      .out_features = w.out_features(),
      .gate_up = w.gate_up(),
      .x = args.x,
      .x_stride = args.x_stride,
      .prepared = scratch,
      .rows = args.rows,
      .y = args.y,
      .y_stride = args.y_stride,
      .bias = args.bias,
      .accumulate = args.accumulate,
  };
  const LinearFn multiply = bf16 ? backend.table().linear_bf16 : backend.table().linear_f32;
  const int64_t step = units_at_once(w.num_units(), backend.pool().num_threads());
  std::atomic<int64_t> next{0};
  const auto work = [&](int thread) {
    std::byte* own =
        scratch + sizes.prepared_bytes + static_cast<size_t>(thread) * kLinearScratchBytes;
    while (true) {
      const int64_t unit = next.fetch_add(step, std::memory_order_relaxed);
      if (unit >= w.num_units()) return;
      multiply(task, unit, std::min(unit + step, w.num_units()), own);
    }
  };
  // A product of less than this (a few microseconds) is done before other threads would have woken.
  constexpr int64_t kAloneProducts = 65536;
  if (args.rows * w.in_features() * w.num_units() * kUnitOutputs <= kAloneProducts) {
    work(0);
  } else {
    backend.pool().run(work);
  }
}

}  // namespace

Status CpuBackend::reserve_linear(int64_t rows, int64_t in_features) {
  return grow(scratch_for(*this, rows, round_up(in_features, 32)).total_bytes);
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
