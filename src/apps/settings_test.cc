// Flags, files, environment: what sets a setting, which one wins, and how a mistake is reported.
#include "apps/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <sstream>

#include "apps/command_line.h"
#include "apps/config.h"
#include "apps/model_path.h"
#include "apps/route_settings.h"
#include "server/storage_config.h"

namespace espalier::apps {
namespace {

using testing::HasSubstr;

class SettingsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/espalier_settings_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    for (const char* name : {"ESPALIER_PORT", "ESPALIER_CONFIG", "ESPALIER_DISABLE_RADIX_CACHE"})
      unsetenv(name);
  }

  std::string write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  // The exit code, -1 when the command would go on; standard error in error_.
  int run(const std::vector<std::string>& args) {
    config_ = AppConfig();
    stops_.clear();
    table_ = SettingTable();
    add_server_settings(table_, config_);
    add_engine_settings(table_, config_);
    table_.list("stop", stops_, "TEXT", "ends the output");
    table_.result_file("trace", trace_, "write the result to it");
    table_.result("json", printed_, result_, "printed, or written to it");
    CommandLine command{"espalier serve", "Serves.", "", "", {}};
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    const std::optional<int> code = parse_command_line(command, table_, SettingTable(), args);
    output_ = testing::internal::GetCapturedStdout();
    error_ = testing::internal::GetCapturedStderr();
    return code.value_or(-1);
  }

  AppConfig config_;
  SettingTable table_;
  std::vector<std::string> stops_;
  std::filesystem::path trace_, result_;
  bool printed_ = false;
  std::string folder_, output_, error_;
};

TEST_F(SettingsTest, FlagsOfEveryKindReachTheirVariables) {
  ASSERT_EQ(run({"--port", "8080", "--host=0.0.0.0", "--disable-radix-cache", "--model", "m",
                 "--mem-fraction-static", "0.5", "--load-format", "dummy", "--drain-timeout", "1.5",
                 "--chunked-prefill-size", "-1", "--random-seed", "9007199254740993"}),
            -1)
      << error_;
  EXPECT_EQ(config_.server.port, 8080);
  EXPECT_EQ(config_.server.host, "0.0.0.0");
  EXPECT_TRUE(config_.engine.cache.disable_radix_cache);
  EXPECT_EQ(config_.engine.model.model_path, "m");
  EXPECT_EQ(config_.engine.cache.mem_fraction_static, 0.5);
  EXPECT_EQ(config_.engine.model.load_format, LoadFormat::kDummy);
  EXPECT_EQ(config_.drain_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(config_.engine.schedule.chunked_prefill_size, -1);
  EXPECT_EQ(config_.engine.sampling.random_seed, 9007199254740993u);
}

// An empty key would open the server, as where a script's variable is not set.
TEST_F(SettingsTest, AnEmptyKeyIsRefused) {
  const std::vector<std::vector<std::string>> cases = {
      {"--api-key", ""}, {"--api-key="}, {"--config", write("empty.json", R"({"api_key": ""})")}};
  for (const std::vector<std::string>& args : cases) {
    EXPECT_EQ(run(args), kExitUsage) << args[0];
    EXPECT_THAT(error_, testing::AnyOf(HasSubstr("'' would open the server: give a key, or none"),
                                       HasSubstr("--api-key needs a value")));
    EXPECT_EQ(config_.server.access.api_key, "");
  }
  for (const char* name : {"ESPALIER_API_KEY", "ESPALIER_ADMIN_API_KEY"}) {
    setenv(name, "", 1);
    EXPECT_EQ(run({}), kExitUsage) << name;
    EXPECT_THAT(error_, AllOf(HasSubstr(name), HasSubstr("would open the server")));
    unsetenv(name);
  }
  setenv("ESPALIER_HOST", "", 1);  // of other settings an empty variable is none
  EXPECT_EQ(run({}), -1) << error_;
  unsetenv("ESPALIER_HOST");
  ASSERT_EQ(run({"--api-key", "k"}), -1) << error_;
  EXPECT_EQ(config_.server.access.api_key, "k");
}

TEST_F(SettingsTest, AFlagWinsOverTheEnvironmentOverTheFileOverTheDefault) {
  const std::string file = write("c.json", R"({"port": 1, "host": "h", "stream_interval": 4})");
  ASSERT_EQ(run({"--config", file}), -1) << error_;
  EXPECT_EQ(config_.server.port, 1);
  EXPECT_EQ(config_.server.answers.stream_interval, 4);
  EXPECT_EQ(config_.server.answers.weight_version, "default");
  setenv("ESPALIER_PORT", "2", 1);
  ASSERT_EQ(run({"--config", file}), -1) << error_;
  EXPECT_EQ(config_.server.port, 2);
  EXPECT_EQ(config_.server.host, "h");
  ASSERT_EQ(run({"--config", file, "--port", "3"}), -1) << error_;
  EXPECT_EQ(config_.server.port, 3);
}

TEST_F(SettingsTest, ATomlFileSetsTheSame) {
  const std::string file =
      write("c.toml", "port = 7\nenable-metrics = true\nmem_fraction_static = 0.25\nhost = 'x'\n");
  setenv("ESPALIER_CONFIG", file.c_str(), 1);
  ASSERT_EQ(run({}), -1) << error_;
  EXPECT_EQ(config_.server.port, 7);
  EXPECT_TRUE(config_.server.answers.enable_metrics);
  EXPECT_EQ(config_.engine.cache.mem_fraction_static, 0.25);
  EXPECT_EQ(config_.server.host, "x");
}

TEST_F(SettingsTest, AnUnknownNameSuggestsTheNearest) {
  EXPECT_EQ(run({"--prot", "1"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("no flag --prot; did you mean --port?"));
  EXPECT_EQ(run({"--max_total_token=5"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("did you mean --max-total-tokens?"));
  EXPECT_EQ(run({"--nothing-like-any-of-them"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("there is no flag --nothing-like-any-of-them (--help"));
  EXPECT_EQ(run({"--config", write("a.json", R"({"api_keys": "k"})")}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("no setting 'api_keys'; did you mean api-key?"));
  EXPECT_EQ(run({"stray"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("'stray' stands alone"));
}

TEST_F(SettingsTest, AMistypedVariableIsReportedAndAForeignOneIsNot) {
  setenv("ESPALIER_PROT", "1", 1);
  EXPECT_EQ(run({}), kExitUsage);
  EXPECT_THAT(error_,
              HasSubstr("sets ESPALIER_PROT, which is no setting; did you mean ESPALIER_PORT?"));
  unsetenv("ESPALIER_PROT");
  setenv("ESPALIER_DATA", "/nowhere", 1);
  EXPECT_EQ(run({}), -1) << error_;
  unsetenv("ESPALIER_DATA");
}

TEST_F(SettingsTest, SglangsVariableOfLogProbabilitiesIsRead) {
  setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "False", 1);
  ASSERT_EQ(run({}), -1) << error_;
  EXPECT_EQ(config_.engine.sampling.logprobs_mode, "processed");
  setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1", 1);
  ASSERT_EQ(run({}), -1) << error_;
  EXPECT_EQ(config_.engine.sampling.logprobs_mode, "original");
  ASSERT_EQ(run({"--logprobs-mode", "raw"}), -1) << error_;
  EXPECT_EQ(config_.engine.sampling.logprobs_mode, "raw");
  setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "maybe", 1);
  EXPECT_EQ(run({}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("SGLANG_RETURN_ORIGINAL_LOGPROB to 'maybe'"));
  unsetenv("SGLANG_RETURN_ORIGINAL_LOGPROB");
}

// Its name resembles that of --fair-share.
TEST_F(SettingsTest, TheFolderOfTheShippedModelIsNoMistypedSetting) {
  setenv("ESPALIER_SHARE", "/nowhere", 1);
  EXPECT_EQ(run({}), -1) << error_;
  unsetenv("ESPALIER_SHARE");
}

TEST_F(SettingsTest, AWrongValueSaysWhatWouldBeRight) {
  EXPECT_EQ(run({"--port", "70000"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--port: 70000 is out of range; it must be between 0 and 65535"));
  EXPECT_EQ(run({"--port", "http"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--port: 'http' is not a whole number"));
  EXPECT_EQ(run({"--port", "99999999999999999999"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("out of range"));
  EXPECT_EQ(run({"--port"}), kExitUsage);
  EXPECT_EQ(run({"--dtype", "int3"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("'int3' is not one of auto, float32, bfloat16"));
  EXPECT_EQ(run({"--schedule-policy", "routing-key"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("take lpm, which prefers requests whose prefix is cached"));
  EXPECT_EQ(run({"--mem-fraction-static", "nan"}), kExitUsage);
  EXPECT_EQ(run({"--log-level", "loud"}), kExitUsage);
  setenv("ESPALIER_DISABLE_RADIX_CACHE", "maybe", 1);
  EXPECT_EQ(run({}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("ESPALIER_DISABLE_RADIX_CACHE: 'maybe' is neither true nor false"));
}

TEST_F(SettingsTest, AFileForResultsIsTriedFirstAndNotMade) {
  EXPECT_EQ(run({"--trace", folder_ + "/new.json"}), -1);
  EXPECT_EQ(trace_, folder_ + "/new.json");
  EXPECT_FALSE(std::filesystem::exists(trace_));
  EXPECT_EQ(run({"--trace", "here.json"}), -1);
  EXPECT_EQ(run({"--trace", folder_}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--trace: " + folder_ + " is a folder; name a file"));
  EXPECT_EQ(run({"--trace", folder_ + "/none/x.json"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("there is no folder " + folder_ + "/none"));
}

TEST_F(SettingsTest, AResultIsPrintedOrWrittenToTheFileThatIsNamed) {
  const std::string file = folder_ + "/new.json";
  EXPECT_EQ(run({"--json"}), -1) << error_;
  EXPECT_TRUE(printed_ && result_.empty());
  EXPECT_EQ(run({"--json", "--port", "7"}), -1) << error_;  // no file, but a flag
  EXPECT_TRUE(printed_ && result_.empty() && config_.server.port == 7);
  using Args = std::vector<std::string>;
  for (const Args& args : {Args{"--json", file}, Args{"--json=" + file}}) {
    EXPECT_EQ(run(args), -1) << error_;
    EXPECT_TRUE(!printed_ && result_ == file);
  }
  EXPECT_EQ(run({"--config", write("on.json", R"({"json": true})")}), -1) << error_;
  EXPECT_TRUE(printed_);
  EXPECT_EQ(run({"--config", write("off.json", R"({"json": false})")}), -1) << error_;
  EXPECT_TRUE(!printed_ && result_.empty());
  EXPECT_EQ(run({"--json", folder_}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--json: " + folder_ + " is a folder; name a file"));
}

TEST_F(SettingsTest, ABrokenFileSaysWhere) {
  EXPECT_EQ(run({"--config", folder_ + "/none.json"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("none.json"));
  EXPECT_EQ(run({"--config", write("a.json", "{\"port\": ")}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("no valid JSON"));
  EXPECT_EQ(run({"--config", write("a.toml", "port = 1\nhost = \n")}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("line 2"));
  EXPECT_EQ(run({"--config", write("b.json", R"({"server": {"port": 1}})")}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("'server' holds a table"));
  EXPECT_EQ(run({"--config", write("c.json", R"({"port": "x"})")}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("port in "));
  EXPECT_EQ(run({"--config", write("a.yaml", "port: 1")}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr(".json or .toml"));
}

TEST_F(SettingsTest, AValueOfTheWrongKindInAFileIsReportedWithItsKind) {
  const auto reported = [this](const std::string& name, const std::string& text) {
    EXPECT_EQ(run({"--config", write(name, text)}), kExitUsage) << text;
    return error_;
  };
  EXPECT_THAT(reported("a.json", R"({"port": []})"), HasSubstr("is an empty list; give one value"));
  EXPECT_THAT(reported("a.json", R"({"stop": [["a"]]})"),
              HasSubstr("'stop' holds a list in a list"));
  EXPECT_THAT(reported("a.json", R"({"port": 1.5})"), HasSubstr("'1.5' is not a whole number"));
  EXPECT_THAT(reported("a.json", R"({"config": "b.json"})"), HasSubstr("names no other one"));
  EXPECT_THAT(reported("a.json", R"({"stream-interval": 1, "stream_interval": 2})"),
              HasSubstr("'stream-interval' and 'stream_interval' are one setting; leave one out"));
  EXPECT_THAT(reported("a.json", R"({"model": "a", "model-path": "b"})"), HasSubstr("one setting"));
  EXPECT_THAT(reported("a.json", R"({"port": 1, "host": "h", "port": 2})"),
              HasSubstr("a.json: it is ambiguous: the key 'port' stands twice"));
  EXPECT_THAT(reported("a.json", R"({"kv_events_config": {"buffer_steps": 7, "buffer_steps": 8}})"),
              HasSubstr("the key 'buffer_steps' stands twice"));
  EXPECT_THAT(reported("a.toml", "port = 1\nport = 1\n"),
              testing::AllOf(HasSubstr("line 2"), HasSubstr("'port'")));
  EXPECT_THAT(reported("a.toml", "port = 2024-01-01\n"),
              HasSubstr("'port' holds a date or a time"));
  EXPECT_THAT(reported("a.toml", "[port]\na = 1\n"), HasSubstr("'port' holds a table"));
}

TEST_F(SettingsTest, ASettingThatIsJsonMayStandAsATable) {
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
           {"k.json", R"({"kv_events_config": {"publisher": "http", "buffer_steps": 7}})"},
           {"s.json", R"({"kv_events_config": "{\"buffer_steps\": 7}"})"},
           {"k.toml", "kv-events-config = {publisher = 'http', buffer_steps = 7}\n"},
           {"t.toml", "[kv-events-config]\nbuffer_steps = 7\n"}}) {
    ASSERT_EQ(run({"--config", write(name, text)}), -1) << name << error_;
    EXPECT_EQ(config_.engine.cache.num_cache_events, 7) << name;
  }
}

TEST_F(SettingsTest, EventsOfTheCacheArePublishedAsVllmHasIt) {
  const auto given = [&](const char* json) { return run({"--kv-events-config", json}); };
  ASSERT_EQ(given(R"({"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@a@m",
                      "replay_endpoint": "tcp://*:5558"})"),
            -1)
      << error_;
  EXPECT_EQ(config_.engine.cache.num_cache_events, 10000);
  EXPECT_EQ(config_.server.telemetry.kv_events.endpoint, "tcp://*:5557");
  EXPECT_EQ(config_.server.telemetry.kv_events.replay_endpoint, "tcp://*:5558");
  EXPECT_EQ(config_.server.telemetry.kv_events.topic, "kv@a@m");
  ASSERT_EQ(given(R"({"publisher": "zmq", "endpoint": "tcp://picker:5557"})"), -1) << error_;
  EXPECT_EQ(config_.server.telemetry.kv_events.endpoint, "tcp://picker:5557");
  ASSERT_EQ(given(R"({"enable_kv_cache_events": false, "publisher": "zmq"})"), -1) << error_;
  EXPECT_EQ(config_.engine.cache.num_cache_events, 0);
  EXPECT_EQ(config_.server.telemetry.kv_events.endpoint, "");
  EXPECT_EQ(given(R"({"endpoint": "tcp://*:1"})"), kExitUsage);
  EXPECT_THAT(error_, HasSubstr(R"(add "publisher": "zmq")"));
  EXPECT_EQ(given(R"({"publisher": "zmq", "topic": 7})"), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("topic is 7, but must be text"));
  EXPECT_EQ(given(R"({"publisher": "smoke"})"), kExitUsage);
  EXPECT_THAT(error_, HasSubstr(R"(publisher is "smoke")"));
  EXPECT_EQ(given(R"({"hwm": 7})"), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("there is no 'hwm'"));
}

TEST_F(SettingsTest, ASwitchTakesTrueOrFalseBehindAnEqualsSign) {
  for (const char* wrong : {"maybe", "2", "-1", "", "TRUE"}) {
    EXPECT_EQ(run({fmt::format("--enable-metrics={}", wrong)}), kExitUsage) << wrong;
    EXPECT_THAT(error_, HasSubstr(fmt::format("--enable-metrics: '{}' is neither", wrong)));
  }
  ASSERT_EQ(run({"--enable-metrics=true", "--log-requests=off", "--disable-radix-cache"}), -1);
  EXPECT_TRUE(config_.server.answers.enable_metrics);
  EXPECT_FALSE(config_.server.telemetry.log_requests);
  EXPECT_TRUE(config_.engine.cache.disable_radix_cache);
  EXPECT_EQ(run({"--enable-metrics", "--enable-metrics=false"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("given twice"));
  EXPECT_EQ(run({"--enable_metrics=true"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("did you mean --enable-metrics?"));
}

TEST_F(SettingsTest, AFlagWithoutItsValueAndAModelWithoutItsFlagAreNamed) {
  EXPECT_EQ(run({"--port"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("error: --port needs a value"));
  EXPECT_EQ(run({"--port="}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("error: --port needs a value"));
  EXPECT_EQ(run({folder_}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("a model is named by --model-path " + folder_));
}

TEST_F(SettingsTest, ContradictionsNameBothSides) {
  EXPECT_EQ(run({"--port", "1", "--port", "2"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--port is given twice, as '1' and as '2'"));
  ASSERT_EQ(run({"--schedule-policy", "lpm", "--disable-radix-cache"}), -1);
  EXPECT_THAT(check_contradictions(table_, config_).message(),
              HasSubstr("--schedule-policy contradicts --disable-radix-cache"));
}

TEST_F(SettingsTest, WhatASwitchMakesMeaninglessContradictsIt) {
  const std::string none_kept = "contradicts --disable-radix-cache", no_text = "no tokenizer";
  struct Case {
    std::vector<std::string> args;
    std::string reported;
  };
  for (const Case& c : std::vector<Case>{
           {{"--disable-radix-cache", "--radix-eviction-policy", "lfu"}, none_kept},
           {{"--disable-radix-cache", "--schedule-policy", "dfs-weight"}, none_kept},
           {{"--disable-radix-cache", "--kv-events-config", "{}"}, none_kept},
           {{"--skip-tokenizer-init", "--tool-call-parser", "hermes"}, no_text},
           {{"--skip-tokenizer-init", "--reasoning-parser", "qwen3"}, no_text},
           {{"--priority-scheduling-preemption-threshold", "5"},
            "needs --schedule-policy priority"},
           {{"--schedule-policy", "priority", "--disable-priority-preemption",
             "--priority-scheduling-preemption-threshold", "5"},
            "contradicts --disable-priority-preemption"},
           {{"--disable-hybrid-swa-memory", "--swa-full-tokens-ratio", "0.5"},
            "contradicts --disable-hybrid-swa-memory"},
           {{"--grammar-backend", "none", "--grammar-threads", "4"},
            "contradicts --grammar-backend"},
           {{"--log-requests", "--log-level", "warning"}, "contradicts --log-level"},
           {{"--hicache-write-policy", "write_back"}, "needs --enable-hierarchical-cache"},
           {{"--enable-hierarchical-cache", "--hicache-disk-size", "3"},
            "needs --hicache-storage-backend file"},
           {{"--enable-hierarchical-cache", "--hicache-storage-backend", "file",
             "--hicache-storage-backend-extra-config", R"({"url": "redis://cache"})"},
            "needs --hicache-storage-backend redis or s3"},
           {{"--enable-hierarchical-cache", "--hicache-storage-backend", "redis",
             "--hicache-storage-backend-extra-config", R"({"bucket": "cache"})"},
            "needs --hicache-storage-backend s3"},
           {{"--enable-hicache", "--hicache-size", "1", "--hicache-ratio", "2"},
            "contradicts --hicache-ratio"},
           {{"--disaggregation-token", "t"}, "needs --disaggregation-mode prefill or decode"},
           {{"--disaggregation-mode", "decode", "--disaggregation-bootstrap-port", "1"},
            "needs --disaggregation-mode prefill"},
           {{"--disaggregation-mode", "prefill", "--host", "0.0.0.0"}, "--disaggregation-token"},
           {{"--disaggregation-mode", "decode", "--host", "0.0.0.0"}, "--disaggregation-token"},
           {{"--dist-token", "t"}, "needs --nnodes above 1"},
           {{"--nnodes", "2", "--tp-size", "2", "--dist-init-addr", "10.0.0.1:9"}, "--dist-token"},
           {{"--nnodes", "2", "--tp-size", "2"}, "must be HOST:PORT"},
           {{"--nnodes", "2", "--dist-init-addr", "127.0.0.1:9"}, "tp_size is 1"},
       }) {
    ASSERT_EQ(run(c.args), -1) << error_;
    const Status status = check_contradictions(table_, config_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.args.front();
    EXPECT_THAT(status.message(), HasSubstr(c.reported));
  }
}

TEST_F(SettingsTest, ADtypeAndAQuantizationContradict) {
  EXPECT_EQ(run({"--quantization", "q8_0", "--dtype", "float32"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--quantization: 'q8_0' contradicts --dtype float32"));
  EXPECT_EQ(run({"--config", write("q.json", R"({"quantization": "q4_k"})"), "--dtype", "float32"}),
            kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--dtype: 'float32' contradicts --quantization q4_k"));
  ASSERT_EQ(run({"--config", write("q.json", R"({"quantization": "q8_0"})"), "--dtype", "auto"}),
            -1)
      << error_;
  EXPECT_EQ(config_.engine.model.dtype, "q8_0");
}

TEST_F(SettingsTest, WhatGoesTogetherIsNoContradiction) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--disable-radix-cache"},
           {"--disable-radix-cache", "--schedule-policy", "fcfs"},
           {"--disable-radix-cache", "--kv-events-config", R"({"publisher": "null"})"},
           {"--disable-radix-cache=false", "--radix-eviction-policy", "lfu"},
           {"--schedule-policy", "priority", "--priority-scheduling-preemption-threshold", "5"},
           {"--grammar-backend", "none", "--disable-jump-forward"},
           {"--enable-hierarchical-cache", "--hicache-storage-backend", "file",
            "--hicache-storage-path", "kv", "--hicache-disk-size", "0.5"},
           {"--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0"},
           {"--disaggregation-mode", "decode", "--disaggregation-token", "t"},
           {"--enable-hierarchical-cache", "--hicache-storage-backend", "file,redis",
            "--hicache-storage-backend-extra-config", R"({"url": "redis://cache", "user": "me",
            "password": "word", "ttl_seconds": 60, "lookup_timeout_ms": 20})",
            "--hicache-storage-prefetch-policy", "wait_complete"},
           {"--enable-hierarchical-cache", "--hicache-storage-backend", "file,s3",
            "--hicache-storage-backend-extra-config", R"({"bucket": "cache", "region": "moon",
            "endpoint": "http://minio:9000", "connections": 4, "access_key_id": "me",
            "secret_access_key": "word", "lookup_timeout_ms": 20})"},
           {"--log-requests", "--log-level", "debug"},
           {"--skip-tokenizer-init", "--tokenizer-worker-num", "4"},
           {"--context-length", "4096", "--max-total-tokens", "1024"}}) {
    ASSERT_EQ(run(args), -1) << error_;
    EXPECT_TRUE(check_contradictions(table_, config_).ok()) << args.back();
  }
}

// Storage that is attached later has what the first had, but no token of another key.
TEST_F(SettingsTest, StorageKeepsWhatIsLeftOut) {
  const auto read = [&](std::string_view text) {
    const Status status = read_storage_config(text, false, config_.engine.tiers);
    EXPECT_TRUE(status.ok()) << status.message();
  };
  const S3Server& s3 = config_.engine.tiers.s3;
  read(R"({"bucket": "one", "region": "moon", "session_token": "t", "access_key_id": "me"})");
  EXPECT_EQ(s3.session_token, "t");
  read(R"({"bucket": "two"})");
  EXPECT_EQ(s3.bucket, "two");
  EXPECT_EQ(s3.region, "moon");
  EXPECT_EQ(s3.session_token, "t");
  read(R"({"bucket": "two", "access_key_id": "you", "secret_access_key": "word"})");
  EXPECT_EQ(s3.session_token, "");
}

TEST_F(SettingsTest, HelpNamesEverySetting) {
  EXPECT_EQ(run({"--help"}), kExitOk);
  for (const Setting& row : table_.rows()) EXPECT_THAT(output_, HasSubstr("--" + row.name));
}

TEST_F(SettingsTest, ListsGatherAndANearerSourceReplacesThem) {
  const std::string file = write("s.json", R"({"stop": ["a", "b"]})");
  ASSERT_EQ(run({"--config", file}), -1) << error_;
  EXPECT_THAT(stops_, testing::ElementsAre("a", "b"));
  ASSERT_EQ(run({"--config", file, "--stop", "c", "--stop", "d"}), -1) << error_;
  EXPECT_THAT(stops_, testing::ElementsAre("c", "d"));
}

TEST(NearestTest, CountsASwapAsOneEditAndRefusesWhatIsFar) {
  EXPECT_EQ(nearest("serev", {"serve", "bench"}), "serve");
  EXPECT_EQ(nearest("inspct", {"serve", "inspect"}), "inspect");
  EXPECT_EQ(nearest("zebra", {"serve", "bench"}), "");
  EXPECT_EQ(nearest("mem-fraction", {"max-prefill-tokens", "mem-fraction-static"}),
            "mem-fraction-static");
  EXPECT_EQ(nearest("metrics", {"enable-metrics", "enable-other-metrics", "obmetrics"}),
            "obmetrics");  // an edit nearer than a part
  EXPECT_EQ(nearest("radix", {"disable-radix-cache", "radix-eviction-policy", "radixes-of-all"}),
            "disable-radix-cache");
  EXPECT_EQ(nearest("tric", {"enable-tric"}), "");
}

TEST(ModelPathTest, AnUnknownPathAndAMissingDefaultSayWhatToDo) {
  const Result<std::filesystem::path> unknown = resolve_model_path("/no/such/model");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), StatusCode::kNotFound);
  EXPECT_THAT(unknown.error().message(), HasSubstr("org/name of a Hugging Face hub"));
}

TEST_F(SettingsTest, TheShippedModelThatSeesHasAName) {
  EXPECT_EQ(shipped_model_folder(""), "default_model");
  EXPECT_EQ(shipped_model_folder("seeing"), "seeing_model");
  EXPECT_EQ(shipped_model_folder("org/seeing"), std::nullopt);
  EXPECT_EQ(shipped_model_folder("/no/such/model"), std::nullopt);
  const std::filesystem::path folder = folder_;
  const auto make = [&](const char* name) {
    std::filesystem::create_directories(folder / name);
    std::ofstream(folder / name / "config.json") << "{}";
    return folder / name;
  };
  const std::filesystem::path model = make("default_model");
  setenv("ESPALIER_SHARE", folder.c_str(), 1);
  EXPECT_EQ(resolve_model_path(""), model);
  const std::filesystem::path seeing = make("seeing_model");
  EXPECT_EQ(resolve_model_path("seeing"), seeing);
  unsetenv("ESPALIER_SHARE");
  // A file of the name is what the path means.
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  make("seeing");
  EXPECT_EQ(resolve_model_path("seeing"), "seeing");
  std::filesystem::current_path(before);
}

TEST(DocumentationTest, FlagsPageIsCurrent) {
  const std::string path = "docs/flags.md";
  if (std::getenv("ESPALIER_WRITE_DOCS") != nullptr) std::ofstream(path) << settings_markdown();
  std::stringstream there;
  there << std::ifstream(path).rdbuf();
  EXPECT_EQ(there.str(), settings_markdown())
      << "make it anew: ESPALIER_WRITE_DOCS=1 build/release/apps_test";
}

TEST(DocumentationTest, FlagsPageOfTheRouterIsCurrent) {
  const std::string path = "docs/router_flags.md";
  if (std::getenv("ESPALIER_WRITE_DOCS") != nullptr)
    std::ofstream(path) << route_settings_markdown();
  std::stringstream there;
  there << std::ifstream(path).rdbuf();
  EXPECT_EQ(there.str(), route_settings_markdown())
      << "make it anew: ESPALIER_WRITE_DOCS=1 build/release/apps_test";
}

}  // namespace
}  // namespace espalier::apps
