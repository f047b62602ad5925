#include <memory>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "media/tiles.h"
#include "models/families/family.h"
#include "models/image_encoder.h"
#include "models/image_processor_config.h"
#include "models/model_plan.h"
#include "models/program/cpu_encoder.h"
#include "models/storage_format.h"

namespace espalier {

namespace {

PatchGrid grid_of(const PixelValues& pixels, const PatchesSpec& patches) {
  return {pixels.height / patches.patch_size, pixels.width / patches.patch_size};
}

// A picture of tiles: the whole one first. pixels: of all of them.
PreparedImage prepare_tiles(const std::vector<PixelValues>& pixels, const PatchesSpec& patches) {
  PreparedImage out;
  out.grid = grid_of(pixels[0], patches);
  out.num_tiles = static_cast<int32_t>(pixels.size());
  for (const PixelValues& tile : pixels) {
    const std::vector<float> cut = cut_patches(tile, out.grid, patches);
    out.patches.insert(out.patches.end(), cut.begin(), cut.end());
  }
  return out;
}

}  // namespace

Result<PreparedImage> ImageEncoder::prepare(const Image& image, bool alone) const {
  const PatchesSpec& patches = info().patches;
  if (const auto& tiles = info().tiles) {
    const int32_t side = info().processor.size->width;
    Tiles cut = cut_tiles(image, info().processor, side);
    if (tiles->alone && !alone) cut = {.pixels = {std::move(cut.pixels[0])}};
    PreparedImage out = prepare_tiles(cut.pixels, patches);
    if (cut.rows > 0) {
      out.tiles = make_tile_grid({image.width, image.height}, cut.rows, cut.columns, out.grid.rows,
                                 tiles->tiles_max);
    }
    out.num_rows = num_rows_of(out.tiles, out.grid.rows);
    return out;
  }
  ESP_ASSIGN_OR_RETURN(const PixelValues pixels, process_image(image, info().processor));
  PreparedImage out = prepare_tiles({pixels}, patches);
  out.num_rows = out.grid.size() / (patches.merge * patches.merge);
  if (patches.num_patches == 0) out.grid_columns = out.grid.columns / patches.merge;
  return out;
}

Status ImageEncoder::encode(const PreparedImage& image, std::span<float> rows) {
  if (!info().tiles) return encode_tile(image.patches, image.grid, rows);
  const auto width = static_cast<size_t>(info().width);
  const size_t patches = image.patches.size() / static_cast<size_t>(image.num_tiles);
  const size_t made = static_cast<size_t>(image.grid.size()) * width;
  std::vector<float> tiles(made * static_cast<size_t>(image.num_tiles));
  for (size_t i = 0; i < static_cast<size_t>(image.num_tiles); ++i) {
    ESP_RETURN_IF_ERROR(encode_tile(std::span(image.patches).subspan(i * patches, patches),
                                    image.grid, std::span(tiles).subspan(i * made, made)));
  }
  arrange_tile_rows(image.tiles, tiles, line_end(), rows);
  return Status();
}

Result<std::optional<EncoderPlan>> plan_image_encoder(const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(const JsonObject config, read_changed_config(options));
  ESP_ASSIGN_OR_RETURN(std::optional<DecoderSpec> spec, make_encoder_spec(config));
  if (!spec) return std::optional<EncoderPlan>();
  ESP_ASSIGN_OR_RETURN(const ImageProcessorSpec processor,
                       read_image_processor(options.path, *spec->patches, spec->tiles));
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  return EncoderPlan{std::move(*spec), processor, plan.type};
}

int64_t ImageEncoder::row_bytes(int32_t num_rows) const {
  return int64_t{num_rows} * info().width * static_cast<int64_t>(sizeof(float));
}

Result<EncodedRows> ImageEncoder::allocate_rows(int32_t num_rows) {
  EncodedRows rows{.num_rows = num_rows, .width = info().width, .values = {}, .elements = {}};
  rows.values.resize(static_cast<size_t>(rows.num_rows) * static_cast<size_t>(rows.width));
  return rows;
}

Status ImageEncoder::encode_batch(std::span<const EncoderTask> tasks) {
  for (const EncoderTask& task : tasks) ESP_RETURN_IF_ERROR(encode(*task.image, task.rows->values));
  return Status();
}

Result<std::unique_ptr<ImageEncoder>> load_image_encoder(const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(const std::optional<EncoderPlan> plan, plan_image_encoder(options));
  if (!plan) return std::unique_ptr<ImageEncoder>();
  const WeightTypes types(plan->type);
  ESP_CHECK(options.pool != nullptr);
  std::unique_ptr<ImageEncoder> encoder;
  if (options.format == LoadFormat::kDummy) {
    DummySource source(options.seed, plan->type, *options.pool);
    ESP_ASSIGN_OR_RETURN(encoder, program::CpuEncoder::create(plan->spec, plan->processor, types,
                                                              source, *options.pool));
  } else {
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
    CheckpointSource source(checkpoint, plan->spec, plan->type, options.pool);
    ESP_ASSIGN_OR_RETURN(encoder, program::CpuEncoder::create(plan->spec, plan->processor, types,
                                                              source, *options.pool));
  }
  log_info("image encoder loaded parameters={} weight_bytes={} rows_per_image={}",
           encoder->info().num_parameters, encoder->info().weight_bytes, encoder->info().num_rows);
  return encoder;
}

}  // namespace espalier
