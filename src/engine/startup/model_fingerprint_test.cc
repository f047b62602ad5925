// The fingerprint of a model is a function of its files and of the settings that change them.
#include "engine/startup/model_fingerprint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace espalier {
namespace {

namespace fs = std::filesystem;

// A folder with a configuration and weights of `num_bytes`, removed at the end. Tests run at once
// in several processes, so its name has the process's number.
class ModelFolder {
 public:
  ModelFolder(const std::string& name, size_t num_bytes, size_t changed_byte)
      : path_(fs::path(testing::TempDir()) / fmt::format("fingerprint_{}_{}", getpid(), name)) {
    fs::create_directories(path_);
    std::ofstream(path_ / "config.json") << "{}";
    std::ofstream(path_ / "README.md") << name;
    std::string weights(num_bytes, 'w');
    if (changed_byte < num_bytes) weights[changed_byte] = 'x';
    std::ofstream(path_ / "model.safetensors") << weights;
  }
  ~ModelFolder() { fs::remove_all(path_); }
  EngineConfig config() const { return {.model = {.model_path = path_}}; }

 private:
  fs::path path_;
};

constexpr size_t kNone = SIZE_MAX;

TEST(ModelFingerprint, EqualFilesGiveEqualText) {
  const ModelFolder a("a", 4 << 20, kNone), b("b", 4 << 20, kNone);
  const std::string text = model_fingerprint(a.config()).value();
  EXPECT_EQ(text.size(), 64u);
  EXPECT_EQ(text, model_fingerprint(b.config()).value());
}

TEST(ModelFingerprint, DiffersWithFilesAndSettings) {
  const ModelFolder a("a", 4 << 20, kNone), end("end", 4 << 20, (4 << 20) - 1);
  const ModelFolder longer("longer", (4 << 20) + 1, kNone), small("small", 100, 50);
  const std::string text = model_fingerprint(a.config()).value();
  for (const ModelFolder* other : {&end, &longer, &small})
    EXPECT_NE(text, model_fingerprint(other->config()).value());
  EngineConfig config = a.config();
  config.model.json_model_override_args = "{\"rope_theta\": 5}";
  EXPECT_NE(text, model_fingerprint(config).value());
  config = a.config();
  config.model.dtype = "float32";
  EXPECT_NE(text, model_fingerprint(config).value());
}

TEST(ModelFingerprint, AllBytesAreMoreThanSamples) {
  const ModelFolder a("a", 4 << 20, kNone), between("between", 4 << 20, 10'000);
  EXPECT_EQ(model_fingerprint(a.config()).value(), model_fingerprint(between.config()).value());
  EXPECT_NE(model_fingerprint(a.config(), HashedBytes::kAll).value(),
            model_fingerprint(between.config(), HashedBytes::kAll).value());
}

TEST(ModelFingerprint, AnUnreadableModelIsAnError) {
  EXPECT_FALSE(model_fingerprint({.model = {.model_path = "/nowhere/model.gguf"}}).has_value());
}

}  // namespace
}  // namespace espalier
