#include "models/program/cpu_encoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "media/tiles.h"
#include "models/mixed_rows.h"
#include "models/program/check.h"
#include "models/program/lower.h"
#include "models/weight_layout.h"

namespace espalier::program {
namespace {

ImageEncoderInfo describe(const DecoderSpec& spec, const ImageProcessorSpec& processor,
                          const DecoderWeights& weights) {
  return {.num_rows = spec.tiles ? 0 : spec.patches->num_patches / spec.patches->square(),
          .width = spec.projector->row_width(),
          .patches = *spec.patches,
          .tiles = spec.tiles,
          .processor = processor,
          .num_parameters = spec.num_parameters(),
          .weight_bytes = weights.size_bytes()};
}

// Keys lie in pages of a square each where there are windows, which begin anywhere.
int32_t page_size_of(const PatchesSpec& patches, int32_t rows) {
  return patches.window > 0 ? patches.merge * patches.merge : rows;
}

// One entry, whose class row, if it has one, is not wanted.
ForwardBatch one_picture(const PatchesSpec& patches, int32_t rows) {
  ForwardBatch batch;
  const int32_t num_pages = rows / page_size_of(patches, rows);
  batch.entries.push_back({.num_query_tokens = rows,
                           .num_pages = num_pages,
                           .pooled_begin = patches.class_token ? 1 : 0});
  batch.token_ids.assign(static_cast<size_t>(rows), 0);
  batch.positions.resize(static_cast<size_t>(rows));
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  batch.page_tables.resize(static_cast<size_t>(num_pages));
  std::iota(batch.page_tables.begin(), batch.page_tables.end(), 0);
  return batch;
}

std::vector<BatchEntry> window_entries(const PatchesSpec& patches, const PatchOrder& order) {
  std::vector<BatchEntry> windows;
  if (patches.window == 0) return windows;
  const int32_t page_size = page_size_of(patches, 0);
  int32_t begin = 0;
  for (const int32_t end : order.window_ends) {
    windows.push_back({.num_query_tokens = end - begin,
                       .query_begin = begin,
                       .page_begin = begin / page_size,
                       .num_pages = (end - begin) / page_size});
    begin = end;
  }
  return windows;
}

// Rows of the only page, which see all in front of them there and themselves.
BatchEntry part_of_page(int32_t first, int32_t count) {
  return {.num_query_tokens = count,
          .prefix_len = first,
          .query_begin = first,
          .num_pages = 1,
          .pooled_begin = 0};
}

}  // namespace

CpuEncoder::CpuEncoder(DecoderSpec spec, const ImageProcessorSpec& processor, Program program,
                       DecoderWeights weights, std::unique_ptr<kernels::CpuBackend> backend)
    : spec_(std::move(spec)),
      program_(std::move(program)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      info_(describe(spec_, processor, weights_)),
      context_(spec_, program_, weights_, *backend_),
      output_begin_(output_begin(program_)) {}

Result<std::unique_ptr<CpuEncoder>> CpuEncoder::create(const DecoderSpec& spec,
                                                       const ImageProcessorSpec& processor,
                                                       const WeightTypes& types,
                                                       WeightSource& source, WorkPool& pool,
                                                       const Rewrite& rewrite) {
  ESP_RETURN_IF_ERROR(validate(spec));
  Program program = lower(spec);
  if (rewrite) program = rewrite(std::move(program));
  program = cpu_passes(std::move(program));
  ESP_RETURN_IF_ERROR(check(program));
  for (const Op& op : program.ops) {
    if (cpu_op(op.kind) != nullptr) continue;
    return fail(error(StatusCode::kUnimplemented, "{}: the CPU does not run the operation {}",
                      program.name, op_name(op.kind)));
  }
  ESP_ASSIGN_OR_RETURN(auto backend, kernels::CpuBackend::create(pool));
  ESP_ASSIGN_OR_RETURN(DecoderWeights weights,
                       load_weights(*backend, spec, weight_layout(spec), program, types, source));
  std::unique_ptr<CpuEncoder> encoder(
      new CpuEncoder(spec, processor, std::move(program), std::move(weights), std::move(backend)));
  if (const int32_t patches = spec.patches->num_patches; patches > 0) {
    const auto side = static_cast<int32_t>(std::lround(std::sqrt(patches)));
    const int32_t tiles = spec.tiles && spec.tiles->joint ? 1 : 0;
    ESP_RETURN_IF_ERROR(encoder->begin({side, patches / side, tiles, tiles}));
  }
  return encoder;
}

Status CpuEncoder::begin(const PatchGrid& grid) {
  if (grid == grid_) return Status();
  if (grid.num_tiles() > 0) return begin_joint(grid);
  const PatchesSpec& patches = *spec_.patches;
  const int32_t rows = grid.size() + (patches.class_token ? 1 : 0);
  grid_ = {};  // until all below is of the new one
  ESP_RETURN_IF_ERROR(reserve(rows));
  PatchOrder order = order_patches(grid, patches);
  batch_ = one_picture(patches, rows);
  windows_ = window_entries(patches, order);
  places_.clear();
  for (size_t i = 0; i < order.places.size() && patches.num_patches > 0; ++i) {
    const int32_t first = patches.class_token ? 1 : 0;
    batch_.positions[static_cast<size_t>(first) + i] =
        first + order.places[i].row * grid.columns + order.places[i].column;
  }
  if (!spec_.ropes.empty()) {
    places_.resize(3 * order.places.size());
    for (size_t i = 0; i < order.places.size(); ++i) {
      places_[order.places.size() + i] = order.places[i].row;
      places_[2 * order.places.size() + i] = order.places[i].column;
    }
  }
  positions_ = grid_positions(order, grid, patches.position_side);
  result_rows_ = std::move(order.squares);
  lay_keys(rows);
  grid_ = grid;
  return Status();
}

void CpuEncoder::lay_keys(int32_t rows) {
  kv_.page_size = page_size_of(*spec_.patches, rows);
  for (KvView::Layer& layer : kv_.layers) {
    layer.num_pages = rows / kv_.page_size;
    layer.set_dense_strides(kv_.page_size);
  }
}

// The picture's tiles row by row, each behind its class row, then black tiles, then what fills each
// tile up. What is not the picture's sees the picture's rows alone.
Status CpuEncoder::begin_joint(const PatchGrid& grid) {
  const JointTilesSpec& joint = *spec_.tiles->joint;
  const int32_t each = spec_.patches->num_rows(), most = spec_.tiles->counts.max;
  const int32_t padding = (joint.row_multiple - each % joint.row_multiple) % joint.row_multiple;
  const int32_t kept = most * each, rows = kept + most * padding;
  const int32_t seen = grid.num_tiles() * each,
                shape = tile_shape_number({grid.tile_columns, grid.tile_rows}, most);
  ESP_CHECK(seen <= kept && shape > 0, "{} x {} tiles", grid.tile_rows, grid.tile_columns);
  grid_ = {};
  ESP_RETURN_IF_ERROR(reserve(rows));
  batch_ = one_picture(*spec_.patches, rows);
  batch_.entries.clear();
  tiles_.assign(static_cast<size_t>(rows), 0);
  for (int32_t tile = 0; tile < most; ++tile) {
    batch_.entries.push_back(part_of_page(tile * each, each));
    std::fill_n(tiles_.begin() + tile * each, each, shape * most + tile);
    std::fill_n(tiles_.begin() + kept + tile * padding, padding, shape * most + tile);
  }
  if (padding > 0) batch_.entries.push_back(part_of_page(kept, rows - kept));
  for (int32_t row = 0; row < rows; ++row)
    batch_.positions[static_cast<size_t>(row)] = row < kept ? shape * kept + row : 0;
  windows_.assign(1, part_of_page(rows - seen, seen));
  windows_[0].query_begin = 0;
  for (int32_t row = seen; row < rows; row += seen) {
    const int32_t count = std::min(seen, rows - row);
    windows_.push_back(part_of_page(seen - count, count));
    windows_.back().query_begin = row;
  }
  num_kept_ = kept;
  result_rows_.resize(static_cast<size_t>(seen));
  std::iota(result_rows_.begin(), result_rows_.end(), 0);
  lay_keys(rows);
  grid_ = grid;
  return Status();
}

Status CpuEncoder::reserve(int32_t rows) {
  if (rows <= reserved_rows_) return Status();
  reserved_rows_ = 0;
  const int32_t merge = spec_.projector->merge;
  const int32_t entries = spec_.tiles && spec_.tiles->joint ? spec_.tiles->counts.max + 1 : 1;
  ESP_RETURN_IF_ERROR(context_.reserve(rows, entries, rows / merge));
  const AttentionSpec& attention = spec_.layers[0].attention;
  const size_t plane_bytes =
      static_cast<size_t>(rows) * static_cast<size_t>(attention.kv_dim()) * sizeof(float);
  ESP_ASSIGN_OR_RETURN(keys_, espalier::Buffer::allocate(plane_bytes));
  ESP_ASSIGN_OR_RETURN(values_, espalier::Buffer::allocate(plane_bytes));
  const KvView::Layer layer{.type = KvType::kFloat32,
                            .k = keys_.data(),
                            .v = values_.data(),
                            .num_pages = 1,
                            .num_kv_heads = attention.num_kv_heads,
                            .head_dim = attention.head_dim};
  kv_.layers.assign(spec_.layers.size(), layer);
  reserved_rows_ = rows;
  return Status();
}

Status CpuEncoder::run(size_t first, size_t last, const std::stop_token& stop) {
  for (size_t i = first; i < last; ++i) {
    if (stop.stop_requested()) return encoding_stopped();
    cpu_op(program_.ops[i].kind)(context_, program_.ops[i]);
  }
  return Status();
}

Status CpuEncoder::encode_tile(std::span<const float> patches, const PatchGrid& grid,
                               std::span<float> rows, const std::stop_token& stop) {
  ESP_RETURN_IF_ERROR(begin(grid));
  const int64_t tiles = std::max(grid.num_tiles(), 1);
  ESP_CHECK(std::ssize(patches) == tiles * grid.size() * spec_.patches->features() &&
                std::ssize(rows) == std::ssize(result_rows_) * info_.width,
            "{} numbers of patches, {} of rows", patches.size(), rows.size());
  context_.begin(batch_, batch_.token_ids, kv_,
                 {.patches = patches,
                  .places = places_,
                  .windows = windows_,
                  .positions = positions_,
                  .tiles = tiles_,
                  .num_kept = num_kept_});
  ESP_RETURN_IF_ERROR(run(0, output_begin_, stop));
  context_.begin_outputs(result_rows_, rows.data());
  return run(output_begin_, program_.ops.size(), stop);
}

}  // namespace espalier::program
