#include "models/expert_placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "kernels/router/op.h"

namespace espalier {
namespace {

// A new placement is taken where it takes so much of the busiest group's load away: moving weights
// stops the steps.
constexpr double kWorthwhile = 0.98;

// Replicas of each expert: one, and the others where a replica has the most tokens.
std::vector<int32_t> count_replicas(const PlacementShape& shape, std::span<const int64_t> tokens) {
  std::vector<int32_t> out(static_cast<size_t>(shape.num_experts), 1);
  for (int32_t i = shape.num_experts; i < shape.num_slots; ++i) {
    size_t most = out.size();
    for (size_t expert = 0; expert < out.size(); ++expert) {
      if (out[expert] == shape.num_groups) continue;
      if (most == out.size() || tokens[expert] * out[most] > tokens[most] * out[expert])
        most = expert;
    }
    ++out[most];
  }
  return out;
}

// Distributes replicas to groups.
class Packer {
 public:
  Packer(const PlacementShape& shape, std::span<const int64_t> tokens)
      : shape_(shape), groups_(static_cast<size_t>(shape.num_groups)), loads_(groups_.size()) {
    const std::vector<int32_t> replicas = count_replicas(shape, tokens);
    for (size_t expert = 0; expert < replicas.size(); ++expert) {
      load_of_.push_back(static_cast<double>(tokens[expert]) / replicas[expert]);
      order_.insert(order_.end(), static_cast<size_t>(replicas[expert]),
                    static_cast<int32_t>(expert));
    }
    std::ranges::stable_sort(order_, std::greater(), [&](int32_t expert) { return load(expert); });
  }

  // The experts of each group.
  std::vector<std::vector<int32_t>> run() {
    for (const int32_t expert : order_) place(expert);
    return std::move(groups_);
  }

 private:
  double load(int32_t expert) const { return load_of_[static_cast<size_t>(expert)]; }
  bool is_full(size_t group) const { return std::ssize(groups_[group]) == shape_.slots_of_group(); }
  bool has(size_t group, int32_t expert) const {
    return std::ranges::find(groups_[group], expert) != groups_[group].end();
  }
  // The least loaded group that `accepts`; the number of groups where none does.
  template <typename Accepts>
  size_t least(const Accepts& accepts) const {
    size_t out = groups_.size();
    for (size_t group = 0; group < groups_.size(); ++group) {
      if (accepts(group) && (out == groups_.size() || loads_[group] < loads_[out])) out = group;
    }
    return out;
  }
  void add(size_t group, int32_t expert) {
    groups_[group].push_back(expert);
    loads_[group] += load(expert);
  }

  void place(int32_t expert) {
    const size_t free = least([&](size_t g) { return !is_full(g) && !has(g, expert); });
    if (free < groups_.size()) return add(free, expert);
    // All groups with room have it. A full one without it has more experts than one with room, so
    // one of them that the latter lacks goes there.
    const size_t room = least([&](size_t g) { return !is_full(g); });
    const size_t full = least([&](size_t g) { return !has(g, expert); });
    std::vector<int32_t>& from = groups_[full];
    const auto moved = std::ranges::find_if(from, [&](int32_t e) { return !has(room, e); });
    ESP_CHECK(moved != from.end());
    add(room, *moved);
    loads_[full] += load(expert) - load(*moved);
    *moved = expert;
  }

  const PlacementShape shape_;
  std::vector<double> load_of_;  // of a replica of each expert
  std::vector<int32_t> order_;   // experts, one for each replica, the busiest first
  std::vector<std::vector<int32_t>> groups_;
  std::vector<double> loads_;
};

std::span<const int32_t> slots_of_group(const PlacementShape& shape, const ExpertSlots& slots,
                                        int32_t group) {
  const auto size = static_cast<size_t>(shape.slots_of_group());
  return std::span(slots).subspan(static_cast<size_t>(group) * size, size);
}

int32_t num_common(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<int32_t>(std::ranges::count_if(
      a, [&](int32_t expert) { return std::ranges::find(b, expert) != b.end(); }));
}

// Which of the new parts each group takes: pairs with the most experts in common first.
std::vector<size_t> match_groups(const PlacementShape& shape,
                                 const std::vector<std::vector<int32_t>>& parts,
                                 const ExpertSlots& now) {
  struct Pair {
    int32_t common = 0;
    size_t part = 0, group = 0;
  };
  std::vector<Pair> pairs;
  for (size_t part = 0; part < parts.size(); ++part) {
    for (size_t group = 0; group < parts.size(); ++group) {
      const auto here = slots_of_group(shape, now, static_cast<int32_t>(group));
      pairs.push_back({num_common(parts[part], here), part, group});
    }
  }
  std::ranges::stable_sort(pairs, std::greater(), &Pair::common);
  std::vector<size_t> out(parts.size(), parts.size());
  std::vector<bool> taken(parts.size());
  for (const Pair& pair : pairs) {
    if (out[pair.group] < parts.size() || taken[pair.part]) continue;
    out[pair.group] = pair.part;
    taken[pair.part] = true;
  }
  return out;
}

// The part's experts in slots: those that are there stay, the others fill what is left.
void fill_slots(std::span<const int32_t> here, std::vector<int32_t> part, std::span<int32_t> out) {
  constexpr int32_t kFree = -1;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool stays = std::erase(part, here[i]) > 0;
    out[i] = stays ? here[i] : kFree;
  }
  std::ranges::sort(part);
  auto next = part.begin();
  for (int32_t& slot : out)
    if (slot == kFree) slot = *next++;
}

double largest(const std::vector<double>& loads) { return *std::ranges::max_element(loads); }

// Plans the copies of plan_copies(): a slot is written when what it has is needed by no other, or
// lies in another slot too.
class CopyPlanner {
 public:
  CopyPlanner(const PlacementShape& shape, const ExpertSlots& from, const ExpertSlots& to)
      : shape_(shape), to_(to), has_(from), needed_(static_cast<size_t>(shape.num_experts)) {
    has_.resize(from.size() + static_cast<size_t>(shape.num_groups), kNothing);
    copies_.resize(needed_.size());
    for (const int32_t expert : from) ++copies_[static_cast<size_t>(expert)];
    for (size_t slot = 0; slot < to.size(); ++slot) {
      if (has_[slot] == to[slot]) continue;
      pending_.push_back(static_cast<int32_t>(slot));
      ++needed_[static_cast<size_t>(to[slot])];
    }
  }

  CopySteps run() {
    CopySteps out;
    while (!pending_.empty()) {
      is_read_.assign(has_.size(), 0);
      is_written_.assign(has_.size(), 0);
      std::vector<SlotCopy> step;
      std::erase_if(pending_, [&](int32_t slot) { return add(slot, step); });
      if (step.empty()) step.push_back(save(pending_.front()));
      for (const SlotCopy& copy : step) at(has_, copy.to) = at(has_, copy.from);
      out.push_back(std::move(step));
    }
    return out;
  }

 private:
  static constexpr int32_t kNothing = -1;
  template <typename T>
  static T& at(std::vector<T>& values, int32_t index) {
    return values[static_cast<size_t>(index)];
  }

  // Whether the slot can be written in this step.
  bool add(int32_t slot, std::vector<SlotCopy>& step) {
    const int32_t old = at(has_, slot), wanted = to_[static_cast<size_t>(slot)];
    if (at(is_read_, slot) != 0) return false;
    if (at(needed_, old) > 0 && at(copies_, old) < 2) return false;
    const int32_t source = find(wanted);
    if (source < 0) return false;
    at(is_read_, source) = 1;
    at(is_written_, slot) = 1;
    --at(copies_, old), --at(needed_, wanted), ++at(copies_, wanted);
    step.push_back({source, slot});
    return true;
  }

  // Where an expert lies that no copy of this step writes; a spare slot's first, so that it is
  // free again.
  int32_t find(int32_t expert) {
    for (auto slot = static_cast<int32_t>(has_.size()) - 1; slot >= 0; --slot)
      if (at(has_, slot) == expert && at(is_written_, slot) == 0) return slot;
    return kNothing;
  }

  // Experts change places in a circle, which a copy in the spare slot opens.
  SlotCopy save(int32_t slot) {
    const int32_t spare = shape_.num_slots + shape_.group_of(slot);
    ++at(copies_, at(has_, slot));
    if (const int32_t old = at(has_, spare); old != kNothing) --at(copies_, old);
    return {slot, spare};
  }

  const PlacementShape shape_;
  const ExpertSlots& to_;
  std::vector<int32_t> has_;      // the expert in each slot and spare slot
  std::vector<int32_t> needed_;   // pending slots that are to have the expert
  std::vector<int32_t> copies_;   // slots that have it and are not written in this step
  std::vector<int32_t> pending_;  // slots that have another expert than they are to have
  std::vector<uint8_t> is_read_, is_written_;  // in this step, 0 or 1
};

}  // namespace

Status check_placement(const PlacementShape& shape) {
  const int32_t redundant = shape.num_slots - shape.num_experts;
  if (redundant < 0)
    return invalid_argument("ep_num_redundant_experts is {}, but must be at least 0", redundant);
  if (shape.num_groups < 2)
    return invalid_argument(
        "experts lie on all ranks, so none can be redundant or move: set --ep-size, or leave "
        "--ep-num-redundant-experts, --enable-eplb and --init-expert-location out");
  if (shape.num_slots % shape.num_groups != 0)
    return invalid_argument(
        "ep_num_redundant_experts is {}, which makes {} slots of {} experts, but ep_size, which is "
        "{}, does not divide them evenly",
        redundant, shape.num_slots, shape.num_experts, shape.num_groups);
  if (const int32_t most = shape.num_experts * (shape.num_groups - 1); redundant > most)
    return invalid_argument(
        "ep_num_redundant_experts is {}, but at most {} replicas of {} experts lie in {} groups",
        redundant, most, shape.num_experts, shape.num_groups);
  if (shape.num_slots > kernels::kMaxExperts)
    return invalid_argument(
        "ep_num_redundant_experts is {}, which makes {} slots, but {} are the "
        "most",
        redundant, shape.num_slots, kernels::kMaxExperts);
  return {};
}

bool is_placement(const PlacementShape& shape, std::span<const int32_t> slots) {
  if (std::ssize(slots) != shape.num_slots) return false;
  std::vector<int32_t> last_group(static_cast<size_t>(shape.num_experts), -1);
  for (int32_t slot = 0; slot < shape.num_slots; ++slot) {
    const int32_t expert = slots[static_cast<size_t>(slot)];
    if (expert < 0 || expert >= shape.num_experts) return false;
    int32_t& last = last_group[static_cast<size_t>(expert)];
    if (std::exchange(last, shape.group_of(slot)) == shape.group_of(slot)) return false;
  }
  return std::ranges::find(last_group, -1) == last_group.end();
}

ExpertSlots even_placement(const PlacementShape& shape) {
  ExpertSlots out(static_cast<size_t>(shape.num_slots));
  for (size_t slot = 0; slot < out.size(); ++slot)
    out[slot] = static_cast<int32_t>(slot) % shape.num_experts;
  return out;
}

ExpertSlots balanced_placement(const PlacementShape& shape, std::span<const int64_t> tokens,
                               const ExpertSlots& now) {
  const std::vector<std::vector<int32_t>> parts = Packer(shape, tokens).run();
  const std::vector<size_t> part_of_group = match_groups(shape, parts, now);
  ExpertSlots out(now.size());
  const auto size = static_cast<size_t>(shape.slots_of_group());
  for (size_t group = 0; group < parts.size(); ++group) {
    fill_slots(slots_of_group(shape, now, static_cast<int32_t>(group)), parts[part_of_group[group]],
               std::span(out).subspan(group * size, size));
  }
  const double before = largest(group_loads(shape, tokens, now));
  return largest(group_loads(shape, tokens, out)) < kWorthwhile * before ? out : now;
}

std::vector<double> group_loads(const PlacementShape& shape, std::span<const int64_t> tokens,
                                std::span<const int32_t> slots) {
  std::vector<int32_t> replicas(static_cast<size_t>(shape.num_experts));
  for (const int32_t expert : slots) ++replicas[static_cast<size_t>(expert)];
  std::vector<double> out(static_cast<size_t>(shape.num_groups));
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const auto expert = static_cast<size_t>(slots[slot]);
    out[static_cast<size_t>(shape.group_of(static_cast<int32_t>(slot)))] +=
        static_cast<double>(tokens[expert]) / replicas[expert];
  }
  return out;
}

std::vector<int32_t> replica_table(int32_t num_experts, std::span<const int32_t> slots) {
  const auto experts = static_cast<size_t>(num_experts);
  std::vector<int32_t> out(experts + 1 + slots.size());
  for (const int32_t expert : slots) ++out[static_cast<size_t>(expert) + 1];
  std::partial_sum(out.begin(), out.begin() + num_experts + 1, out.begin());
  std::vector<int32_t> next(out.begin(), out.begin() + num_experts);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    int32_t& place = next[static_cast<size_t>(slots[slot])];
    out[experts + 1 + static_cast<size_t>(place++)] = static_cast<int32_t>(slot);
  }
  return out;
}

CopySteps plan_copies(const PlacementShape& shape, const ExpertSlots& from, const ExpertSlots& to) {
  return CopyPlanner(shape, from, to).run();
}

}  // namespace espalier
