#include "apps/served_models_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::apps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<ServedModelsFile> parse(std::string_view text, const AppConfig& base = {}) {
  return parse_served_models(text, "models.toml", base);
}

// The error of a file that must be refused.
std::string refusal(std::string_view text) {
  const auto parsed = parse(text);
  return parsed ? "it was taken" : parsed.error().message();
}

TEST(ServedModelsFile, EntriesHaveTheirOwnSettingsAboveThoseOfTheCommand) {
  AppConfig base;
  base.engine.model.context_length = 4096;
  base.engine.schedule.max_running_requests = 7;
  const auto file = parse(R"(
memory_limit = "1.5GiB"
load_timeout = 12.5
[[model]]
name = "small"
model_path = "models/small"
aliases = ["s", "tiny"]
memory = 0.25
keep_alive = 60
on_idle = "sleep"
preload = true
context_length = 1024
quantization = "q8_0"
lora_paths = ["poet=adapters/poet", "adapters/plain"]
tool-call-parser = "json"
reasoning_parser = "none"
[[model]]
name = "large"
model_path = "models/large.gguf"
memory = "512MiB"
keep_alive = -1
)",
                          base);
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->memory_limit, 3ll << 29);
  EXPECT_EQ(file->load_timeout, std::chrono::milliseconds(12500));
  ASSERT_EQ(file->entries.size(), 2u);
  const ServedModelEntry& small = file->entries[0];
  EXPECT_EQ(small.model.name, "small");
  EXPECT_THAT(small.model.aliases, ElementsAre("s", "tiny", "poet", "plain"));
  EXPECT_EQ(small.model.keep_alive, std::chrono::seconds(60));
  EXPECT_TRUE(small.model.sleeps && small.model.preload);
  EXPECT_EQ(small.memory.fraction, 0.25);
  EXPECT_EQ(small.model.answers.tool_call_parser, "json");
  EXPECT_EQ(small.config.engine.model.model_path, "models/small");
  EXPECT_EQ(small.config.engine.model.context_length, 1024);
  EXPECT_EQ(small.config.engine.model.dtype, "q8_0");
  EXPECT_EQ(small.config.engine.schedule.max_running_requests, 7);
  const ServedModelEntry& large = file->entries[1];
  EXPECT_EQ(large.model.keep_alive, std::nullopt);
  EXPECT_FALSE(large.model.sleeps || large.model.preload);
  EXPECT_EQ(large.memory.bytes, 512 << 20);
  EXPECT_EQ(large.config.engine.model.context_length, 4096);
}

TEST(ServedModelsFile, RefusalsNameLineAndMember) {
  const std::string entry = "[[model]]\nname = \"a\"\nmodel_path = \"m\"\n";
  EXPECT_THAT(refusal("[[model]]\nname = \n"),
              AllOf(HasSubstr("models.toml"), HasSubstr("line 2")));
  EXPECT_THAT(refusal(""), HasSubstr("no model"));
  EXPECT_THAT(refusal("port = 1\n" + entry), AllOf(HasSubstr("line 1: port")));
  EXPECT_THAT(refusal("memory_limit = \"much\"\n" + entry),
              AllOf(HasSubstr("line 1: memory_limit"), HasSubstr("much")));
  EXPECT_THAT(refusal("[[model]]\nmodel_path = \"m\"\n"), HasSubstr("line 1: name"));
  EXPECT_THAT(refusal("[[model]]\nname = \"a\"\n"), HasSubstr("line 1: model_path"));
  EXPECT_THAT(refusal(entry + "memory = 1.5\n"), HasSubstr("line 4: memory"));
  EXPECT_THAT(refusal(entry + "memory = true\n"), HasSubstr("line 4: memory"));
  EXPECT_THAT(refusal(entry + "keep_alive = -5\n"), HasSubstr("line 4: keep_alive"));
  EXPECT_THAT(refusal(entry + "on_idle = \"stop\"\n"),
              AllOf(HasSubstr("line 4: on_idle"), HasSubstr("unload")));
  EXPECT_THAT(refusal(entry + "preload = 1\n"), HasSubstr("line 4: preload"));
  EXPECT_THAT(refusal(entry + "aliases = \"b\"\n"), HasSubstr("line 4: aliases"));
  EXPECT_THAT(refusal(entry + "aliases = [\"b:c\"]\n"), HasSubstr("colon"));
  EXPECT_THAT(refusal(entry + "contxt_length = 4\n"),
              AllOf(HasSubstr("line 4: contxt_length"), HasSubstr("context-length")));
  EXPECT_THAT(refusal(entry + "context_length = \"many\"\n"), HasSubstr("line 4: context_length"));
  EXPECT_THAT(refusal(entry + "port = 4\n"), AllOf(HasSubstr("line 4: port"), HasSubstr("--port")));
  EXPECT_THAT(refusal(entry + "device = \"cpu\"\n"),
              AllOf(HasSubstr("line 4: device"), HasSubstr("--device")));
  EXPECT_THAT(refusal(entry + "chat_template = \"{% if %}\"\n"), HasSubstr("chat_template"));
  EXPECT_THAT(refusal(entry + "disaggregation_mode = \"prefill\"\n"),
              HasSubstr("disaggregation_mode"));
  EXPECT_THAT(refusal("model = 3\n"), HasSubstr("no model"));
  EXPECT_THAT(refusal("model = [3]\n"), HasSubstr("[[model]]"));
}

TEST(ServedModelsFile, ANameBelongsToOneModel) {
  const std::string text =
      "[[model]]\nname = \"a\"\nmodel_path = \"m\"\naliases = [\"c\"]\n"
      "[[model]]\nname = \"b\"\nmodel_path = \"n\"\naliases = [\"c\"]\n";
  EXPECT_THAT(refusal(text), AllOf(HasSubstr("'c'"), HasSubstr("'a'"), HasSubstr("'b'")));
}

TEST(ServedModelsFile, BytesHaveUnits) {
  const auto bytes = [](std::string_view text) {
    const auto parsed = parse_bytes(text);
    return parsed ? *parsed : -1;
  };
  EXPECT_EQ(bytes("123"), 123);
  EXPECT_EQ(bytes("2GiB"), 2ll << 30);
  EXPECT_EQ(bytes("1.5 MiB"), 3 << 19);
  EXPECT_EQ(bytes("800MB"), 800'000'000);
  for (const char* wrong : {"", "GiB", "0", "-1", "1 parsec", "1e30", "nan"})
    EXPECT_EQ(bytes(wrong), -1) << wrong;
}

TEST(ServedModelsFile, SettingsOfOneModelAreRefusedBesideIt) {
  AppConfig config;
  SettingTable table;
  add_server_settings(table, config);
  add_engine_settings(table, config);
  config.served_models = "models.toml";
  EXPECT_TRUE(check_served_models(table, config).ok());
  Setting& path = *table.find("model-path");
  ASSERT_TRUE(assign(path, {"m"}, "--model-path").ok());
  path.set_by = "--model-path";
  EXPECT_THAT(check_served_models(table, config).message(),
              AllOf(HasSubstr("--model-path"), HasSubstr("--served-models")));
  path.set_by = environment_name("model-path");
  EXPECT_TRUE(check_served_models(table, config).ok()) << "the environment is for all commands";
  config.served_models.clear();
  path.set_by = "--model-path";
  EXPECT_TRUE(check_served_models(table, config).ok());
}

}  // namespace
}  // namespace espalier::apps
