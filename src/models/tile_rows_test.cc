// The orders in which patches are read and rows of tiles are arranged, and positions of patches.
#include "models/tile_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "models/mixed_rows.h"
#include "models/patch_order.h"

namespace espalier {
namespace {

using testing::ElementsAre;

TEST(PatchOrder, SquaresAndWindowsLieTogether) {
  const PatchOrder order = order_patches({4, 6}, {.merge = 2, .window = 2});
  ASSERT_EQ(order.places.size(), 24u);
  const auto place = [&](size_t i) {
    return std::pair(order.places[i].row, order.places[i].column);
  };
  EXPECT_EQ(place(0), std::pair(0, 0));
  EXPECT_EQ(place(1), std::pair(0, 1));
  EXPECT_EQ(place(2), std::pair(1, 0));
  EXPECT_EQ(place(4), std::pair(0, 2));
  EXPECT_EQ(place(8), std::pair(2, 0));
  EXPECT_EQ(place(16), std::pair(0, 4));
  EXPECT_THAT(order.window_ends, ElementsAre(16, 24));
  EXPECT_THAT(order.squares, ElementsAre(0, 1, 4, 2, 3, 5));
}

// Every patch is read once, and the rows' order is undone.
TEST(PatchOrder, IsAPermutation) {
  Rng rng(25);
  for (int round = 0; round < 200; ++round) {
    const auto merge = static_cast<int32_t>(1 + rng.below(3));
    const auto window = static_cast<int32_t>(rng.below(4));
    const PatchGrid grid{static_cast<int32_t>(1 + rng.below(9)) * merge,
                         static_cast<int32_t>(1 + rng.below(9)) * merge};
    const PatchOrder order = order_patches(grid, {.merge = merge, .window = window});
    std::vector<int32_t> seen;
    for (const auto& place : order.places) seen.push_back(place.row * grid.columns + place.column);
    std::ranges::sort(seen);
    std::vector<int32_t> all(static_cast<size_t>(grid.size()));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all) << round;
    EXPECT_EQ(order.window_ends.back(), grid.size());
    for (size_t i = 0; i < order.squares.size(); ++i) {
      const auto& first = order.places[static_cast<size_t>(order.squares[i] * merge * merge)];
      const int32_t columns = grid.columns / merge;
      EXPECT_EQ(first.row / merge * columns + first.column / merge, static_cast<int32_t>(i));
    }
  }
}

// What bilinear interpolation makes of a function of row and column that is linear along either is
// that function: its corners are the grid's corners, whatever the picture's sides.
TEST(GridPositions, InterpolateBetweenTheLearnedOnes) {
  constexpr int32_t kSide = 5;
  const auto learned = [](double row, double column) {
    return 3 + 7 * row - 2 * column + row * column;
  };
  for (const PatchGrid grid : {PatchGrid{4, 6}, {2, 2}, {10, 2}, {2, 40}}) {
    const PatchOrder order = order_patches(grid, {.merge = 2});
    const auto rows = grid_positions(order, grid, kSide);
    ASSERT_EQ(rows.size(), order.places.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      double corners[4];
      for (size_t k = 0; k < 4; ++k) {
        ASSERT_GE(rows[i].corners[k], 0);
        ASSERT_LT(rows[i].corners[k], kSide * kSide);
        corners[k] = learned(rows[i].corners[k] / kSide, rows[i].corners[k] % kSide);
      }
      const double upper = corners[0] + rows[i].across * (corners[1] - corners[0]);
      const double lower = corners[2] + rows[i].across * (corners[3] - corners[2]);
      const double row = order.places[i].row * (kSide - 1.0) / (grid.rows - 1);
      const double column = order.places[i].column * (kSide - 1.0) / (grid.columns - 1);
      EXPECT_NEAR(upper + rows[i].down * (lower - upper), learned(row, column), 1e-4);
    }
  }
  EXPECT_TRUE(grid_positions(order_patches({2, 2}, {.merge = 1}), {2, 2}, 0).empty());
  const auto one = grid_positions(order_patches({1, 1}, {.merge = 1}), {1, 1}, kSide);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].corners[0], 0);
  EXPECT_EQ(one[0].across + one[0].down, 0);
}

TEST(PatchOrder, PatchesLieAsTheWeightsOfAConvolution) {
  PixelValues pixels{.width = 5, .height = 4, .values = {}};  // the fifth column is left over
  for (int i = 0; i < 60; ++i) pixels.values.push_back(static_cast<float>(i));
  PatchesSpec spec{.patch_size = 2};
  const std::vector<float> patches = cut_patches(pixels, {2, 2}, spec);
  ASSERT_EQ(patches.size(), 48u);
  const std::vector<float> second(patches.begin() + 12, patches.begin() + 24);
  EXPECT_THAT(second, ElementsAre(2, 3, 7, 8, 22, 23, 27, 28, 42, 43, 47, 48));
  spec.frames = 2;
  const std::vector<float> twice = cut_patches(pixels, {2, 2}, spec);
  ASSERT_EQ(twice.size(), 96u);
  EXPECT_THAT(std::vector<float>(twice.begin() + 24, twice.begin() + 36),
              ElementsAre(2, 3, 7, 8, 2, 3, 7, 8, 22, 23, 27, 28));
}

TEST(TileRows, MarginsAreCutAndLinesEnd) {
  // A wide picture in 2 x 2 tiles of 2 x 2 rows: a margin of one row above and below.
  const TileGrid grid = make_tile_grid({40, 20}, 2, 2, 2, 0);
  EXPECT_EQ(grid.first_row, 1);
  EXPECT_EQ(grid.num_rows, 2);
  EXPECT_EQ(grid.num_columns, 4);
  EXPECT_EQ(num_rows_of(grid, 2), 4 + 2 * 5);
  std::vector<float> tiles(20);
  std::iota(tiles.begin(), tiles.end(), 0.0f);
  std::vector<float> rows(14);
  arrange_tile_rows(grid, tiles, std::vector<float>{-1}, rows);
  EXPECT_THAT(rows, ElementsAre(0, 1, 2, 3, 6, 7, 10, 11, -1, 12, 13, 16, 17, -1));
  std::vector<float> whole(5);
  arrange_tile_rows({}, std::span(tiles).first(4), std::vector<float>{-1}, whole);
  EXPECT_THAT(whole, ElementsAre(0, 1, 2, 3, -1));
}

// What is as narrow as the rounding of margins leaves the ends of its lines, as in transformers.
TEST(TileRows, NarrowPicturesAreArranged) {
  for (const auto& [width, height] :
       {std::pair(1, 10000), std::pair(10000, 1), std::pair(3, 400)}) {
    for (const int32_t most : {0, 1, 9}) {
      const TileGrid grid = make_tile_grid({width, height}, 3, 2, 4, most);
      EXPECT_GE(std::min(grid.lines, grid.line_length), 0);
      EXPECT_GT(std::max(grid.lines, grid.line_length), 0);
      std::vector<float> tiles(static_cast<size_t>(7 * 16)), line_end(1);
      std::vector<float> rows(static_cast<size_t>(num_rows_of(grid, 4)));
      arrange_tile_rows(grid, tiles, line_end, rows);
    }
  }
}

}  // namespace
}  // namespace espalier
