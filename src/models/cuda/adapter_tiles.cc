#include "models/cuda/adapter_tiles.h"

#include <algorithm>
#include <functional>

namespace espalier {

namespace kc = kernels::cuda;

kc::LoraRows rows_of(const TileRange& range, const kc::LoraTile* tiles) {
  if (range.count == 0) return {};
  return {.num_tiles = &tiles[range.begin - 1].num_rows,
          .tiles = tiles + range.begin,
          .max_tiles = range.count,
          .max_rows = range.num_rows};
}

// Each entry begins at most one tile that is not full, and each range has a tile in front.
int64_t AdapterTiles::capacity(int32_t max_entries, int32_t max_tokens) {
  const int64_t rows = 2 * int64_t{max_tokens} + max_entries;
  return 2 * (int64_t{max_entries} + 1) + rows / kc::kLoraTileRows;
}

const ArrangedTiles& AdapterTiles::arrange(const ForwardBatch& batch,
                                           std::span<const kc::LoraPart* const> parts,
                                           bool with_wanted, kc::LoraTile* out) {
  arranged_ = {};
  find_token_runs(batch, parts);
  arranged_.tokens = write(out);
  if (!with_wanted) return arranged_;
  find_wanted_runs(batch, parts);
  arranged_.wanted = write(out);
  return arranged_;
}

void AdapterTiles::find_token_runs(const ForwardBatch& batch,
                                   std::span<const kc::LoraPart* const> parts) {
  runs_.clear();
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    if (parts[i] != nullptr) runs_.push_back({parts[i], entry.query_begin, entry.num_query_tokens});
  }
}

void AdapterTiles::find_wanted_runs(const ForwardBatch& batch,
                                    std::span<const kc::LoraPart* const> parts) {
  runs_.clear();
  int32_t row = 0;
  const auto add = [&](size_t entry, int32_t count) {
    if (parts[entry] != nullptr && count > 0) runs_.push_back({parts[entry], row, count});
    row += count;
  };
  for (size_t i = 0; i < batch.entries.size(); ++i) add(i, batch.entries[i].sample ? 1 : 0);
  for (size_t i = 0; i < batch.entries.size(); ++i)
    add(i, static_cast<int32_t>(batch.entries[i].input_logprob_targets.size()));
}

TileRange AdapterTiles::write(kc::LoraTile* out) {
  if (runs_.empty()) return {};
  const auto before = [](const Run& a, const Run& b) {
    if (a.parts != b.parts) return std::less<>()(a.parts, b.parts);
    return a.first < b.first;
  };
  std::ranges::sort(runs_, before);
  TileRange range{.begin = arranged_.size + 1};
  kc::LoraTile* tile = nullptr;
  for (const Run& run : runs_) {
    for (int32_t row = run.first; row < run.first + run.count; ++row) {
      if (tile == nullptr || tile->parts != run.parts || tile->num_rows == kc::kLoraTileRows) {
        tile = out + range.begin + range.count++;
        tile->parts = run.parts;
        tile->first = range.num_rows;
        tile->num_rows = 0;
      }
      tile->rows[tile->num_rows++] = row;
      ++range.num_rows;
    }
  }
  out[range.begin - 1] = {.num_rows = range.count};
  arranged_.size = range.begin + range.count;
  return range;
}

}  // namespace espalier
