#include "models/joint_tile_tables.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace espalier {

Result<LentTensor> JointTileTables::lend(const std::string& name, std::span<const int64_t> shape) {
  if (name != joint().positions && name != joint().tiles_after) return source_.lend(name, shape);
  Buffer table;
  if (name == joint().positions) {
    ESP_ASSIGN_OR_RETURN(table, make_positions());
  } else {
    const auto bytes = static_cast<size_t>(shape[0] * shape[1]) * sizeof(float);
    ESP_ASSIGN_OR_RETURN(table, Buffer::allocate(bytes));
    std::fill_n(table.as<float>(), shape[0] * shape[1], 0.0f);
    ESP_RETURN_IF_ERROR(add_tiles(name, 0, 1, 1, table.as<float>()));
  }
  const Buffer& kept = made_.insert_or_assign(name, std::move(table)).first->second;
  return LentTensor{kept.data(), DType::kFloat32};
}

void JointTileTables::give_back(const std::string& name) {
  if (made_.erase(name) == 0) source_.give_back(name);
}

Result<float> JointTileTables::gate(const std::string& name) {
  const int64_t one[] = {1};
  ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(name + ".gate", one));
  const float value = std::tanh(element_of(lent, 0));
  source_.give_back(name + ".gate");
  return value;
}

Status JointTileTables::add_tiles(const std::string& name, int64_t first, int64_t count,
                                  int64_t each, float* to) {
  ESP_ASSIGN_OR_RETURN(const float scale, gate(name));
  const int64_t hidden = spec_.hidden_size, tiles = spec_.tiles->num_positions();
  const int64_t shape[] = {joint().num_shapes + 1, spec_.tiles->counts.max * hidden};
  const std::string table = name + ".embedding.weight";
  ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(table, shape));
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int64_t row = first; row < first + count; ++row) {
      float* const out = to + (tile * each + row) * hidden;
      for (int64_t i = 0; i < hidden; ++i) out[i] += scale * element_of(lent, tile * hidden + i);
    }
  }
  source_.give_back(table);
  return Status();
}

Result<Buffer> JointTileTables::make_positions() {
  const int64_t hidden = spec_.hidden_size, rows = spec_.patches->num_rows();
  const int64_t tiles = spec_.tiles->num_positions();
  const std::string embedding = joint().positions + ".embedding";
  const std::string of_tiles = joint().positions + ".tile_embedding.weight";
  ESP_ASSIGN_OR_RETURN(const float scale, gate(joint().positions));
  const int64_t shape[] = {rows, hidden};
  const int64_t tiles_shape[] = {joint().num_shapes + 1, spec_.tiles->counts.max * rows * hidden};
  ESP_ASSIGN_OR_RETURN(const LentTensor of_row, source_.lend(embedding, shape));
  ESP_ASSIGN_OR_RETURN(const LentTensor of_tile, source_.lend(of_tiles, tiles_shape));
  const int64_t each = rows * hidden;
  ESP_ASSIGN_OR_RETURN(Buffer out,
                       Buffer::allocate(static_cast<size_t>(tiles * each) * sizeof(float)));
  float* const to = out.as<float>();
  for (int64_t i = 0; i < tiles * each; ++i)
    to[i] = (1 - scale) * element_of(of_row, i % each) + scale * element_of(of_tile, i);
  source_.give_back(embedding);
  source_.give_back(of_tiles);
  ESP_RETURN_IF_ERROR(add_tiles(joint().tiles_before, 1, rows - 1, rows, to));
  return out;
}

}  // namespace espalier
