#include <limits>
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
#include "models/two_encoders.h"

namespace espalier {

namespace {

using Size = ImageProcessorSpec::Size;

PatchGrid grid_of(const Size& pixels, const PatchesSpec& patches) {
  return {pixels.height / patches.patch_size, pixels.width / patches.patch_size};
}

// The whole picture and the tiles that are planned, in PreparedImage's order.
Result<std::vector<PixelValues>> pixels_of(const Image& image, const ImageEncoderInfo& info,
                                           int32_t num_tiles) {
  const ImageProcessorSpec& spec = info.processor;
  std::vector<PixelValues> pixels;
  if (info.tiles) {
    const int32_t side = spec.size->width;
    if (info.tiles->joint) {
      const int32_t most = spec.tile_counts->max;
      return canvas_tiles(image, spec, side, least_canvas(most, side, image.width, image.height))
          .pixels;
    }
    if (num_tiles > 1 && info.tiles->in_sequence) {
      const Size grid = nearest_grid(*spec.tile_counts, side, image.width, image.height);
      return stretch_tiles(image, spec, side, grid).pixels;
    }
    if (num_tiles > 1) return cut_tiles(image, spec, side).pixels;
    pixels.push_back(normalize(resize(image, side, side, spec.filter), spec));
  } else {
    ESP_ASSIGN_OR_RETURN(PixelValues whole, process_image(image, spec));
    pixels.push_back(std::move(whole));
  }
  return pixels;
}

// pixels: of all tiles; each one's memory is given back once its patches are cut.
std::vector<float> cut_all(std::vector<PixelValues> pixels, const PatchGrid& grid,
                           const PatchesSpec& patches) {
  if (pixels.size() == 1) return cut_patches(pixels[0], grid, patches);
  std::vector<float> out;
  out.reserve(pixels.size() * static_cast<size_t>(grid.size()) *
              static_cast<size_t>(patches.features()));
  for (PixelValues& tile : pixels) {
    const std::vector<float> cut = cut_patches(tile, grid, patches);
    out.insert(out.end(), cut.begin(), cut.end());
    tile = {};
  }
  return out;
}

}  // namespace

Status encoding_stopped() {
  return error(StatusCode::kAborted, "the picture was not encoded: its request has ended");
}

namespace {

// Of a picture that is read in tiles.
PreparedImage plan_tiles(const ImageEncoderInfo& info, const Size& picture, bool alone) {
  const ImageProcessorSpec& processor = info.processor;
  const int32_t side = processor.size->width;
  PreparedImage out;
  out.grid = grid_of({side, side}, info.patches);
  if (info.tiles->joint) {
    const Size canvas =
        least_canvas(processor.tile_counts->max, side, picture.width, picture.height);
    out.grid.tile_rows = canvas.height;
    out.grid.tile_columns = canvas.width;
    out.num_tiles = out.grid.num_tiles();
    out.tile_rows = info.patches.num_rows();
    out.num_rows = out.num_tiles * out.tile_rows;
    return out;
  }
  if (info.tiles->in_sequence) {
    const Size grid = nearest_grid(*processor.tile_counts, side, picture.width, picture.height);
    if (grid.width * grid.height > 1)
      out.tiles = {.tile_rows = grid.height, .tile_columns = grid.width};
    out.num_tiles = 1 + out.tiles.num_tiles();
    out.num_rows = out.num_tiles * (out.grid.size() / info.patches.square());
    return out;
  }
  if (alone || !info.tiles->alone) {
    const Size room = best_resolution(processor.resolutions, picture.width, picture.height);
    out.tiles = make_tile_grid(picture, room.height / side, room.width / side, out.grid.rows,
                               info.tiles->tiles_max);
  }
  out.num_tiles = 1 + out.tiles.num_tiles();
  out.num_rows = num_rows_of(out.tiles, out.grid.rows);
  return out;
}

}  // namespace

Result<PreparedImage> ImageEncoder::plan(const Size& picture, bool alone) const {
  const PatchesSpec& patches = info().patches;
  const ImageProcessorSpec& processor = info().processor;
  if (info().tiles) return plan_tiles(info(), picture, alone);
  PreparedImage out;
  ESP_ASSIGN_OR_RETURN(const Size size, processed_size(picture, processor));
  out.grid = grid_of(size, patches);
  out.num_rows = out.grid.size() / patches.square();
  if (patches.num_patches > 0) return out;
  (patches.lines ? out.line_rows : out.grid_columns) = out.grid.columns / patches.merge;
  return out;
}

Result<PreparedImage> ImageEncoder::prepare(const Image& image, bool alone) const {
  ESP_ASSIGN_OR_RETURN(PreparedImage out, plan({image.width, image.height}, alone));
  ESP_ASSIGN_OR_RETURN(std::vector<PixelValues> pixels, pixels_of(image, info(), out.num_tiles));
  out.patches = cut_all(std::move(pixels), out.grid, info().patches);
  return out;
}

Result<PreparedImage> ImageEncoder::plan_video(const Size& picture, int32_t num_frames,
                                               double frames_per_second) const {
  const PatchesSpec& patches = info().patches;
  ESP_CHECK(patches.videos && num_frames > 0, "{} frames", num_frames);
  ESP_ASSIGN_OR_RETURN(const Size size,
                       processed_size(picture, info().processor.of_frames(num_frames)));
  return plan_grids(size, num_frames, frames_per_second);
}

Result<PreparedImage> ImageEncoder::plan_grids(const Size& size, int32_t num_frames,
                                               double frames_per_second) const {
  const PatchesSpec& patches = info().patches;
  PreparedImage out;
  out.grid = grid_of(size, patches);
  out.num_tiles = (num_frames + patches.frames - 1) / patches.frames;
  out.frame_rows = out.grid.size() / patches.square();
  out.num_rows = out.num_tiles * out.frame_rows;
  if (patches.num_patches == 0) out.grid_columns = out.grid.columns / patches.merge;
  if (patches.grids_apart) return out;
  const bool timed = patches.positions_per_second > 0 && frames_per_second > 0;
  out.frame_positions =
      timed ? patches.frames / frames_per_second * patches.positions_per_second : 1;
  if (!(out.last_frame_position() < std::numeric_limits<int32_t>::max())) {
    return fail(
        invalid_argument("{} frames at {} a second take too long a time: state a higher fps",
                         num_frames, frames_per_second));
  }
  return out;
}

Result<PreparedImage> ImageEncoder::prepare_video(std::span<const Image> frames,
                                                  double frames_per_second, bool fitted) const {
  ESP_CHECK(!frames.empty());
  const PatchesSpec& patches = info().patches;
  const Size given{frames[0].width, frames[0].height};
  ImageProcessorSpec processor = info().processor.of_frames(static_cast<int32_t>(frames.size()));
  if (fitted) {
    processor.area.reset();
    processor.size = given;
  }
  ESP_ASSIGN_OR_RETURN(const Size size, processed_size(given, processor));
  ESP_ASSIGN_OR_RETURN(PreparedImage out,
                       plan_grids(size, static_cast<int32_t>(frames.size()), frames_per_second));
  out.patches.reserve(static_cast<size_t>(out.num_tiles) * static_cast<size_t>(out.grid.size()) *
                      static_cast<size_t>(patches.features()));
  const auto each = static_cast<size_t>(patches.frames);
  for (size_t begin = 0; begin < frames.size(); begin += each) {
    std::vector<PixelValues> pixels;
    for (const Image& frame : frames.subspan(begin, std::min(each, frames.size() - begin))) {
      if (frame.width != frames[0].width || frame.height != frames[0].height) {
        return fail(invalid_argument(
            "a frame has {} x {} pixels and the first one {} x {}: send frames of one size",
            frame.width, frame.height, frames[0].width, frames[0].height));
      }
      ESP_ASSIGN_OR_RETURN(PixelValues values, process_image(frame, processor));
      pixels.push_back(std::move(values));
    }
    const std::vector<float> cut = cut_patches(pixels, out.grid, patches);
    out.patches.insert(out.patches.end(), cut.begin(), cut.end());
  }
  return out;
}

Result<PreparedImage> ImageEncoder::plan_sound(const Audio& audio) const {
  ESP_CHECK(stem_.has_value());
  ESP_ASSIGN_OR_RETURN(const int32_t columns, stem_->num_rows(stem_->resampled(audio)));
  PreparedImage out;
  out.grid = {.rows = 1, .columns = columns};
  out.num_rows = columns / info().patches.square();
  return out;
}

Result<PreparedImage> ImageEncoder::prepare_sound(const Audio& audio) const {
  ESP_ASSIGN_OR_RETURN(PreparedImage out, plan_sound(audio));
  ESP_ASSIGN_OR_RETURN(out.patches, stem_->rows_of(audio));
  return out;
}

Status ImageEncoder::encode(const PreparedImage& image, std::span<float> rows,
                            const std::stop_token& stop) {
  if (image.grid.num_tiles() > 0) return encode_tile(image.patches, image.grid, rows, stop);
  const bool in_sequence = !info().tiles || info().tiles->in_sequence;
  const auto width = static_cast<size_t>(info().width);
  const auto num_tiles = static_cast<size_t>(image.num_tiles);
  std::vector<float> own(in_sequence ? 0
                                     : num_tiles * static_cast<size_t>(image.grid.size()) * width);
  const std::span<float> tiles = in_sequence ? rows : std::span(own);
  const size_t patches = image.patches.size() / num_tiles, made = tiles.size() / num_tiles;
  for (size_t i = 0; i < num_tiles; ++i) {
    if (stop.stop_requested()) return encoding_stopped();
    ESP_RETURN_IF_ERROR(encode_tile(std::span(image.patches).subspan(i * patches, patches),
                                    image.grid, tiles.subspan(i * made, made), stop));
  }
  if (!in_sequence) arrange_tile_rows(image.tiles, tiles, line_end(), rows);
  return Status();
}

Result<std::optional<EncoderPlan>> plan_image_encoder(const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(const JsonObject config, read_changed_config(options));
  ESP_ASSIGN_OR_RETURN(std::optional<DecoderSpec> spec, make_encoder_spec(config));
  if (!spec) return std::optional<EncoderPlan>();
  ImageProcessorSpec processor;
  if (spec->patches->sound) {
    ESP_RETURN_IF_ERROR(check_sound_processor(options.path, *spec->patches->sound));
  } else {
    ESP_ASSIGN_OR_RETURN(processor,
                         read_image_processor(options.path, *spec->patches, spec->tiles));
  }
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  EncoderPlan out{
      .spec = std::move(*spec), .processor = processor, .type = plan.type, .videos = {}};
  ESP_ASSIGN_OR_RETURN(std::optional<DecoderSpec> videos, make_video_encoder_spec(config));
  if (!videos) return out;
  ESP_ASSIGN_OR_RETURN(ImageProcessorSpec frames,
                       read_frame_processor(options.path, *videos->patches, processor));
  out.processor.video = frames.video;
  out.videos = std::make_shared<const EncoderPlan>(EncoderPlan{
      .spec = std::move(*videos), .processor = std::move(frames), .type = plan.type, .videos = {}});
  return out;
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
  for (const EncoderTask& task : tasks)
    ESP_RETURN_IF_ERROR(encode(*task.image, task.rows->values, task.stop));
  return Status();
}

namespace {

Result<std::unique_ptr<ImageEncoder>> load_cpu_encoder(const ModelLoadOptions& options,
                                                       const EncoderPlan& plan) {
  const WeightTypes types(plan.type);
  if (options.format == LoadFormat::kDummy) {
    DummySource source(options.seed, plan.type, *options.pool);
    return program::CpuEncoder::create(plan.spec, plan.processor, types, source, *options.pool);
  }
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
  CheckpointSource source(checkpoint, plan.spec, plan.type, options.pool);
  return program::CpuEncoder::create(plan.spec, plan.processor, types, source, *options.pool);
}

}  // namespace

Result<std::unique_ptr<ImageEncoder>> load_image_encoder(const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(const std::optional<EncoderPlan> plan, plan_image_encoder(options));
  if (!plan) return std::unique_ptr<ImageEncoder>();
  ESP_CHECK(options.pool != nullptr);
  ESP_ASSIGN_OR_RETURN(std::unique_ptr<ImageEncoder> encoder, load_cpu_encoder(options, *plan));
  if (plan->videos != nullptr) {
    ESP_ASSIGN_OR_RETURN(std::unique_ptr<ImageEncoder> videos,
                         load_cpu_encoder(options, *plan->videos));
    encoder = std::make_unique<TwoEncoders>(std::move(encoder), std::move(videos));
  }
  if (plan->spec.patches->sound) {
    ESP_ASSIGN_OR_RETURN(SoundStem stem, load_sound_stem(options, plan->spec));
    encoder->set_stem(std::move(stem));
  }
  log_info("image encoder loaded parameters={} weight_bytes={} rows_per_image={}",
           encoder->info().num_parameters, encoder->info().weight_bytes, encoder->info().num_rows);
  return encoder;
}

}  // namespace espalier
