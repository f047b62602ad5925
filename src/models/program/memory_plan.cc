#include "models/program/memory_plan.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "models/program/lower.h"

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

  // The first operation that needs the storage; the number of operations where none does.
  size_t first(size_t storage) const {
    return static_cast<size_t>(std::ranges::find(live_[storage], true) - live_[storage].begin());
  }

  // The most bytes that one operation needs: no placement takes less.
  int64_t most_bytes(std::span<const int64_t> storage_bytes) const {
    int64_t most = 0;
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      int64_t bytes = 0;
      for (size_t s = 0; s < live_.size(); ++s) bytes += live_[s][i] ? storage_bytes[s] : 0;
      most = std::max(most, bytes);
    }
    return most;
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

  // A draft head reads them when the program has run.
  void keep_states() {
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      if (program_.buffers[i].name != kKeptStates) continue;
      std::vector<bool>& live = live_[static_cast<size_t>(program_.buffers[i].storage)];
      std::fill(std::ranges::find(live, true), live.end(), true);
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

  // From the last operation to the first: contents are needed until what writes all of them, or
  // the first of several operations that write parts, in front of which nothing is there.
  void scan(size_t storage) {
    bool needed = false;
    size_t first_write = 0;  // 0 where a read comes before it
    for (size_t i = program_.ops.size(); i-- > 0;) {
      const Op& op = program_.ops[i];
      const auto is_here = [&](const Operand& operand) { return storage_of(operand) == storage; };
      const bool reads = std::ranges::any_of(op.inputs, is_here);
      const auto written = std::ranges::find_if(op.outputs, is_here);
      const bool writes = written != op.outputs.end();
      live_[storage][i] = needed || reads || writes;
      const bool whole = writes && !reads && written->columns == program_.buffer(*written).columns;
      needed = (needed && !whole) || reads || (writes && !whole);
      if (reads || writes) first_write = reads ? 0 : i;
    }
    std::fill_n(live_[storage].begin(), static_cast<std::ptrdiff_t>(first_write), false);
  }

  const Program& program_;
  std::vector<std::vector<bool>> live_;  // [storages][operations]
};

// Whether it is a draft head's program, which is given the states.
bool reads_states(const Program& program) {
  return std::ranges::any_of(program.ops, [](const Op& op) {
    return op.kind == OpKind::kInput && op.as<Input>().kind != Input::Kind::kStage;
  });
}

struct Placed {
  size_t storage = 0;
  int64_t begin = 0, end = 0;
};

// Places one storage after the other among those placed before.
class Placement {
 public:
  Placement(const Liveness& liveness, std::span<const int64_t> bytes)
      : liveness_(liveness), bytes_(bytes) {
    plan_.offsets.assign(bytes.size(), 0);
  }

  void place(size_t storage, int64_t at) {
    placed_.push_back({storage, at, at + bytes_[storage]});
    plan_.offsets[storage] = at;
    plan_.total_bytes = std::max(plan_.total_bytes, at + bytes_[storage]);
  }

  // The lowest offset where the storage overlaps none that is needed together with it.
  int64_t lowest(size_t storage) const {
    int64_t at = 0;
    for (const Placed& other : needed_with(storage)) {
      if (at + bytes_[storage] <= other.begin) break;
      at = std::max(at, other.end);
    }
    return at;
  }
  // The highest such offset below `capacity`; negative: it does not fit.
  int64_t highest(size_t storage, int64_t capacity) const {
    int64_t end = capacity;
    const std::vector<Placed> others = needed_with(storage);
    for (auto other = others.rbegin(); other != others.rend(); ++other) {
      if (end - bytes_[storage] >= other->end) break;
      end = std::min(end, other->begin);
    }
    return end - bytes_[storage];
  }

  MemoryPlan take() { return std::move(plan_); }

 private:
  // Sorted by where they begin.
  std::vector<Placed> needed_with(size_t storage) const {
    std::vector<Placed> out;
    std::ranges::copy_if(placed_, std::back_inserter(out), [&](const Placed& other) {
      return liveness_.conflict(storage, other.storage);
    });
    std::ranges::sort(out, {}, &Placed::begin);
    return out;
  }

  const Liveness& liveness_;
  const std::span<const int64_t> bytes_;
  std::vector<Placed> placed_;
  MemoryPlan plan_;
};

MemoryPlan place_largest_first(const Liveness& liveness, std::span<const int64_t> bytes,
                               std::vector<size_t> order) {
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return bytes[i]; });
  Placement placement(liveness, bytes);
  for (const size_t storage : order) placement.place(storage, placement.lowest(storage));
  return placement.take();
}

// A storage of a chain lies at the end of the block that its neighbour in time does not have.
std::optional<MemoryPlan> place_from_ends(const Liveness& liveness, std::span<const int64_t> bytes,
                                          std::vector<size_t> order) {
  std::ranges::stable_sort(order, {}, [&](size_t i) { return liveness.first(i); });
  const int64_t capacity = liveness.most_bytes(bytes);
  Placement placement(liveness, bytes);
  for (const size_t storage : order) {
    int64_t at = placement.lowest(storage);
    if (at != 0) at = placement.highest(storage, capacity);
    if (at < 0) return std::nullopt;
    placement.place(storage, at);
  }
  return placement.take();
}

}  // namespace

MemoryPlan place_storages(const Program& program, std::span<const int64_t> storage_bytes,
                          std::span<const Alternative> alternatives) {
  Liveness liveness(program);
  for (const Alternative& alternative : alternatives) liveness.join(alternative);
  liveness.keep_outputs();
  if (!reads_states(program)) liveness.keep_states();
  for (int i = 0; i < 2; ++i) liveness.keep_sources();  // of the outputs, then of wanted rows
  std::vector<int64_t> bytes;
  std::vector<size_t> order;
  for (size_t i = 0; i < storage_bytes.size(); ++i) {
    bytes.push_back((storage_bytes[i] + kStorageAlignment - 1) / kStorageAlignment *
                    kStorageAlignment);
    if (bytes[i] > 0) order.push_back(i);
  }
  MemoryPlan largest_first = place_largest_first(liveness, bytes, order);
  std::optional<MemoryPlan> from_ends = place_from_ends(liveness, bytes, std::move(order));
  return from_ends && from_ends->total_bytes < largest_first.total_bytes ? *std::move(from_ends)
                                                                         : std::move(largest_first);
}

}  // namespace espalier::program
