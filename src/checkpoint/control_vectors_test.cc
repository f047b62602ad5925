#include "checkpoint/control_vectors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>

#include "checkpoint/gguf_writer.h"
#include "checkpoint/temp_folder.h"
#include "fmt/format.h"

namespace espalier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kLayers = 3, kHidden = 4;

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

class ControlVectorsTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    const std::filesystem::path path = folder_.path() / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  // A file with one tensor of these float32 numbers.
  std::filesystem::path safetensors(const std::string& tensor, const std::vector<float>& values,
                                    const std::string& shape) {
    std::string header =
        fmt::format(R"({{"{}":{{"dtype":"F32","shape":{},"data_offsets":[0,{}]}}}})", tensor, shape,
                    values.size() * sizeof(float));
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t size = header.size();
    return write("vector.safetensors",
                 std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header +
                     bytes_of(values));
  }
  static std::string refusal(const std::filesystem::path& path) {
    const auto loaded = ControlVectors::load({{"calm", path}}, kLayers, kHidden);
    EXPECT_FALSE(loaded);
    return loaded ? std::string() : loaded.error().message();
  }

  TempFolder folder_;
};

TEST_F(ControlVectorsTest, AreReadFromGgufAndSafetensors) {
  GgufWriter gguf;
  gguf.string("general.architecture", "controlvector").string("controlvector.model_hint", "llama");
  gguf.tensor("direction.1", 0, {kHidden}, bytes_of({1, 2, 3, 4}));
  gguf.tensor("direction.2", 0, {kHidden}, bytes_of({5, 6, 7, 8}));
  const auto first = write("happy.gguf", gguf.bytes());
  const auto second = safetensors("direction.0", {-1, -2, -3, -4}, "[4]");
  const auto loaded = ControlVectors::load({{"happy", first}, {"calm", second}}, kLayers, kHidden);
  ASSERT_TRUE(loaded) << loaded.error().to_string();
  EXPECT_THAT((*loaded)->names(), ElementsAre("happy", "calm"));
  EXPECT_THAT((*loaded)->row(0, 0), Each(0));
  EXPECT_THAT((*loaded)->row(0, 1), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT((*loaded)->row(0, 2), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT((*loaded)->row(1, 0), ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT((*loaded)->row(1, 1), Each(0));
  EXPECT_EQ((*loaded)->values().size(), 2u * kLayers * kHidden);
}

TEST_F(ControlVectorsTest, AreRefusedByWhatDoesNotFit) {
  EXPECT_THAT(refusal(safetensors("direction.3", {1, 2, 3, 4}, "[4]")),
              HasSubstr("direction.3 is of layer 3, but the model has the layers 0 to 2"));
  EXPECT_THAT(refusal(safetensors("direction.1", {1, 2}, "[2]")),
              HasSubstr("has the shape [2], but a hidden state of the model has 4 numbers"));
  EXPECT_THAT(refusal(safetensors("direction.1", {1, 2, 3, 4}, "[2,2]")), HasSubstr("[2, 2]"));
  EXPECT_THAT(refusal(safetensors("layers.1", {1, 2, 3, 4}, "[4]")),
              HasSubstr("tensor 'layers.1', but a control vector has tensors direction.N alone"));
  EXPECT_THAT(refusal(safetensors("direction.1x", {1, 2, 3, 4}, "[4]")), HasSubstr("direction.1x"));
  EXPECT_THAT(
      refusal(safetensors("direction.1", {1, 2, 3, std::numeric_limits<float>::infinity()}, "[4]")),
      HasSubstr("not finite"));
  GgufWriter model;
  model.string("general.architecture", "llama");
  model.tensor("direction.1", 0, {kHidden}, bytes_of({1, 2, 3, 4}));
  EXPECT_THAT(refusal(write("model.gguf", model.bytes())),
              HasSubstr("architecture 'llama', not a control vector"));
  EXPECT_THAT(refusal(folder_.path() / "nothing.safetensors"), HasSubstr("control vector 'calm'"));
}

TEST(NamedPaths, AreParsedOrRefused) {
  const auto parsed = parse_named_paths("control-vector", {"a=b/c.gguf", "b=x=y"});
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->at(0).name, "a");
  EXPECT_EQ(parsed->at(1).path, "x=y");
  for (const char* wrong : {"a", "=b", "a="})
    EXPECT_THAT(parse_named_paths("control-vector", {wrong}).error().message(),
                HasSubstr("write NAME=PATH"));
  EXPECT_THAT(parse_named_paths("control-vector", {"a=b", "a=c"}).error().message(),
              HasSubstr("the name 'a' twice"));
}

}  // namespace
}  // namespace espalier
