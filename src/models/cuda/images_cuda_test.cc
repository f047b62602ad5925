// Pictures on the GPU against transformers: the encoder's rows, alone and in batches, and prompts
// with pictures through the decoder, whole, in chunks that cut pictures, beside other entries; and
// with the wrong rows, which must be noticed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <tuple>

#include "checkpoint/temp_folder.h"
#include "media/drawn.h"
#include "models/cuda/encoder.h"
#include "models/cuda/test_model.h"
#include "models/seen_prompt.h"
#include "tensor/cuda/testing.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using golden::SeenPrompt;

const char* name_of(DType type) { return type == DType::kFloat32 ? "float32" : "bfloat16"; }
float tolerance(DType type) { return type == DType::kFloat32 ? 1e-4f : 1e-2f; }

std::vector<float> floats_of(const EncodedRows& rows, DType type) {
  const size_t count = static_cast<size_t>(rows.num_rows) * static_cast<size_t>(rows.width);
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = type == DType::kFloat32
                 ? reinterpret_cast<const float*>(rows.elements.get())[i]
                 : to_float(reinterpret_cast<const BFloat16*>(rows.elements.get())[i]);
  }
  return out;
}

class ImagesCuda : public testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  void SetUp() override { ESPALIER_REQUIRE_DEVICE(); }

  std::unique_ptr<CudaEncoder> load(const CudaEncoderOptions& own = {}) const {
    auto encoder = CudaEncoder::load({.path = folder_, .dtype = name_of(type_)}, own);
    EXPECT_TRUE(encoder) << encoder.error().to_string();
    return encoder ? std::move(*encoder) : nullptr;
  }
  // All pictures as one batch.
  std::vector<EncodedRows> encode(CudaEncoder& encoder, const std::vector<Image>& images) const {
    std::vector<PreparedImage> prepared;
    std::vector<EncodedRows> rows;
    for (const Image& image : images) {
      prepared.push_back(encoder.prepare(image).value());
      rows.push_back(encoder.allocate_rows(prepared.back().num_rows).value());
    }
    std::vector<EncoderTask> tasks;
    for (size_t i = 0; i < images.size(); ++i) tasks.push_back({&prepared[i], &rows[i]});
    const Status status = encoder.encode_batch(tasks);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return rows;
  }

  const std::filesystem::path folder_ =
      std::filesystem::path("tests/golden/images") / std::get<0>(GetParam());
  const DType type_ = std::get<1>(GetParam());
};

TEST_P(ImagesCuda, RowsEqualTransformers) {
  const auto encoder = load();
  ASSERT_NE(encoder, nullptr);
  const float alone = golden::encoder_error(*encoder, folder_);
  const std::vector<golden::Picture> pictures = golden::read_pictures(folder_);
  std::vector<Image> images;
  for (const golden::Picture& picture : pictures) images.push_back(picture.image);
  std::vector<std::vector<float>> made;
  for (const EncodedRows& rows : encode(*encoder, images)) made.push_back(floats_of(rows, type_));
  const float together = golden::rows_error(pictures, made);
  printf("errors of rows: alone %.3g, together %.3g\n", alone, together);
  EXPECT_LT(alone, tolerance(type_));
  EXPECT_LT(together, tolerance(type_));
}

// Full batches and others, several threads at once, memory that is used again.
TEST_P(ImagesCuda, ThreadsAndBatchesDoNotMeet) {
  const auto encoder = load({.batch_max = 3, .deterministic = true});
  ASSERT_NE(encoder, nullptr);
  EXPECT_EQ(encoder->batch_max(), 3);
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < 6; ++i)
    alone.push_back(floats_of(encode(*encoder, {test::drawn(20 + i, 31)})[0], type_));
  EXPECT_NE(alone[0], alone[1]);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        std::vector<Image> images;
        for (int i = 0; i <= (t + round) % 3; ++i)
          images.push_back(test::drawn(20 + (t + round + i) % 6, 31));
        const std::vector<EncodedRows> rows = encode(*encoder, images);
        for (size_t i = 0; i < rows.size(); ++i)
          ASSERT_EQ(floats_of(rows[i], type_),
                    alone[static_cast<size_t>(t + round) % 6 + i < 6
                              ? static_cast<size_t>(t + round) % 6 + i
                              : static_cast<size_t>(t + round) % 6 + i - 6]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// More pictures than there is room for at once, the largest ones among them.
TEST_P(ImagesCuda, PicturesThatDoNotFitTogetherAreEncodedInParts) {
  const auto whole = load({.deterministic = true});
  const auto cramped = load({.scratch_bytes_max = 1, .deterministic = true});
  ASSERT_TRUE(whole != nullptr && cramped != nullptr);
  EXPECT_LT(cramped->device_bytes(), whole->device_bytes());
  std::vector<Image> images;
  for (int i = 0; i < std::min(5, cramped->batch_max()); ++i)
    images.push_back(test::drawn(30 + 90 * i, 250 - 40 * i));
  const std::vector<EncodedRows> one = encode(*whole, images), other = encode(*cramped, images);
  for (size_t i = 0; i < images.size(); ++i)
    EXPECT_EQ(floats_of(one[i], type_), floats_of(other[i], type_)) << i;
}

class AnySizeCuda : public ImagesCuda {};  // models whose pictures have any size

TEST_P(AnySizeCuda, PicturesBeyondTheBoundAreRefused) {
  // Pixtral's processor makes 36 patches of it at most.
  const bool pixtral = std::string(std::get<0>(GetParam())) == "pixtral";
  const auto encoder = load({.scratch_bytes_max = 1, .patches_max = pixtral ? 30 : 100});
  ASSERT_NE(encoder, nullptr);
  ASSERT_EQ(encoder->info().num_rows, 0);
  encode(*encoder, {test::drawn(20, 31)});
  const PreparedImage large = encoder->prepare(test::drawn(300, 300)).value();
  EncodedRows rows = encoder->allocate_rows(large.num_rows).value();
  const EncoderTask task{.image = &large, .rows = &rows};
  const Status status = encoder->encode_batch({&task, 1});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("send a smaller one"), std::string::npos) << status.message();
}

TEST_P(ImagesCuda, RowsOutliveTheEncoder) {
  auto encoder = load();
  ASSERT_NE(encoder, nullptr);
  const std::vector<EncodedRows> rows = encode(*encoder, {test::drawn(20, 31)});
  const std::vector<float> before = floats_of(rows[0], type_);
  encoder.reset();
  EXPECT_EQ(floats_of(rows[0], type_), before);
}

// Shapes that the goldens lack, with drawn weights, against the CPU's encoder: heads of 80, which
// Hopper's attention widens, an MLP of no multiple of eight, pictures of one size and of several.
TEST(DummyEncoderCuda, GivesTheRowsOfTheCpu) {
  ESPALIER_REQUIRE_DEVICE();
  WorkPool pool(2);
  const TempFolder folder;
  const std::filesystem::path source = "tests/golden/images/qwen2_5_vl";
  std::ifstream file(source / "config.json");
  std::string config(std::istreambuf_iterator<char>(file), {});
  for (const auto& [from, to] :
       {std::pair(R"("hidden_size": 24)", R"("hidden_size": 160)"),
        std::pair(R"("intermediate_size": 40)", R"("intermediate_size": 84)")}) {
    ASSERT_NE(config.find(from), std::string::npos) << from;
    config.replace(config.find(from), std::string_view(from).size(), to);
  }
  folder.write("config.json", config);
  std::filesystem::copy(source / "preprocessor_config.json", folder.path());
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const ModelLoadOptions options{.path = folder.path(),
                                   .format = LoadFormat::kDummy,
                                   .seed = 3,
                                   .dtype = name_of(type),
                                   .pool = &pool};
    const auto cpu = load_image_encoder(options);
    ASSERT_TRUE(cpu) << cpu.error().to_string();
    const auto gpu = CudaEncoder::load(options, {});
    ASSERT_TRUE(gpu) << gpu.error().to_string();
    const std::vector<std::vector<Image>> batches = {
        {test::drawn(140, 90), test::drawn(140, 90)},
        {test::drawn(60, 200), test::drawn(150, 100), test::drawn(64, 64)}};
    for (const std::vector<Image>& images : batches) {
      std::vector<PreparedImage> prepared;
      std::vector<EncodedRows> rows;
      for (const Image& image : images) {
        prepared.push_back((*gpu)->prepare(image).value());
        rows.push_back((*gpu)->allocate_rows(prepared.back().num_rows).value());
      }
      std::vector<EncoderTask> tasks;
      for (size_t i = 0; i < images.size(); ++i) tasks.push_back({&prepared[i], &rows[i]});
      const Status status = (*gpu)->encode_batch(tasks);
      ASSERT_TRUE(status.ok()) << status.to_string();
      std::vector<golden::Picture> wanted;
      std::vector<std::vector<float>> made;
      for (size_t i = 0; i < images.size(); ++i) {
        wanted.push_back({images[i], golden::rows_of(**cpu, images[i])});
        made.push_back(floats_of(rows[i], type));
      }
      const float error = golden::rows_error(wanted, made);
      printf("%s, %zu pictures: error of rows %.3g\n", name_of(type), images.size(), error);
      EXPECT_LT(error, type == DType::kFloat32 ? 1e-4f : 3e-2f);
    }
  }
}

class SpansCuda : public ImagesCuda {
 protected:
  void SetUp() override {
    ImagesCuda::SetUp();
    if (IsSkipped()) return;
    auto encoder = load_image_encoder({.path = folder_, .pool = &pool_});
    ASSERT_TRUE(encoder) << encoder.error().message();
    prompt_ = golden::read_seen_prompt(folder_, **encoder);
    auto decoder = CudaDecoder::load({.path = folder_, .dtype = name_of(type_)});
    ASSERT_TRUE(decoder) << decoder.error().to_string();
    model_ = std::make_unique<CudaTestModel>(std::move(*decoder));
  }
  float error(const SeenPrompt& prompt, int32_t chunk, std::vector<TokenId> beside = {}) {
    const KvType kv = type_ == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
    return prompt_.error(golden::run_seen_prompt(*model_, prompt, kv, chunk, std::move(beside)));
  }
  float allowed() const { return type_ == DType::kFloat32 ? 1e-4f : 3e-2f; }

  WorkPool pool_{2};
  SeenPrompt prompt_;
  std::unique_ptr<CudaTestModel> model_;
};

TEST_P(SpansCuda, LogitsEqualTransformersHoweverCut) {
  for (const int32_t chunk : {1000, 1, 3, 7, 16, 23}) {
    const float made = error(prompt_, chunk);
    printf("chunks of %d: error of logits %.3g\n", chunk, made);
    EXPECT_LT(made, allowed()) << chunk;
  }
  EXPECT_LT(error(prompt_, 5, {1, 2, 3, 4, 5, 6, 7, 8, 9}), allowed());
}

TEST_P(SpansCuda, WrongRowsAreNoticed) {
  SeenPrompt turned = prompt_;
  auto rows = std::make_shared<EncodedRows>(*turned.spans[0].rows);
  for (float& value : rows->values) value = -value;
  turned.spans[0].rows = std::move(rows);
  EXPECT_GT(error(turned, 1000), 4e-2f);
  SeenPrompt none = prompt_;
  none.spans.clear();
  EXPECT_GT(error(none, 1000), 4e-2f);
}

class VideosCuda : public SpansCuda {};  // models that read videos

TEST_P(VideosCuda, RowsAndLogitsEqualTransformers) {
  const auto encoder = load();
  ASSERT_NE(encoder, nullptr);
  const golden::DrawnVideo video = golden::read_video(folder_);
  const PreparedImage prepared =
      encoder->prepare_video(video.frames, video.frames_per_second).value();
  EncodedRows rows = encoder->allocate_rows(prepared.num_rows).value();
  const EncoderTask task{.image = &prepared, .rows = &rows};
  const Status status = encoder->encode_batch({&task, 1});
  ASSERT_TRUE(status.ok()) << status.to_string();
  const float made = golden::rows_error({{video.frames[0], video.rows}}, {floats_of(rows, type_)});
  printf("error of rows %.3g\n", made);
  EXPECT_LT(made, tolerance(type_));
  auto cpu = load_image_encoder({.path = folder_, .pool = &pool_});
  ASSERT_TRUE(cpu) << cpu.error().message();
  const SeenPrompt prompt = golden::read_video_prompt(folder_, **cpu);
  const KvType kv = type_ == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
  for (const int32_t chunk : {1000, 7}) {
    const float error = prompt.error(golden::run_seen_prompt(*model_, prompt, kv, chunk));
    printf("chunks of %d: error of logits %.3g\n", chunk, error);
    EXPECT_LT(error, allowed()) << chunk;
  }
}

class PlacesCuda : public SpansCuda {};  // models with M-RoPE

// A picture's rows have places in a grid, and what follows moves up.
TEST_P(PlacesCuda, WrongPlacesAreNoticed) {
  ASSERT_FALSE(prompt_.rotary_spans.empty());
  SeenPrompt none = prompt_;
  none.rotary_spans.clear();
  EXPECT_GT(error(none, 1000), 4e-2f);
  SeenPrompt narrow = prompt_;
  for (RotarySpan& span : narrow.rotary_spans)
    if (span.columns > 0) span.columns = 1;
  EXPECT_GT(error(narrow, 1000), 4e-2f);
}

class DeepCuda : public SpansCuda {};  // models whose first layers add parts of rows

TEST_P(DeepCuda, EachPartIsAdded) {
  const int64_t hidden = model_->info().hidden_size;
  for (const int64_t part : {1, 2}) {
    SeenPrompt without = prompt_;
    for (EmbeddingSpan& span : without.spans) {
      auto rows = std::make_shared<EncodedRows>(*span.rows);
      for (int64_t row = 0; row < rows->num_rows; ++row)
        std::fill_n(rows->values.begin() + row * rows->width + part * hidden, hidden, 0.0f);
      span.rows = std::move(rows);
    }
    EXPECT_GT(error(without, 1000), 4e-2f) << part;
  }
}

const auto kTypes = testing::Values(DType::kFloat32, DType::kBFloat16);
const auto kAll =
    testing::Combine(testing::Values("llava_clip", "llava_siglip", "llava_next", "llava_onevision",
                                     "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "pixtral",
                                     "mistral3", "internvl", "internvl_norms"),
                     kTypes);
const auto kAnySize =
    testing::Combine(testing::Values("llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl",
                                     "qwen3_vl", "pixtral", "mistral3"),
                     kTypes);
const auto kPlaces =
    testing::Combine(testing::Values("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), kTypes);
const auto kVideos =
    testing::Combine(testing::Values("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), kTypes);
const auto kDeep = testing::Combine(testing::Values("qwen3_vl"), kTypes);
std::string name(const testing::TestParamInfo<ImagesCuda::ParamType>& info) {
  return std::string(std::get<0>(info.param)) + "_" + name_of(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(All, ImagesCuda, kAll, name);
INSTANTIATE_TEST_SUITE_P(All, SpansCuda, kAll, name);
INSTANTIATE_TEST_SUITE_P(All, AnySizeCuda, kAnySize, name);
INSTANTIATE_TEST_SUITE_P(All, PlacesCuda, kPlaces, name);
INSTANTIATE_TEST_SUITE_P(All, VideosCuda, kVideos, name);
INSTANTIATE_TEST_SUITE_P(All, DeepCuda, kDeep, name);

}  // namespace
}  // namespace espalier
