// The arrays of batches of pictures, against what each picture's order of patches says.
#include "models/cuda/encoder_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "media/drawn.h"
#include "models/families/family.h"
#include "models/mixed_rows.h"
#include "models/tile_rows.h"

namespace espalier {
namespace {

std::optional<DecoderSpec> spec_of(const std::string& name) {
  const auto config = read_model_config("tests/golden/images/" + name);
  return config ? make_encoder_spec(*config).value() : std::nullopt;
}

// Pictures whose patches are their numbers, and memory for a batch of them.
class Batch {
 public:
  Batch(const DecoderSpec& spec, std::vector<PreparedImage> images)
      : spec_(spec), images_(std::move(images)) {
    int32_t units = 0;
    float number = 0;
    for (PreparedImage& image : images_) {
      image.patches.resize(static_cast<size_t>(image.num_tiles) *
                           static_cast<size_t>(image.grid.size() * spec.patches->features()));
      for (float& value : image.patches) value = ++number;
      units += units_of(spec, image);
      tasks_.push_back({.image = &image});
    }
    most = EncoderSizes::most(spec, units, static_cast<int32_t>(images_.size()));
    cuda::Arena measured;
    host.lay_out(measured, spec, most);
    memory_.resize(static_cast<size_t>(measured.used_bytes()));
    cuda::Arena arena(memory_.data());
    host.lay_out(arena, spec, most);
    batch = write_batch(spec, tasks_, host);
  }
  float patch(size_t at) const { return host.patches[at]; }

  EncoderSizes most;
  EncoderArrays host;
  EncoderBatch batch;

 private:
  const DecoderSpec& spec_;
  std::vector<PreparedImage> images_;
  std::vector<EncoderTask> tasks_;
  std::vector<std::byte> memory_;
};

PreparedImage any_size(const PatchGrid& grid, int32_t merge) {
  return {.grid = grid,
          .tiles = {},
          .num_rows = grid.size() / (merge * merge),
          .grid_columns = grid.columns / merge};
}

class AnySizeBatch : public testing::TestWithParam<const char*> {};

TEST_P(AnySizeBatch, PicturesFollowEachOther) {
  const std::optional<DecoderSpec> spec = spec_of(GetParam());
  ASSERT_TRUE(spec);
  const PatchesSpec& patches = *spec->patches;
  const PatchGrid grids[] = {{10, 6}, {2, 2}, {4, 12}};
  std::vector<PreparedImage> images;
  for (const PatchGrid& grid : grids) images.push_back(any_size(grid, patches.merge));
  const Batch made(*spec, std::move(images));
  const EncoderSizes& sizes = made.batch.sizes;
  EXPECT_EQ(sizes.rows, 60 + 4 + 48);
  EXPECT_EQ(sizes.outputs, sizes.rows / 4);
  EXPECT_EQ(sizes.results, sizes.outputs);
  EXPECT_EQ(made.batch.result_begins, (std::vector<int32_t>{0, 15, 16, 28}));
  EXPECT_EQ(made.batch.rows_longest, 60);
  EXPECT_FALSE(made.batch.equal_rows);
  int32_t row = 0, window = 0, output = 0;
  for (size_t i = 0; i < std::size(grids); ++i) {
    const PatchOrder order = order_patches(grids[i], patches);
    EXPECT_EQ(made.host.begins[i], row);
    for (const int32_t end : order.window_ends) {
      EXPECT_EQ(made.host.windows[++window], row + end);
      EXPECT_LE(row + end - made.host.windows[window - 1], made.batch.window_rows_longest);
    }
    for (const int32_t square : order.squares)
      EXPECT_EQ(made.host.wanted[output++], row + 4 * square);  // its first row
    for (size_t at = 0; at < order.places.size(); ++at) {
      const int32_t* const place = made.host.places + 3 * (static_cast<size_t>(row) + at);
      EXPECT_EQ(place[0], 0);
      EXPECT_EQ(place[1], order.places[at].row);
      EXPECT_EQ(place[2], order.places[at].column);
    }
    const auto between = grid_positions(order, grids[i], patches.position_side);
    ASSERT_EQ(between.empty(), made.host.between == nullptr);
    for (size_t at = 0; at < between.size(); ++at) {
      const kernels::MixedRow& written = made.host.between[static_cast<size_t>(row) + at];
      EXPECT_TRUE(std::ranges::equal(written.corners, between[at].corners));
      EXPECT_EQ(written.across, between[at].across);
      EXPECT_EQ(written.down, between[at].down);
    }
    row += grids[i].size();
  }
  EXPECT_EQ(made.host.begins[3], row);
  EXPECT_EQ(sizes.windows, window);
  EXPECT_LE(window, made.most.windows);
  const auto features = static_cast<size_t>(patches.features());
  for (const size_t at : {size_t{0}, 60 * features, 112 * features - 1})
    EXPECT_EQ(made.patch(at), static_cast<float>(at + 1));
}

INSTANTIATE_TEST_SUITE_P(All, AnySizeBatch, testing::Values("qwen2_5_vl", "qwen3_vl"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(EncoderBatch, TilesBecomeOneGridEach) {
  const std::optional<DecoderSpec> spec = spec_of("llava_next");
  ASSERT_TRUE(spec && spec->patches->class_token);
  const int32_t side = 4, each = side * side;
  ASSERT_EQ(spec->patches->num_patches, each);
  PreparedImage tiled{
      .num_tiles = 3, .grid = {side, side}, .tiles = make_tile_grid({56, 28}, 1, 2, side, 0)};
  PreparedImage whole{.grid = {side, side}, .tiles = {}};
  tiled.num_rows = num_rows_of(tiled.tiles, side);
  whole.num_rows = num_rows_of(whole.tiles, side);
  const int32_t tiled_rows = tiled.num_rows, whole_rows = whole.num_rows;
  const Batch made(*spec, {whole, tiled});
  const EncoderSizes& sizes = made.batch.sizes;
  EXPECT_EQ(sizes.sequences, 4);
  EXPECT_EQ(sizes.rows, 4 * (each + 1));
  EXPECT_EQ(sizes.outputs, 4 * each);
  EXPECT_EQ(made.batch.result_begins,
            (std::vector<int32_t>{0, whole_rows, whole_rows + tiled_rows}));
  EXPECT_LE(sizes.results, made.most.results);
  // Class rows are left out.
  for (int32_t i = 0; i < sizes.outputs; ++i)
    EXPECT_EQ(made.host.wanted[i], i / each * (each + 1) + 1 + i % each);
  EXPECT_EQ(made.host.positions[each + 1], 0);
  // The whole picture and what ends its line, then the other's, whose rows lie behind.
  EXPECT_EQ(made.host.mixed[each - 1].corners[0], each - 1);
  EXPECT_EQ(made.host.mixed[each].corners[0], -1);
  EXPECT_EQ(made.host.mixed[whole_rows].corners[0], each);
  EXPECT_EQ(made.host.mixed[whole_rows + each].corners[0], 2 * each);
  EXPECT_EQ(made.host.mixed[whole_rows + each + side].corners[0], 3 * each);
  EXPECT_EQ(made.host.mixed[sizes.results - 1].corners[0], -1);
}

// Squares of patches lie together behind a tile's class row, and keep their learned positions.
TEST(EncoderBatch, TilesInSequenceAreMerged) {
  const std::optional<DecoderSpec> spec = spec_of("internvl");
  ASSERT_TRUE(spec && spec->patches->class_token && spec->patches->merge == 2);
  const PreparedImage tiled{
      .num_tiles = 3, .grid = {4, 4}, .tiles = {.tile_rows = 1, .tile_columns = 2}, .num_rows = 12};
  const Batch made(*spec, {tiled});
  EXPECT_EQ(made.batch.sizes.rows, 3 * 17);
  EXPECT_EQ(made.batch.sizes.outputs, 12);
  EXPECT_EQ(made.batch.result_begins, (std::vector<int32_t>{0, 12}));
  for (int32_t i = 0; i < 12; ++i) EXPECT_EQ(made.host.wanted[i], i / 4 * 17 + 1 + i % 4 * 4);
  const std::vector<int32_t> first = {0, 1, 2, 5, 6, 3, 4, 7, 8, 9, 10, 13, 14, 11, 12, 15, 16};
  for (int32_t row = 0; row < 3 * 17; ++row)
    EXPECT_EQ(made.host.positions[row], first[static_cast<size_t>(row % 17)]) << row;
  ImageProcessorSpec processor;
  processor.size = {32, 32};
  processor.tile_counts = {.min = 1, .max = 6};
  EXPECT_EQ(units_max(*spec, processor, 0), 7);
}

// The largest picture decides, or the bound that is stated.
TEST(EncoderBatch, UnitsOfTheLargestPicture) {
  const std::optional<DecoderSpec> qwen = spec_of("qwen2_vl"), next = spec_of("llava_next"),
                                   clip = spec_of("llava_clip");
  ASSERT_TRUE(qwen && next && clip);
  ImageProcessorSpec area;
  area.area = {.pixels_min = 0, .pixels_max = 64 * 101, .multiple = 16};
  EXPECT_EQ(units_max(*qwen, area, 0), 100);
  EXPECT_EQ(units_max(*qwen, area, 50), 48);
  EXPECT_EQ(units_max(*qwen, {}, 0), 1 << 18);
  ImageProcessorSpec tiles;
  tiles.size = {28, 28};
  tiles.resolutions = {{56, 28}, {112, 112}, {28, 84}};
  EXPECT_EQ(units_max(*next, tiles, 0), 17);
  EXPECT_EQ(units_max(*next, tiles, 40), 2);
  EXPECT_EQ(units_max(*clip, tiles, 0), 1);
}

}  // namespace
}  // namespace espalier
