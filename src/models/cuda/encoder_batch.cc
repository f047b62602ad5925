#include "models/cuda/encoder_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "models/mixed_rows.h"

namespace espalier {
namespace {

// Of a picture of any size; what a unit's memory is multiplied by must stay countable.
constexpr int32_t kPatchesMost = 1 << 18;

bool any_size(const DecoderSpec& spec) { return spec.patches->num_patches == 0; }

// Of the largest picture of any size that the processor makes.
int64_t patches_made(const ImageProcessorSpec& processor, int64_t patch) {
  if (processor.area) return processor.area->pixels_max / (patch * patch);
  if (!processor.within) return kPatchesMost;
  const auto side = [&](int64_t most) {
    const int64_t multiple = processor.within->multiple;
    return (most + multiple - 1) / multiple * multiple / patch;
  };
  return side(processor.within->most.width) * side(processor.within->most.height);
}

int32_t side_of(const PatchesSpec& patches) {
  return static_cast<int32_t>(std::lround(std::sqrt(static_cast<double>(patches.num_patches))));
}

// Writes pictures one behind the other.
class BatchWriter {
 public:
  BatchWriter(const DecoderSpec& spec, const EncoderArrays& host)
      : spec_(spec), patches_(*spec.patches), host_(host) {}

  EncoderBatch write(std::span<const EncoderTask> tasks) {
    if (any_size(spec_)) host_.begins[0] = host_.windows[0] = 0;
    for (const EncoderTask& task : tasks) {
      batch_.result_begins.push_back(batch_.sizes.results);
      add(*task.image);
    }
    batch_.result_begins.push_back(batch_.sizes.results);
    return std::move(batch_);
  }

 private:
  void add(const PreparedImage& image) {
    const int64_t patches = int64_t{image.num_tiles} * image.grid.size();
    ESP_CHECK(std::ssize(image.patches) == patches * patches_.features(),
              "{} numbers of patches instead of {} x {}", image.patches.size(), patches,
              patches_.features());
    std::ranges::copy(image.patches, host_.patches + num_patches_ * patches_.features());
    num_patches_ += patches;
    if (any_size(spec_)) {
      for (int32_t tile = 0; tile < image.num_tiles; ++tile) add_grid(image.grid);
    } else {
      add_tiles(image);
    }
    batch_.sizes.results += image.num_rows;
  }

  // Squares of patches in PatchOrder's order, which results leave again.
  void add_grid(const PatchGrid& grid) {
    EncoderSizes& sizes = batch_.sizes;
    const PatchOrder order = order_patches(grid, patches_);
    if (patches_.sound)
      std::iota(host_.positions + sizes.rows, host_.positions + sizes.rows + grid.size(), 0);
    for (size_t i = 0; i < order.places.size(); ++i) {
      int32_t* const place = host_.places + 3 * (static_cast<size_t>(sizes.rows) + i);
      place[0] = 0;
      place[1] = order.places[i].row;
      place[2] = order.places[i].column;
    }
    if (host_.between != nullptr) {
      std::ranges::copy(grid_positions(order, grid, patches_.position_side),
                        host_.between + sizes.rows);
    }
    int32_t begin = 0;
    for (const int32_t end : order.window_ends) {
      host_.windows[++sizes.windows] = sizes.rows + end;
      batch_.window_rows_longest = std::max(batch_.window_rows_longest, end - begin);
      begin = end;
    }
    for (const int32_t from : order.squares)
      host_.wanted[sizes.outputs++] = sizes.rows + from * patches_.square();
    sizes.rows += grid.size();
    host_.begins[++sizes.sequences] = sizes.rows;
    batch_.equal_rows &= sizes.sequences == 1 || grid.size() == batch_.rows_longest;
    batch_.rows_longest = std::max(batch_.rows_longest, grid.size());
  }

  // Learned positions of a tile's rows, and the rows that results are made of, in whole squares.
  void add_tile(const PatchOrder& order, int32_t columns) {
    EncoderSizes& sizes = batch_.sizes;
    const int32_t first = patches_.class_token ? 1 : 0;
    int32_t* const positions = host_.positions + sizes.rows;
    if (patches_.class_token) positions[0] = 0;
    for (size_t i = 0; i < order.places.size(); ++i) {
      const PatchOrder::Place& place = order.places[i];
      positions[static_cast<size_t>(first) + i] = first + place.row * columns + place.column;
    }
    for (const int32_t from : order.squares)
      host_.wanted[sizes.outputs++] = sizes.rows + first + from * patches_.square();
  }

  void add_tiles(const PreparedImage& image) {
    EncoderSizes& sizes = batch_.sizes;
    const int32_t each = patches_.num_rows();
    if (mixes_rows(spec_)) {
      const auto mixed = mixed_rows(image.tiles, side_of(patches_), sizes.outputs);
      std::ranges::copy(mixed, host_.mixed + sizes.results);
    }
    const PatchOrder order = order_patches(image.grid, patches_);
    for (int32_t tile = 0; tile < image.num_tiles; ++tile, sizes.rows += each)
      add_tile(order, image.grid.columns);
    sizes.sequences += image.num_tiles;
    batch_.rows_longest = each;
  }

  const DecoderSpec& spec_;
  const PatchesSpec& patches_;
  const EncoderArrays& host_;
  EncoderBatch batch_;
  int64_t num_patches_ = 0;
};

}  // namespace

bool mixes_rows(const DecoderSpec& spec) { return spec.tiles && !spec.tiles->in_sequence; }

EncoderSizes EncoderSizes::most(const DecoderSpec& spec, int32_t units, int32_t pictures) {
  const PatchesSpec& patches = *spec.patches;
  if (any_size(spec)) {
    const int32_t squares = units / patches.square();
    return {.rows = units,
            .outputs = squares,
            .results = squares,
            .sequences = patches.videos ? squares : pictures,
            .windows = squares};
  }
  const int32_t outputs = units * (patches.num_patches / patches.square());
  // A line of the tiles' grid has a row more, and a picture that is read whole alone has one.
  const int32_t line_ends = mixes_rows(spec) ? units * (side_of(patches) + 1) : 0;
  return {.rows = units * patches.num_rows(),
          .outputs = outputs,
          .results = outputs + line_ends,
          .sequences = units,
          .windows = 0};
}

int32_t units_of(const DecoderSpec& spec, const PreparedImage& image) {
  return any_size(spec) ? image.num_tiles * image.grid.size() : image.num_tiles;
}

int32_t units_max(const DecoderSpec& spec, const ImageProcessorSpec& processor,
                  int32_t patches_max) {
  const PatchesSpec& patches = *spec.patches;
  const int32_t most = patches_max > 0 ? patches_max : std::numeric_limits<int32_t>::max();
  if (any_size(spec)) {
    if (patches.sound) return std::min(patches.sound->rows_max(), most);
    const int64_t made = patches_made(processor, patches.patch_size);
    const int32_t square = patches.square();
    return static_cast<int32_t>(std::min<int64_t>({made, most, kPatchesMost}) / square * square);
  }
  if (patches.videos) return std::max(1, processor.video->num_frames);
  if (!spec.tiles) return 1;
  int32_t tiles = 1;
  if (processor.tile_counts && processor.tile_counts->max > 1)
    tiles = 1 + processor.tile_counts->max;
  const int32_t side = processor.size->width;
  for (const ImageProcessorSpec::Size& room : processor.resolutions)
    tiles = std::max(tiles, 1 + room.width / side * (room.height / side));
  return std::min(tiles, most / patches.num_patches);
}

void EncoderArrays::lay_out(cuda::Arena& arena, const DecoderSpec& spec,
                            const EncoderSizes& sizes) {
  const PatchesSpec& patch = *spec.patches;
  patches = arena.take<float>(int64_t{sizes.rows} * patch.features());
  wanted = arena.take<int32_t>(sizes.outputs);
  if (any_size(spec)) {
    places = arena.take<int32_t>(int64_t{3} * sizes.rows);
    if (patch.position_side > 0) between = arena.take<kernels::MixedRow>(sizes.rows);
    begins = arena.take<int32_t>(sizes.sequences + 1);
    windows = arena.take<int32_t>(sizes.windows + 1);
  }
  if (!any_size(spec) || patch.sound) {
    positions = arena.take<int32_t>(sizes.rows);
  }
  if (mixes_rows(spec)) mixed = arena.take<kernels::MixedRow>(sizes.results);
}

EncoderBatch write_batch(const DecoderSpec& spec, std::span<const EncoderTask> tasks,
                         const EncoderArrays& host) {
  return BatchWriter(spec, host).write(tasks);
}

}  // namespace espalier
