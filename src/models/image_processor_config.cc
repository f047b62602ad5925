#include "models/image_processor_config.h"

#include <cmath>

#include "checkpoint/json_object.h"

namespace espalier {
namespace {

using Size = ImageProcessorSpec::Size;
constexpr int64_t kSideMax = 8192;  // pixels that a processor may make of a side

Result<JsonObject> read_config(const std::filesystem::path& folder) {
  const std::filesystem::path own = folder / "preprocessor_config.json";
  if (std::filesystem::exists(own)) return JsonObject::read(own);
  auto shared = JsonObject::read(folder / "processor_config.json");
  if (shared && shared->has("image_processor")) return shared->object("image_processor");
  return fail(error(StatusCode::kNotFound,
                    "{} is missing: the model reads pictures, and it states how they are resized",
                    own.string()));
}

Result<int32_t> read_side(const JsonObject& config, std::string_view field) {
  ESP_ASSIGN_OR_RETURN(const int64_t side, config.integer(field, 1, kSideMax));
  return static_cast<int32_t>(side);
}

Result<Size> read_sides(const JsonObject& config, std::string_view field) {
  // Old files have a number for both.
  if (const auto both = read_side(config, field)) return Size{*both, *both};
  ESP_ASSIGN_OR_RETURN(const JsonObject object, config.object(field));
  Size size;
  ESP_ASSIGN_OR_RETURN(size.width, read_side(object, "width"));
  ESP_ASSIGN_OR_RETURN(size.height, read_side(object, "height"));
  return size;
}

// PIL's numbers: 2 bilinear, 3 bicubic.
Status read_filter(const JsonObject& config, ImageProcessorSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const int64_t filter, config.integer_or("resample", 3));
  if (filter != 2 && filter != 3) {
    return config.field_error("resample", "is neither 2 (bilinear) nor 3 (bicubic)");
  }
  spec.filter = filter == 2 ? Resample::kBilinear : Resample::kBicubic;
  return Status();
}

// size: {"shortest_edge": n}, {"height": n, "width": m}, or n as the shortest edge.
Status read_resize(const JsonObject& config, ImageProcessorSpec& spec) {
  if (const auto edge = read_side(config, "size")) {
    spec.shortest_edge = *edge;
    return Status();
  }
  ESP_ASSIGN_OR_RETURN(const JsonObject size, config.object("size"));
  if (size.has("shortest_edge") && !size.has("longest_edge")) {
    ESP_ASSIGN_OR_RETURN(spec.shortest_edge, read_side(size, "shortest_edge"));
    return Status();
  }
  ESP_ASSIGN_OR_RETURN(spec.size, read_sides(config, "size"));
  return Status();
}

Status read_channels(const JsonObject& config, std::string_view field, std::array<float, 3>& out) {
  ESP_ASSIGN_OR_RETURN(const std::vector<double> values, config.numbers(field));
  if (values.size() != 3) return config.field_error(field, "must have three numbers");
  for (size_t i = 0; i < 3; ++i) out[i] = static_cast<float>(values[i]);
  return Status();
}

Status read_normalize(const JsonObject& config, ImageProcessorSpec& spec) {
  ESP_RETURN_IF_ERROR(read_channels(config, "image_mean", spec.mean));
  ESP_RETURN_IF_ERROR(read_channels(config, "image_std", spec.std));
  for (const float value : spec.std) {
    if (!(value > 0)) return config.field_error("image_std", "must be above 0");
  }
  return Status();
}

Status check_patches(const JsonObject& config, const PatchesSpec& patches,
                     const ImageProcessorSpec& spec) {
  const Size fixed = spec.crop ? *spec.crop : spec.size.value_or(Size{});
  const int64_t made =
      int64_t{fixed.width / patches.patch_size} * (fixed.height / patches.patch_size);
  if (made == patches.num_patches) return Status();
  return config.field_error(
      spec.crop ? "crop_size" : "size",
      fmt::format("makes pictures of {} x {} pixels, {} patches; the model's config.json has "
                  "positions for {}",
                  fixed.width, fixed.height, made, patches.num_patches));
}

}  // namespace

// Pictures of any size within bounds of the area, in whole squares of patches. Old files have the
// bounds by names of their own.
Status read_bounds(const JsonObject& config, const PatchesSpec& patches,
                   ImageProcessorSpec::Area& area) {
  constexpr int64_t kPixelsMax = int64_t{1} << 31;
  if (config.has("size")) {
    ESP_ASSIGN_OR_RETURN(const JsonObject size, config.object("size"));
    const auto read = [&](const char* field, int64_t& to) -> Status {
      ESP_ASSIGN_OR_RETURN(to, size.integer_or(field, to, 1, kPixelsMax));
      return Status();
    };
    ESP_RETURN_IF_ERROR(read("shortest_edge", area.pixels_min));
    ESP_RETURN_IF_ERROR(read("longest_edge", area.pixels_max));
    ESP_RETURN_IF_ERROR(read("min_pixels", area.pixels_min));
    ESP_RETURN_IF_ERROR(read("max_pixels", area.pixels_max));
  }
  ESP_ASSIGN_OR_RETURN(area.pixels_min,
                       config.integer_or("min_pixels", area.pixels_min, 1, kPixelsMax));
  ESP_ASSIGN_OR_RETURN(area.pixels_max,
                       config.integer_or("max_pixels", area.pixels_max, 1, kPixelsMax));
  area.multiple = patches.patch_size * patches.merge;
  if (area.pixels_max < area.pixels_min ||
      area.pixels_max < int64_t{area.multiple} * area.multiple) {
    return config.field_error("max_pixels", "has no room for a picture of min_pixels");
  }
  return Status();
}

Status read_area(const JsonObject& config, const PatchesSpec& patches, ImageProcessorSpec& spec) {
  ImageProcessorSpec::Area area{.pixels_min = 56 * 56, .pixels_max = 28 * 28 * 1280};
  ESP_RETURN_IF_ERROR(read_bounds(config, patches, area));
  const auto agrees = [&](const char* field, int32_t wanted) -> Status {
    ESP_ASSIGN_OR_RETURN(const int64_t stated, config.integer_or(field, wanted));
    if (stated == wanted) return Status();
    return config.field_error(
        field, fmt::format("is {}, and the vision_config of config.json has {}", stated, wanted));
  };
  ESP_RETURN_IF_ERROR(agrees("patch_size", patches.patch_size));
  ESP_RETURN_IF_ERROR(agrees("merge_size", patches.merge));
  ESP_RETURN_IF_ERROR(agrees("temporal_patch_size", patches.frames));
  spec.area = area;
  return Status();
}

// size: {"longest_edge": n}, or sides that a picture must fit into.
Status read_within(const JsonObject& config, const PatchesSpec& patches, ImageProcessorSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const JsonObject size, config.object("size"));
  ImageProcessorSpec::Within within{.multiple = patches.patch_size * patches.merge};
  if (size.has("longest_edge")) {
    ESP_ASSIGN_OR_RETURN(const int32_t edge, read_side(size, "longest_edge"));
    within.most = {edge, edge};
  } else {
    ESP_ASSIGN_OR_RETURN(within.most, read_sides(config, "size"));
  }
  spec.within = within;
  return Status();
}

// Of tiles in sequence. A picture is always cut, for transformers' processor of these models sets
// crop_to_patches, whatever it is here. side: of a tile.
Status read_tile_counts(const JsonObject& config, const TilesSpec& tiles, int32_t side,
                        ImageProcessorSpec& spec) {
  constexpr int64_t kTilesMost = 64;
  ESP_ASSIGN_OR_RETURN(const int64_t least,
                       config.integer_or("min_patches", tiles.counts.min, 1, kTilesMost));
  ESP_ASSIGN_OR_RETURN(const int64_t most,
                       config.integer_or("max_patches", tiles.counts.max, least, kTilesMost));
  spec.tile_counts = {static_cast<int32_t>(least), static_cast<int32_t>(most)};
  spec.crop.reset();
  spec.shortest_edge = 0;
  if (spec.size && *spec.size != Size{side, side}) {
    return config.field_error(
        "size", fmt::format("makes tiles of {} x {} pixels; the model's config.json has patches "
                            "for {}",
                            spec.size->width, spec.size->height, side));
  }
  spec.size = Size{side, side};
  return Status();
}

// Of tiles that see each other. side: of a tile.
Status read_canvas(const JsonObject& config, const TilesSpec& tiles, int32_t side,
                   ImageProcessorSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const int64_t most, config.integer_or("max_image_tiles", 4));
  if (most != tiles.counts.max) {
    return config.field_error(
        "max_image_tiles",
        fmt::format("is {}, and max_num_tiles of config.json {}", most, tiles.counts.max));
  }
  spec.tile_counts = tiles.counts;
  if (!spec.size || *spec.size != Size{side, side}) {
    return config.field_error(
        "size", fmt::format("must be {} x {}, image_size of config.json", side, side));
  }
  return Status();
}

// All tiles are squares of the size that the encoder reads, so that resizing them changes nothing.
Status read_tiles(const JsonObject& config, const TilesSpec& tiles, ImageProcessorSpec& spec) {
  const Size fixed = spec.crop   ? *spec.crop
                     : spec.size ? *spec.size
                                 : Size{spec.shortest_edge, spec.shortest_edge};
  const bool one_size = (!spec.size || *spec.size == fixed) &&
                        (spec.shortest_edge == 0 || spec.shortest_edge == fixed.width);
  if (fixed.width != fixed.height || fixed.width < 1 || !one_size) {
    return config.field_error("size", "and crop_size are not one square, the size of a tile");
  }
  spec.size = fixed;
  spec.shortest_edge = 0;
  spec.crop.reset();
  ESP_ASSIGN_OR_RETURN(const auto sizes, config.pairs("image_grid_pinpoints"));
  for (const auto& [height, width] : sizes) {
    spec.resolutions.push_back({width, height});
    if (height % fixed.height == 0 && width % fixed.width == 0) continue;
    return config.field_error("image_grid_pinpoints",
                              fmt::format("has {} x {} pixels, which are no whole tiles of {}",
                                          height, width, fixed.width));
  }
  if (spec.resolutions == tiles.resolutions) return Status();
  return config.field_error("image_grid_pinpoints", "is another list than config.json's");
}

// Qwen3-VL's: bounds of all frames together and, where they are wanted, of one.
Status read_area_of_all(const JsonObject& config, const PatchesSpec& patches,
                        ImageProcessorSpec::Video& video) {
  video.to_last = video.area_of_all = true;
  ESP_ASSIGN_OR_RETURN(const bool each, config.boolean_or("cap_pixels_per_frame", false));
  if (!each) return Status();
  ESP_ASSIGN_OR_RETURN(const int64_t rows, config.integer_or("max_video_tokens", 768, 1, 1 << 20));
  const int64_t side = patches.patch_size * patches.merge;
  video.frame_pixels = rows * side * side;
  return Status();
}

// video_preprocessor_config.json where there is one: old files have one for both.
Status read_video(const std::filesystem::path& folder, const JsonObject& of_pictures,
                  const PatchesSpec& patches, ImageProcessorSpec& spec) {
  const std::filesystem::path own = folder / "video_preprocessor_config.json";
  JsonObject config = of_pictures;
  if (std::filesystem::exists(own)) {
    ESP_ASSIGN_OR_RETURN(config, JsonObject::read(own));
  }
  const int64_t kPixels = patches.grids_apart ? 32 * 32 : 28 * 28;  // of a row, as released
  ImageProcessorSpec::Video video{
      .area = ImageProcessorSpec::Area{.pixels_min = 128 * kPixels, .pixels_max = 768 * kPixels},
      .multiple = patches.frames};
  ESP_RETURN_IF_ERROR(read_bounds(config, patches, *video.area));
  ESP_ASSIGN_OR_RETURN(video.frames_per_second, config.number_or("fps", video.frames_per_second));
  if (patches.grids_apart) ESP_RETURN_IF_ERROR(read_area_of_all(config, patches, video));
  const auto read = [&](const char* field, int32_t& to) -> Status {
    constexpr int64_t kFramesMost = 1 << 16;
    ESP_ASSIGN_OR_RETURN(const int64_t count, config.integer_or(field, to, 0, kFramesMost));
    to = static_cast<int32_t>(count);
    return Status();
  };
  ESP_RETURN_IF_ERROR(read("num_frames", video.num_frames));
  ESP_RETURN_IF_ERROR(read("min_frames", video.frames_min));
  ESP_RETURN_IF_ERROR(read("max_frames", video.frames_max));
  if (!(video.frames_per_second > 0) || video.frames_max < video.multiple) {
    return config.field_error("fps", "or max_frames leaves no frame to read");
  }
  spec.video = video;
  return Status();
}

Result<ImageProcessorSpec> read_image_processor(const std::filesystem::path& folder,
                                                const PatchesSpec& patches,
                                                const std::optional<TilesSpec>& tiles) {
  ESP_ASSIGN_OR_RETURN(const JsonObject config, read_config(folder));
  ImageProcessorSpec spec;
  ESP_ASSIGN_OR_RETURN(const bool resize, config.boolean_or("do_resize", true));
  const bool any_size = patches.num_patches == 0;
  if (any_size && !resize) {
    return fail(config.field_error("do_resize", "is false, but sides must be whole patches"));
  }
  if (resize) ESP_RETURN_IF_ERROR(read_filter(config, spec));
  if (any_size) {
    ESP_RETURN_IF_ERROR(patches.lines ? read_within(config, patches, spec)
                                      : read_area(config, patches, spec));
    if (patches.videos) ESP_RETURN_IF_ERROR(read_video(folder, config, patches, spec));
  } else if (resize) {
    ESP_RETURN_IF_ERROR(read_resize(config, spec));
  }
  ESP_ASSIGN_OR_RETURN(const bool crop,
                       config.boolean_or("do_center_crop", config.has("crop_size")));
  if (crop && any_size) {
    return fail(config.field_error("do_center_crop", "is not supported: set it to false"));
  }
  if (crop) {
    ESP_ASSIGN_OR_RETURN(spec.crop, read_sides(config, "crop_size"));
  }
  ESP_ASSIGN_OR_RETURN(const bool pad, config.boolean_or("do_pad", false));
  // Of pictures of any size it pads what is encoded together, which nothing sees.
  if (pad && !tiles && !patches.lines)
    return fail(config.field_error("do_pad", "is not supported: set it to false"));
  ESP_ASSIGN_OR_RETURN(const bool rescale, config.boolean_or("do_rescale", true));
  ESP_ASSIGN_OR_RETURN(const double factor, config.number_or("rescale_factor", 1.0 / 255));
  spec.rescale = rescale ? static_cast<float>(factor) : 1.0f;
  ESP_ASSIGN_OR_RETURN(const bool normalize, config.boolean_or("do_normalize", true));
  if (normalize) ESP_RETURN_IF_ERROR(read_normalize(config, spec));
  ESP_ASSIGN_OR_RETURN(const bool scan, config.boolean_or("do_pan_and_scan", false));
  if (scan) return fail(config.field_error("do_pan_and_scan", "is not supported: set it to false"));
  if (tiles && tiles->joint) {
    const auto grid = static_cast<int32_t>(std::lround(std::sqrt(patches.num_patches)));
    ESP_RETURN_IF_ERROR(read_canvas(config, *tiles, grid * patches.patch_size, spec));
  } else if (tiles && tiles->in_sequence) {
    const auto grid = static_cast<int32_t>(std::lround(std::sqrt(patches.num_patches)));
    ESP_RETURN_IF_ERROR(read_tile_counts(config, *tiles, grid * patches.patch_size, spec));
  } else if (tiles) {
    ESP_RETURN_IF_ERROR(read_tiles(config, *tiles, spec));
  }
  if (!any_size) ESP_RETURN_IF_ERROR(check_patches(config, patches, spec));
  return spec;
}

Result<ImageProcessorSpec> read_frame_processor(const std::filesystem::path& folder,
                                                const PatchesSpec& patches,
                                                const ImageProcessorSpec& pictures) {
  ImageProcessorSpec spec = pictures;
  const auto grid = static_cast<int32_t>(std::lround(std::sqrt(patches.num_patches)));
  const int32_t side = spec.size ? spec.size->width : grid * patches.patch_size;
  spec.size.reset();
  spec.resolutions.clear();
  spec.shortest_edge = side;
  spec.crop = Size{side, side};
  constexpr int32_t kFrames = 32;  // as the model was trained
  spec.video = ImageProcessorSpec::Video{
      .area = {}, .num_frames = kFrames, .frames_min = 1, .multiple = patches.frames};
  const std::filesystem::path own = folder / "video_preprocessor_config.json";
  if (!std::filesystem::exists(own)) return spec;
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(own));
  ESP_ASSIGN_OR_RETURN(const int64_t frames, config.integer_or("num_frames", kFrames, 1, 4096));
  spec.video->num_frames = static_cast<int32_t>(frames);
  ImageProcessorSpec stated;
  if (config.has("size")) ESP_RETURN_IF_ERROR(read_resize(config, stated));
  if (config.has("crop_size")) {
    ESP_ASSIGN_OR_RETURN(stated.crop, read_sides(config, "crop_size"));
  }
  const bool one_size = (stated.shortest_edge == 0 || stated.shortest_edge == side) &&
                        (!stated.crop || *stated.crop == *spec.crop) &&
                        (!stated.size || *stated.size == *spec.crop);
  if (one_size) return spec;
  return fail(config.field_error(
      "size",
      fmt::format("and crop_size are not {} x {}, the size of a picture's tile", side, side)));
}

Status check_sound_processor(const std::filesystem::path& folder, const SoundSpec& sound) {
  const std::filesystem::path own = folder / "preprocessor_config.json";
  if (!std::filesystem::exists(own)) return Status();
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(own));
  constexpr int64_t kRate = 16'000, kWindow = 400, kHop = 160;
  const std::pair<const char*, int64_t> fields[] = {{"feature_size", sound.num_mels},
                                                    {"sampling_rate", kRate},
                                                    {"n_fft", kWindow},
                                                    {"hop_length", kHop},
                                                    {"nb_max_frames", sound.frames_max}};
  for (const auto& [field, wanted] : fields) {
    ESP_ASSIGN_OR_RETURN(const int64_t stated, config.integer_or(field, wanted));
    if (stated != wanted)
      return config.field_error(field, fmt::format("is {}, but must be {}", stated, wanted));
  }
  return Status();
}

}  // namespace espalier
