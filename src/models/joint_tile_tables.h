// The learned embeddings of an encoder whose tiles see each other (JointTilesSpec), made into the
// two tables that its program reads: checkpoints have them in parts with gates, which are the same
// for every picture.
//
//   positions [(shape, tile, row), hidden] = (1 - tanh(gate)) * embedding[row]
//       + tanh(gate) * tile_embedding[shape, tile, row]
//       + tanh(gate of tiles_before) * tiles_before[shape, tile], but in a tile's class row
//   tiles_after [(shape, tile), hidden] = tanh(gate) * embedding[shape, tile]
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/weight_source.h"

namespace espalier {

// Lends these tables by the names JointTilesSpec::positions and tiles_after, and all else as the
// source that it borrows does. Used from one thread.
class JointTileTables final : public WeightSource {
 public:
  // REQUIRES: spec.tiles->joint.
  JointTileTables(WeightSource& source, const DecoderSpec& spec) : source_(source), spec_(spec) {}

  Result<LentTensor> lend(const std::string& name, std::span<const int64_t> shape) override;
  Result<std::span<const std::byte>> lend_bytes(const std::string& name,
                                                std::span<const int64_t> shape) override {
    return source_.lend_bytes(name, shape);
  }
  std::optional<BlockFormat> stored_format(std::string_view name) const override {
    return source_.stored_format(name);
  }
  Result<StoredBlocks> lend_blocks(const std::string& name,
                                   std::span<const int64_t> shape) override {
    return source_.lend_blocks(name, shape);
  }
  void give_back(const std::string& name) override;
  void pass_over(const std::string& name) override { source_.pass_over(name); }
  Status finish() override { return source_.finish(); }

 private:
  const JointTilesSpec& joint() const { return *spec_.tiles->joint; }
  Result<float> gate(const std::string& name);
  Result<Buffer> make_positions();
  // Adds the gated row of each (shape, tile) of a table to rows [first, first + count) of the
  // `each` that `to` has of it.
  Status add_tiles(const std::string& name, int64_t first, int64_t count, int64_t each, float* to);

  WeightSource& source_;
  const DecoderSpec& spec_;
  std::map<std::string, Buffer> made_;
};

}  // namespace espalier
