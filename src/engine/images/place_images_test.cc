#include "engine/images/place_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr ImagesInfo kInfo{.placeholder = 9, .num_rows = 3, .width = 2};

EncodedImage image(TokenId key) {
  auto rows = std::make_shared<EncodedRows>();
  rows->num_rows = kInfo.num_rows;
  rows->width = kInfo.width;
  rows->values.resize(6);
  return {.key = key, .rows = std::move(rows)};
}

TEST(PlaceImages, PlaceholdersBecomeKeys) {
  const std::vector<EncodedImage> images = {image(100), image(200)};
  for (std::vector<TokenId> prompt : {std::vector<TokenId>{1, 9, 2, 9}, {1, 9, 9, 9, 2, 9, 9, 9}}) {
    const auto placed = place_images(kInfo, images, prompt);
    ASSERT_TRUE(placed) << placed.error().message();
    EXPECT_THAT(prompt, ElementsAre(1, 100, 100, 100, 2, 200, 200, 200));
    ASSERT_EQ((*placed)->spans.size(), 2u);
    EXPECT_EQ((*placed)->spans[0].begin, 1);
    EXPECT_EQ((*placed)->spans[0].end(), 4);
    EXPECT_EQ((*placed)->spans[1].begin, 5);
    EXPECT_EQ((*placed)->spans[1].rows, images[1].rows);
    EXPECT_EQ((*placed)->placeholder, 9);
  }
}

TEST(PlaceImages, PicturesMayTouch) {
  const std::vector<EncodedImage> images = {image(100), image(100), image(200)};
  for (std::vector<TokenId> prompt : {std::vector<TokenId>{9, 9, 9}, std::vector<TokenId>(9, 9)}) {
    ASSERT_TRUE(place_images(kInfo, images, prompt));
    EXPECT_THAT(prompt, ElementsAre(100, 100, 100, 100, 100, 100, 200, 200, 200));
  }
}

TEST(PlaceImages, OtherNumbersAreRefused) {
  const std::vector<EncodedImage> images = {image(100)};
  for (std::vector<TokenId> prompt :
       {std::vector<TokenId>{1, 2}, {9, 9}, {9, 1, 9, 9}, {9, 9, 9, 9}}) {
    const auto placed = place_images(kInfo, images, prompt);
    ASSERT_FALSE(placed);
    EXPECT_EQ(placed.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(placed.error().message(), HasSubstr("and the request 1 pictures"));
  }
  EXPECT_FALSE(expand_placeholders({1, 9}, kInfo, 0));
  EXPECT_TRUE(expand_placeholders({1, 2}, kInfo, 0));
}

// Pictures of several sizes, whose rows may have grids.
TEST(PlaceImages, SizesOfTheirOwn) {
  constexpr ImagesInfo kAnySize{.placeholder = 9, .num_rows = 0, .width = 2};
  const auto of = [](TokenId key, int32_t num_rows, int32_t columns) {
    auto rows = std::make_shared<EncodedRows>();
    rows->num_rows = num_rows;
    rows->width = 2;
    rows->grid_columns = columns;
    return EncodedImage{.key = key, .rows = std::move(rows)};
  };
  const std::vector<EncodedImage> images = {of(100, 6, 3), of(200, 2, 1)};
  for (std::vector<TokenId> prompt :
       {std::vector<TokenId>{1, 9, 9, 3}, {1, 9, 9, 9, 9, 9, 9, 9, 9, 3}}) {
    const auto placed = place_images(kAnySize, images, prompt);
    ASSERT_TRUE(placed) << placed.error().message();
    EXPECT_THAT(prompt, ElementsAre(1, 100, 100, 100, 100, 100, 100, 200, 200, 3));
    const auto& spans = (*placed)->spans;
    EXPECT_TRUE((*placed)->have_grids);
    EXPECT_EQ(spans[0].rotary, 1);
    EXPECT_EQ(spans[1].rotary, 4);              // behind three columns
    EXPECT_EQ(spans[1].rotary_shift(), 6 - 9);  // behind two rows
  }
  for (std::vector<TokenId> prompt : {std::vector<TokenId>{1, 9, 9, 9, 3}, {9, 9, 9, 9, 9, 9, 9}}) {
    const auto placed = place_images(kAnySize, images, prompt);
    ASSERT_FALSE(placed);
    EXPECT_THAT(placed.error().message(), HasSubstr("or all 8 as"));
  }
  const auto refused = expand_placeholders({9}, kAnySize, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnimplemented);
  EXPECT_TRUE(expand_placeholders({1, 2}, kAnySize, 0));
}

// Pictures whose rows stand line by line, a token behind each line and another behind the last.
// Of /generate pictures come first and then videos, wherever their placeholders stand.
TEST(PlaceImages, KindsComeInTheOrderOfTheirPlaceholders) {
  const auto of = [](TokenId key, int32_t num_rows, bool video) {
    auto rows = std::make_shared<EncodedRows>();
    rows->num_rows = num_rows;
    rows->width = 1;
    rows->grid_columns = 1;
    rows->frame_rows = video ? num_rows : 0;
    rows->frame_positions = video ? 1 : 0;
    rows->values.resize(static_cast<size_t>(num_rows));
    return EncodedImage{.key = key, .rows = std::move(rows)};
  };
  const ImagesInfo info{.placeholder = 7, .video_placeholder = 8};
  const std::vector<EncodedImage> images = {of(100, 2, false), of(101, 1, false), of(200, 3, true)};
  for (std::vector<TokenId> prompt :
       {std::vector<TokenId>{1, 7, 8, 2, 7}, std::vector<TokenId>{1, 7, 7, 8, 8, 8, 2, 7}}) {
    const auto placed = place_images(info, images, prompt);
    ASSERT_TRUE(placed) << placed.error().message();
    EXPECT_EQ(prompt, (std::vector<TokenId>{1, 100, 100, 200, 200, 200, 2, 101}));
  }
  std::vector<TokenId> prompt = {1, 8, 8, 7};
  EXPECT_FALSE(place_images(info, images, prompt));
}

// A video whose grids stand behind their times, in all forms that a prompt may have.
TEST(PlaceImages, GridsStandBehindTheirTimes) {
  constexpr ImagesInfo kApart{
      .placeholder = 7, .video_placeholder = 8, .grid_begin = 5, .grid_end = 6};
  auto rows = std::make_shared<EncodedRows>();
  rows->num_rows = 6;
  rows->frame_rows = 3;
  rows->grid_columns = 1;
  const AppendTime append = [](double seconds, std::vector<TokenId>& prompt) {
    prompt.push_back(static_cast<TokenId>(40 + seconds * 4));
  };
  const std::vector<EncodedImage> images = {
      {.key = 100, .rows = rows, .grid_seconds = {0.25, 1.75}}};
  const std::vector<TokenId> wanted = {1, 41, 5, 100, 100, 100, 6, 47, 5, 100, 100, 100, 6, 2};
  for (std::vector<TokenId> prompt :
       {std::vector<TokenId>{1, 5, 8, 6, 2}, std::vector<TokenId>{1, 8, 2},
        std::vector<TokenId>{1, 41, 5, 8, 8, 8, 6, 47, 5, 8, 8, 8, 6, 2}}) {
    const auto placed = place_images(kApart, images, prompt, append);
    ASSERT_TRUE(placed) << placed.error().message();
    EXPECT_EQ(prompt, wanted);
    const std::vector<PromptSpan>& spans = (*placed)->spans;
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].begin, 3);
    EXPECT_EQ(spans[1].begin, 9);
    EXPECT_EQ(spans[1].first_row, 3);
    EXPECT_EQ(spans[0].rotary, 3);
    EXPECT_EQ(spans[0].rotary_shift(), 0);  // three lines of a column are three positions
    EXPECT_EQ(spans[1].rotary, 9);
    EXPECT_EQ(spans[1].time(), 0);
  }
  rows->grid_columns = 3;  // one line of three, which takes three positions, too
  std::vector<TokenId> prompt = {1, 5, 8, 6, 2};
  EXPECT_EQ((*place_images(kApart, images, prompt, append))->spans[1].rotary, 9);
  for (std::vector<TokenId> wrong :
       {std::vector<TokenId>{1, 41, 5, 8, 8, 6, 47, 5, 8, 8, 8, 6}, std::vector<TokenId>{8, 8}}) {
    const auto placed = place_images(kApart, images, wrong, append);
    ASSERT_FALSE(placed);
    EXPECT_EQ(placed.error().code(), StatusCode::kInvalidArgument);
  }
  prompt = {1, 8, 2};
  EXPECT_EQ(place_images(kApart, images, prompt).error().code(), StatusCode::kUnimplemented);
}

TEST(PlaceImages, LinesStandApart) {
  constexpr ImagesInfo kLines{.placeholder = 9, .width = 2, .line_end = 12, .picture_end = 13};
  const auto of = [](TokenId key, int32_t num_rows, int32_t line_rows) {
    auto rows = std::make_shared<EncodedRows>();
    rows->num_rows = num_rows;
    rows->width = 2;
    rows->line_rows = line_rows;
    return EncodedImage{.key = key, .rows = std::move(rows)};
  };
  const std::vector<EncodedImage> images = {of(100, 6, 3), of(200, 1, 1)};
  for (std::vector<TokenId> prompt :
       {std::vector<TokenId>{1, 9, 9, 3}, {1, 9, 9, 9, 12, 9, 9, 9, 13, 9, 13, 3}}) {
    const auto placed = place_images(kLines, images, prompt);
    ASSERT_TRUE(placed) << placed.error().message();
    EXPECT_THAT(prompt, ElementsAre(1, 100, 100, 100, 12, 100, 100, 100, 13, 200, 13, 3));
    const auto& spans = (*placed)->spans;
    ASSERT_EQ(spans.size(), 3u);
    EXPECT_EQ(spans[1].begin, 5);
    EXPECT_EQ(spans[1].end(), 8);
    EXPECT_EQ(spans[1].first_row, 3);
    EXPECT_EQ(spans[2].first_row, 0);
    EXPECT_FALSE((*placed)->have_grids || (*placed)->whole);
  }
  for (std::vector<TokenId> prompt :
       {std::vector<TokenId>{9, 9, 9, 9, 9, 9, 9}, {9, 9, 9, 12, 9, 9, 9, 12, 9, 13}}) {
    EXPECT_FALSE(place_images(kLines, images, prompt));
  }
}

TEST(PlaceImages, TextsAreMarkedAsProcessorsMarkThem) {
  constexpr ImagesInfo kMarked{
      .placeholder = 9, .num_rows = 3, .mark = "<begin>", .marked = "\n\n<begin><row><end>\n\n"};
  EXPECT_EQ(mark_pictures("a\n<begin>b<begin>", kMarked, 2),
            "a\n\n\n<begin><row><end>\n\nb\n\n<begin><row><end>\n\n");
  EXPECT_EQ(mark_pictures("a", kMarked, 0), "a");
  EXPECT_EQ(mark_pictures("<begin>", kInfo, 1), "<begin>");
  for (const size_t pictures : {0, 2}) {
    const auto marked = mark_pictures("a<begin>", kMarked, pictures);
    ASSERT_FALSE(marked);
    EXPECT_EQ(marked.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(marked.error().message(),
                testing::HasSubstr("1 placeholders of pictures (<begin>"));
  }
}

// Against the definition, position by position.
TEST(PlaceImages, RandomPrompts) {
  Rng rng(25);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> prompt, wanted;
    std::vector<EncodedImage> images;
    for (auto left = rng.below(12); left > 0; --left) {
      if (rng.below(3) == 0) {
        images.push_back(image(static_cast<TokenId>(1000 + rng.below(4))));
        prompt.push_back(kInfo.placeholder);
        wanted.insert(wanted.end(), 3, images.back().key);
      } else {
        prompt.push_back(static_cast<TokenId>(rng.below(9)));
        wanted.push_back(prompt.back());
      }
    }
    std::vector<TokenId> expanded =
        *expand_placeholders(prompt, kInfo, static_cast<int32_t>(images.size()));
    EXPECT_EQ(expanded.size(), wanted.size());
    const auto placed = *place_images(kInfo, images, prompt);
    EXPECT_EQ(prompt, wanted);
    ASSERT_TRUE(place_images(kInfo, images, expanded));
    EXPECT_EQ(expanded, wanted);
    EXPECT_EQ(placed->spans.size(), images.size());
    for (size_t i = 0; i < images.size(); ++i)
      EXPECT_EQ(wanted.at(static_cast<size_t>(placed->spans[i].begin)), images[i].key);
  }
}

}  // namespace
}  // namespace espalier
