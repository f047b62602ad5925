#include "models/program/memory_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace espalier::program {
namespace {

// Of each storage, for each operation, whether its contents are needed there.
class Liveness {
 public:
  explicit Liveness(const Program& program)
      : program_(program),
        live_(static_cast<size_t>(program.num_storages),
              std::vector<bool>(program.ops.size(), false)) {
    for (size_t storage = 0; storage < live_.size(); ++storage) scan(storage);
  }

  bool conflict(size_t a, size_t b) const {
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      if (live_[a][i] && live_[b][i]) return true;
    }
    return false;
  }

  void join(const Alternative& alternative) {
    for (std::vector<bool>& live : live_) {
      const auto first = live.begin() + static_cast<std::ptrdiff_t>(alternative.first);
      const auto last = live.begin() + static_cast<std::ptrdiff_t>(alternative.last);
      if (std::find(first, last, true) != last) std::fill(first, last, true);
    }
  }

  void keep_outputs() {
    const size_t begin = output_begin(program_);
    if (begin == 0 || begin == program_.ops.size()) return;
    for (std::vector<bool>& live : live_) {
      if (!live[begin - 1] || !live[begin]) continue;
      std::fill(live.begin() + static_cast<std::ptrdiff_t>(begin), live.end(), true);
    }
  }

  void keep_sources() {
    for (const Op& op : program_.ops) {
      if (op.kind != OpKind::kSelectRows) continue;
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        const std::vector<bool>& result = live_[storage_of(op.outputs[i])];
        std::vector<bool>& source = live_[storage_of(op.inputs[i])];
        std::transform(source.begin(), source.end(), result.begin(), source.begin(),
                       std::logical_or<>());
      }
    }
  }

 private:
  size_t storage_of(const Operand& operand) const {
    return static_cast<size_t>(program_.buffer(operand).storage);
  }

  // From the last operation to the first: contents are needed until what writes all of them.
  void scan(size_t storage) {
    bool needed = false;
    for (size_t i = program_.ops.size(); i-- > 0;) {
      const Op& op = program_.ops[i];
      const auto is_here = [&](const Operand& operand) { return storage_of(operand) == storage; };
      const bool reads = std::ranges::any_of(op.inputs, is_here);
      const auto written = std::ranges::find_if(op.outputs, is_here);
      const bool writes = written != op.outputs.end();
      live_[storage][i] = needed || reads || writes;
      const bool whole = writes && !reads && written->columns == program_.buffer(*written).columns;
      needed = (needed && !whole) || reads || (writes && !whole);
    }
  }

  const Program& program_;
  std::vector<std::vector<bool>> live_;  // [storages][operations]
};

struct Piece {
  size_t storage = 0;
  int64_t begin = 0, end = 0;
};

// The lowest place of `bytes` between pieces that may not be overlapped.
int64_t lowest_place(std::vector<Piece> taken, int64_t bytes) {
  std::ranges::sort(taken, {}, &Piece::begin);
  int64_t at = 0;
  for (const Piece& piece : taken) {
    if (at + bytes <= piece.begin) break;
    at = std::max(at, piece.end);
  }
  return at;
}

}  // namespace

MemoryPlan place_storages(const Program& program, std::span<const int64_t> storage_bytes,
                          std::span<const Alternative> alternatives) {
  Liveness liveness(program);
  for (const Alternative& alternative : alternatives) liveness.join(alternative);
  liveness.keep_outputs();
  for (int i = 0; i < 2; ++i) liveness.keep_sources();  // of the outputs, then of wanted rows
  std::vector<size_t> order(storage_bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return storage_bytes[i]; });
  MemoryPlan plan{.offsets = std::vector<int64_t>(storage_bytes.size(), 0)};
  std::vector<Piece> placed;
  for (const size_t storage : order) {
    const int64_t bytes =
        (storage_bytes[storage] + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;
    if (bytes == 0) continue;
    std::vector<Piece> taken = placed;
    std::erase_if(taken, [&](const Piece& p) { return !liveness.conflict(storage, p.storage); });
    const int64_t at = lowest_place(std::move(taken), bytes);
    placed.push_back({storage, at, at + bytes});
    plan.offsets[storage] = at;
    plan.total_bytes = std::max(plan.total_bytes, at + bytes);
  }
  return plan;
}

}  // namespace espalier::program
