#include "engine/scheduler/shared_prefixes.h"

#include <algorithm>

namespace espalier {

void SharedPrefixes::begin() {
  ++round_;
  nodes_.clear();
  members_.clear();
}

void SharedPrefixes::add(const PrefixCache& cache, const SequencePages& pages, int32_t entry) {
  const size_t first = nodes_.size();
  cache.shared_nodes(pages, nodes_);
  if (nodes_.size() == first) return;
  members_.push_back({.entry = entry, .first_node = first, .end_node = nodes_.size()});
  for (size_t i = first; i < nodes_.size(); ++i) {
    const size_t number = nodes_[i].number;
    if (number >= marks_.size()) marks_.resize(std::max(number + 1, 2 * marks_.size()));
    Mark& mark = marks_[number];
    if (mark.round != round_) mark = {.round = round_};
    ++mark.num_entries;
  }
}

// From the root down. A node that all entries of the one above it hold continues that one; a node
// that other sequences hold, but no other entry, ends the walk, for those below it are no more
// shared.
void SharedPrefixes::name_prefixes(Member& member, ForwardBatch& batch) {
  int32_t begin = 0;
  for (size_t i = member.end_node; i-- > member.first_node;) {
    Mark& mark = marks_[nodes_[i].number];
    if (mark.num_entries < 2) return;
    if (i > member.first_node && marks_[nodes_[i - 1].number].num_entries == mark.num_entries)
      continue;
    if (mark.prefix < 0) {
      mark.prefix = static_cast<int32_t>(batch.shared_prefixes.size());
      batch.shared_prefixes.push_back({.begin = begin,
                                       .end = nodes_[i].end,
                                       .parent = member.deepest,
                                       .num_entries = mark.num_entries});
    }
    member.deepest = mark.prefix;
    begin = nodes_[i].end;
  }
}

void SharedPrefixes::fill(ForwardBatch& batch) {
  batch.shared_prefixes.clear();
  batch.shared_entries.clear();
  for (Member& member : members_) name_prefixes(member, batch);
  filled_.clear();
  int32_t total = 0;
  for (SharedPrefixSegment& prefix : batch.shared_prefixes) {
    prefix.first_entry = total;
    filled_.push_back(total);
    total += prefix.num_entries;
  }
  batch.shared_entries.resize(static_cast<size_t>(total));
  for (const Member& member : members_)
    for (int32_t i = member.deepest; i >= 0;
         i = batch.shared_prefixes[static_cast<size_t>(i)].parent)
      batch.shared_entries[static_cast<size_t>(filled_[static_cast<size_t>(i)]++)] = member.entry;
}

}  // namespace espalier
